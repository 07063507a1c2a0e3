/* SPDX-License-Identifier: MIT */
/*
 * The least libnvidia-ml.so.1. It lists NVML_STUB_COUNT GPUs, else one. The call that NVML_STUB_HANG names does not
 * return while the file NVML_STUB_WHILE exists; "uuid 1" is that of the second GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pci { char legacy[16]; unsigned int domain, bus, device, device_id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };

static void hang_at(const char *call)
{
	const char *at = getenv("NVML_STUB_HANG"), *file = getenv("NVML_STUB_WHILE");

	while (at && file && !strcmp(at, call) && !access(file, F_OK))
		usleep(10000);
	if (at && !strcmp(at, "crash"))
		abort();
}

static unsigned int gpus(void)
{
	const char *count = getenv("NVML_STUB_COUNT");

	return count ? (unsigned int)atoi(count) : 1;
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; hang_at("init"); return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { hang_at("shutdown"); return 0; }
const char *nvmlErrorString(int code) { return code ? "stub says no" : "ok"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = gpus(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
	*handle = (void *)(unsigned long)(index + 1);
	return index < gpus() ? 0 : 2;
}
int nvmlDeviceGetMinorNumber(void *handle, unsigned int *minor) { (void)handle; *minor = 3; return 0; }

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
	unsigned int index = (unsigned int)(unsigned long)handle - 1;
	char call[32];

	snprintf(call, sizeof(call), "uuid %u", index);
	hang_at(call);
	snprintf(uuid, length, "GPU-b084ae33-e244-0959-cd97-83000000000%u", index);
	return 0;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci)
{
	memset(pci, 0, sizeof(*pci));
	sprintf(pci->bus_id, "00000000:0%u:00.0", 6 + (unsigned int)(unsigned long)handle);
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
