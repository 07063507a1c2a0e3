// SPDX-License-Identifier: MIT
/* Two vectors there, a kernel, the sum back. */
#include "program.h"

#define N (1 << 20)

int main(void)
{
	float *a = (float *)malloc(N * sizeof(float)), *back = (float *)malloc(N * sizeof(float)), *da, *db, *sum, ms;
	cudaEvent_t from, to;

	for (int i = 0; i < N; i++)
		a[i] = i;
	MUST(cudaMalloc(&da, N * sizeof(float)));
	MUST(cudaMalloc(&db, N * sizeof(float)));
	MUST(cudaMalloc(&sum, N * sizeof(float)));
	MUST(cudaMemcpy(da, a, N * sizeof(float), cudaMemcpyHostToDevice));
	MUST(cudaMemcpy(db, a, N * sizeof(float), cudaMemcpyHostToDevice));
	MUST(cudaEventCreate(&from));
	MUST(cudaEventCreate(&to));
	MUST(cudaEventRecord(from));
	add<<<N / 256, 256>>>(sum, da, db, N);
	MUST(cudaGetLastError());
	MUST(cudaEventRecord(to));
	MUST(cudaDeviceSynchronize());
	MUST(cudaEventElapsedTime(&ms, from, to));
	must_hold(ms > 0, "the kernel takes time");
	MUST(cudaMemcpy(back, db, N * sizeof(float), cudaMemcpyDeviceToHost));
	must_hold(!memcmp(a, back, N * sizeof(float)), "a vector comes back as it went");
	MUST(cudaMemcpy(back, sum, N * sizeof(float), cudaMemcpyDeviceToHost));
#ifdef KERNELS_RUN
	for (int i = 0; i < N; i++)
		must_hold(back[i] == 2.0f * i, "the sum");
#endif
	add<<<1, 4096>>>(sum, da, db, N);
	must_hold(cudaGetLastError() == cudaErrorInvalidConfiguration, "a block of 4096 threads is refused");
	MUST(cudaDeviceReset());
	return 0;
}
