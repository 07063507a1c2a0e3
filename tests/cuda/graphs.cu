// SPDX-License-Identifier: MIT
/* A captured graph, launched many times, and the same with one node changed. */
#include "program.h"

#define N (1 << 16)

int main(void)
{
	float *host, *back, *device;
	cudaGraphExec_t ready;
	cudaStream_t stream;
	cudaGraph_t graph;
	size_t nodes;

	MUST(cudaMallocHost(&host, N * sizeof(float)));
	MUST(cudaMallocHost(&back, N * sizeof(float)));
	MUST(cudaMalloc(&device, 2 * N * sizeof(float)));
	MUST(cudaStreamCreate(&stream));
	for (int i = 0; i < N; i++)
		host[i] = i;
	memset(back, 0, N * sizeof(float));
	MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	MUST(cudaMemcpyAsync(device, host, N * sizeof(float), cudaMemcpyHostToDevice, stream));
	for (int i = 0; i < 10; i++)
		add<<<N / 256, 256, 0, stream>>>(device + N, device, device, N);
	MUST(cudaMemcpyAsync(back, device, N * sizeof(float), cudaMemcpyDeviceToHost, stream));
	MUST(cudaStreamEndCapture(stream, &graph));
	MUST(cudaGraphGetNodes(graph, NULL, &nodes));
	must_hold(nodes == 12, "a node for each call");
	must_hold(back[1] == 0, "nothing was done yet");
	MUST(cudaGraphInstantiate(&ready, graph, 0));
	for (int i = 0; i < 20; i++)
		MUST(cudaGraphLaunch(ready, stream));
	MUST(cudaStreamSynchronize(stream));
	must_hold(!memcmp(host, back, N * sizeof(float)), "the graph carried it there and back");
	MUST(cudaGraphExecDestroy(ready));
	MUST(cudaGraphDestroy(graph));
	return 0;
}
