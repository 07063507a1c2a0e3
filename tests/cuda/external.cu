// SPDX-License-Identifier: MIT
/* Memory exported as a file descriptor, imported as an allocation and as external memory. */
#include <cuda.h>
#include <unistd.h>

#include "program.h"

#define DRIVER(name, ...)								\
	do {										\
		void *found_ = NULL;							\
		MUST(cudaGetDriverEntryPoint(#name, &found_, cudaEnableDefault));	\
		must_hold(((decltype(&name))found_)(__VA_ARGS__) == CUDA_SUCCESS, #name);	\
	} while (0)

#define SIZE (4ull << 20)
#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* Takes the descriptor over. */
static cudaExternalMemory_t outside_of(int fd)
{
	cudaExternalMemoryHandleDesc from = {};
	cudaExternalMemory_t outside;

	from.type = cudaExternalMemoryHandleTypeOpaqueFd;
	from.handle.fd = fd;
	from.size = SIZE;
	MUST(cudaImportExternalMemory(&outside, &from));
	return outside;
}

int main(void)
{
	char *there = (char *)malloc(SIZE), *back = (char *)calloc(1, SIZE);
	CUmemGenericAllocationHandle memory, again;
	cudaExternalMemoryBufferDesc part = {};
	CUmemAllocationProp how = {};
	CUmemAccessDesc access = {};
	cudaExternalMemory_t outside;
	CUdeviceptr at = 0;
	int fd = -1;
	void *seen;

	memset(there, 0x6b, SIZE);
	MUST(cudaFree(0));
	how.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	how.requestedHandleTypes = FD;
	how.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	DRIVER(cuMemCreate, &memory, SIZE, &how, 0);
	DRIVER(cuMemExportToShareableHandle, &fd, memory, FD, 0);
	DRIVER(cuMemImportFromShareableHandle, &again, (void *)(long)fd, FD);
	DRIVER(cuMemAddressReserve, &at, SIZE, 0, 0, 0);
	DRIVER(cuMemMap, at, SIZE, 0, again, 0);
	DRIVER(cuMemSetAccess, at, SIZE, &access, 1);
	MUST(cudaMemcpy((void *)at, there, SIZE, cudaMemcpyHostToDevice));
	outside = outside_of(fd);
	part.size = SIZE;
	MUST(cudaExternalMemoryGetMappedBuffer(&seen, outside, &part));
	MUST(cudaMemcpy(back, seen, SIZE, cudaMemcpyDeviceToHost));
	must_hold(!memcmp(there, back, SIZE), "both are the same memory");
	MUST(cudaFree(seen));
	MUST(cudaDestroyExternalMemory(outside));
	DRIVER(cuMemUnmap, at, SIZE);
	DRIVER(cuMemAddressFree, at, SIZE);
	DRIVER(cuMemRelease, again);
	DRIVER(cuMemRelease, memory);
	return 0;
}
