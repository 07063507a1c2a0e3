// SPDX-License-Identifier: MIT
/* A range of addresses that grows: the driver's interface out of a program of the runtime's. */
#include <cuda.h>

#include "program.h"

#define DRIVER(name, ...)								\
	do {										\
		void *found_ = NULL;							\
		MUST(cudaGetDriverEntryPoint(#name, &found_, cudaEnableDefault));	\
		must_hold(((decltype(&name))found_)(__VA_ARGS__) == CUDA_SUCCESS, #name);	\
	} while (0)

#define PIECE (8ull << 20)
#define PIECES 8

int main(void)
{
	CUmemGenericAllocationHandle memory[PIECES];
	char *host = (char *)malloc(PIECE), *back = (char *)calloc(1, PIECE);
	CUmemAllocationProp how = {};
	CUmemAccessDesc access = {};
	CUdeviceptr at = 0;

	MUST(cudaFree(0));
	how.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	how.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	DRIVER(cuMemAddressReserve, &at, PIECES * PIECE, 0, 0, 0);
	for (int i = 0; i < PIECES; i++) {
		DRIVER(cuMemCreate, &memory[i], PIECE, &how, 0);
		DRIVER(cuMemMap, at + i * PIECE, PIECE, 0, memory[i], 0);
		DRIVER(cuMemSetAccess, at + i * PIECE, PIECE, &access, 1);
		memset(host, 0x60 + i, PIECE);
		MUST(cudaMemcpy((void *)(at + i * PIECE), host, PIECE, cudaMemcpyHostToDevice));
	}
	for (int i = 0; i < PIECES; i++) {
		MUST(cudaMemcpy(back, (void *)(at + i * PIECE), PIECE, cudaMemcpyDeviceToHost));
		must_hold(back[0] == 0x60 + i && back[PIECE - 1] == 0x60 + i, "each piece holds its own");
		DRIVER(cuMemUnmap, at + i * PIECE, PIECE);
		DRIVER(cuMemRelease, memory[i]);
	}
	DRIVER(cuMemAddressFree, at, PIECES * PIECE);
	return 0;
}
