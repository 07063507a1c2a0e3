// SPDX-License-Identifier: MIT
/* managed [denied]: memory that host and device share, or the refusal of it, after which everything else goes on. */
#include "program.h"

#define SIZE (4 << 20)

int main(int argc, char **argv)
{
	bool denied = argc > 1 && !strcmp(argv[1], "denied");
	void *at = NULL, *other;
	cudaError_t said = cudaMallocManaged(&at, SIZE);

	if (denied) {
		must_hold(said == cudaErrorNotPermitted || said == cudaErrorNotSupported, "managed memory is refused");
		(void)cudaGetLastError();
	} else {
		MUST(said);
		memset(at, 1, SIZE);
		MUST(cudaMemset(at, 2, 4096));
		MUST(cudaDeviceSynchronize());
		/* libcuda fills it by a kernel, which a simulated GPU does not execute: the rest is looked at. */
		must_hold(((volatile char *)at)[SIZE - 1] == 1, "the host sees what it wrote itself");
		MUST(cudaFree(at));
	}
	MUST(cudaMalloc(&other, SIZE));
	MUST(cudaMemset(other, 3, 4096));
	MUST(cudaDeviceSynchronize());
	return 0;
}
