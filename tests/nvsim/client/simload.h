/* SPDX-License-Identifier: MIT */
/* Shared by the parts of simload: the options, and one slot of results per process. */
#ifndef SIMLOAD_H
#define SIMLOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "load.h"
#include "rm.h"

#define MAX_STREAMS	64
#define MAX_PROCESSES	64
#define MAX_SAMPLES	8192	/* latencies kept per process, evenly replaced */
#define MAX_PARTS	16	/* of --request-us */

/* Kernels of one length in a request. */
struct part {
	uint64_t ns;
	unsigned int count;
};

struct options {
	unsigned int gpu, streams, processes, depth;
	const char *dir;
	uint32_t flags;
	double kernel_us;
	uint64_t alloc_bytes;
	uint64_t run_ns, warmup_ns, interval_ns, poll_ns, busy_ns, idle_ns;
	uint64_t works;		/* stop after so many per process, 0 = by time */
	bool json, info, hold, no_context, registered;
	struct part request[MAX_PARTS];	/* the kernels of a request, in order */
	unsigned int parts, kernels;	/* 0: no requests, the queue is kept full */
	double requests_per_s;
	uint64_t seed;
};

/* Written by one worker, read by the parent. */
struct result {
	pid_t pid;
	int exit_code;
	bool ready, ended;
	uint64_t works;			/* completed after the warm-up */
	uint64_t start_ns, end_ns;	/* CLOCK_MONOTONIC of the counted time */
	uint64_t gpu_first_ns, gpu_last_ns;	/* GPU time of the first and last counted work */
	uint64_t cpu_us;
	int64_t clock_lo, clock_hi;	/* bounds of CPU time minus GPU time */
	struct rm_error error;		/* the first */
	struct rm_memory memory;	/* after the allocation */
	uint64_t alloc_bytes;
	uint32_t minor;
	char name[64], uuid[48];
	uint64_t samples;		/* latencies seen; the first MAX_SAMPLES slots are filled */
	int64_t latency_raw[MAX_SAMPLES];	/* GPU completion minus CPU submission */
};

struct shared {
	int stop;			/* set once, by the parent */
	unsigned int started;		/* workers that are ready or have failed */
	uint64_t born_ns;
	struct result result[MAX_PROCESSES];
};

/* simload_options.c */
void options_parse(struct options *opt, int argc, char **argv);

/*
 * simload_worker.c. @tick is called at about every nap, for progress lines; it is
 * given to the only worker, which then reports the result itself.
 */
int worker_run(const struct options *opt, struct shared *sh, unsigned int index,
	       void (*tick)(const struct options *, struct shared *));

/*
 * simload_request.c: requests that arrive by chance, each after the one before it. The queue is the
 * caller's; these know what is to be put into it.
 */
struct requests {
	const struct options *opt;
	uint64_t arrival_ns;		/* of the request under way, or of the next one */
	uint64_t random;
	unsigned int queued, done;	/* of its kernels */
};
void requests_parse(struct options *opt, const char *text);
void requests_begin(struct requests *r, const struct options *opt, unsigned int index, uint64_t start_ns);
/* The length of the next kernel to queue now, 0: none. It counts as queued. */
uint64_t requests_next(struct requests *r, uint64_t now_ns);
/* A kernel of the request is complete. True: it was the last one; *arrival_ns is when the request came. */
bool requests_reap(struct requests *r, uint64_t *arrival_ns);
/* How long there is nothing to do, 0: a request is under way. */
uint64_t requests_idle_ns(const struct requests *r, uint64_t now_ns);

/* simload_report.c */
void report_error(const struct rm_error *e);
void report_info(const struct options *opt, const struct result *r);
void report_ready(const struct options *opt, const struct result *r);
void report_progress(const struct options *opt, struct shared *sh);
void report_result(const struct options *opt, struct shared *sh);

#endif
