// SPDX-License-Identifier: MIT
/* Stream-ordered memory: a pool that keeps what is freed, and one of which another process has memory. */
#include <stdio.h>
#include <unistd.h>

#include "ways.h"

#define POOL_UNIT	(32 * MIB)	/* libcuda takes memory for a pool in such units */

struct offer {
	struct cu_pool_pointer memory;
	struct cu_ipc written;
};

static cu_pool create(int handle_types)
{
	struct cu_pool_properties wanted = {
		.type = CU_ALLOC_PINNED, .handle_types = handle_types, .location = { CU_LOCATION_DEVICE, 0 },
	};
	cu_pool made;

	MUST(cuMemPoolCreate, &made, &wanted);
	return made;
}

void pool(void)
{
	uint64_t keep = ~0ull;
	cu_pool memory = create(CU_HANDLE_NONE);
	cu_stream stream;
	cu_pointer at, over;

	MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	MUST(cuMemPoolSetAttribute, memory, CU_POOL_THRESHOLD, &keep);
	phase("before", 0);
	MUST(cuMemAllocFromPoolAsync, &at, PIECE, memory, stream);
	MUST(cuStreamSynchronize, stream);
	put(at, 71);
	phase("held", POOL_UNIT);
	/* libcuda takes unit by unit, and the pool keeps what it has until then. */
	WANT(CU_OUT_OF_MEMORY, cuMemAllocFromPoolAsync, &over, total(), memory, stream);
	ways_must_hold("the pool grows to the limit", phase_any("over") > POOL_UNIT);
	ways_must_hold("the memory holds what is written", holds(at, 71));
	MUST(cuMemPoolTrimTo, memory, 0);
	phase("trimmed to what is in use", POOL_UNIT);
	MUST(cuMemFreeAsync, at, stream);
	MUST(cuStreamSynchronize, stream);
	phase("freed, kept by the pool", POOL_UNIT);
	MUST(cuMemPoolTrimTo, memory, 0);
	phase("trimmed", 0);
	MUST(cuMemAllocFromPoolAsync, &at, PIECE, memory, stream);
	MUST(cuMemFreeAsync, at, stream);
	MUST(cuStreamSynchronize, stream);
	MUST(cuMemPoolDestroy, memory);
	phase("after", 0);
	MUST(cuStreamDestroy_v2, stream);
}

/* Stream-ordered IPC: a pool and memory of it go to another process, which waits for the write by an event. */
void pool_ipc(void)
{
	cu_pool memory = create(CU_HANDLE_FD);
	struct offer offer;
	int end, fd = -1;
	cu_stream stream;
	cu_event written;
	cu_pointer at;
	uint64_t both;
	pid_t peer;

	MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	MUST(cuEventCreate, &written, CU_EVENT_NO_TIMING | CU_EVENT_INTERPROCESS);
	phase("before", 0);
	MUST(cuMemAllocFromPoolAsync, &at, PIECE, memory, stream);
	MUST(cuStreamSynchronize, stream);
	put(at, 81);
	MUST(cuEventRecord, written, stream);
	MUST(cuMemPoolExportToShareableHandle, &fd, memory, CU_HANDLE_FD, 0);
	MUST(cuMemPoolExportPointer, &offer.memory, at);
	MUST(cuIpcGetEventHandle, &offer.written, written);
	phase("held", POOL_UNIT);
	peer = start_peer("memory pool, two processes", &end);
	take_word(end, 'c');
	both = phase_any("with the peer's context");
	send_file(end, fd);
	close(fd);
	send_bytes(end, &offer, sizeof(offer));
	take_word(end, 'm');
	phase("imported", both);
	ways_must_hold("what the peer writes is seen", holds(at, 82));
	send_word(end, 'f');
	take_word(end, 'r');
	wait_for_peer(peer);
	phase("the peer has ended", POOL_UNIT);
	MUST(cuMemFreeAsync, at, stream);
	MUST(cuStreamSynchronize, stream);
	MUST(cuMemPoolDestroy, memory);
	phase("after", 0);
	MUST(cuEventDestroy_v2, written);
	MUST(cuStreamDestroy_v2, stream);
}

void pool_ipc_peer(int parent)
{
	struct offer offer;
	cu_stream stream;
	cu_event written;
	cu_pointer at, over;
	cu_pool memory;
	int fd;

	MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	send_word(parent, 'c');
	fd = take_file(parent);
	take_bytes(parent, &offer, sizeof(offer));
	MUST(cuMemPoolImportFromShareableHandle, &memory, (void *)(intptr_t)fd, CU_HANDLE_FD, 0);
	MUST(cuMemPoolSetAccess, memory, &readwrite, 1);
	MUST(cuMemPoolImportPointer, &at, memory, &offer.memory);
	MUST(cuIpcOpenEventHandle, &written, offer.written);
	MUST(cuStreamWaitEvent, stream, written, 0);
	MUST(cuStreamSynchronize, stream);
	ways_must_hold("what the owner writes is seen", holds(at, 81));
	put(at, 82);
	WANT(CU_OUT_OF_MEMORY, cuMemAlloc_v2, &over, total());
	send_word(parent, 'm');
	take_word(parent, 'f');
	MUST(cuMemFreeAsync, at, stream);	/* before its owner does, as CUDA demands */
	MUST(cuStreamSynchronize, stream);
	MUST(cuMemPoolDestroy, memory);
	MUST(cuEventDestroy_v2, written);
	send_word(parent, 'r');
	MUST(cuStreamDestroy_v2, stream);
}
