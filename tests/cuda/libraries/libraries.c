// SPDX-License-Identifier: MIT
/*
 * libraries WHAT: NVIDIA's libraries above libcuda, opened by name along LD_LIBRARY_PATH. No CUDA to build it.
 *
 *   cublas        a handle and a product of two matrices
 *   cublas-full   the same where no memory is left, and again after it was given back
 *   cufft         a plan and a transform
 *   nccl          an all-reduce of two processes, each with one of two GPUs
 *   runtime13     the first calls of CUDA 13's runtime
 *
 * Prints {"steps": {"cublasCreate_v2": 0, ...}}, waits for a line from stdin, so that charges can be read, frees what it
 * has and prints {"after": {...}}. Exit status 0: all was called; the results are the caller's to judge. A simulated GPU
 * executes no kernel: data is not looked at.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIDE		256		/* of a matrix */
#define BYTES		(4ul * SIDE * SIDE)
#define FULL_UNIT	(2ul << 20)
#define FULL_MAX	65536
#define FFT_COMPLEX	0x29		/* CUFFT_C2C */
#define FFT_FORWARD	(-1)
#define NCCL_FLOAT	7
#define NCCL_SUM	0

struct nccl_id {
	char bytes[128];
};

/* The calls, by NVIDIA's public headers of CUDA 12.4, cuBLAS 12.4, cuFFT 11.2 and NCCL 2.20. */
typedef int memory_fn(void **, size_t);
typedef int pointer_fn(void *);
typedef int number_fn(int);
typedef int out_fn(int *);
typedef int plain_fn(void);
typedef int create_fn(void **);
typedef int gemm_fn(void *, int, int, int, int, int, const float *, const void *, int, const void *, int, const float *,
		    void *, int);
typedef int plan_fn(int *, int, int, int);
typedef int transform_fn(int, void *, void *, int);
typedef int unique_fn(struct nccl_id *);
typedef int join_fn(void **, int, struct nccl_id, int);
typedef int reduce_fn(const void *, void *, size_t, int, int, void *, void *);

static FILE *out;	/* the standard output; the libraries' own words go to stderr */
static bool quiet;	/* the second process */
static int count;
static void *runtime;

static void *open_library(const char *name)
{
	void *found = dlopen(name, RTLD_NOW | RTLD_GLOBAL);

	if (found)
		return found;
	fprintf(stderr, "%s\n", dlerror());
	exit(2);
}

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (found)
		return found;
	fprintf(stderr, "no %s\n", name);
	exit(2);
}

static int note(const char *name, int result)
{
	if (!quiet)
		fprintf(out, "%s\"%s\": %d", count++ ? ", " : "", name, result);
	else if (result)
		fprintf(stderr, "second process: %s: %d\n", name, result);
	return result;
}

#define CALL(library, type, name, ...) note(#name, ((type *)symbol(library, #name))(__VA_ARGS__))
#define CUDA(type, name, ...) CALL(runtime, type, name, ##__VA_ARGS__)

static void hold(void)
{
	char line[8];

	fprintf(out, "}}\n");
	fflush(out);
	if (!fgets(line, sizeof(line), stdin))
		exit(3);
	fprintf(out, "{\"after\": {");
	count = 0;
}

/* Device memory of one square matrix. */
static void *matrix(void)
{
	void *at = NULL;

	CUDA(memory_fn, cudaMalloc, &at, BYTES);
	return at;
}

static int multiply(void *library, void *handle, void *a, void *b)
{
	float one = 1, zero = 0;

	CALL(library, gemm_fn, cublasSgemm_v2, handle, 0, 0, SIDE, SIDE, SIDE, &one, a, SIDE, a, SIDE, &zero, b, SIDE);
	return CUDA(plain_fn, cudaDeviceSynchronize);
}

static void cublas(void)
{
	void *a = matrix(), *b = matrix(), *handle = NULL, *library = open_library("libcublas.so.12");

	CALL(library, create_fn, cublasCreate_v2, &handle);
	multiply(library, handle, a, b);
	hold();
	CALL(library, pointer_fn, cublasDestroy_v2, handle);
}

static void cublas_full(void)
{
	static void *held[FULL_MAX];
	memory_fn *take = symbol(runtime, "cudaMalloc");
	pointer_fn *give = symbol(runtime, "cudaFree");
	void *a = matrix(), *b = matrix(), *handle = NULL, *library = open_library("libcublas.so.12");
	int n = 0, last = 0;

	for (size_t unit = FULL_UNIT << 5; unit >= FULL_UNIT && n < FULL_MAX; unit >>= 1)
		while (n < FULL_MAX && !(last = take(&held[n], unit)))
			n++;
	note("cudaMalloc of the last", last);
	CALL(library, create_fn, cublasCreate_v2, &handle);
	hold();
	while (n)
		give(held[--n]);
	((plain_fn *)symbol(runtime, "cudaGetLastError"))();
	CALL(library, create_fn, cublasCreate_v2, &handle);
	multiply(library, handle, a, b);
	CALL(library, pointer_fn, cublasDestroy_v2, handle);
}

static void cufft(void)
{
	void *a = matrix(), *b = matrix(), *library = open_library("libcufft.so.11");
	int plan = 0;

	CALL(library, plan_fn, cufftPlan1d, &plan, 4096, FFT_COMPLEX, 8);
	CALL(library, transform_fn, cufftExecC2C, plan, a, b, FFT_FORWARD);
	CUDA(plain_fn, cudaDeviceSynchronize);
	hold();
	CALL(library, number_fn, cufftDestroy, plan);
}

/* Forks before either process has called CUDA, which does not survive it. */
static void nccl(void)
{
	void *a, *communicator = NULL, *library;
	struct nccl_id id;
	int pair[2], status = -1;
	pid_t second;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(3);
	fflush(out);
	second = fork();
	quiet = !second;
	runtime = open_library("libcudart.so.12");
	library = open_library("libnccl.so.2");
	if (!quiet)
		CALL(library, unique_fn, ncclGetUniqueId, &id);
	if (quiet ? read(pair[1], &id, sizeof(id)) != sizeof(id) : write(pair[0], &id, sizeof(id)) != sizeof(id))
		exit(3);
	CUDA(number_fn, cudaSetDevice, quiet);
	a = matrix();
	CALL(library, join_fn, ncclCommInitRank, &communicator, 2, id, quiet);
	CALL(library, reduce_fn, ncclAllReduce, a, a, SIDE * SIDE, NCCL_FLOAT, NCCL_SUM, communicator, NULL);
	CUDA(plain_fn, cudaDeviceSynchronize);
	if (quiet) {
		if (read(pair[1], &id, 1) != 1)	/* until the first has been held */
			exit(3);
		exit(CALL(library, pointer_fn, ncclCommDestroy, communicator) != 0);
	}
	hold();
	if (write(pair[0], "", 1) != 1)
		exit(3);
	CALL(library, pointer_fn, ncclCommDestroy, communicator);
	waitpid(second, &status, 0);
	note("second process", status);
}

static void runtime13(void)
{
	int version = 0, devices = 0;

	CUDA(out_fn, cudaDriverGetVersion, &version);
	CUDA(out_fn, cudaGetDeviceCount, &devices);
	matrix();
	hold();
}

static const struct {
	const char *name, *runtime;	/* NULL: opened by itself */
	void (*run)(void);
} all[] = {
	{ "cublas", "libcudart.so.12", cublas },
	{ "cublas-full", "libcudart.so.12", cublas_full },
	{ "cufft", "libcudart.so.12", cufft },
	{ "nccl", NULL, nccl },
	{ "runtime13", "libcudart.so.13", runtime13 },
};

int main(int argc, char **argv)
{
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (argc == 2 && !strcmp(argv[1], all[i].name))
			break;
	if (i == sizeof(all) / sizeof(all[0])) {
		fprintf(stderr, "usage: libraries cublas|cublas-full|cufft|nccl|runtime13\n");
		return 2;
	}
	out = fdopen(dup(1), "w");
	if (!out || dup2(2, 1) < 0)
		return 3;
	fprintf(out, "{\"steps\": {");
	if (all[i].runtime)
		runtime = open_library(all[i].runtime);
	all[i].run();
	CUDA(plain_fn, cudaDeviceReset);
	fprintf(out, "}}\n");
	return fclose(out) ? 3 : 0;
}
