// SPDX-License-Identifier: MIT
/* gpuload: simload for a real GPU. The same options and the same lines of JSON, by CUDA's driver interface. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "gpuload.h"

#define POLL_MIN_NS	50000ull
#define POLL_MAX_NS	20000000ull
#define HOLD_NS		50000000ull

static void sample(struct load *l, uint64_t us)
{
	uint64_t slot = l->samples++;

	if (slot < MAX_SAMPLES)
		l->latency_us[slot] = us;
	else	/* evenly replaced, though not by chance: the load is regular */
		l->latency_us[(slot * 2654435761u) % MAX_SAMPLES] = us;
}

/* Counts what is complete; false where a kernel failed. */
static bool reap(struct load *l, uint64_t seen)
{
	for (unsigned int i = 0; i < l->opt.streams; i++) {
		while (l->done[i] < l->queued[i]) {
			unsigned int slot = l->done[i] % l->opt.depth;
			cu_result result = l->cu.event_query(l->event[i][slot]);

			if (result == CU_NOT_READY)
				break;
			if (failed(l, result, "cuEventQuery"))
				return false;
			l->done[i]++;
			if (seen < l->start_ns)
				continue;
			l->works++;
			sample(l, (seen - l->sent_ns[i][slot]) / 1000);
		}
	}
	return true;
}

static uint64_t all_queued(const struct load *l)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < l->opt.streams; i++)
		sum += l->queued[i];
	return sum;
}

static bool refill(struct load *l)
{
	for (unsigned int i = 0; i < l->opt.streams; i++) {
		while (l->queued[i] - l->done[i] < l->opt.depth &&
		       (!l->opt.works || all_queued(l) < l->opt.works)) {
			unsigned int slot = l->queued[i] % l->opt.depth;

			l->sent_ns[i][slot] = now_ns();
			if (failed(l, device_launch(l, l->stream[i]), "cuLaunchKernel") ||
			    failed(l, l->cu.event_record(l->event[i][slot], l->stream[i]), "cuEventRecord"))
				return false;
			l->queued[i]++;
		}
	}
	return true;
}

static uint64_t poll_time(const struct options *opt)
{
	double queue = opt->kernel_us * 1000 * opt->depth;
	uint64_t ns = opt->depth > 1 ? queue / 4 : queue / 8;

	if (opt->poll_ns)
		return opt->poll_ns;
	return ns < POLL_MIN_NS ? POLL_MIN_NS : ns > POLL_MAX_NS ? POLL_MAX_NS : ns;
}

static bool busy_phase(const struct options *opt, uint64_t since_ns)
{
	return !opt->idle_ns || since_ns % (opt->busy_ns + opt->idle_ns) < opt->busy_ns;
}

static int work(struct load *l)
{
	const struct options *opt = &l->opt;
	uint64_t begin = now_ns(), t = begin, poll = poll_time(opt);

	l->start_ns = begin + opt->warmup_ns;
	while (!got_signal && !(opt->run_ns && t - begin >= opt->run_ns) && !(opt->works && l->works >= opt->works)) {
		if (!opt->hold && (!reap(l, t) || (busy_phase(opt, t - begin) && !refill(l))))
			return EXIT_FAULT;
		report_progress(l);
		nap(opt->hold ? HOLD_NS : poll);
		t = now_ns();
	}
	l->end_ns = now_ns();
	return opt->hold || reap(l, l->end_ns) ? EXIT_OK : EXIT_FAULT;
}

static uint64_t cpu_us(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return (ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000ull + ru.ru_utime.tv_usec + ru.ru_stime.tv_usec;
}

int main(int argc, char **argv)
{
	static struct load l;
	uint64_t cpu;
	int code;

	options_parse(&l.opt, argc, argv);
	catch_signals();
	code = device_open(&l);
	if (!code && !l.opt.info && !l.opt.no_context)
		code = device_prepare(&l);
	if (code || l.opt.info || l.opt.calibrate) {
		report_info(&l);
		return code;
	}
	report_ready(&l);
	cpu = cpu_us();
	code = work(&l);
	l.cpu_us = cpu_us() - cpu;
	report_result(&l);
	return code;
}
