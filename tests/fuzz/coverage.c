// SPDX-License-Identifier: MIT
/*
 * Which blocks of the module's code, and edges between them, the calls of this program
 * have reached, by KCOV: the kernel has to have it, and the module to be built with it
 * (as for KERNEL=uml-debug and debug). Each thread reads its own trace after every step.
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
	/* The mapping and the thread keep the trace; a step may close or replace any number. */
	if (trace && (trace == MAP_FAILED || ioctl(fd, KCOV_ENABLE, 0))) {
		perror("abifuzz: " KCOV);
		trace = NULL;
	}
	close(fd);
}

/* An edge leads from one block of the module to the next; from 0, into the module. */
static bool reach(uint64_t from, uint64_t at)
{
	uint32_t slot = ((from * 0x9e3779b97f4a7c15ull ^ at) * 0xbf58476d1ce4e5b9ull) >> 44;

	_Static_assert(EDGES == 1u << 20, "the upper bits of 64");
	if (atomic_load_explicit(&shared->edge[slot], memory_order_relaxed) ||
	    atomic_exchange(&shared->edge[slot], 1))
		return false;
	if (!atomic_fetch_add(&shared->reached[at], 1))
		atomic_fetch_add(&shared->addresses, 1);
	atomic_fetch_add(&shared->edges, 1);
	return true;
}

bool coverage_collect(void)
{
	uint64_t from = 0;
	bool found = false;
	unsigned long n;

	if (opt.module_end <= opt.module_begin)
		return false;
	if (traced != gettid())
		begin();
	if (!trace)
		return false;
	n = __atomic_load_n(&trace[0], __ATOMIC_RELAXED);
	for (unsigned long i = 1; i <= n && i < TRACE_WORDS; i++) {
		uint64_t at = trace[i] - opt.module_begin;

		if (at >= opt.module_end - opt.module_begin || at >= MODULE_MAX)
			continue;
		found |= reach(from, at);
		from = at;
	}
	__atomic_store_n(&trace[0], 0, __ATOMIC_RELAXED);
	return found;
}

/* ---- the report ---- */

static struct {
	double seconds;
	unsigned long calls;
	unsigned int addresses, edges;
} sample[SAMPLES];
static int samples;

void coverage_sample(double seconds)
{
	if (opt.module_end <= opt.module_begin || samples == SAMPLES ||
	    (samples && seconds < samples * opt.seconds / SAMPLES))
		return;
	sample[samples].seconds = seconds;
	sample[samples].calls = atomic_load(&shared->count[COUNT_CALLS]);
	sample[samples].addresses = atomic_load(&shared->addresses);
	sample[samples++].edges = atomic_load(&shared->edges);
}

void coverage_report(void)
{
	const char *comma = "";

	if (opt.module_end <= opt.module_begin)
		return;
	printf(",\"chains\":%u,\"over_time\":[", corpus_chains(&shared->corpus));
	for (int i = 0; i < samples; i++)
		printf("%s[%.1f,%lu,%u,%u]", i ? "," : "", sample[i].seconds, sample[i].calls,
		       sample[i].addresses, sample[i].edges);
	printf("],\"reached\":[");
	for (uint64_t at = 0; at < MODULE_MAX; at++) {
		unsigned int edges = atomic_load_explicit(&shared->reached[at], memory_order_relaxed);

		if (edges) {
			printf("%s[%llu,%u]", comma, (unsigned long long)(opt.module_begin + at), edges);
			comma = ",";
		}
	}
	printf("]");
}
