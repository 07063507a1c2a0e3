/* SPDX-License-Identifier: MIT */
/* The least libnvidia-ml.so.1 that lists one GPU. */
#include <string.h>

struct pci { char legacy[16]; unsigned int domain, bus, device, device_id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code ? "stub says no" : "ok"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) { *handle = (void *)1; return index ? 2 : 0; }
int nvmlDeviceGetMinorNumber(void *handle, unsigned int *minor) { (void)handle; *minor = 3; return 0; }

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
	(void)handle;
	strncpy(uuid, "GPU-b084ae33-e244-0959-cd97-830000000000", length);
	return 0;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci)
{
	(void)handle;
	memset(pci, 0, sizeof(*pci));
	strcpy(pci->bus_id, "00000000:07:00.0");
	return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory)
{
	(void)handle;
	memory->total = 15109ull << 20;
	memory->used = (300ull << 20) + 1;
	memory->free = memory->total - memory->used;
	return 0;
}

int nvmlDeviceGetComputeMode(void *handle, unsigned int *mode) { (void)handle; *mode = 3; return 0; }
