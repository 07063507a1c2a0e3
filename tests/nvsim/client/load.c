/* SPDX-License-Identifier: MIT */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "load.h"

volatile sig_atomic_t got_signal;

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

void nap(uint64_t ns)
{
	struct timespec ts = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	nanosleep(&ts, NULL);
}

static void on_signal(int sig)
{
	got_signal = sig;
}

void catch_signals(void)
{
	struct sigaction sa = { .sa_handler = on_signal };	/* no SA_RESTART: wake from naps */

	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
}

void option_bad(const char *why, const char *value)
{
	fprintf(stderr, "%s: %s: %s (see --help)\n", load_name, why, value);
	exit(EXIT_USAGE);
}

double option_number(const char *name, double min, double max)
{
	char *end;
	double v = strtod(optarg, &end);

	if (end == optarg || *end || !(v >= min && v <= max))
		option_bad(name, optarg);
	return v;
}

uint64_t option_run_ns(double seconds, bool endless, uint64_t warmup_ns, uint64_t busy_ns, uint64_t idle_ns)
{
	uint64_t run_ns;

	if (!busy_ns != !idle_ns)
		option_bad("go together", "--busy-ms and --idle-ms");
	if (seconds < 0)
		seconds = endless ? 0 : 10;
	run_ns = seconds * 1e9;
	if (run_ns && warmup_ns >= run_ns)
		option_bad("is not shorter than --seconds", "--warmup");
	return run_ns;
}
