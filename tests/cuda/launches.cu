// SPDX-License-Identifier: MIT
/* Launches: cooperative, with more shared memory, with a larger stack, with attributes; printf. */
#include "program.h"

#define N (1 << 16)
#define MORE_SHARED (60 << 10)

static __constant__ float factors[64];
static __device__ int counter;

static __global__ void scale(float *at, int n)
{
	extern __shared__ float part[];
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	part[threadIdx.x] = factors[i & 63];
	__syncthreads();
	if (i < n)
		at[i] *= part[threadIdx.x];
}

static __global__ void deep(float *at, int depth)
{
	volatile float local[1024];

	for (int i = 0; i < 1024; i++)
		local[i] = depth;
	at[threadIdx.x] = local[threadIdx.x & 1023];
	atomicAdd(&counter, 1);
}

static __global__ void prints(int value)
{
	printf("thread %d has %d\n", threadIdx.x, value);
}

int main(void)
{
	float here[64], back[64], *at;
	int n = N, blocks, fits, size, zero = 7;
	cudaLaunchConfig_t config = {};
	cudaLaunchAttribute how = {};
	cudaFuncAttributes of = {};
	cudaStream_t stream;
	void *words[] = {&at, &n};

	for (int i = 0; i < 64; i++)
		here[i] = i;
	MUST(cudaMalloc(&at, N * sizeof(float)));
	MUST(cudaStreamCreate(&stream));
	MUST(cudaMemcpyToSymbol(factors, here, sizeof(here)));
	MUST(cudaMemcpyFromSymbol(back, factors, sizeof(back)));
	must_hold(!memcmp(here, back, sizeof(here)), "constant memory holds what is written");
	MUST(cudaMemcpyToSymbolAsync(counter, &zero, sizeof(zero), 0, cudaMemcpyHostToDevice,
	     stream));
	MUST(cudaStreamSynchronize(stream));

	MUST(cudaFuncGetAttributes(&of, scale));
	must_hold(of.maxThreadsPerBlock == 1024 && of.numRegs > 0,
		  "what the compiler says of a kernel");
	MUST(cudaOccupancyMaxPotentialBlockSize(&blocks, &size, scale, 0, 0));
	MUST(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fits, scale, 256, 1024));
	must_hold(fits > 0 && blocks > 0 && size > 0, "blocks fit");

	MUST(cudaLaunchCooperativeKernel((const void *)scale, dim3(fits), dim3(256), words, 1024,
	     stream));
	MUST(cudaStreamSynchronize(stream));
	MUST(cudaFuncSetAttribute(scale, cudaFuncAttributeMaxDynamicSharedMemorySize, MORE_SHARED));
	MUST(cudaFuncSetCacheConfig(scale, cudaFuncCachePreferShared));
	scale<<<N / 256, 256, MORE_SHARED, stream>>>(at, N);
	MUST(cudaGetLastError());
	config.gridDim = N / 256;
	config.blockDim = 256;
	config.dynamicSmemBytes = 1024;
	config.stream = stream;
	how.id = cudaLaunchAttributePriority;
	config.attrs = &how;
	config.numAttrs = 1;
	MUST(cudaLaunchKernelEx(&config, scale, at, N));
	MUST(cudaStreamSynchronize(stream));

	deep<<<256, 256, 0, stream>>>(at, 3);
	MUST(cudaStreamSynchronize(stream));
	MUST(cudaDeviceSetLimit(cudaLimitStackSize, 32 << 10));
	deep<<<256, 256, 0, stream>>>(at, 3);
	MUST(cudaStreamSynchronize(stream));
	MUST(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 20));
	MUST(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 4 << 20));
	prints<<<1, 4, 0, stream>>>(1);
	MUST(cudaGetLastError());
	MUST(cudaDeviceSynchronize());
	MUST(cudaFree(at));
	return 0;
}
