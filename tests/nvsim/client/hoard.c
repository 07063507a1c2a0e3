/* SPDX-License-Identifier: MIT */
/*
 * hoard: one process with as many objects as it gets, and what its calls cost with few and with
 * all of them. Each object is a second handle of one page of system memory, the cheapest that
 * there is.
 */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "rm.h"

#define SAMPLE	1000	/* calls that are timed together */

static const char help[] =
"hoard - make many objects, time calls with few and with all of them, and free them at once\n"
"\n"
"  --objects N    (240000)\n"
"  --wait         print, then wait to be killed, in place of one RM_FREE of the device above all\n"
"                 of them\n"
"  --gpu N  --dev DIR   as in simload\n"
"\n"
"Prints one line of JSON: the objects made, nanoseconds per call of RM_DUP_OBJECT and of RM_CONTROL\n"
"(the mean of 1,000) with few objects and with all, the longest RM_DUP_OBJECT, and the time of the end.\n"
"Exit codes: 0 done, 1 a call failed, 2 usage, 4 no such GPU.\n";

static struct {
	unsigned long objects;
	bool wait;
	unsigned int gpu;
	const char *dir;
} opt = { .objects = 240000 };

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static void fail(const struct rm *rm)
{
	fprintf(stderr, "hoard: %s: %s (status %lld)\n", rm->error.call, rm_strerror(rm->error.status),
		(long long)rm->error.status);
	exit(1);
}

static uint64_t longest_ns;

/* Makes @count dups; returns nanoseconds per call. */
static uint64_t make(struct rm_gpu *gpu, uint32_t memory, unsigned long count)
{
	uint64_t begin = now_ns(), before = begin, after;
	uint32_t handle;

	for (unsigned long i = 0; i < count; i++) {
		if (rm_dup(gpu->rm, gpu->device, gpu->rm->client, memory, &handle))
			fail(gpu->rm);
		after = now_ns();
		if (after - before > longest_ns)
			longest_ns = after - before;
		before = after;
	}
	return count ? (now_ns() - begin) / count : 0;
}

/* RM_CONTROL GET_NAME_STRING, which the module only passes on. */
static uint64_t control(struct rm_gpu *gpu)
{
	uint64_t begin = now_ns();
	char name[64];

	for (int i = 0; i < SAMPLE; i++)
		if (rm_gpu_name(gpu, name))
			fail(gpu->rm);
	return (now_ns() - begin) / SAMPLE;
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "objects", 1, NULL, 'n' }, { "wait", 0, NULL, 'w' }, { "gpu", 1, NULL, 'g' },
		{ "dev", 1, NULL, 'd' }, { "help", 0, NULL, 'h' }, { 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'n': opt.objects = strtoul(optarg, NULL, 0); break;
		case 'g': opt.gpu = strtoul(optarg, NULL, 0); break;
		case 'd': opt.dir = optarg; break;
		case 'w': opt.wait = true; break;
		case 'h': fputs(help, stdout); exit(0);
		default: exit(2);
		}
	}
	if (opt.objects < 3 * SAMPLE) {
		fprintf(stderr, "hoard: --objects is 3000 at least\n");
		exit(2);
	}
}

static void open_gpu(struct rm *rm, struct rm_gpu *gpu)
{
	struct rm_gpu_info list[MAX_GPUS];
	unsigned int gpus;

	if (rm_open(rm, opt.dir) || rm_list_gpus(rm, list, &gpus))
		fail(rm);
	if (opt.gpu >= gpus) {
		fprintf(stderr, "hoard: no GPU %u in %s\n", opt.gpu, rm->dir);
		exit(4);
	}
	if (rm_gpu_open(gpu, rm, &list[opt.gpu]))
		fail(rm);
}

int main(int argc, char **argv)
{
	uint64_t few_dup, all_dup, few_control, all_control, begin;
	struct nv_mem_params params = {
		.attr = ATTR_NONCONTIG_ALLOWED | ATTR_LOCATION_PCI, .size = 4096,
	};
	struct rm_gpu gpu;
	uint32_t memory;
	struct rm rm;

	parse(argc, argv);
	open_gpu(&rm, &gpu);
	params.owner = rm.client;
	if (rm_alloc(&rm, gpu.device, NV01_MEMORY_SYSTEM, &params, sizeof(params), &memory))
		fail(&rm);
	make(&gpu, memory, SAMPLE);	/* warm */
	control(&gpu);
	few_dup = make(&gpu, memory, SAMPLE);
	few_control = control(&gpu);
	make(&gpu, memory, opt.objects - 3 * SAMPLE);
	all_dup = make(&gpu, memory, SAMPLE);
	all_control = control(&gpu);
	begin = now_ns();
	if (!opt.wait && rm_free(&rm, rm.client, gpu.device))
		fail(&rm);
	printf("{\"objects\":%lu,\"few_dup_ns\":%llu,\"all_dup_ns\":%llu,\"few_control_ns\":%llu,"
	       "\"all_control_ns\":%llu,\"longest_dup_ns\":%llu,\"end_ns\":%llu}\n", opt.objects,
	       (unsigned long long)few_dup, (unsigned long long)all_dup,
	       (unsigned long long)few_control, (unsigned long long)all_control,
	       (unsigned long long)longest_ns, (unsigned long long)(now_ns() - begin));
	fflush(stdout);
	if (opt.wait)
		pause();
	return 0;
}
