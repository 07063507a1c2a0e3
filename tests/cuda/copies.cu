// SPDX-License-Identifier: MIT
/* Copies of every shape between kinds of memory, and what the runtime says about an address. */
#include <sys/mman.h>

#include "program.h"

#define ROWS 300
#define ROW 1000
#define BIG (48 << 20)
#define SIZE (2 << 20)

static void planes(void)
{
	static char there[ROWS * ROW], back[ROWS * ROW];
	cudaMemcpy3DParms copy = {};
	cudaPitchedPtr solid;
	size_t pitch;
	void *at;

	for (int i = 0; i < ROWS * ROW; i++)
		there[i] = i % 251;
	MUST(cudaMallocPitch(&at, &pitch, ROW, ROWS));
	MUST(cudaMemcpy2D(at, pitch, there, ROW, ROW, ROWS, cudaMemcpyHostToDevice));
	MUST(cudaMemcpy2DAsync(back, ROW, at, pitch, ROW, ROWS, cudaMemcpyDeviceToHost));
	MUST(cudaDeviceSynchronize());
	must_hold(!memcmp(there, back, sizeof(there)), "rows come back");
	MUST(cudaMemset2D(at, pitch, 1, ROW, ROWS));
	MUST(cudaFree(at));
	MUST(cudaMalloc3D(&solid, make_cudaExtent(ROW, ROWS / 10, 10)));
	copy.srcPtr = make_cudaPitchedPtr(there, ROW, ROW, ROWS / 10);
	copy.dstPtr = solid;
	copy.extent = make_cudaExtent(ROW, ROWS / 10, 10);
	copy.kind = cudaMemcpyHostToDevice;
	MUST(cudaMemcpy3D(&copy));
	memset(back, 0, sizeof(back));
	copy.dstPtr = copy.srcPtr;
	copy.dstPtr.ptr = back;
	copy.srcPtr = solid;
	copy.kind = cudaMemcpyDefault;
	MUST(cudaMemcpy3D(&copy));
	must_hold(!memcmp(there, back, sizeof(there)), "planes come back");
	MUST(cudaMemset3D(solid, 1, copy.extent));
	MUST(cudaFree(solid.ptr));
}

static void pinned(void)
{
	const int prot = PROT_READ | PROT_WRITE;
	char *there = (char *)mmap(NULL, BIG, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *at, *mapped, *shared;
	cudaPointerAttributes seen;
	unsigned int flags;

	memset(there, 0x17, BIG);
	MUST(cudaMalloc(&at, BIG));
	MUST(cudaMemcpy(at, there, BIG, cudaMemcpyHostToDevice)); /* staged */
	MUST(cudaHostRegister(there, BIG, cudaHostRegisterMapped | cudaHostRegisterPortable));
	MUST(cudaHostGetDevicePointer(&mapped, there, 0));
	memset(there, 0, BIG);
	MUST(cudaMemcpyAsync(there, at, BIG, cudaMemcpyDeviceToHost));
	MUST(cudaDeviceSynchronize());
	must_hold(there[0] == 0x17 && there[BIG - 1] == 0x17, "registered memory is written");
	MUST(cudaMemcpy(mapped, at, 16, cudaMemcpyDefault));
	MUST(cudaPointerGetAttributes(&seen, there));
	must_hold(seen.type == cudaMemoryTypeHost && seen.devicePointer == mapped,
		  "host memory is known as such");
	MUST(cudaPointerGetAttributes(&seen, at));
	must_hold(seen.type == cudaMemoryTypeDevice && seen.device == 0, "so is the device's");
	MUST(cudaHostUnregister(there));
	MUST(cudaHostAlloc(&shared, SIZE, cudaHostAllocWriteCombined | cudaHostAllocMapped));
	MUST(cudaHostGetFlags(&flags, shared));
	must_hold(flags & cudaHostAllocWriteCombined, "flags are kept");
	MUST(cudaFreeHost(shared));
	MUST(cudaFree(at));
}

static void between(void)
{
	char *one, *two, back[64] = {};

	MUST(cudaMalloc(&one, SIZE));
	MUST(cudaMalloc(&two, SIZE));
	MUST(cudaMemcpy(one, "between", 8, cudaMemcpyHostToDevice));
	MUST(cudaMemcpyPeer(two, 0, one, 0, 4096));
	MUST(cudaMemcpyAsync(two, one, SIZE, cudaMemcpyDeviceToDevice, cudaStreamPerThread));
	MUST(cudaStreamSynchronize(cudaStreamPerThread));
	MUST(cudaMemcpy(back, one, 8, cudaMemcpyDefault));
	must_hold(!strcmp(back, "between"), "eight bytes come back");
	MUST(cudaFree(one));
	MUST(cudaFree(two));
}

int main(void)
{
	planes();
	pinned();
	between();
	return 0;
}
