// SPDX-License-Identifier: MIT
/*
 * peers copy | peers reduce: two GPUs of one container by CUDA's driver interface, as simpleP2P and an all-reduce of two
 * processes use it. No CUDA to build it; a simulated GPU executes no kernel, so the sum is the processor's.
 *
 * Prints one object of JSON: {"can": [1, 1], "steps": {"cuMemcpyPeer": 0, ...}, "held": true}, and waits for a line
 * from stdin before it frees what it has, so that charges can be read. The exit status is 0 where each call returned 0
 * and each copy held what was written.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../walk/calls.h"

#define SIZE	(8u << 20)
#define WORDS	(SIZE / 4)
#define RANKS	2

static bool failed;
static int count;

static void *symbol(const char *name)
{
	static void *library;

	if (!library)
		library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
	return dlsym(library, name);
}

static cu_result note(const char *name, cu_result result)
{
	printf("%s\"%s\": %d", count++ ? ", " : "", name, result);
	failed |= result != 0;
	return result;
}

#define CALL(type, name, ...) note(#name, ((cu_result (*)type)symbol(#name))(__VA_ARGS__))

static void set(cu_context context)
{
	CALL((cu_context), cuCtxSetCurrent, context);
}

static cu_context context_on(cu_device device)
{
	cu_context context = NULL;

	CALL((cu_context *, unsigned int, cu_device), cuCtxCreate_v2, &context, 0, device);
	return context;
}

static cu_pointer memory(void)
{
	cu_pointer at = 0;

	CALL((cu_pointer *, size_t), cuMemAlloc_v2, &at, SIZE);
	return at;
}

static void put(cu_pointer to, const uint32_t *words, size_t size)
{
	CALL((cu_pointer, const void *, size_t), cuMemcpyHtoD_v2, to, words, size);
}

static void get(uint32_t *words, cu_pointer from, size_t size)
{
	memset(words, 0, size);
	CALL((void *, cu_pointer, size_t), cuMemcpyDtoH_v2, words, from, size);
}

static void wait_for_line(void)
{
	fflush(stdout);
	while (getchar() != '\n' && !feof(stdin))
		;
}

/* ---- one process ---- */

static void fill(uint32_t *words, uint32_t seed)
{
	uint32_t i;

	for (i = 0; i < WORDS; i++)
		words[i] = i * 2654435761u + seed;
}

static bool copy(uint32_t *words, uint32_t *back)
{
	cu_context context[2];
	cu_pointer at[2];
	bool held = true;
	int i;

	for (i = 0; i < 2; i++) {
		context[i] = context_on(i);
		at[i] = memory();
	}
	for (i = 0; i < 2; i++) {
		set(context[i]);
		CALL((cu_context, unsigned int), cuCtxEnablePeerAccess, context[!i], 0);
	}
	fill(words, 1);
	put(at[1], words, SIZE);
	CALL((cu_pointer, cu_context, cu_pointer, cu_context, size_t), cuMemcpyPeer, at[0], context[0], at[1], context[1],
	     (size_t)SIZE);
	get(back, at[0], SIZE);
	held &= !memcmp(words, back, SIZE);
	/* One address space: the second's copy engine reads and writes the first's memory by its address. */
	fill(words, 2);
	put(at[1], words, SIZE);
	CALL((cu_pointer, cu_pointer, size_t), cuMemcpyDtoD_v2, at[0], at[1], (size_t)SIZE);
	CALL((void), cuCtxSynchronize);
	get(back, at[0], SIZE);
	held &= !memcmp(words, back, SIZE);
	printf("}, \"held\": %s}\n", held ? "true" : "false");
	wait_for_line();
	printf("{\"after\": {");
	count = 0;
	for (i = 0; i < 2; i++) {
		set(context[i]);
		CALL((cu_context), cuCtxDisablePeerAccess, context[!i]);
		CALL((cu_pointer), cuMemFree_v2, at[i]);
	}
	for (i = 0; i < 2; i++)
		CALL((cu_context), cuCtxDestroy_v2, context[i]);
	printf("}}\n");
	return held;
}

/* ---- two processes ---- */

static void barrier(int peer)
{
	char c = 'x';

	if (write(peer, &c, 1) != 1 || read(peer, &c, 1) != 1)
		exit(3);
}

/*
 * Each rank has a vector on a GPU of its own and sums one half of both; then each takes the other half from its peer.
 * The peer's memory comes by IPC and is read over the peers.
 */
static bool reduce(int rank, int peer, uint32_t *words, uint32_t *back)
{
	const size_t half = SIZE / 2, mine = rank * half, theirs = SIZE - half - mine;
	struct cu_ipc offer, other;
	cu_context context = context_on(rank);
	cu_pointer at = memory(), scratch = memory(), peers = 0;
	bool held = true;
	uint32_t i;

	fill(words, rank);
	put(at, words, SIZE);
	memset(&offer, 0, sizeof(offer));
	CALL((struct cu_ipc *, cu_pointer), cuIpcGetMemHandle, &offer, at);
	if (write(peer, &offer, sizeof(offer)) != sizeof(offer) || read(peer, &other, sizeof(other)) != sizeof(other))
		exit(3);
	CALL((cu_pointer *, struct cu_ipc, unsigned int), cuIpcOpenMemHandle_v2, &peers, other, CU_IPC_LAZY_PEER);
	CALL((cu_pointer, cu_pointer, size_t), cuMemcpyDtoD_v2, scratch, peers + mine, half);
	get(back, scratch, half);
	for (i = 0; i < half / 4; i++)
		words[mine / 4 + i] += back[i];
	barrier(peer);		/* both have read what they sum */
	put(at + mine, words + mine / 4, half);
	barrier(peer);		/* both have written their sums */
	CALL((cu_pointer, cu_pointer, size_t), cuMemcpyDtoD_v2, at + theirs, peers + theirs, half);
	CALL((void), cuCtxSynchronize);
	get(back, at, SIZE);
	for (i = 0; i < WORDS; i++)
		held &= back[i] == 2 * (i * 2654435761u) + 1;
	barrier(peer);
	if (!rank) {
		printf("}, \"held\": %s}\n", held ? "true" : "false");
		wait_for_line();
		printf("{\"after\": {");
		count = 0;
	}
	barrier(peer);
	CALL((cu_pointer), cuIpcCloseMemHandle, peers);
	CALL((cu_pointer), cuMemFree_v2, scratch);
	barrier(peer);
	CALL((cu_pointer), cuMemFree_v2, at);
	CALL((cu_context), cuCtxDestroy_v2, context);
	if (!rank)
		printf("}}\n");
	return held;
}

/* libcuda does not survive a fork: each rank is a program of its own. */
static int start_rank(const char *self, int *peer)
{
	int pair[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(3);
	child = fork();
	if (!child) {
		dup2(pair[1], 3);
		execl(self, "peers", "rank", NULL);
		_exit(3);
	}
	close(pair[1]);
	*peer = pair[0];
	return child;
}

int main(int argc, char **argv)
{
	uint32_t *words = malloc(SIZE), *back = malloc(SIZE);
	bool second = argc > 1 && !strcmp(argv[1], "rank"), held;
	int can[2] = { -1, -1 }, peer = 3, status = 0, child = 0;

	if (argc < 2 || !words || !back)
		return 2;
	if (second && !freopen("/dev/null", "w", stdout))
		return 2;
	if (!strcmp(argv[1], "reduce"))
		child = start_rank("/proc/self/exe", &peer);
	printf("{\"steps\": {");
	CALL((unsigned int), cuInit, 0);
	CALL((int *, cu_device, cu_device), cuDeviceCanAccessPeer, &can[0], 0, 1);
	CALL((int *, cu_device, cu_device), cuDeviceCanAccessPeer, &can[1], 1, 0);
	printf(", \"can access\": %d", can[0] == 1 && can[1] == 1);
	held = !strcmp(argv[1], "copy") ? copy(words, back) : reduce(second, peer, words, back);
	if (child)
		waitpid(child, &status, 0);
	return failed || !held || status;
}
