// SPDX-License-Identifier: MIT
/* The device, contexts, memory that is copied, memory of the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "walk.h"

#define ATTRIBUTES	256	/* more than any libcuda knows; the first unknown one ends the list */
#define INVALID_VALUE	1
#define SMALL		(64 * KIB)
#define FILLED		(4 * KIB)	/* libcuda fills more by a kernel */
#define LARGE		(8 * MIB)
#define PITCH_WIDTH	200
#define PITCH_ROWS	50

/* Each under its number: a refusal makes a single one fail. In a container the value is the card's too. */
static void attributes(cu_device device)
{
	cu_result result;
	char name[40];
	int value;

	for (int i = 1; i < ATTRIBUTES; i++) {
		result = RAW(cuDeviceGetAttribute, &value, i, device);
		if (result == INVALID_VALUE)
			return;
		snprintf(name, sizeof(name), "cuDeviceGetAttribute %d", i);
		walk_note(name, result);
		if (!result)
			walk_seen(name, value);
	}
}

void step_init(struct walk *w)
{
	char name[80] = "", pci[32] = "";
	unsigned char uuid[16];
	int count = 0, version = 0, peer, major = 0, minor = 0;

	if (CALL(cuInit, 0))
		return;
	CALL(cuDriverGetVersion, &version);
	walk_seen("cuda", version);
	CALL(cuDeviceGetCount, &count);
	walk_seen("devices", count);
	if (CALL(cuDeviceGet, &w->device, 0))
		return;
	CALL(cuDeviceGetName, name, sizeof(name), w->device);
	walk_seen_text("name", name);
	CALL(cuDeviceGetUuid, uuid, w->device);
	CALL(cuDeviceGetPCIBusId, pci, sizeof(pci), w->device);
	walk_seen_text("pci", pci);
	attributes(w->device);
	CALL(cuDeviceGetAttribute, &major, 75, w->device);
	CALL(cuDeviceGetAttribute, &minor, 76, w->device);
	walk_seen("capability", major * 10 + minor);
	CALL(cuDeviceCanAccessPeer, &peer, w->device, w->device);
	if (!CALL(cuDeviceTotalMem_v2, &w->total, w->device))
		walk_seen("total_mib", w->total / MIB);
}

void step_context(struct walk *w)
{
	size_t left = 0, total = 0, limit = 0;
	cu_context current = NULL;
	unsigned int api;
	cu_device device;
	int low, high;

	CALL(cuCtxGetCurrent, &current);
	walk_check("the context made is the current one", current == w->context);
	CALL(cuCtxGetDevice, &device);
	CALL(cuCtxGetApiVersion, w->context, &api);
	CALL(cuCtxGetStreamPriorityRange, &low, &high);
	CALL(cuCtxGetLimit, &limit, CU_LIMIT_STACK);
	CALL(cuCtxSetLimit, CU_LIMIT_STACK, limit * 2);
	CALL(cuCtxGetLimit, &limit, CU_LIMIT_HEAP);
	CALL(cuCtxSetLimit, CU_LIMIT_HEAP, 16 * MIB);
	if (!CALL(cuMemGetInfo_v2, &left, &total)) {
		walk_seen("total_mib", total / MIB);
		walk_seen("free_mib", left / MIB);
		walk_check("something is free, and not more than all", left && left <= total);
		walk_check("the context's total is the device's", total == w->total);
	}
	CALL(cuProfilerStart);
	CALL(cuProfilerStop);
	CALL(cuCtxSynchronize);
}

/* There and back, by the paths that different sizes take. */
static void copy_both_ways(cu_pointer at, size_t size, unsigned int seed, const char *what)
{
	char *out = malloc(size), *back = calloc(1, size);

	pattern(out, size, seed);
	CALL(cuMemcpyHtoD_v2, at, out, size);
	CALL(cuMemcpyDtoH_v2, back, at, size);
	walk_check(what, same(back, size, seed));
	free(out);
	free(back);
}

static bool all_bytes(const unsigned char *at, size_t size, unsigned char value)
{
	for (size_t i = 0; i < size; i++)
		if (at[i] != value)
			return false;
	return true;
}

static void fill_and_look(cu_pointer at)
{
	unsigned char back[FILLED] = { 0 };

	CALL(cuMemsetD8_v2, at, 0x5a, FILLED);
	CALL(cuMemcpyDtoH_v2, back, at, FILLED);
	walk_check("memset of bytes", all_bytes(back, FILLED, 0x5a));
	CALL(cuMemsetD16_v2, at, 0x1717, FILLED / 2);
	CALL(cuMemcpyDtoH_v2, back, at, FILLED);
	walk_check("memset of half words", all_bytes(back, FILLED, 0x17));
	CALL(cuMemsetD32_v2, at, 0x42424242, FILLED / 4);
	CALL(cuMemcpyDtoH_v2, back, at, FILLED);
	walk_check("memset of words", all_bytes(back, FILLED, 0x42));
	AS("cuMemsetD8_v2 of much", cuMemsetD8_v2, at, 1, LARGE);
}

static void pitched(void)
{
	struct cu_copy_2d copy = { .width = PITCH_WIDTH, .height = PITCH_ROWS };
	unsigned char *out = malloc(PITCH_WIDTH * PITCH_ROWS), *back = calloc(1, PITCH_WIDTH * PITCH_ROWS);
	cu_pointer at;
	size_t pitch;

	if (CALL(cuMemAllocPitch_v2, &at, &pitch, PITCH_WIDTH, PITCH_ROWS, 4))
		goto out;
	pattern(out, PITCH_WIDTH * PITCH_ROWS, 5);
	CALL(cuMemsetD2D8_v2, at, pitch, 1, PITCH_WIDTH, PITCH_ROWS);
	copy.from = (struct cu_copy_end) { .type = CU_MEMORY_HOST, .host = out, .pitch = PITCH_WIDTH };
	copy.to = (struct cu_copy_end) { .type = CU_MEMORY_DEVICE, .device = at, .pitch = pitch };
	CALL(cuMemcpy2D_v2, &copy);
	copy.from = copy.to;
	copy.to = (struct cu_copy_end) { .type = CU_MEMORY_HOST, .host = back, .pitch = PITCH_WIDTH };
	CALL(cuMemcpy2D_v2, &copy);
	walk_check("rows there and back", same(back, PITCH_WIDTH * PITCH_ROWS, 5));
	CALL(cuMemFree_v2, at);
out:
	free(out);
	free(back);
}

/* libcuda does it by a kernel, which a simulated GPU does not execute: what arrives is no result. */
static void device_to_device(cu_pointer from, cu_pointer to)
{
	char *out = malloc(LARGE), *back = calloc(1, LARGE);

	pattern(out, LARGE, 9);
	CALL(cuMemcpyHtoD_v2, from, out, LARGE);
	CALL(cuMemcpyDtoD_v2, to, from, LARGE);
	CALL(cuMemcpyDtoH_v2, back, to, LARGE);
	walk_seen("device to device arrives", same(back, LARGE, 9));
	free(out);
	free(back);
}

void step_memory(struct walk *w)
{
	static const size_t sizes[] = { 1, 4 * KIB, 1 * MIB, 2 * MIB, 64 * MIB };
	struct cu_array_format format = { .width = 64, .height = 64, .format = CU_ARRAY_UINT8, .channels = 1 };
	size_t before = 0, after = 0, total, size = 0;
	cu_pointer at, other, base = 0;
	cu_array array;
	int type = 0;

	(void)w;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (!AS("cuMemAlloc_v2 of many sizes", cuMemAlloc_v2, &at, sizes[i]))
			AS("cuMemFree_v2 of many sizes", cuMemFree_v2, at);
	CALL(cuMemGetInfo_v2, &before, &total);
	if (CALL(cuMemAlloc_v2, &at, 64 * MIB) || CALL(cuMemAlloc_v2, &other, LARGE))
		return;
	CALL(cuMemGetInfo_v2, &after, &total);
	walk_check("what was taken is no longer free", before >= after + 64 * MIB);
	CALL(cuMemGetAddressRange_v2, &base, &size, at + 4096);
	walk_check("the range of an address", base == at && size == 64 * MIB);
	CALL(cuPointerGetAttribute, &type, CU_POINTER_MEMORY_TYPE, at);
	walk_check("it is memory of the device", type == CU_MEMORY_DEVICE);
	copy_both_ways(at, 16, 1, "16 bytes there and back");
	copy_both_ways(at, SMALL, 2, "64 KiB there and back");
	copy_both_ways(at + 12, LARGE, 3, "8 MiB there and back");
	fill_and_look(at);
	device_to_device(at, other);
	pitched();
	if (!CALL(cuArrayCreate_v2, &array, &format))
		CALL(cuArrayDestroy, array);
	CALL(cuMemFree_v2, other);
	CALL(cuMemFree_v2, at);
	CALL(cuMemGetInfo_v2, &after, &total);
	walk_check("what was given back is free", after == before);
}

void step_host(struct walk *w)
{
	void *pinned, *own = aligned_alloc(4096, LARGE);
	cu_pointer at, seen;

	(void)w;
	if (CALL(cuMemAlloc_v2, &at, LARGE))
		return;
	if (!CALL(cuMemHostAlloc, &pinned, LARGE, CU_HOST_MAPPED)) {
		CALL(cuMemHostGetDevicePointer_v2, &seen, pinned, 0);
		pattern(pinned, LARGE, 11);
		CALL(cuMemcpyHtoDAsync_v2, at, pinned, LARGE, NULL);
		CALL(cuCtxSynchronize);
		memset(pinned, 0, LARGE);
		CALL(cuMemcpyDtoHAsync_v2, pinned, at, LARGE, NULL);
		CALL(cuCtxSynchronize);
		walk_check("pinned memory there and back", same(pinned, LARGE, 11));
		CALL(cuMemFreeHost, pinned);
	}
	if (!CALL(cuMemHostRegister_v2, own, LARGE, CU_HOST_MAPPED)) {
		AS("cuMemHostGetDevicePointer_v2 of registered memory", cuMemHostGetDevicePointer_v2, &seen, own, 0);
		memset(own, 0, LARGE);
		CALL(cuMemcpyDtoHAsync_v2, own, at, LARGE, NULL);
		CALL(cuCtxSynchronize);
		walk_check("registered memory from the device", same(own, LARGE, 11));
		CALL(cuMemHostUnregister, own);
	}
	CALL(cuMemFree_v2, at);
	free(own);
}

void step_primary(struct walk *w)
{
	cu_context made = NULL, again = NULL;
	unsigned int flags;
	cu_pointer at;
	int active = 1;

	CALL(cuDevicePrimaryCtxGetState, w->device, &flags, &active);
	walk_check("it is not active before", !active);
	if (CALL(cuDevicePrimaryCtxRetain, &made, w->device))
		return;
	CALL(cuDevicePrimaryCtxRetain, &again, w->device);
	walk_check("it is the same each time", made == again);
	CALL(cuCtxSetCurrent, made);
	CALL(cuMemAlloc_v2, &at, 1 * MIB);
	CALL(cuDevicePrimaryCtxRelease_v2, w->device);
	CALL(cuDevicePrimaryCtxReset_v2, w->device);
	CALL(cuDevicePrimaryCtxGetState, w->device, &flags, &active);
	walk_check("a reset ends it", !active);
	CALL(cuDevicePrimaryCtxRelease_v2, w->device);
	CALL(cuCtxSetCurrent, NULL);
}

/* Two at a time, each with memory, a module and a kernel of its own. */
void step_contexts(struct walk *w)
{
	cu_context both[2] = { NULL, NULL }, popped;
	cu_pointer at[2] = { 0, 0 };

	for (int i = 0; i < 2; i++) {
		unsigned int count = 1024;
		void *arguments[] = { &at[i], &count };
		cu_module module;
		cu_function fill;

		if (CALL(cuCtxCreate_v2, &both[i], 0, w->device))
			break;
		if (CALL(cuMemAlloc_v2, &at[i], 1 * MIB) || CALL(cuModuleLoadData, &module, walk_ptx) ||
		    CALL(cuModuleGetFunction, &fill, module, "fill"))
			break;
		CALL(cuLaunchKernel, fill, 4, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL);
		CALL(cuCtxPopCurrent_v2, &popped);
	}
	for (int i = 0; i < 2 && both[1]; i++) {
		CALL(cuCtxPushCurrent_v2, both[i]);
		copy_both_ways(at[i], SMALL, i, "each has its own memory");
		CALL(cuCtxSynchronize);
		CALL(cuCtxPopCurrent_v2, &popped);
	}
	for (int i = 0; i < 2 && both[i]; i++)
		CALL(cuCtxDestroy_v2, both[i]);
}
