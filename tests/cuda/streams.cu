// SPDX-License-Identifier: MIT
/* Many streams, each with its own copies and kernels, and one that waits for all. */
#include "program.h"

#define STREAMS 16
#define N (1 << 18)

static void CUDART_CB count(void *at)
{
	__sync_fetch_and_add((int *)at, 1);
}

int main(void)
{
	cudaStream_t stream[STREAMS], last;
	float *host[STREAMS], *back[STREAMS], *device[STREAMS];
	cudaEvent_t done[STREAMS];
	int called = 0;

	MUST(cudaStreamCreateWithFlags(&last, cudaStreamNonBlocking));
	for (int i = 0; i < STREAMS; i++) {
		MUST(cudaStreamCreate(&stream[i]));
		MUST(cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming));
		MUST(cudaMallocHost(&host[i], N * sizeof(float)));
		MUST(cudaMallocHost(&back[i], N * sizeof(float)));
		MUST(cudaMalloc(&device[i], 2 * N * sizeof(float)));
		for (int k = 0; k < N; k++)
			host[i][k] = i + k;
	}
	for (int i = 0; i < STREAMS; i++) {
		MUST(cudaMemcpyAsync(device[i], host[i], N * sizeof(float), cudaMemcpyHostToDevice, stream[i]));
		add<<<N / 256, 256, 0, stream[i]>>>(device[i] + N, device[i], device[i], N);
		MUST(cudaMemcpyAsync(back[i], device[i], N * sizeof(float), cudaMemcpyDeviceToHost, stream[i]));
		MUST(cudaLaunchHostFunc(stream[i], count, &called));
		MUST(cudaEventRecord(done[i], stream[i]));
		MUST(cudaStreamWaitEvent(last, done[i], 0));
	}
	MUST(cudaStreamSynchronize(last));
	must_hold(called == STREAMS, "every stream called the host");
	for (int i = 0; i < STREAMS; i++)
		must_hold(!memcmp(host[i], back[i], N * sizeof(float)), "every stream carried its own");
	return 0;
}
