// SPDX-License-Identifier: MIT
/* The device, its context, the kernel, and how many rounds of its loop make a kernel of the length asked for. */
#include <stdio.h>
#include <string.h>

#include "gpuload.h"

#define THREADS		256
#define BLOCKS_PER_SM	4	/* the whole GPU, in one wave */
#define FIRST_ITERATIONS 4096u

/* So much arithmetic, and no clock: what a kernel has to do does not pass by while it is off the GPU. */
static const char ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry spin(.param .u64 sink, .param .u32 rounds)\n"
	"{\n"
	"	.reg .pred %p<3>;\n"
	"	.reg .f32 %f<4>;\n"
	"	.reg .u32 %r<4>;\n"
	"	.reg .u64 %rd<2>;\n"
	"	ld.param.u64 %rd1, [sink];\n"
	"	ld.param.u32 %r1, [rounds];\n"
	"	mov.u32 %r2, %tid.x;\n"
	"	cvt.rn.f32.u32 %f1, %r2;\n"
	"	mov.f32 %f2, 0f3F7FFFFE;\n"
	"	mov.f32 %f3, 0f33D6BF95;\n"
	"	mov.u32 %r3, 0;\n"
	"AGAIN:\n"
	"	setp.ge.u32 %p1, %r3, %r1;\n"
	"	@%p1 bra DONE;\n"
	"	fma.rn.f32 %f1, %f1, %f2, %f3;\n"
	"	fma.rn.f32 %f1, %f1, %f2, %f3;\n"
	"	fma.rn.f32 %f1, %f1, %f2, %f3;\n"
	"	fma.rn.f32 %f1, %f1, %f2, %f3;\n"
	"	fma.rn.f32 %f1, %f1, %f2, %f3;\n"
	"	fma.rn.f32 %f1, %f1, %f2, %f3;\n"
	"	fma.rn.f32 %f1, %f1, %f2, %f3;\n"
	"	fma.rn.f32 %f1, %f1, %f2, %f3;\n"
	"	add.u32 %r3, %r3, 1;\n"
	"	bra AGAIN;\n"
	"DONE:\n"
	"	setp.eq.f32 %p2, %f1, 0fC47A0000;\n"	/* never, but that is not seen */
	"	@%p2 st.global.f32 [%rd1], %f1;\n"
	"	ret;\n"
	"}\n";

bool failed(struct load *l, cu_result result, const char *call)
{
	if (!result)
		return false;
	if (!l->call[0]) {
		snprintf(l->call, sizeof(l->call), "%s", call);
		l->result = result;
		fprintf(stderr, "gpuload: %s: %s (%d)\n", call, cuda_error(&l->cu, result), result);
	}
	return true;
}

static void uuid_text(const unsigned char *u, char text[48])
{
	int n = sprintf(text, "GPU-");

	for (int i = 0; i < 16; i++)
		n += sprintf(text + n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}

int device_open(struct load *l)
{
	const char *missing = cuda_load(&l->cu);
	unsigned char uuid[16] = { 0 };
	struct cuda *cu = &l->cu;
	size_t total = 0, left = 0;

	if (missing) {
		snprintf(l->call, sizeof(l->call), "dlopen");
		fprintf(stderr, "gpuload: %s\n", missing);
		return EXIT_FAILED;
	}
	if (failed(l, cu->init(0), "cuInit"))
		return EXIT_FAILED;
	if (failed(l, cu->device_get(&l->device, l->opt.gpu), "cuDeviceGet"))
		return EXIT_NO_GPU;
	if (failed(l, cu->device_name(l->name, sizeof(l->name), l->device), "cuDeviceGetName") ||
	    failed(l, cu->device_uuid(uuid, l->device), "cuDeviceGetUuid") ||
	    failed(l, cu->device_total(&total, l->device), "cuDeviceTotalMem"))
		return EXIT_FAILED;
	uuid_text(uuid, l->uuid);
	l->total_bytes = total;
	if (l->opt.no_context)
		return EXIT_OK;
	if (failed(l, cu->context_retain(&l->context, l->device), "cuDevicePrimaryCtxRetain") ||
	    failed(l, cu->context_set(l->context), "cuCtxSetCurrent") ||
	    failed(l, cu->mem_info(&left, &total), "cuMemGetInfo"))
		return EXIT_FAILED;
	l->total_bytes = total;
	l->free_bytes = left;
	return EXIT_OK;
}

cu_result device_launch(struct load *l, cu_stream stream)
{
	void *arguments[] = { &l->sink, &l->iterations };

	return l->cu.launch(l->kernel, l->blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL);
}

/* The kernel's length in us, by events around it. */
static bool time_kernel(struct load *l, float *us)
{
	struct cuda *cu = &l->cu;
	cu_event from = l->event[0][0], to = l->event[0][1];
	float ms = 0;

	if (failed(l, cu->event_record(from, l->stream[0]), "cuEventRecord") ||
	    failed(l, device_launch(l, l->stream[0]), "cuLaunchKernel") ||
	    failed(l, cu->event_record(to, l->stream[0]), "cuEventRecord") ||
	    failed(l, cu->event_synchronize(to), "cuEventSynchronize") ||
	    failed(l, cu->event_elapsed(&ms, from, to), "cuEventElapsedTime"))
		return false;
	*us = ms * 1000;
	return true;
}

/* Some rounds for the clocks to come up; the last one counts. Wrong while others use the GPU: then --iterations. */
static bool calibrate(struct load *l)
{
	float us = 0;

	l->iterations = l->opt.iterations ? l->opt.iterations : FIRST_ITERATIONS;
	if (l->opt.iterations)
		return true;
	for (int i = 0; i < 24; i++) {
		double next;

		if (!time_kernel(l, &us))
			return false;
		next = l->iterations * (us > 1 ? l->opt.kernel_us / us : 16);
		l->iterations = next < 1 ? 1 : next > 4e9 ? 4000000000u : (uint32_t)next;
	}
	return true;
}

static bool make_queues(struct load *l)
{
	unsigned int events = l->opt.depth < 2 ? 2 : l->opt.depth;

	for (unsigned int i = 0; i < l->opt.streams; i++) {
		if (failed(l, l->cu.stream_create(&l->stream[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate"))
			return false;
		for (unsigned int k = 0; k < events; k++)
			if (failed(l, l->cu.event_create(&l->event[i][k], CU_EVENT_DEFAULT), "cuEventCreate"))
				return false;
	}
	return true;
}

static int take_memory(struct load *l)
{
	for (unsigned int i = 0; i < l->opt.allocs && l->opt.alloc_bytes; i++) {
		cu_pointer at;
		cu_result result = l->cu.mem_alloc(&at, l->opt.alloc_bytes / l->opt.allocs);

		if (failed(l, result, "cuMemAlloc"))
			return result == CU_OUT_OF_MEMORY ? EXIT_MEMORY : EXIT_FAILED;
		l->alloc_bytes += l->opt.alloc_bytes / l->opt.allocs;
	}
	return EXIT_OK;
}

int device_prepare(struct load *l)
{
	cu_module module;
	size_t total, left;
	int code, sms;

	code = take_memory(l);
	if (code)
		return code;
	if (failed(l, l->cu.device_attribute(&sms, CU_ATTRIBUTE_MULTIPROCESSORS, l->device), "cuDeviceGetAttribute") ||
	    failed(l, l->cu.module_load(&module, ptx), "cuModuleLoadData") ||
	    failed(l, l->cu.module_function(&l->kernel, module, "spin"), "cuModuleGetFunction") ||
	    failed(l, l->cu.mem_alloc(&l->sink, 4096), "cuMemAlloc") || !make_queues(l))
		return EXIT_FAILED;
	l->blocks = sms * BLOCKS_PER_SM;
	if (!calibrate(l) || failed(l, l->cu.mem_info(&left, &total), "cuMemGetInfo"))
		return EXIT_FAILED;
	l->free_bytes = left;
	return EXIT_OK;
}
