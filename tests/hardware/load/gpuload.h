/* SPDX-License-Identifier: MIT */
/* What the parts of gpuload share. */
#ifndef GPULOAD_H
#define GPULOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../../nvsim/client/load.h"
#include "cuda.h"

#define MAX_STREAMS	128
#define MAX_DEPTH	1024
#define MAX_SAMPLES	8192

struct options {
	unsigned int gpu, streams, depth;
	double kernel_us;
	uint32_t iterations;		/* of the kernel's loop, 0 = measured at the start */
	uint64_t alloc_bytes;
	unsigned int allocs;		/* so many pieces of it */
	uint64_t run_ns, warmup_ns, interval_ns, poll_ns, busy_ns, idle_ns;
	uint64_t works;
	bool json, info, hold, calibrate, no_context;
};

struct load {
	struct options opt;
	struct cuda cu;
	cu_device device;
	cu_context context;
	cu_function kernel;
	cu_pointer sink;
	unsigned int blocks;
	uint32_t iterations;
	char name[128], uuid[48];
	uint64_t total_bytes, free_bytes;
	uint64_t alloc_bytes;		/* got */

	cu_stream stream[MAX_STREAMS];
	cu_event event[MAX_STREAMS][MAX_DEPTH];
	uint64_t sent_ns[MAX_STREAMS][MAX_DEPTH];
	uint64_t queued[MAX_STREAMS], done[MAX_STREAMS];

	uint64_t works, start_ns, end_ns, cpu_us;
	uint64_t samples;
	uint32_t latency_us[MAX_SAMPLES];
	char call[64];			/* the first that failed */
	cu_result result;
};

/* gpuload_options.c */
void options_parse(struct options *opt, int argc, char **argv);
/* gpuload_device.c */
int device_open(struct load *l);
int device_prepare(struct load *l);
cu_result device_launch(struct load *l, cu_stream stream);
bool failed(struct load *l, cu_result result, const char *call);
/* gpuload_report.c */
void report_info(const struct load *l);
void report_ready(const struct load *l);
void report_progress(struct load *l);
void report_result(const struct load *l);

#endif
