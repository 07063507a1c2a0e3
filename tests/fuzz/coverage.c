// SPDX-License-Identifier: MIT
/*
 * Which instructions of the module the calls of this program have reached, by KCOV:
 * the kernel and the module have to be built with it (the debug kernel is). Each
 * thread reads its own trace after every step.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

#define KCOV		"/sys/kernel/debug/kcov"
#define KCOV_INIT_TRACE	_IOR('c', 1, unsigned long)	/* linux/kcov.h */
#define KCOV_ENABLE	_IO('c', 100)
#define TRACE_WORDS	(1ul << 18)

static __thread unsigned long *trace;	/* trace[0] is how many addresses follow */
static __thread pid_t traced;		/* the thread that it is of: a fork starts without */

static void begin(void)
{
	int fd = open(KCOV, O_RDWR | O_CLOEXEC);

	traced = gettid();
	trace = NULL;
	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, TRACE_WORDS))
		perror("abifuzz: " KCOV);
	else
		trace = mmap(NULL, TRACE_WORDS * sizeof(*trace), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	/* The mapping and the thread keep the trace; no number is left that a step may close or replace. */
	if (trace && (trace == MAP_FAILED || ioctl(fd, KCOV_ENABLE, 0))) {
		perror("abifuzz: " KCOV);
		trace = NULL;
	}
	close(fd);
}

void coverage_collect(void)
{
	unsigned long n;

	if (opt.module_end <= opt.module_begin)
		return;
	if (traced != gettid())
		begin();
	if (!trace)
		return;
	n = __atomic_load_n(&trace[0], __ATOMIC_RELAXED);
	for (unsigned long i = 1; i <= n && i < TRACE_WORDS; i++) {
		uint64_t at = trace[i] - opt.module_begin;

		if (at < opt.module_end - opt.module_begin && at < MODULE_MAX)
			atomic_store_explicit(&shared->reached[at], 1, memory_order_relaxed);
	}
	__atomic_store_n(&trace[0], 0, __ATOMIC_RELAXED);
}

void coverage_report(void)
{
	const char *comma = "";

	if (opt.module_end <= opt.module_begin)
		return;
	printf(",\"reached\":[");
	for (uint64_t at = 0; at < MODULE_MAX; at++)
		if (atomic_load_explicit(&shared->reached[at], memory_order_relaxed)) {
			printf("%s%llu", comma, (unsigned long long)(opt.module_begin + at));
			comma = ",";
		}
	printf("]");
}
