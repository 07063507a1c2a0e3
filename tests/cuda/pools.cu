// SPDX-License-Identifier: MIT
/* Memory in the order of a stream, from the device's pool and from one of our own. */
#include "program.h"

#define SIZE (8 << 20)

int main(void)
{
	char *host = (char *)malloc(SIZE), *back = (char *)calloc(1, SIZE);
	cudaMemPoolProps wanted = {};
	unsigned long long keep = ~0ull;
	cudaStream_t stream;
	cudaMemPool_t pool;
	void *at[8];

	memset(host, 0x35, SIZE);
	MUST(cudaStreamCreate(&stream));
	MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
	MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < 8; i++)
			MUST(cudaMallocAsync(&at[i], SIZE, stream));
		MUST(cudaMemcpyAsync(at[7], host, SIZE, cudaMemcpyHostToDevice, stream));
		MUST(cudaMemcpyAsync(back, at[7], SIZE, cudaMemcpyDeviceToHost, stream));
		for (int i = 0; i < 8; i++)
			MUST(cudaFreeAsync(at[i], stream));
	}
	MUST(cudaStreamSynchronize(stream));
	must_hold(!memcmp(host, back, SIZE), "it holds what is written");
	MUST(cudaMemPoolTrimTo(pool, 0));
	wanted.allocType = cudaMemAllocationTypePinned;
	wanted.location.type = cudaMemLocationTypeDevice;
	MUST(cudaMemPoolCreate(&pool, &wanted));
	MUST(cudaMallocFromPoolAsync(&at[0], SIZE, pool, stream));
	MUST(cudaFreeAsync(at[0], stream));
	MUST(cudaStreamSynchronize(stream));
	MUST(cudaMemPoolDestroy(pool));
	return 0;
}
