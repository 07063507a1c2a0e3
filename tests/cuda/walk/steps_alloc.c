// SPDX-License-Identifier: MIT
/* The other ways to memory: virtual addresses, exports, pools, other processes, managed, and too much of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "walk.h"

#define SIZE	(8 * MIB)
#define FILLED	(4 * KIB)	/* libcuda fills more by a kernel */

static const struct cu_allocation pinned = { .type = CU_ALLOC_PINNED, .location = { CU_LOCATION_DEVICE, 0 } };
static const struct cu_access readwrite = { .location = { CU_LOCATION_DEVICE, 0 }, .flags = CU_ACCESS_READWRITE };

static bool holds(cu_pointer at, unsigned int seed)
{
	char *back = calloc(1, SIZE);
	bool right;

	CALL(cuMemcpyDtoH_v2, back, at, SIZE);
	right = same(back, SIZE, seed);
	free(back);
	return right;
}

static void write_to(cu_pointer at, unsigned int seed)
{
	char *out = malloc(SIZE);

	pattern(out, SIZE, seed);
	CALL(cuMemcpyHtoD_v2, at, out, SIZE);
	free(out);
}

/* One allocation at two addresses: what goes in at the one comes out at the other. */
void step_vmm(struct walk *w)
{
	cu_pointer range;
	size_t grain = 0;
	cu_handle memory;

	(void)w;
	CALL(cuMemGetAllocationGranularity, &grain, &pinned, 0);
	walk_seen("granularity_kib", grain / KIB);
	if (CALL(cuMemAddressReserve, &range, 2 * SIZE, 0, 0, 0) || CALL(cuMemCreate, &memory, SIZE, &pinned, 0))
		return;
	CALL(cuMemMap, range, SIZE, 0, memory, 0);
	CALL(cuMemMap, range + SIZE, SIZE, 0, memory, 0);
	CALL(cuMemSetAccess, range, 2 * SIZE, &readwrite, 1);
	write_to(range, 41);
	walk_check("the same memory at two addresses", holds(range + SIZE, 41));
	CALL(cuMemUnmap, range, SIZE);
	walk_check("the other address stays", holds(range + SIZE, 41));
	CALL(cuMemUnmap, range + SIZE, SIZE);
	CALL(cuMemRelease, memory);
	CALL(cuMemAddressFree, range, 2 * SIZE);
}

void step_export(struct walk *w)
{
	struct cu_allocation shared = pinned;
	cu_handle memory, again;
	cu_pointer range;
	int fd = -1;

	(void)w;
	shared.handle_types = CU_HANDLE_FD;
	if (CALL(cuMemCreate, &memory, SIZE, &shared, 0) || CALL(cuMemAddressReserve, &range, 2 * SIZE, 0, 0, 0))
		return;
	CALL(cuMemMap, range, SIZE, 0, memory, 0);
	CALL(cuMemSetAccess, range, SIZE, &readwrite, 1);
	write_to(range, 43);
	if (!CALL(cuMemExportToShareableHandle, &fd, memory, CU_HANDLE_FD, 0) &&
	    !CALL(cuMemImportFromShareableHandle, &again, (void *)(intptr_t)fd, CU_HANDLE_FD)) {
		CALL(cuMemMap, range + SIZE, SIZE, 0, again, 0);
		CALL(cuMemSetAccess, range + SIZE, SIZE, &readwrite, 1);
		walk_check("what was exported is what is imported", holds(range + SIZE, 43));
		CALL(cuMemUnmap, range + SIZE, SIZE);
		CALL(cuMemRelease, again);
	}
	if (fd >= 0)
		close(fd);
	CALL(cuMemUnmap, range, SIZE);
	CALL(cuMemRelease, memory);
	CALL(cuMemAddressFree, range, 2 * SIZE);
}

void step_pools(struct walk *w)
{
	struct cu_pool_properties wanted = { .type = CU_ALLOC_PINNED, .location = { CU_LOCATION_DEVICE, 0 } };
	cu_stream stream;
	cu_pointer at;
	cu_pool pool;

	if (CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING))
		return;
	for (int i = 0; i < 4; i++)
		if (!CALL(cuMemAllocAsync, &at, SIZE << i, stream)) {
			CALL(cuMemsetD8Async, at, i, SIZE, stream);
			CALL(cuMemFreeAsync, at, stream);
		}
	CALL(cuStreamSynchronize, stream);
	if (!CALL(cuDeviceGetDefaultMemPool, &pool, w->device))
		CALL(cuMemPoolTrimTo, pool, 0);
	if (CALL(cuMemPoolCreate, &pool, &wanted))
		return;
	if (!CALL(cuMemAllocFromPoolAsync, &at, SIZE, pool, stream)) {
		CALL(cuStreamSynchronize, stream);
		write_to(at, 47);
		walk_check("memory of a pool holds what is written", holds(at, 47));
		CALL(cuMemFreeAsync, at, stream);
	}
	CALL(cuStreamSynchronize, stream);
	CALL(cuMemPoolDestroy, pool);
	CALL(cuStreamDestroy_v2, stream);
}

/* What the child is sent, and what it sends back. */
struct offer {
	struct cu_ipc memory, event;
	unsigned int seed;
};

struct answer {
	cu_result init, context, memory, event, wait, close;
	int held;
};

/* In a process of its own: libcuda does not survive a fork. */
int ipc_child(void)
{
	struct answer said = { 0 };
	struct offer offer;
	cu_context context;
	cu_event event;
	cu_pointer at;

	if (read(0, &offer, sizeof(offer)) != sizeof(offer))
		return 1;
	said.init = RAW(cuInit, 0);
	said.context = said.init ? MISSING : RAW(cuCtxCreate_v2, &context, 0, 0);
	if (!said.context) {
		said.event = RAW(cuIpcOpenEventHandle, &event, offer.event);
		said.wait = said.event ? MISSING : RAW(cuEventSynchronize, event);
		said.memory = RAW(cuIpcOpenMemHandle_v2, &at, offer.memory, CU_IPC_LAZY_PEER);
		said.held = !said.memory && holds(at, offer.seed);
		if (said.held)
			write_to(at, offer.seed + 1);
		said.close = said.memory ? MISSING : RAW(cuIpcCloseMemHandle, at);
		RAW(cuCtxDestroy_v2, context);
	}
	return write(1, &said, sizeof(said)) != sizeof(said);
}

static pid_t start_child(int *to, int *from)
{
	int down[2], up[2];
	pid_t child;

	if (pipe(down) || pipe(up))
		abort();
	child = fork();
	if (!child) {
		dup2(down[0], 0);
		dup2(up[1], 1);
		close(down[1]);
		close(up[0]);
		execl("/proc/self/exe", "walk", "--ipc-child", NULL);
		_exit(1);
	}
	close(down[0]);
	close(up[1]);
	*to = down[1];
	*from = up[0];
	return child;
}

void step_ipc(struct walk *w)
{
	struct answer said = { .init = MISSING };
	struct offer offer = { .seed = 53 };
	int to, from, status = 0;
	cu_event event;
	cu_pointer at;
	pid_t child;

	(void)w;
	if (CALL(cuMemAlloc_v2, &at, SIZE) || CALL(cuEventCreate, &event, CU_EVENT_NO_TIMING | CU_EVENT_INTERPROCESS))
		return;
	write_to(at, offer.seed);
	CALL(cuEventRecord, event, NULL);
	if (CALL(cuIpcGetMemHandle, &offer.memory, at) || CALL(cuIpcGetEventHandle, &offer.event, event))
		return;
	child = start_child(&to, &from);
	if (write(to, &offer, sizeof(offer)) != sizeof(offer) || read(from, &said, sizeof(said)) != sizeof(said))
		walk_check("the other process answers", false);
	close(to);
	close(from);
	waitpid(child, &status, 0);
	walk_check("the other process ends well", !status);
	walk_note("cuInit of the other process", said.init);
	walk_note("cuCtxCreate_v2 of the other process", said.context);
	walk_note("cuIpcOpenEventHandle", said.event);
	walk_note("cuEventSynchronize of the other process", said.wait);
	walk_note("cuIpcOpenMemHandle_v2", said.memory);
	walk_note("cuIpcCloseMemHandle", said.close);
	walk_check("the other process sees what is written", said.held);
	walk_check("what the other process writes is seen", holds(at, offer.seed + 1));
	CALL(cuEventDestroy_v2, event);
	CALL(cuMemFree_v2, at);
}

/* NOT_SUPPORTED where managed memory is denied; nothing else may then fail. */
void step_managed(struct walk *w)
{
	cu_pointer at;

	(void)w;
	if (CALL(cuMemAllocManaged, &at, SIZE, CU_MANAGED_GLOBAL))
		return;
	memset((void *)(uintptr_t)at, 1, SIZE);
	CALL(cuMemsetD8_v2, at, 2, FILLED);
	CALL(cuCtxSynchronize);
	/* By a kernel or not, as libcuda likes: no result. */
	walk_seen("the host sees what the device wrote", *(volatile char *)(uintptr_t)(at + FILLED - 1) == 2);
	CALL(cuMemFree_v2, at);
}

void step_over(struct walk *w)
{
	cu_handle memory;
	cu_pointer at;

	AS("cuMemAlloc_v2 of more than all", cuMemAlloc_v2, &at, w->total + GIB);
	AS("cuMemCreate of more than all", cuMemCreate, &memory, (w->total / GIB + 1) * GIB, &pinned, 0);
	if (!AS("cuMemAlloc_v2 after that", cuMemAlloc_v2, &at, SIZE)) {
		write_to(at, 59);
		walk_check("the context still copies", holds(at, 59));
		CALL(cuMemFree_v2, at);
	}
}
