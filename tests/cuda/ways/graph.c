// SPDX-License-Identifier: MIT
/* Memory that a graph allocates and frees, by nodes and by capture of a stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ways.h"

#define GRAPH_UNIT	(32 * MIB)	/* libcuda takes memory for graphs in such units */

static const struct cu_pool_properties device_memory = {
	.type = CU_ALLOC_PINNED, .location = { CU_LOCATION_DEVICE, 0 },
};

static uint64_t reserved(void)
{
	uint64_t bytes = 0;

	MUST(cuDeviceGetGraphMemAttribute, 0, CU_GRAPH_MEMORY_RESERVED, &bytes);
	return bytes;
}

/* Allocates, fills its first bytes and frees. */
static cu_graph graph_of(size_t size)
{
	struct cu_allocation_node memory = { .pool = device_memory, .size = size };
	struct cu_fill_node zero = { .value = 7, .element = 1, .width = 4096, .height = 1 };
	cu_node take, fill, give;
	cu_context context;
	cu_graph graph;

	MUST(cuCtxGetCurrent, &context);
	MUST(cuGraphCreate, &graph, 0);
	MUST(cuGraphAddMemAllocNode, &take, graph, NULL, 0, &memory);
	zero.to = memory.at;
	MUST(cuGraphAddMemsetNode, &fill, graph, &take, 1, &zero, context);
	MUST(cuGraphAddMemFreeNode, &give, graph, &fill, 1, memory.at);
	return graph;
}

/* The first result that is not 0 of instantiating, launching and waiting. */
static cu_result run_graph(cu_graph graph, cu_stream stream)
{
	cu_graph_exec ready;
	cu_result result = CALL(cuGraphInstantiateWithFlags, &ready, graph, 0);

	if (result)
		return result;
	result = CALL(cuGraphLaunch, ready, stream);
	if (!result)
		result = CALL(cuStreamSynchronize, stream);
	MUST(cuGraphExecDestroy, ready);
	return result;
}

void graph_memory(void)
{
	cu_pointer filled;
	cu_stream stream;
	cu_graph graph;
	size_t size;

	MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	graph = graph_of(PIECE);
	ways_want("the graph", run_graph(graph, stream), 0);	/* what a context takes once for graphs */
	MUST(cuDeviceGraphMemTrim, 0);
	phase("before", 0);
	ways_want("the graph", run_graph(graph, stream), 0);
	ways_must_hold("the graph's memory is kept for the next launch", reserved() == GRAPH_UNIT);
	phase("held", GRAPH_UNIT);
	MUST(cuDeviceGraphMemTrim, 0);
	phase("trimmed", 0);
	filled = fill_slice(&size);
	ways_want("a graph for which no memory is left", run_graph(graph, stream), CU_OUT_OF_MEMORY);
	phase("over", size);
	MUST(cuMemFree_v2, filled);
	ways_want("the graph after that", run_graph(graph, stream), 0);
	phase("again", GRAPH_UNIT);
	MUST(cuGraphDestroy, graph);
	MUST(cuDeviceGraphMemTrim, 0);
	phase("after", 0);
	MUST(cuStreamDestroy_v2, stream);
}

/* As PyTorch and NCCL do it: stream-ordered memory within the capture of a stream. */
void graph_capture(void)
{
	char *there = malloc(PIECE), *back = calloc(1, PIECE);
	cu_graph_exec ready;
	cu_stream stream;
	cu_graph graph;
	cu_pointer at, filled;
	size_t nodes, size;

	memset(there, 0x5c, PIECE);
	MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	phase("before", 0);
	MUST(cuStreamBeginCapture_v2, stream, CU_CAPTURE_GLOBAL);
	MUST(cuMemAllocAsync, &at, PIECE, stream);
	MUST(cuMemcpyHtoDAsync_v2, at, there, PIECE, stream);
	MUST(cuMemcpyDtoHAsync_v2, back, at, PIECE, stream);
	MUST(cuMemFreeAsync, at, stream);
	MUST(cuStreamEndCapture, stream, &graph);
	MUST(cuGraphGetNodes, graph, NULL, &nodes);
	ways_must_hold("four nodes were captured", nodes == 4);
	phase("captured", 0);
	MUST(cuGraphInstantiateWithFlags, &ready, graph, 0);
	for (int i = 0; i < 3; i++)
		MUST(cuGraphLaunch, ready, stream);
	MUST(cuStreamSynchronize, stream);
	ways_must_hold("the graph carries it there and back", !memcmp(there, back, PIECE));
	phase("held", GRAPH_UNIT);
	MUST(cuDeviceGraphMemTrim, 0);
	phase("trimmed", 0);
	filled = fill_slice(&size);
	WANT(CU_OUT_OF_MEMORY, cuGraphLaunch, ready, stream);
	phase("over", size);
	MUST(cuMemFree_v2, filled);
	memset(back, 0, PIECE);
	MUST(cuGraphLaunch, ready, stream);
	MUST(cuStreamSynchronize, stream);
	ways_must_hold("the graph works after that", !memcmp(there, back, PIECE));
	phase("again", GRAPH_UNIT);
	MUST(cuGraphExecDestroy, ready);
	MUST(cuGraphDestroy, graph);
	MUST(cuDeviceGraphMemTrim, 0);
	MUST(cuStreamDestroy_v2, stream);
	phase("after", 0);
	free(there);
	free(back);
}
