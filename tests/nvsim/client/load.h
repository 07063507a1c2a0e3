/* SPDX-License-Identifier: MIT */
/*
 * Common to simload and tests/hardware/load's gpuload: exit codes, the clock, signals, and option
 * values.
 */
#ifndef LOAD_H
#define LOAD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define MIB		1048576ull

enum load_exit {
	EXIT_OK		= 0,
	EXIT_FAILED	= 1,	/* a call failed */
	EXIT_USAGE	= 2,
	EXIT_MEMORY	= 3,	/* --alloc-mib was refused */
	EXIT_NO_GPU	= 4,
	EXIT_FAULT	= 5,	/* the driver killed a channel, or a kernel failed, while it ran */
};

/* The program's name in its errors; each program defines it. */
extern const char load_name[];

extern volatile sig_atomic_t got_signal;
/* SIGTERM and SIGINT set got_signal, and wake from naps. */
void catch_signals(void);

/* CLOCK_MONOTONIC */
uint64_t now_ns(void);
/* A signal ends it early. */
void nap(uint64_t ns);

/* Ends the program with EXIT_USAGE. */
void option_bad(const char *why, const char *value);
/* The value of the option that getopt_long() is at. */
double option_number(const char *name, double min, double max);

/*
 * The run time, 0 = until a signal, from options that must fit together.
 * @seconds below 0: not given; @endless: another condition ends the run.
 */
uint64_t option_run_ns(double seconds, bool endless, uint64_t warmup_ns, uint64_t busy_ns, uint64_t idle_ns);

#endif
