// SPDX-License-Identifier: MIT
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpuload.h"

const char load_name[] = "gpuload";

static const char help[] =
"gpuload - put load on a GPU by CUDA's driver interface, with simload's options and output\n"
"\n"
"  --gpu N  --streams S  --kernel-us U  --depth D  --busy-ms B --idle-ms I\n"
"  --iterations N      so much work per kernel; without it the length is measured at the start\n"
"  --calibrate         measure it, print it, end\n"
"  --alloc-mib M       allocate M MiB first, in --allocs pieces; refused = exit code 3\n"
"  --seconds T  --warmup S  --works N  --hold  --no-context\n"
"  --info  --json  --interval S  --poll-us U\n"
"\n"
"Completion is looked for every poll: lat_p50_us and lat_p99_us are exact to that.\n"
"Exit codes: 0 done, 1 a call failed, 2 usage, 3 --alloc-mib refused, 4 no such GPU, 5 a kernel failed.\n";

enum { OPT_GPU = 256, OPT_STREAMS, OPT_KERNEL_US, OPT_DEPTH, OPT_BUSY_MS, OPT_IDLE_MS, OPT_ITERATIONS, OPT_CALIBRATE,
       OPT_ALLOC_MIB, OPT_ALLOCS, OPT_SECONDS, OPT_WARMUP, OPT_WORKS, OPT_HOLD, OPT_NO_CONTEXT, OPT_INFO, OPT_JSON,
       OPT_INTERVAL, OPT_POLL_US, OPT_HELP };

static const struct option long_options[] = {
	{ "gpu",	required_argument, NULL, OPT_GPU },
	{ "streams",	required_argument, NULL, OPT_STREAMS },
	{ "kernel-us",	required_argument, NULL, OPT_KERNEL_US },
	{ "depth",	required_argument, NULL, OPT_DEPTH },
	{ "busy-ms",	required_argument, NULL, OPT_BUSY_MS },
	{ "idle-ms",	required_argument, NULL, OPT_IDLE_MS },
	{ "iterations",	required_argument, NULL, OPT_ITERATIONS },
	{ "calibrate",	no_argument,	   NULL, OPT_CALIBRATE },
	{ "alloc-mib",	required_argument, NULL, OPT_ALLOC_MIB },
	{ "allocs",	required_argument, NULL, OPT_ALLOCS },
	{ "seconds",	required_argument, NULL, OPT_SECONDS },
	{ "warmup",	required_argument, NULL, OPT_WARMUP },
	{ "works",	required_argument, NULL, OPT_WORKS },
	{ "hold",	no_argument,	   NULL, OPT_HOLD },
	{ "no-context",	no_argument,	   NULL, OPT_NO_CONTEXT },
	{ "info",	no_argument,	   NULL, OPT_INFO },
	{ "json",	no_argument,	   NULL, OPT_JSON },
	{ "interval",	required_argument, NULL, OPT_INTERVAL },
	{ "poll-us",	required_argument, NULL, OPT_POLL_US },
	{ "help",	no_argument,	   NULL, OPT_HELP },
	{ 0 },
};

void options_parse(struct options *opt, int argc, char **argv)
{
	double seconds = -1;
	int c;

	*opt = (struct options) { .streams = 1, .depth = 32, .kernel_us = 1000, .allocs = 1 };
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case OPT_GPU:		opt->gpu = option_number("--gpu", 0, 31); break;
		case OPT_STREAMS:	opt->streams = option_number("--streams", 1, MAX_STREAMS); break;
		case OPT_KERNEL_US:	opt->kernel_us = option_number("--kernel-us", 1, 1e7); break;
		case OPT_DEPTH:		opt->depth = option_number("--depth", 1, MAX_DEPTH); break;
		case OPT_BUSY_MS:	opt->busy_ns = option_number("--busy-ms", 0.001, 1e9) * 1e6; break;
		case OPT_IDLE_MS:	opt->idle_ns = option_number("--idle-ms", 0.001, 1e9) * 1e6; break;
		case OPT_ITERATIONS:	opt->iterations = option_number("--iterations", 1, 4e9); break;
		case OPT_CALIBRATE:	opt->calibrate = true; break;
		case OPT_ALLOC_MIB:	opt->alloc_bytes = option_number("--alloc-mib", 0, 1e8) * MIB; break;
		case OPT_ALLOCS:	opt->allocs = option_number("--allocs", 1, 1e6); break;
		case OPT_SECONDS:	seconds = option_number("--seconds", 0, 1e6); break;
		case OPT_WARMUP:	opt->warmup_ns = option_number("--warmup", 0, 1e6) * 1e9; break;
		case OPT_WORKS:		opt->works = option_number("--works", 1, 1e15); break;
		case OPT_HOLD:		opt->hold = true; break;
		case OPT_NO_CONTEXT:	opt->no_context = opt->hold = true; break;
		case OPT_INFO:		opt->info = true; break;
		case OPT_JSON:		opt->json = true; break;
		case OPT_INTERVAL:	opt->interval_ns = option_number("--interval", 0.01, 1e6) * 1e9; break;
		case OPT_POLL_US:	opt->poll_ns = option_number("--poll-us", 1, 1e6) * 1e3; break;
		case OPT_HELP:		fputs(help, stdout); exit(EXIT_OK);
		default:		exit(EXIT_USAGE);
		}
	}
	if (optind < argc)
		option_bad("unexpected argument", argv[optind]);
	opt->run_ns = option_run_ns(seconds, opt->hold || opt->works, opt->warmup_ns, opt->busy_ns, opt->idle_ns);
}
