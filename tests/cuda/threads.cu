// SPDX-License-Identifier: MIT
/* Threads: each with a stream of its own in one context, then each with a context of its own. */
#include <cuda.h>
#include <pthread.h>

#include "program.h"

#define THREADS 6
#define ROUNDS 8
#define N (1 << 16)

/* The version of a call that is of its @type. */
#define DRIVER(name, type, ...)								\
	do {										\
		void *found_ = NULL;							\
		MUST(cudaGetDriverEntryPoint(#name, &found_, cudaEnableDefault));	\
		must_hold(((decltype(&type))found_)(__VA_ARGS__) == CUDA_SUCCESS, #name);	\
	} while (0)

static void work(int seed)
{
	float *there, *back, *at;
	cudaStream_t stream;

	MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	MUST(cudaMallocHost(&there, N * sizeof(float)));
	MUST(cudaMallocHost(&back, N * sizeof(float)));
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < N; i++)
			there[i] = i + seed + round;
		MUST(cudaMalloc(&at, 2 * N * sizeof(float)));
		MUST(cudaMemcpyAsync(at, there, N * sizeof(float), cudaMemcpyHostToDevice, stream));
		add<<<N / 256, 256, 0, stream>>>(at + N, at, at, N);
		MUST(cudaMemcpyAsync(back, at, N * sizeof(float), cudaMemcpyDeviceToHost, stream));
		MUST(cudaStreamSynchronize(stream));
		must_hold(!memcmp(there, back, N * sizeof(float)), "each thread sees its own");
		MUST(cudaFree(at));
	}
	MUST(cudaStreamDestroy(stream));
	MUST(cudaFreeHost(there));
	MUST(cudaFreeHost(back));
}

static void *share(void *seed)
{
	work((int)(long)seed * 1000);
	return NULL;
}

static void *alone(void *seed)
{
	CUcontext context, seen;

	DRIVER(cuCtxCreate, cuCtxCreate_v3, &context, NULL, 0,
	       (long)seed & 1 ? CU_CTX_SCHED_BLOCKING_SYNC : 0, 0);
	work((int)(long)seed * 1000);
	DRIVER(cuCtxPopCurrent, cuCtxPopCurrent, &seen);
	must_hold(seen == context, "the context is the thread's");
	DRIVER(cuCtxDestroy, cuCtxDestroy, context);
	return NULL;
}

static void run(void *(*what)(void *))
{
	pthread_t thread[THREADS];

	for (long i = 0; i < THREADS; i++)
		must_hold(!pthread_create(&thread[i], NULL, what, (void *)(i + 1)), "a thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
}

int main(void)
{
	MUST(cudaFree(0));
	run(share);
	run(alone);
	work(1);
	return 0;
}
