/* SPDX-License-Identifier: MIT */
/*
 * What the programs for nvcc share. A program ends with 0 where every call said what it should and every copy carried
 * what it should. What kernels compute is looked at only on a GPU that executes them: -DKERNELS_RUN.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call) want((call), cudaSuccess, #call, __LINE__)

static inline void want(cudaError_t got, cudaError_t wanted, const char *call, int line)
{
	if (got == wanted)
		return;
	fprintf(stderr, "line %d: %s: %s (%d)\n", line, call, cudaGetErrorName(got), got);
	exit(1);
}

static inline void must_hold(bool held, const char *what)
{
	if (held)
		return;
	fprintf(stderr, "does not hold: %s\n", what);
	exit(1);
}

static __global__ void add(float *sum, const float *a, const float *b, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		sum[i] = a[i] + b[i];
}

#endif
