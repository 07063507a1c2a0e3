// SPDX-License-Identifier: MIT
/* managedVariable [denied]: a managed variable, advice and prefetching, or their refusal. */
#include "program.h"

#define SIZE (4 << 20)

static __managed__ int shared[1024];

static __global__ void fill(int value)
{
	shared[threadIdx.x] += value;
}

static void allowed(void)
{
	char *at;

	shared[3] = 5;
	fill<<<1, 1024>>>(1);
	MUST(cudaDeviceSynchronize());
	MUST(cudaMallocManaged(&at, SIZE));
	memset(at, 1, SIZE);
	MUST(cudaMemAdvise(at, SIZE, cudaMemAdviseSetPreferredLocation, 0));
	MUST(cudaMemAdvise(at, SIZE, cudaMemAdviseSetReadMostly, 0));
	MUST(cudaMemAdvise(at, SIZE, cudaMemAdviseUnsetReadMostly, 0));
	MUST(cudaMemPrefetchAsync(at, SIZE, 0, 0));
	MUST(cudaMemPrefetchAsync(at, SIZE, cudaCpuDeviceId, 0));
	MUST(cudaDeviceSynchronize());
	must_hold(((volatile char *)at)[SIZE - 1] == 1, "it is as it was");
	MUST(cudaFree(at));
}

int main(int argc, char **argv)
{
	bool denied = argc > 1 && !strcmp(argv[1], "denied");
	cudaError_t status;

	MUST(cudaFree(0));
	if (!denied) {
		allowed();
		return 0;
	}
	fill<<<1, 1024>>>(1);
	status = cudaGetLastError();
	must_hold(status == cudaErrorNotPermitted || status == cudaErrorNotSupported,
		  "the kernel cannot be loaded");
	return 0;
}
