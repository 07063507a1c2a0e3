// SPDX-License-Identifier: MIT
/* A graph with nodes that allocate, fill, copy, call the host and free; updated, launched again. */
#include "program.h"

#define SIZE (16 << 20)

static void CUDART_CB count(void *at)
{
	(*(int *)at)++;
}

int main(void)
{
	char *there = (char *)malloc(SIZE), *back = (char *)calloc(1, SIZE);
	cudaGraphNode_t take, fill, copy, out, call, give;
	cudaMemAllocNodeParams memory = {};
	cudaHostNodeParams host = {};
	cudaMemsetParams zero = {};
	cudaGraphExecUpdateResultInfo changed = {};
	cudaGraphExec_t ready;
	cudaStream_t stream;
	size_t used = 1;
	cudaGraph_t graph;
	int called = 0;

	memset(there, 0x29, SIZE);
	MUST(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
	MUST(cudaGraphCreate(&graph, 0));
	memory.poolProps.allocType = cudaMemAllocationTypePinned;
	memory.poolProps.location.type = cudaMemLocationTypeDevice;
	memory.bytesize = SIZE;
	MUST(cudaGraphAddMemAllocNode(&take, graph, NULL, 0, &memory));
	zero.dst = memory.dptr;
	zero.value = 1;
	zero.elementSize = 1;
	zero.width = 4096;
	zero.height = 1;
	MUST(cudaGraphAddMemsetNode(&fill, graph, &take, 1, &zero));
	MUST(cudaGraphAddMemcpyNode1D(&copy, graph, &fill, 1, memory.dptr, there, SIZE,
	     cudaMemcpyHostToDevice));
	MUST(cudaGraphAddMemcpyNode1D(&out, graph, &copy, 1, back, memory.dptr, SIZE,
	     cudaMemcpyDeviceToHost));
	host.fn = count;
	host.userData = &called;
	MUST(cudaGraphAddHostNode(&call, graph, &out, 1, &host));
	MUST(cudaGraphAddMemFreeNode(&give, graph, &call, 1, memory.dptr));
	MUST(cudaGraphInstantiateWithFlags(&ready, graph,
	     cudaGraphInstantiateFlagAutoFreeOnLaunch));
	MUST(cudaGraphUpload(ready, stream));
	for (int i = 0; i < 4; i++)
		MUST(cudaGraphLaunch(ready, stream));
	MUST(cudaStreamSynchronize(stream));
	must_hold(called == 4, "the host is called each time");
	must_hold(!memcmp(there, back, SIZE), "the graph carries it there and back");
	MUST(cudaGraphExecMemcpyNodeSetParams1D(ready, out, back, memory.dptr, SIZE / 2,
	     cudaMemcpyDeviceToHost));
	MUST(cudaGraphExecUpdate(ready, graph, &changed));
	MUST(cudaGraphLaunch(ready, stream));
	MUST(cudaStreamSynchronize(stream));
	MUST(cudaGraphExecDestroy(ready));
	MUST(cudaGraphDestroy(graph));
	MUST(cudaDeviceGraphMemTrim(0));
	MUST(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &used));
	must_hold(!used, "nothing is kept");
	return 0;
}
