// SPDX-License-Identifier: MIT
/*
 * ways NAME: one of CUDA's newer ways to memory, by libcuda's driver interface. No CUDA to build it.
 *
 * The program stops at each phase and waits for a line with the charge of its container (tests/cuda/ways.py):
 *
 *   {"phase": "before", "bytes": 0}
 *   {"phase": "held", "bytes": 16777216}
 *   {"result": "cuMemCreate of a fabric handle", "is": 801}
 *   {"phase": "after", "bytes": 0}
 *
 * Exit status 0: each call returned what it should, and each copy held what was written. 1: {"failed": WHAT}. 4: this
 * libcuda lacks a call, {"missing": NAME}.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ways.h"

#define PEER_END	3

const struct cu_allocation pinned = { .type = CU_ALLOC_PINNED, .location = { CU_LOCATION_DEVICE, 0 } };
const struct cu_access readwrite = { .location = { CU_LOCATION_DEVICE, 0 }, .flags = CU_ACCESS_READWRITE };

static const struct {
	const char *name;
	void (*run)(void);
	void (*peer)(int parent);
	const char *loading;	/* CUDA_MODULE_LOADING */
	bool own_context;
} ways[] = {
	{ .name = "graph memory nodes", .run = graph_memory },
	{ .name = "graph capture", .run = graph_capture },
	{ .name = "cuMemMap", .run = map_none },
	{ .name = "cuMemMap, address kept", .run = map_kept_address },
	{ .name = "cuMemMap, file descriptor", .run = map_file, .peer = map_file_peer },
	{ .name = "cuMemMap, other handles", .run = map_refused },
	{ .name = "cuMemMap, host memory", .run = map_host },
	{ .name = "memory pool", .run = pool },
	{ .name = "memory pool, two processes", .run = pool_ipc, .peer = pool_ipc_peer },
	{ .name = "green contexts", .run = green },
	{ .name = "module, lazy loading", .run = module_lazy, .loading = "LAZY" },
	{ .name = "module, eager loading", .run = module_eager, .loading = "EAGER" },
	{ .name = "cuda-checkpoint", .run = checkpoint, .peer = checkpoint_peer, .own_context = true },
	{ .name = "cuda-checkpoint, slice full", .run = checkpoint_full, .peer = checkpoint_peer, .own_context = true },
	{ .name = "cuMemBatchDecompressAsync", .run = decompress },
	{ .name = "cuCheckpointProcess", .run = checkpoint_calls, .peer = checkpoint_peer, .own_context = true },
};

#define WAYS (sizeof(ways) / sizeof(ways[0]))

static void *library;
static bool quiet;	/* a peer */

void *ways_symbol(const char *name)
{
	void *found = dlsym(library, name);

	if (found)
		return found;
	printf("{\"missing\": \"%s\"}\n", name);
	exit(4);
}

void ways_want(const char *name, cu_result got, cu_result wanted)
{
	if (got == wanted)
		return;
	printf("{\"failed\": \"%s%s: %d, not %d\"}\n", quiet ? "peer: " : "", name, got, wanted);
	exit(1);
}

void ways_must_hold(const char *what, bool held)
{
	if (held)
		return;
	printf("{\"failed\": \"%s%s\"}\n", quiet ? "peer: " : "", what);
	exit(1);
}

/* The line has the number of bytes; an empty one is none. */
static uint64_t charge(void)
{
	char line[32] = "";

	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(3);
	return strtoull(line, NULL, 10);
}

uint64_t phase(const char *name, uint64_t bytes)
{
	if (quiet)
		return 0;
	printf("{\"phase\": \"%s\", \"bytes\": %llu}\n", name, (unsigned long long)bytes);
	return charge();
}

uint64_t phase_any(const char *name)
{
	printf("{\"phase\": \"%s\"}\n", name);
	return charge();
}

void phase_without(const char *name)
{
	printf("{\"phase\": \"%s\", \"bytes\": null}\n", name);
	charge();
}

void tell(const char *name, long long is)
{
	printf("{\"result\": \"%s\", \"is\": %lld}\n", name, is);
}

size_t total(void)
{
	size_t left, all;

	MUST(cuMemGetInfo_v2, &left, &all);
	return all & ~(2 * MIB - 1);
}

static void fill(uint32_t *words, unsigned int seed)
{
	for (uint32_t i = 0; i < PIECE / 4; i++)
		words[i] = i * 2654435761u + seed;
}

void put(cu_pointer at, unsigned int seed)
{
	uint32_t *words = malloc(PIECE);

	fill(words, seed);
	MUST(cuMemcpyHtoD_v2, at, words, PIECE);
	free(words);
}

bool holds(cu_pointer at, unsigned int seed)
{
	uint32_t *words = malloc(PIECE), *back = calloc(1, PIECE);
	bool held;

	fill(words, seed);
	MUST(cuMemcpyDtoH_v2, back, at, PIECE);
	held = !memcmp(words, back, PIECE);
	free(words);
	free(back);
	return held;
}

cu_pointer fill_slice(size_t *size)
{
	size_t left, all;
	cu_pointer at;

	MUST(cuMemGetInfo_v2, &left, &all);
	*size = (left - LEFT_OVER) & ~(2 * MIB - 1);
	MUST(cuMemAlloc_v2, &at, *size);
	return at;
}

/* ---- another process ---- */

pid_t start_peer(const char *way, int *end)
{
	int pair[2];
	pid_t peer;

	ways_must_hold("a socket", !socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	fflush(stdout);
	peer = fork();
	if (!peer) {
		dup2(pair[1], PEER_END);
		execl("/proc/self/exe", "ways", way, "peer", NULL);
		_exit(3);
	}
	close(pair[1]);
	*end = pair[0];
	return peer;
}

void wait_for_peer(pid_t peer)
{
	int status = -1;

	waitpid(peer, &status, 0);
	ways_must_hold("the peer ends well", !status);
}

void send_bytes(int to, const void *bytes, size_t size)
{
	ways_must_hold("the other process listens", write(to, bytes, size) == (ssize_t)size);
}

void take_bytes(int from, void *bytes, size_t size)
{
	ways_must_hold("the other process answers", read(from, bytes, size) == (ssize_t)size);
}

void send_word(int to, char word)
{
	send_bytes(to, &word, 1);
}

void take_word(int from, char word)
{
	char got;

	take_bytes(from, &got, 1);
	ways_must_hold("the other process is at the same step", got == word);
}

void send_file(int to, int fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char byte = 0;
	struct iovec data = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};

	control.head = (struct cmsghdr) {
		.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)),
	};
	memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
	ways_must_hold("a descriptor goes", sendmsg(to, &message, 0) == 1);
}

int take_file(int from)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	int fd;

	ways_must_hold("a descriptor comes", recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* ---- the program ---- */

int main(int argc, char **argv)
{
	cu_context context;
	unsigned int i;

	for (i = 0; i < WAYS && argc > 1; i++)
		if (!strcmp(ways[i].name, argv[1]))
			break;
	if (argc < 2 || i == WAYS) {
		fprintf(stderr, "ways NAME, one of:\n");
		for (i = 0; i < WAYS; i++)
			fprintf(stderr, "  %s\n", ways[i].name);
		return 2;
	}
	quiet = argc > 2;
	if (ways[i].loading)
		setenv("CUDA_MODULE_LOADING", ways[i].loading, 1);
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	if (!ways[i].own_context) {
		MUST(cuInit, 0);
		MUST(cuCtxCreate_v2, &context, 0, 0);
	}
	if (quiet)
		ways[i].peer(PEER_END);
	else
		ways[i].run();
	if (!ways[i].own_context)
		MUST(cuCtxDestroy_v2, context);
	return 0;
}
