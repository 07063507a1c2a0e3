// SPDX-License-Identifier: MIT
/* A device's properties, limits and flags, events that block, and a reset between three rounds. */
#include <cuda_profiler_api.h>

#include "program.h"

#define SIZE (8 << 20)

static void ask(void)
{
	cudaDeviceProp all;
	int count, value, least, most, device = -1;
	unsigned int flags;
	char bus[32];

	MUST(cudaGetDeviceCount(&count));
	MUST(cudaGetDeviceProperties(&all, 0));
	printf("%s, %d.%d, %zu MiB, %d of %d kHz\n", all.name, all.major, all.minor,
	       all.totalGlobalMem >> 20,
	       all.multiProcessorCount, all.clockRate);
	must_hold(count == 1 && all.multiProcessorCount > 0 && all.clockRate > 0,
		  "one device with its properties");
	for (int which = 1; which < 125; which++)
		(void)cudaDeviceGetAttribute(&value, (cudaDeviceAttr)which, 0);
	(void)cudaGetLastError();
	MUST(cudaDeviceCanAccessPeer(&value, 0, 0));
	must_hold(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessUnsupported,
		  "a device is no peer of its own");
	(void)cudaGetLastError();
	MUST(cudaDeviceGetPCIBusId(bus, sizeof(bus), 0));
	MUST(cudaDeviceGetByPCIBusId(&device, bus));
	must_hold(device == 0, "found by its place on the bus");
	MUST(cudaDeviceGetStreamPriorityRange(&least, &most));
	must_hold(most <= least, "priorities");
	MUST(cudaGetDeviceFlags(&flags));
}

static void set(void)
{
	cudaLimit limits[] = {cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize};
	size_t value, left, total;

	for (int i = 0; i < 3; i++) {
		MUST(cudaDeviceGetLimit(&value, limits[i]));
		MUST(cudaDeviceSetLimit(limits[i], 2 * value));
	}
	MUST(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
	MUST(cudaProfilerStart());
	MUST(cudaProfilerStop());
	MUST(cudaMemGetInfo(&left, &total));
	must_hold(left < total, "the context takes some");
}

static void work(void)
{
	cudaEvent_t from, to, blocking;
	float *at, ms;

	MUST(cudaMalloc(&at, 3 * SIZE));
	MUST(cudaEventCreate(&from));
	MUST(cudaEventCreate(&to));
	MUST(cudaEventCreateWithFlags(&blocking, cudaEventBlockingSync));
	MUST(cudaEventRecord(from));
	for (int i = 0; i < 20; i++)
		add<<<SIZE / 1024, 256>>>(at, at, at, 0);
	MUST(cudaEventRecord(to));
	MUST(cudaEventRecord(blocking));
	MUST(cudaEventSynchronize(blocking));
	MUST(cudaEventQuery(to));
	MUST(cudaEventElapsedTime(&ms, from, to));
	must_hold(ms > 0, "kernels take time");
	MUST(cudaEventDestroy(blocking));
	MUST(cudaDeviceSynchronize());
}

int main(void)
{
	unsigned int flags[] = {cudaDeviceScheduleBlockingSync | cudaDeviceMapHost,
				cudaDeviceScheduleSpin,
				cudaDeviceScheduleYield | cudaDeviceLmemResizeToMax};

	for (int round = 0; round < 3; round++) {
		MUST(cudaSetDeviceFlags(flags[round]));
		ask();
		set();
		work();
		MUST(cudaDeviceReset());
	}
	return 0;
}
