// SPDX-License-Identifier: MIT
/* Modules, kernels, streams, events, graphs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "walk.h"

#define STREAMS	8
#define SIZE	(1 * MIB)
#define FILLED	(4 * KIB)	/* libcuda fills more by a kernel */
#define COUNT	4096u
#define THREADS	256u

static cu_result fill(const struct walk *w, cu_pointer at, cu_stream stream)
{
	unsigned int count = COUNT;
	void *arguments[] = { &at, &count };

	return CALL(cuLaunchKernel, w->fill, COUNT / THREADS, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL);
}

void step_module(struct walk *w)
{
	static char log[4096];
	int options[] = { 3, 4, 7 };	/* info log, its size, optimisation level */
	void *values[] = { log, (void *)sizeof(log), (void *)(uintptr_t)4 };
	cu_module module;
	cu_pointer word;
	cu_link link;
	void *binary;
	size_t size;
	int value;

	for (int i = 0; i < 8; i++)
		CALL(cuFuncGetAttribute, &value, i, w->fill);
	CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &value, w->fill, THREADS, 0);
	walk_check("an SM takes a block", value > 0);
	if (!CALL(cuModuleGetGlobal_v2, &word, &size, w->module, "word")) {
		char out[4096], back[4096] = "";

		walk_check("a variable has its size", size == sizeof(out));
		pattern(out, sizeof(out), 21);
		CALL(cuMemcpyHtoD_v2, word, out, sizeof(out));
		CALL(cuMemcpyDtoH_v2, back, word, sizeof(back));
		walk_check("a variable holds what is written", same(back, sizeof(back), 21));
	}
	if (!CALL(cuModuleLoadDataEx, &module, walk_ptx, 3, options, values))
		CALL(cuModuleUnload, module);
	if (CALL(cuLinkCreate_v2, 0, NULL, NULL, &link))
		return;
	CALL(cuLinkAddData_v2, link, CU_INPUT_PTX, (void *)walk_ptx, strlen(walk_ptx) + 1, "walk", 0, NULL, NULL);
	if (!CALL(cuLinkComplete, link, &binary, &size) &&
	    !AS("cuModuleLoadData of what was linked", cuModuleLoadData, &module, binary))
		CALL(cuModuleUnload, module);
	CALL(cuLinkDestroy, link);
}

static void count_call(void *at)
{
	++*(int *)at;
}

void step_launch(struct walk *w)
{
	unsigned int count = COUNT;
	cu_stream stream;
	cu_pointer at;
	int called = 0;
	void *arguments[] = { &at, &count };

	if (CALL(cuMemAlloc_v2, &at, SIZE) || CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING))
		return;
	fill(w, at, NULL);
	CALL(cuCtxSynchronize);
	for (int i = 0; i < 200; i++)
		fill(w, at, stream);
	CALL(cuStreamSynchronize, stream);
	AS("cuLaunchKernel of many blocks", cuLaunchKernel, w->wait, 65535, 2, 1, 64, 1, 1, 0, stream, NULL, NULL);
	AS("cuLaunchKernel in three dimensions", cuLaunchKernel, w->wait, 8, 8, 8, 8, 8, 4, 1024, stream, NULL, NULL);
	CALL(cuLaunchCooperativeKernel, w->fill, 4, 1, 1, THREADS, 1, 1, 0, stream, arguments);
	AS("cuLaunchKernel of too many threads", cuLaunchKernel, w->wait, 1, 1, 1, 4096, 1, 1, 0, stream, NULL, NULL);
	CALL(cuLaunchHostFunc, stream, count_call, &called);
	CALL(cuStreamSynchronize, stream);
	walk_check("a function of the host was called once", called == 1);
	CALL(cuStreamDestroy_v2, stream);
	CALL(cuMemFree_v2, at);
}

void step_streams(struct walk *w)
{
	cu_stream stream[STREAMS], high;
	char *out[STREAMS], *back[STREAMS];
	cu_pointer at, flag;
	cu_event event;
	int low = 0, best = 0;
	uint32_t word = 0;

	if (CALL(cuMemAlloc_v2, &at, STREAMS * SIZE) || CALL(cuMemAlloc_v2, &flag, 4096) ||
	    CALL(cuEventCreate, &event, CU_EVENT_NO_TIMING))
		return;
	for (int i = 0; i < STREAMS; i++) {
		CALL(cuStreamCreate, &stream[i], i % 2 ? CU_STREAM_NON_BLOCKING : CU_DEFAULT);
		CALL(cuMemHostAlloc, (void **)&out[i], SIZE, 0);
		CALL(cuMemHostAlloc, (void **)&back[i], SIZE, 0);
		pattern(out[i], SIZE, i);
	}
	for (int i = 0; i < STREAMS; i++) {
		CALL(cuMemcpyHtoDAsync_v2, at + i * SIZE, out[i], SIZE, stream[i]);
		CALL(cuEventRecord, event, stream[i]);
		CALL(cuStreamWaitEvent, stream[(i + 1) % STREAMS], event, 0);
		CALL(cuMemcpyDtoHAsync_v2, back[i], at + i * SIZE, SIZE, stream[i]);
	}
	for (int i = 0; i < STREAMS; i++) {
		CALL(cuStreamSynchronize, stream[i]);
		CALL(cuStreamQuery, stream[i]);
		walk_check("each stream copies its own", same(back[i], SIZE, i));
	}
	CALL(cuMemsetD32_v2, flag, 0, 1);
	CALL(cuStreamWaitValue32_v2, stream[0], flag, 7, CU_WAIT_GEQ);
	CALL(cuStreamWriteValue32_v2, stream[1], flag, 7, 0);
	CALL(cuStreamSynchronize, stream[0]);
	CALL(cuMemcpyDtoH_v2, &word, flag, sizeof(word));
	walk_check("one stream waits for what another writes", word == 7);
	CALL(cuCtxGetStreamPriorityRange, &low, &best);
	if (!CALL(cuStreamCreateWithPriority, &high, CU_STREAM_NON_BLOCKING, best)) {
		fill(w, at, high);
		CALL(cuStreamSynchronize, high);
		CALL(cuStreamDestroy_v2, high);
	}
	for (int i = 0; i < STREAMS; i++) {
		CALL(cuStreamDestroy_v2, stream[i]);
		CALL(cuMemFreeHost, out[i]);
		CALL(cuMemFreeHost, back[i]);
	}
	CALL(cuEventDestroy_v2, event);
}

void step_events(struct walk *w)
{
	cu_event from, to, sleepy;
	cu_stream stream;
	cu_pointer at;
	float ms = -1;

	if (CALL(cuMemAlloc_v2, &at, SIZE) || CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING) ||
	    CALL(cuEventCreate, &from, CU_EVENT_DEFAULT) || CALL(cuEventCreate, &to, CU_EVENT_DEFAULT) ||
	    CALL(cuEventCreate, &sleepy, CU_EVENT_BLOCKING))
		return;
	CALL(cuEventRecord, from, stream);
	for (int i = 0; i < 20; i++)
		fill(w, at, stream);
	CALL(cuEventRecord, to, stream);
	CALL(cuEventSynchronize, to);
	CALL(cuEventQuery, to);
	if (!CALL(cuEventElapsedTime, &ms, from, to)) {
		walk_seen("elapsed_ms", ms);
		walk_check("20 kernels take some time", ms > 0 && ms < 10000);
	}
	fill(w, at, stream);
	CALL(cuEventRecord, sleepy, stream);
	AS("cuEventSynchronize that sleeps", cuEventSynchronize, sleepy);
	CALL(cuEventDestroy_v2, from);
	CALL(cuEventDestroy_v2, to);
	CALL(cuEventDestroy_v2, sleepy);
	CALL(cuStreamDestroy_v2, stream);
	CALL(cuMemFree_v2, at);
}

static void launch_graph(cu_graph graph, cu_stream stream, int times)
{
	cu_graph_exec ready;

	if (CALL(cuGraphInstantiateWithFlags, &ready, graph, 0))
		return;
	CALL(cuGraphUpload, ready, stream);
	for (int i = 0; i < times; i++)
		CALL(cuGraphLaunch, ready, stream);
	CALL(cuStreamSynchronize, stream);
	CALL(cuGraphExecDestroy, ready);
}

/* What a stream would do, recorded and then done three times. */
void step_graph(struct walk *w)
{
	cu_graph graph = NULL;
	cu_stream stream;
	cu_pointer at, other;
	size_t nodes = 0;
	char *out, *back;

	if (CALL(cuMemAlloc_v2, &at, SIZE) || CALL(cuMemAlloc_v2, &other, SIZE) ||
	    CALL(cuMemHostAlloc, (void **)&out, SIZE, 0) || CALL(cuMemHostAlloc, (void **)&back, SIZE, 0) ||
	    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING))
		return;
	pattern(out, SIZE, 31);
	memset(back, 0, SIZE);
	CALL(cuStreamBeginCapture_v2, stream, CU_CAPTURE_GLOBAL);
	CALL(cuMemsetD8Async, at, 0, SIZE, stream);
	CALL(cuMemcpyHtoDAsync_v2, at, out, SIZE, stream);
	fill(w, other, stream);
	CALL(cuMemcpyDtoHAsync_v2, back, at, SIZE, stream);
	CALL(cuStreamEndCapture, stream, &graph);
	if (graph) {
		CALL(cuGraphGetNodes, graph, NULL, &nodes);
		walk_check("each call is a node", nodes == 4);
		walk_check("nothing was done yet", !same(back, SIZE, 31));
		launch_graph(graph, stream, 3);
		walk_check("the graph copied there and back", same(back, SIZE, 31));
		CALL(cuGraphDestroy, graph);
	}
	CALL(cuStreamDestroy_v2, stream);
	CALL(cuMemFreeHost, out);
	CALL(cuMemFreeHost, back);
}

void step_graph_by_hand(struct walk *w)
{
	struct cu_fill_node clear = { .value = 0x6b, .element = 1, .width = FILLED, .height = 1 };
	unsigned int count = COUNT;
	cu_pointer at, other;
	void *arguments[] = { &other, &count };
	struct cu_kernel_node kernel = { .function = w->fill, .grid = { COUNT / THREADS, 1, 1 },
					 .block = { THREADS, 1, 1 }, .parameters = arguments };
	cu_node first, second, third;
	unsigned char back[256] = { 0 };
	cu_graph graph;
	cu_stream stream;

	if (CALL(cuMemAlloc_v2, &at, SIZE) || CALL(cuMemAlloc_v2, &other, SIZE) ||
	    CALL(cuStreamCreate, &stream, CU_DEFAULT) || CALL(cuGraphCreate, &graph, 0))
		return;
	clear.to = at;
	CALL(cuGraphAddKernelNode, &first, graph, NULL, 0, &kernel);
	CALL(cuGraphAddMemsetNode, &second, graph, &first, 1, &clear, w->context);
	CALL(cuGraphAddKernelNode, &third, graph, &first, 1, &kernel);
	launch_graph(graph, stream, 5);
	CALL(cuMemcpyDtoH_v2, back, at + FILLED - sizeof(back), sizeof(back));
	walk_check("the memset node filled it", back[0] == 0x6b && back[255] == 0x6b);
	CALL(cuGraphDestroy, graph);
	CALL(cuStreamDestroy_v2, stream);
}
