/* SPDX-License-Identifier: MIT */
/*
 * A stub of libnvidia-ml.so.1 for the simulated GPU: the functions that cgpu,
 * its tests and nvidia-ml-py's basic queries use, answered by the driver's own
 * calls on the nodes that open here ($NVSIM_DEV or /dev). Everything it
 * reports is simulated. The numbers below are the public NVML interface's.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rm.h"

#define API __attribute__((visibility("default")))

typedef int nvml_return;
enum {
	NVML_SUCCESS		= 0,
	NVML_UNINITIALIZED	= 1,
	NVML_INVALID_ARGUMENT	= 2,
	NVML_NOT_SUPPORTED	= 3,
	NVML_NO_PERMISSION	= 4,
	NVML_NOT_FOUND		= 6,
	NVML_INSUFFICIENT_SIZE	= 7,
	NVML_DRIVER_NOT_LOADED	= 9,
	NVML_VERSION_MISMATCH	= 25,
	NVML_UNKNOWN		= 999,
};

struct nvml_pci {
	char bus_id_legacy[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
};

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml_memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};
#define MEMORY_V2 (sizeof(struct nvml_memory_v2) | 2 << 24)

struct nvml_process {
	unsigned int pid;
	unsigned long long bytes;
	unsigned int gpu_instance, compute_instance;
};
_Static_assert(sizeof(struct nvml_pci) == 68, "nvml_pci");
_Static_assert(sizeof(struct nvml_memory) == 24, "nvml_memory");
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "nvml_memory_v2");
_Static_assert(sizeof(struct nvml_process) == 24, "nvml_process");

static struct {
	int users;		/* nvmlInit minus nvmlShutdown */
	struct rm rm;
	struct rm_gpu gpu[MAX_GPUS];
	unsigned int count;
} state;

static nvml_return of_status(rm_status st)
{
	switch (st) {
	case 0:
		return NVML_SUCCESS;
	case -ENOENT:
	case -ENXIO:
	case -ENODEV:
		return NVML_DRIVER_NOT_LOADED;
	case -EACCES:
	case -EPERM:
	case NV_ERR_INSUFFICIENT_PERMISSIONS:
		return NVML_NO_PERMISSION;
	case NV_ERR_NOT_SUPPORTED:
		return NVML_NOT_SUPPORTED;
	default:
		return NVML_UNKNOWN;
	}
}

/* ---- start and end ---- */

static nvml_return start(void)
{
	struct rm_gpu_info list[MAX_GPUS];
	unsigned int count;
	rm_status st;

	st = rm_open(&state.rm, NULL);
	if (st)
		return of_status(st);
	st = rm_list_gpus(&state.rm, list, &count);
	for (state.count = 0; !st && state.count < count; state.count++) {
		st = rm_gpu_open(&state.gpu[state.count], &state.rm, &list[state.count]);
		if (st)
			break;
	}
	if (!st)
		return NVML_SUCCESS;
	rm_close(&state.rm);
	return of_status(st);
}

API nvml_return nvmlInitWithFlags(unsigned int flags)
{
	nvml_return ret = state.users ? NVML_SUCCESS : start();

	(void)flags;
	state.users += ret == NVML_SUCCESS;
	return ret;
}

API nvml_return nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

API nvml_return nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

API nvml_return nvmlShutdown(void)
{
	if (!state.users)
		return NVML_UNINITIALIZED;
	if (--state.users)
		return NVML_SUCCESS;
	while (state.count)
		rm_gpu_close(&state.gpu[--state.count]);
	rm_close(&state.rm);
	return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvml_return ret)
{
	static const struct {
		nvml_return ret;
		const char *text;
	} texts[] = {
		{ NVML_SUCCESS, "The operation was successful" },
		{ NVML_UNINITIALIZED, "NVML was not first initialized with nvmlInit()" },
		{ NVML_INVALID_ARGUMENT, "A supplied argument is invalid" },
		{ NVML_NOT_SUPPORTED, "The requested operation is not available on target device" },
		{ NVML_NO_PERMISSION, "The current user does not have permission for operation" },
		{ NVML_NOT_FOUND, "A query to find an object was unsuccessful" },
		{ NVML_INSUFFICIENT_SIZE, "An input argument is not large enough" },
		{ NVML_DRIVER_NOT_LOADED, "NVIDIA driver is not loaded" },
		{ NVML_VERSION_MISMATCH, "The struct's version is not one this library knows" },
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].ret == ret)
			return texts[i].text;
	return "An internal driver error occurred";
}

static nvml_return copy_text(char *out, unsigned int length, const char *text)
{
	if (!state.users)
		return NVML_UNINITIALIZED;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

API nvml_return nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	return copy_text(version, length, state.rm.version);
}

API nvml_return nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char text[80];

	snprintf(text, sizeof(text), "13.%s", state.rm.version);
	return copy_text(version, length, text);
}

/* ---- which GPU ---- */

static bool is_gpu(const struct rm_gpu *gpu)
{
	return state.users && gpu >= state.gpu && gpu < state.gpu + state.count;
}

/* The first check of every device function. */
static nvml_return check_gpu(const struct rm_gpu *gpu, const void *out)
{
	if (!state.users)
		return NVML_UNINITIALIZED;
	return is_gpu(gpu) && out ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

API nvml_return nvmlDeviceGetCount_v2(unsigned int *count)
{
	if (!state.users)
		return NVML_UNINITIALIZED;
	if (!count)
		return NVML_INVALID_ARGUMENT;
	*count = state.count;
	return NVML_SUCCESS;
}

API nvml_return nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct rm_gpu **gpu)
{
	if (!state.users)
		return NVML_UNINITIALIZED;
	if (!gpu || index >= state.count)
		return NVML_INVALID_ARGUMENT;
	*gpu = &state.gpu[index];
	return NVML_SUCCESS;
}

API nvml_return nvmlDeviceGetHandleByUUID(const char *uuid, struct rm_gpu **gpu)
{
	char text[48];

	if (!state.users)
		return NVML_UNINITIALIZED;
	if (!uuid || !gpu)
		return NVML_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < state.count; i++) {
		rm_gpu_uuid_text(&state.gpu[i], text);
		if (!strcmp(text, uuid)) {
			*gpu = &state.gpu[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_NOT_FOUND;
}

/* "bus:device", "domain:bus:device" or "domain:bus:device.function", in hex. */
static bool parse_bus_id(const char *text, unsigned int id[3])
{
	if (sscanf(text, "%x:%x:%x", &id[0], &id[1], &id[2]) == 3)
		return true;
	id[0] = 0;
	return sscanf(text, "%x:%x", &id[1], &id[2]) == 2;
}

API nvml_return nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct rm_gpu **gpu)
{
	unsigned int id[3];

	if (!state.users)
		return NVML_UNINITIALIZED;
	if (!bus_id || !gpu || !parse_bus_id(bus_id, id))
		return NVML_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < state.count; i++) {
		const struct rm_gpu_info *info = &state.gpu[i].info;

		if (info->domain == id[0] && info->bus == id[1] && info->slot == id[2]) {
			*gpu = &state.gpu[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_NOT_FOUND;
}

API nvml_return nvmlDeviceGetIndex(struct rm_gpu *gpu, unsigned int *index)
{
	nvml_return ret = check_gpu(gpu, index);

	if (!ret)
		*index = gpu - state.gpu;
	return ret;
}

API nvml_return nvmlDeviceGetMinorNumber(struct rm_gpu *gpu, unsigned int *minor)
{
	nvml_return ret = check_gpu(gpu, minor);

	if (!ret)
		*minor = gpu->info.minor;
	return ret;
}

API nvml_return nvmlDeviceGetUUID(struct rm_gpu *gpu, char *uuid, unsigned int length)
{
	nvml_return ret = check_gpu(gpu, uuid);
	char text[48];

	if (ret)
		return ret;
	rm_gpu_uuid_text(gpu, text);
	return copy_text(uuid, length, text);
}

API nvml_return nvmlDeviceGetName(struct rm_gpu *gpu, char *name, unsigned int length)
{
	nvml_return ret = check_gpu(gpu, name);
	char text[64];

	if (!ret)
		ret = of_status(rm_gpu_name(gpu, text));
	return ret ? ret : copy_text(name, length, text);
}

API nvml_return nvmlDeviceGetPciInfo_v3(struct rm_gpu *gpu, struct nvml_pci *pci)
{
	nvml_return ret = check_gpu(gpu, pci);
	const struct rm_gpu_info *info;

	if (ret)
		return ret;
	info = &gpu->info;
	memset(pci, 0, sizeof(*pci));
	pci->domain = info->domain;
	pci->bus = info->bus;
	pci->device = info->slot;
	pci->device_id = (unsigned int)info->device_id << 16 | info->vendor_id;
	snprintf(pci->bus_id_legacy, sizeof(pci->bus_id_legacy), "%04X:%02X:%02X.0",
		 info->domain & 0xffff, info->bus & 0xff, info->slot & 0xff);
	snprintf(pci->bus_id, sizeof(pci->bus_id), "%08X:%02X:%02X.0", info->domain, info->bus,
		 info->slot);
	return NVML_SUCCESS;
}

/* ---- memory and processes ---- */

API nvml_return nvmlDeviceGetMemoryInfo_v2(struct rm_gpu *gpu, struct nvml_memory_v2 *out)
{
	nvml_return ret = check_gpu(gpu, out);
	struct rm_memory mem;

	if (ret)
		return ret;
	if (out->version != MEMORY_V2)
		return NVML_VERSION_MISMATCH;
	ret = of_status(rm_gpu_memory(gpu, &mem));
	if (ret)
		return ret;
	out->total = mem.ram;
	out->reserved = mem.ram - mem.total;
	out->free = mem.free;
	out->used = mem.total - mem.free;
	return NVML_SUCCESS;
}

/* In version 1 "used" includes reserved memory. */
API nvml_return nvmlDeviceGetMemoryInfo(struct rm_gpu *gpu, struct nvml_memory *out)
{
	struct nvml_memory_v2 v2 = { .version = MEMORY_V2 };
	nvml_return ret = check_gpu(gpu, out);

	if (!ret)
		ret = nvmlDeviceGetMemoryInfo_v2(gpu, &v2);
	if (ret)
		return ret;
	*out = (struct nvml_memory) { v2.total, v2.free, v2.total - v2.free };
	return NVML_SUCCESS;
}

API nvml_return nvmlDeviceGetComputeRunningProcesses_v3(struct rm_gpu *gpu, unsigned int *count,
							struct nvml_process *list)
{
	static struct rm_process procs[200];
	nvml_return ret = check_gpu(gpu, count);
	unsigned int room, n;

	if (!ret)
		ret = of_status(rm_gpu_processes(gpu, procs, 200, &n));
	if (ret)
		return ret;
	room = *count;
	*count = n;
	if (n > room)
		return NVML_INSUFFICIENT_SIZE;
	if (n && !list)
		return NVML_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < n; i++)	/* 0xffffffff: no MIG instance */
		list[i] = (struct nvml_process) { procs[i].pid, procs[i].bytes, ~0u, ~0u };
	return NVML_SUCCESS;
}

API nvml_return nvmlDeviceGetComputeRunningProcesses_v2(struct rm_gpu *gpu, unsigned int *count,
							struct nvml_process *list)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(gpu, count, list);
}

API nvml_return nvmlDeviceGetGraphicsRunningProcesses_v3(struct rm_gpu *gpu, unsigned int *count,
							 struct nvml_process *list)
{
	nvml_return ret = check_gpu(gpu, count);

	(void)list;
	if (!ret)
		*count = 0;
	return ret;
}

API nvml_return nvmlDeviceGetGraphicsRunningProcesses_v2(struct rm_gpu *gpu, unsigned int *count,
							 struct nvml_process *list)
{
	return nvmlDeviceGetGraphicsRunningProcesses_v3(gpu, count, list);
}

API nvml_return nvmlDeviceGetMigMode(struct rm_gpu *gpu, unsigned int *now, unsigned int *pending)
{
	nvml_return ret = check_gpu(gpu, now);

	(void)pending;
	return ret ? ret : NVML_NOT_SUPPORTED;
}

struct nvml_utilization {
	unsigned int gpu, memory;
};

API nvml_return nvmlDeviceGetUtilizationRates(struct rm_gpu *gpu, struct nvml_utilization *out)
{
	nvml_return ret = check_gpu(gpu, out);

	if (ret)
		return ret;
	out->memory = 0;
	return of_status(rm_gpu_utilization(gpu, &out->gpu));
}
