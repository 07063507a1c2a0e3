/* SPDX-License-Identifier: MIT */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "simload.h"

const char load_name[] = "simload";

static const char help[] =
"simload - put load on a (simulated) NVIDIA GPU by the driver's own calls\n"
"\n"
"Allocates memory, makes a context (one TSG, one channel per stream) in each process and keeps\n"
"a queue of kernels in flight. Works wherever /dev/nvidiactl, /dev/nvidia<M> and /dev/nvidia-uvm\n"
"are: on the bare driver, or in a container that sees a part of a GPU. Numbers are simulated.\n"
"\n"
"  simload --info                          what memory do I see?\n"
"  simload --seconds 5                     32 kernels of 1000 us always queued, for 5 s\n"
"  simload --alloc-mib 1024 --hold         take 1 GiB, make a context, do nothing until SIGTERM\n"
"  simload --json --interval 1             one JSON object per line, the result last\n"
"  simload --processes 4 --kernel-us 50 --depth 64\n"
"\n"
"What to use\n"
"  --gpu N             the N-th GPU whose node opens, by attached ids (default 0)\n"
"  --dev DIR           directory of the nodes (default $NVSIM_DEV or /dev)\n"
"  --processes P       fork P processes, each with a context of its own (default 1)\n"
"  --streams S         channels in each context (default 1)\n"
"Work\n"
"  --kernel-us U       length of a kernel on the GPU alone (default 1000)\n"
"  --depth D           kernels in flight per stream (default 32)\n"
"  --pause-us U        after each kernel the GPU sees no work of the queue for so long, as from a\n"
"                      client that waits for each kernel; it needs no processor for that\n"
"  --stubborn          kernels that ignore preemption\n"
"  --busy-ms B --idle-ms I   queue work for B ms, then nothing for I ms, and so on\n"
"  --request-us U[xN][,U[xN]...] --requests-per-s R   requests instead: each is these kernels, in\n"
"                      order and up to the depth at a time; Poisson arrivals, one after the other\n"
"  --seed N            other arrivals (default 1)\n"
"  --register          register the channels with nvidia-uvm, as CUDA does\n"
"Memory (per process)\n"
"  --alloc-mib M       allocate M MiB of GPU memory before the context; refused = exit code 3\n"
"How long\n"
"  --seconds T         run for T seconds, 0 = until SIGTERM (default 10; with --hold 0)\n"
"  --warmup S          count only what completes after S seconds\n"
"  --works N           stop when N works are complete in each process\n"
"  --hold              context and memory, but no work\n"
"  --no-context        memory only: no channel is made (implies --hold)\n"
"Output\n"
"  --info              print total and free memory as seen here, and end\n"
"  --json              JSON objects; the last line is the result\n"
"  --interval S        a line of progress every S seconds\n"
"  --poll-us U         look for completed work every U us (default: a part of the queue's time)\n"
"\n"
"SIGTERM and SIGINT end it cleanly, with the result. lat_p50_us and lat_p99_us are from the\n"
"doorbell to the GPU's time stamp of completion, waiting in the queue included; of requests from\n"
"the arrival to the completion of the last kernel, earlier requests included.\n"
"Exit codes: 0 done, 1 a call failed, 2 usage, 3 --alloc-mib refused, 4 no such GPU, 5 channel fault.\n";

enum { OPT_GPU = 256, OPT_DEV, OPT_PROCESSES, OPT_STREAMS, OPT_KERNEL_US, OPT_DEPTH,
       OPT_PAUSE_US, OPT_STUBBORN, OPT_BUSY_MS, OPT_IDLE_MS, OPT_REQUEST_US, OPT_PER_S, OPT_SEED,
       OPT_REGISTER, OPT_ALLOC_MIB, OPT_SECONDS, OPT_WARMUP, OPT_WORKS, OPT_HOLD, OPT_NO_CONTEXT, OPT_INFO,
       OPT_JSON, OPT_INTERVAL, OPT_POLL_US, OPT_HELP };

static const struct option long_options[] = {
	{ "gpu",		required_argument, NULL, OPT_GPU },
	{ "dev",		required_argument, NULL, OPT_DEV },
	{ "processes",		required_argument, NULL, OPT_PROCESSES },
	{ "streams",		required_argument, NULL, OPT_STREAMS },
	{ "kernel-us",		required_argument, NULL, OPT_KERNEL_US },
	{ "depth",		required_argument, NULL, OPT_DEPTH },
	{ "pause-us",		required_argument, NULL, OPT_PAUSE_US },
	{ "stubborn",		no_argument,	   NULL, OPT_STUBBORN },
	{ "busy-ms",		required_argument, NULL, OPT_BUSY_MS },
	{ "idle-ms",		required_argument, NULL, OPT_IDLE_MS },
	{ "request-us",		required_argument, NULL, OPT_REQUEST_US },
	{ "requests-per-s",	required_argument, NULL, OPT_PER_S },
	{ "seed",		required_argument, NULL, OPT_SEED },
	{ "register",		no_argument,	   NULL, OPT_REGISTER },
	{ "alloc-mib",		required_argument, NULL, OPT_ALLOC_MIB },
	{ "seconds",		required_argument, NULL, OPT_SECONDS },
	{ "warmup",		required_argument, NULL, OPT_WARMUP },
	{ "works",		required_argument, NULL, OPT_WORKS },
	{ "hold",		no_argument,	   NULL, OPT_HOLD },
	{ "no-context",		no_argument,	   NULL, OPT_NO_CONTEXT },
	{ "info",		no_argument,	   NULL, OPT_INFO },
	{ "json",		no_argument,	   NULL, OPT_JSON },
	{ "interval",		required_argument, NULL, OPT_INTERVAL },
	{ "poll-us",		required_argument, NULL, OPT_POLL_US },
	{ "help",		no_argument,	   NULL, OPT_HELP },
	{ 0 },
};

void options_parse(struct options *opt, int argc, char **argv)
{
	double seconds = -1;
	int c;

	*opt = (struct options) { .streams = 1, .processes = 1, .depth = 32, .kernel_us = 1000, .seed = 1 };
	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case OPT_GPU:		opt->gpu = option_number("--gpu", 0, MAX_GPUS - 1); break;
		case OPT_DEV:		opt->dir = optarg; break;
		case OPT_PROCESSES:	opt->processes = option_number("--processes", 1, MAX_PROCESSES); break;
		case OPT_STREAMS:	opt->streams = option_number("--streams", 1, MAX_STREAMS); break;
		case OPT_KERNEL_US:	opt->kernel_us = option_number("--kernel-us", 0.001, 1e9); break;
		case OPT_DEPTH:		opt->depth = option_number("--depth", 1, 4095); break;
		case OPT_PAUSE_US:	opt->flags |= (uint32_t)option_number("--pause-us", 1, 1e7) << FLAG_PAUSE_SHIFT; break;
		case OPT_STUBBORN:	opt->flags |= FLAG_STUBBORN; break;
		case OPT_BUSY_MS:	opt->busy_ns = option_number("--busy-ms", 0.001, 1e9) * 1e6; break;
		case OPT_IDLE_MS:	opt->idle_ns = option_number("--idle-ms", 0.001, 1e9) * 1e6; break;
		case OPT_REQUEST_US:	requests_parse(opt, optarg); break;
		case OPT_PER_S:		opt->requests_per_s = option_number("--requests-per-s", 0.001, 1e6); break;
		case OPT_SEED:		opt->seed = option_number("--seed", 0, 1e9); break;
		case OPT_REGISTER:	opt->registered = true; break;
		case OPT_ALLOC_MIB:	opt->alloc_bytes = option_number("--alloc-mib", 0, 1e8) * MIB; break;
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
	if (!opt->parts != !opt->requests_per_s)
		option_bad("go together", "--request-us and --requests-per-s");
	if (opt->parts && (opt->streams > 1 || opt->busy_ns || opt->works))
		option_bad("requests have one stream of kernels, and no other arrivals or end", "--request-us");
	opt->run_ns = option_run_ns(seconds, opt->hold || opt->works, opt->warmup_ns, opt->busy_ns, opt->idle_ns);
}
