// SPDX-License-Identifier: MIT
/* Calls of libcuda from 570 on: memory that the GPU decompresses, and a process that is suspended without a utility. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "ways.h"

#define PLAIN	32768
#define STORED	5		/* what deflate adds to bytes that it keeps as they are */

/* A deflate stream of one block that is not compressed. */
static void deflate(uint8_t *to, const uint8_t *from)
{
	const uint8_t head[STORED] = { 1, PLAIN & 0xff, PLAIN >> 8, ~PLAIN & 0xff, (~PLAIN >> 8) & 0xff };

	memcpy(to, head, STORED);
	memcpy(to + STORED, from, PLAIN);
}

/* The engine's buffers are the program's own: it takes nothing of the slice beside them. */
void decompress(void)
{
	static uint8_t plain[PLAIN], packed[PLAIN + STORED], back[PLAIN];
	struct cu_decompression one = { .size = sizeof(packed), .wanted = PLAIN, .algorithm = CU_DEFLATE };
	cuMemBatchDecompressAsync_fn *call = (cuMemBatchDecompressAsync_fn *)ways_symbol("cuMemBatchDecompressAsync");
	cu_pointer from, to, count;
	size_t failed = 0;
	cu_result result;
	int algorithms;

	for (int i = 0; i < PLAIN; i++)
		plain[i] = i * 7 + i / 256;
	deflate(packed, plain);
	phase("before", 0);
	MUST(cuDeviceGetAttribute, &algorithms, CU_DECOMPRESS_ALGORITHMS, 0);
	MUST(cuMemAlloc_v2, &from, PIECE);
	MUST(cuMemAlloc_v2, &to, PIECE);
	MUST(cuMemAlloc_v2, &count, PIECE);
	MUST(cuMemcpyHtoD_v2, from, packed, sizeof(packed));
	phase("held", 3 * PIECE);
	one.from = from;
	one.to = to;
	one.count = count;
	result = call(&one, 1, 0, &failed, NULL);
	tell("algorithms", algorithms);
	tell("cuMemBatchDecompressAsync", result);
	if (algorithms & CU_DEFLATE) {
		ways_want("cuMemBatchDecompressAsync", result, 0);
		MUST(cuCtxSynchronize);
		MUST(cuMemcpyDtoH_v2, back, to, PLAIN);
		ways_must_hold("the memory holds what was packed", !memcmp(plain, back, PLAIN));
	}
	phase("decompressed", 3 * PIECE);
	MUST(cuMemFree_v2, from);
	MUST(cuMemFree_v2, to);
	MUST(cuMemFree_v2, count);
	phase("after", 0);
}

static int state_of(pid_t process)
{
	int state = -1;

	MUST(cuCheckpointProcessGetState, process, &state);
	return state;
}

/* As `cuda-checkpoint --action`: a locked process keeps its memory, a suspended one has none of the GPU. */
void checkpoint_calls(void)
{
	int end;
	pid_t peer;

	ways_symbol("cuCheckpointProcessLock");
	peer = start_tenant("cuCheckpointProcess", &end);
	MUST(cuInit, 0);
	for (int round = 0; round < 2; round++) {
		MUST(cuCheckpointProcessLock, peer, NULL);
		ways_must_hold("the process is locked", state_of(peer) == CU_PROCESS_LOCKED);
		phase("locked", HELD);
		MUST(cuCheckpointProcessCheckpoint, peer, NULL);
		ways_must_hold("the process is suspended", state_of(peer) == CU_PROCESS_SUSPENDED);
		phase_without("suspended");
		MUST(cuCheckpointProcessRestore, peer, NULL);
		phase("restored", HELD);
		MUST(cuCheckpointProcessUnlock, peer, NULL);
		ways_must_hold("the process runs", state_of(peer) == CU_PROCESS_RUNS);
	}
	end_tenant(peer, end);
}
