// SPDX-License-Identifier: MIT
/* A libcuda.so.1 for gpuload's own test on a machine without a GPU: one queue in which a round of a kernel's loop takes
 * FAKE_CUDA_ROUND_NS. FAKE_CUDA_FAIL names a call that fails.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"

#define EVENTS 4096
#define ILLEGAL_ADDRESS 700
#define INVALID_DEVICE 101
#define TOTAL (16ull << 30)

static uint64_t busy_until_ns, event_ns[EVENTS], used;
static unsigned int events;

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static cu_result outcome(const char *call)
{
	const char *bad = getenv("FAKE_CUDA_FAIL");

	return bad && strcmp(bad, call) == 0 ? ILLEGAL_ADDRESS : 0;
}

#define FINE(name, ...) cu_result name(__VA_ARGS__) { return outcome(#name); }

FINE(cuInit, unsigned int flags __attribute__((unused)))
FINE(cuCtxSetCurrent, cu_context c __attribute__((unused)))
FINE(cuCtxSynchronize, void)
FINE(cuDevicePrimaryCtxRelease_v2, cu_device d __attribute__((unused)))
FINE(cuModuleLoadData, cu_module *m __attribute__((unused)), const void *i __attribute__((unused)))
FINE(cuModuleGetFunction, cu_function *f __attribute__((unused)), cu_module m __attribute__((unused)),
     const char *n __attribute__((unused)))
FINE(cuStreamCreate, cu_stream *s __attribute__((unused)), unsigned int f __attribute__((unused)))
FINE(cuDevicePrimaryCtxRetain, cu_context *c __attribute__((unused)), cu_device d __attribute__((unused)))

cu_result cuDriverGetVersion(int *version)
{
	*version = 12080;
	return 0;
}

cu_result cuDeviceGet(cu_device *device, int number)
{
	*device = number;
	return number ? INVALID_DEVICE : outcome("cuDeviceGet");
}

cu_result cuDeviceGetName(char *name, int size, cu_device device __attribute__((unused)))
{
	strncpy(name, "Fake", size);
	return 0;
}

cu_result cuDeviceGetUuid(unsigned char *uuid, cu_device device __attribute__((unused)))
{
	memset(uuid, 0xab, 16);
	return 0;
}

cu_result cuDeviceGetAttribute(int *value, int which __attribute__((unused)), cu_device device __attribute__((unused)))
{
	*value = 8;
	return 0;
}

cu_result cuDeviceTotalMem_v2(size_t *total, cu_device device __attribute__((unused)))
{
	*total = TOTAL;
	return 0;
}

cu_result cuMemGetInfo_v2(size_t *left, size_t *total)
{
	*total = TOTAL;
	*left = TOTAL - used;
	return 0;
}

cu_result cuMemAlloc_v2(cu_pointer *at, size_t size)
{
	if (used + size > TOTAL)
		return CU_OUT_OF_MEMORY;
	used += size;
	*at = 1;
	return 0;
}

cu_result cuMemFree_v2(cu_pointer at __attribute__((unused)))
{
	return 0;
}

cu_result cuEventCreate(cu_event *event, unsigned int flags __attribute__((unused)))
{
	*event = (cu_event)&event_ns[events++ % EVENTS];
	return 0;
}

cu_result cuEventRecord(cu_event event, cu_stream stream __attribute__((unused)))
{
	uint64_t now = clock_ns();

	*(uint64_t *)event = busy_until_ns > now ? busy_until_ns : now;
	return 0;
}

cu_result cuEventQuery(cu_event event)
{
	return *(uint64_t *)event > clock_ns() ? CU_NOT_READY : outcome("cuEventQuery");
}

cu_result cuEventSynchronize(cu_event event)
{
	while (cuEventQuery(event) == CU_NOT_READY)
		;
	return 0;
}

cu_result cuEventElapsedTime(float *ms, cu_event from, cu_event to)
{
	*ms = (*(uint64_t *)to - *(uint64_t *)from) / 1e6;
	return 0;
}

cu_result cuLaunchKernel(cu_function f __attribute__((unused)), unsigned int gx __attribute__((unused)),
			 unsigned int gy __attribute__((unused)), unsigned int gz __attribute__((unused)),
			 unsigned int bx __attribute__((unused)), unsigned int by __attribute__((unused)),
			 unsigned int bz __attribute__((unused)), unsigned int shared __attribute__((unused)),
			 cu_stream s __attribute__((unused)), void **parameters, void **extra __attribute__((unused)))
{
	const char *round = getenv("FAKE_CUDA_ROUND_NS");
	uint64_t now = clock_ns();

	busy_until_ns = busy_until_ns > now ? busy_until_ns : now;
	busy_until_ns += *(uint32_t *)parameters[1] * (round ? strtoull(round, NULL, 10) : 50);
	return outcome("cuLaunchKernel");
}

cu_result cuGetErrorName(cu_result result, const char **name)
{
	*name = result == CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" :
		result == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
	return 0;
}
