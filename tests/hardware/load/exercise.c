// SPDX-License-Identifier: MIT
/* exercise STEP: a few calls of one part of CUDA's driver interface, to be traced. No CUDA to build it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>

#include "cuda.h"

#define SIZE		(4u << 20)
#define MANAGED_GLOBAL	1
#define POOL_TYPE_PINNED 1
#define LOCATION_DEVICE	1
#define ACCESS_READWRITE 3
#define CAPTURE_GLOBAL	0
#define IPC_PEER_LAZY	1

static struct cuda cu;
static cu_device device;

/* CUmemAllocationProp, CUmemAccessDesc, CUipcMemHandle */
struct allocation {
	int type, handle_types;
	struct {
		int type, id;
	} location;
	void *win32;
	struct {
		unsigned char compression, rdma, usage[2], reserved[4];
	} flags;
};

struct access {
	struct {
		int type, id;
	} location;
	int flags;
};

struct ipc_handle {
	char reserved[64];
};

static void must(cu_result result, const char *call)
{
	if (!result)
		return;
	fprintf(stderr, "exercise: %s: %s (%d)\n", call, cuda_error(&cu, result), result);
	exit(1);
}

/* What only some steps need is looked up there. */
static void *symbol(const char *name)
{
	void *found = dlsym(cu.library, name);

	if (!found) {
		fprintf(stderr, "exercise: libcuda.so.1 has no %s\n", name);
		exit(1);
	}
	return found;
}

#define CALL(name, parameters, ...) must(((cu_result (*) parameters)symbol(#name))(__VA_ARGS__), #name)

static void context(void)
{
	cu_context made;

	must(cu.device_get(&device, 0), "cuDeviceGet");
	must(cu.context_retain(&made, device), "cuDevicePrimaryCtxRetain");
	must(cu.context_set(made), "cuCtxSetCurrent");
}

static cu_stream stream(void)
{
	cu_stream made;

	must(cu.stream_create(&made, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	return made;
}

static void do_init(void)
{
}

static void do_alloc(void)
{
	static const size_t sizes[] = { 1, 4096, 1 << 20, 2 << 20, 64 << 20 };
	cu_pointer at;

	context();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		must(cu.mem_alloc(&at, sizes[i]), "cuMemAlloc");
		must(cu.mem_free(at), "cuMemFree");
	}
}

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* What an allocation and its end take, of a size that the library does not serve by itself. */
static void do_timed(void)
{
	static uint64_t ns[300];
	const size_t n = sizeof(ns) / sizeof(ns[0]);
	cu_pointer at;

	context();
	for (size_t i = 0; i < n; i++) {
		ns[i] = clock_ns();
		must(cu.mem_alloc(&at, 8 * SIZE), "cuMemAlloc");
		must(cu.mem_free(at), "cuMemFree");
		ns[i] = clock_ns() - ns[i];
	}
	qsort(ns, n, sizeof(ns[0]), compare);
	printf("{\"n\":%zu,\"median_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}\n", n, ns[n / 2] / 1e3,
	       ns[n * 99 / 100] / 1e3, ns[n - 1] / 1e3);
}

static void do_vmm(void)
{
	struct allocation how = { .type = POOL_TYPE_PINNED, .location = { LOCATION_DEVICE, 0 } };
	struct access access = { .location = { LOCATION_DEVICE, 0 }, .flags = ACCESS_READWRITE };
	unsigned long long handle;
	cu_pointer at;

	context();
	CALL(cuMemAddressReserve, (cu_pointer *, size_t, size_t, cu_pointer, unsigned long long), &at, SIZE, 0, 0, 0);
	CALL(cuMemCreate, (unsigned long long *, size_t, const struct allocation *, unsigned long long), &handle, SIZE,
	     &how, 0);
	CALL(cuMemMap, (cu_pointer, size_t, size_t, unsigned long long, unsigned long long), at, SIZE, 0, handle, 0);
	CALL(cuMemSetAccess, (cu_pointer, size_t, const struct access *, size_t), at, SIZE, &access, 1);
	CALL(cuMemUnmap, (cu_pointer, size_t), at, SIZE);
	CALL(cuMemRelease, (unsigned long long), handle);
	CALL(cuMemAddressFree, (cu_pointer, size_t), at, SIZE);
}

static void do_pool(void)
{
	cu_stream on;
	cu_pointer at;

	context();
	on = stream();
	for (int i = 0; i < 4; i++) {
		CALL(cuMemAllocAsync, (cu_pointer *, size_t, cu_stream), &at, SIZE << i, on);
		CALL(cuMemFreeAsync, (cu_pointer, cu_stream), at, on);
	}
	must(cu.context_synchronize(), "cuCtxSynchronize");
}

static void do_managed(void)
{
	cu_pointer at;

	context();
	CALL(cuMemAllocManaged, (cu_pointer *, size_t, unsigned int), &at, SIZE, MANAGED_GLOBAL);
	memset((void *)(uintptr_t)at, 1, SIZE);
	CALL(cuMemsetD8_v2, (cu_pointer, unsigned char, size_t), at, 2, SIZE);
	must(cu.context_synchronize(), "cuCtxSynchronize");
	if (((volatile char *)(uintptr_t)at)[SIZE - 1] != 2)
		fprintf(stderr, "exercise: managed memory does not hold what was written\n");
	must(cu.mem_free(at), "cuMemFree");
}

static void do_streams(void)
{
	cu_pointer at;

	context();
	must(cu.mem_alloc(&at, SIZE), "cuMemAlloc");
	for (int i = 0; i < 16; i++)
		CALL(cuMemsetD8Async, (cu_pointer, unsigned char, size_t, cu_stream), at, i, SIZE, stream());
	must(cu.context_synchronize(), "cuCtxSynchronize");
}

static void do_graph(void)
{
	void *graph, *ready;
	cu_stream on;
	cu_pointer at;

	context();
	on = stream();
	must(cu.mem_alloc(&at, SIZE), "cuMemAlloc");
	CALL(cuStreamBeginCapture_v2, (cu_stream, int), on, CAPTURE_GLOBAL);
	CALL(cuMemsetD8Async, (cu_pointer, unsigned char, size_t, cu_stream), at, 1, SIZE, on);
	CALL(cuStreamEndCapture, (cu_stream, void **), on, &graph);
	CALL(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long), &ready, graph, 0);
	CALL(cuGraphLaunch, (void *, cu_stream), ready, on);
	must(cu.context_synchronize(), "cuCtxSynchronize");
}

/* The child opens what the parent made; each has a context of its own, so the fork comes first. */
static void do_ipc(void)
{
	struct ipc_handle handle;
	cu_pointer at;
	int to_child[2], how = 0;
	pid_t child;

	if (pipe(to_child))
		exit(1);
	child = fork();
	must(cu.init(0), "cuInit");
	context();
	if (child) {
		must(cu.mem_alloc(&at, SIZE), "cuMemAlloc");
		CALL(cuIpcGetMemHandle, (struct ipc_handle *, cu_pointer), &handle, at);
		if (write(to_child[1], &handle, sizeof(handle)) != sizeof(handle))
			exit(1);
		waitpid(child, &how, 0);
		if (!WIFEXITED(how) || WEXITSTATUS(how))
			fprintf(stderr, "exercise: the other process could not open it\n");
		exit(WIFEXITED(how) ? WEXITSTATUS(how) : 1);
	}
	if (read(to_child[0], &handle, sizeof(handle)) != sizeof(handle))
		exit(1);
	CALL(cuIpcOpenMemHandle_v2, (cu_pointer *, struct ipc_handle, unsigned int), &at, handle, IPC_PEER_LAZY);
	CALL(cuIpcCloseMemHandle, (cu_pointer), at);
}

static const struct {
	const char *name;
	void (*run)(void);
	int forks;
} steps[] = {
	{ "init", do_init, 0 }, { "alloc", do_alloc, 0 }, { "vmm", do_vmm, 0 }, { "pool", do_pool, 0 },
	{ "managed", do_managed, 0 }, { "streams", do_streams, 0 }, { "graph", do_graph, 0 }, { "ipc", do_ipc, 1 },
	{ "timed", do_timed, 0 },
};

int main(int argc, char **argv)
{
	const char *missing = cuda_load(&cu);

	if (missing) {
		fprintf(stderr, "exercise: %s\n", missing);
		return 1;
	}
	for (size_t i = 0; argc == 2 && i < sizeof(steps) / sizeof(steps[0]); i++) {
		if (strcmp(argv[1], steps[i].name))
			continue;
		if (!steps[i].forks)
			must(cu.init(0), "cuInit");
		steps[i].run();
		return 0;
	}
	fprintf(stderr, "usage: exercise init|alloc|vmm|pool|managed|streams|graph|ipc|timed\n");
	return 2;
}
