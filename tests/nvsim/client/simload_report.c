/* SPDX-License-Identifier: MIT */
/* Everything simload prints on stdout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simload.h"

static double mib(uint64_t bytes)
{
	return (double)bytes / MIB;
}

/* "simload: RM_ALLOC(0x40): NV_ERR_NO_MEMORY (0x51)" on stderr. */
void report_error(const struct rm_error *e)
{
	fprintf(stderr, "simload: %s: %s", e->call, rm_strerror(e->status));
	if (e->status > 0)
		fprintf(stderr, " (0x%llx)", (long long)e->status);
	fputc('\n', stderr);
}

static void print_error(const struct rm_error *e)
{
	if (e->call[0])
		printf("{\"call\":\"%s\",\"status\":%lld,\"text\":\"%s\"}", e->call,
		       (long long)e->status, rm_strerror(e->status));
	else
		printf("null");
}

static void print_gpu(const struct options *opt, const struct result *r)
{
	printf("\"gpu\":%u,\"name\":\"%s\",\"uuid\":\"%s\",\"minor\":%u,"
	       "\"ram_bytes\":%llu,\"total_bytes\":%llu,\"free_bytes\":%llu",
	       opt->gpu, r->name, r->uuid, r->minor, (unsigned long long)r->memory.ram,
	       (unsigned long long)r->memory.total, (unsigned long long)r->memory.free);
}

void report_info(const struct options *opt, const struct result *r)
{
	if (opt->json) {
		printf("{\"event\":\"info\",");
		print_gpu(opt, r);
		printf(",\"first_error\":");
		print_error(&r->error);
		printf(",\"simulated\":true}\n");
	} else if (!r->exit_code) {
		printf("GPU %u: %s (%s)\n  total %.0f MiB, free %.0f MiB, used %.0f MiB (simulated)\n",
		       opt->gpu, r->name, r->uuid, mib(r->memory.total), mib(r->memory.free),
		       mib(r->memory.total - r->memory.free));
	}
	fflush(stdout);
}

void report_ready(const struct options *opt, const struct result *r)
{
	if (!opt->interval_ns && !opt->hold)
		return;
	if (opt->json) {
		printf("{\"event\":\"ready\",\"pid\":%d,\"monotonic\":%.6f,\"alloc_bytes\":%llu,",
		       (int)r->pid, now_ns() / 1e9, (unsigned long long)r->alloc_bytes);
		print_gpu(opt, r);
		printf("}\n");
	} else {
		printf("ready: pid %d on GPU %u %s, %.0f MiB allocated\n", (int)r->pid, opt->gpu,
		       r->name, mib(r->alloc_bytes));
	}
	fflush(stdout);
}

static uint64_t all_works(const struct options *opt, const struct shared *sh)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < opt->processes; i++)
		sum += __atomic_load_n(&sh->result[i].works, __ATOMIC_RELAXED);
	return sum;
}

/* Called often; prints when a line is due. */
void report_progress(const struct options *opt, struct shared *sh)
{
	static uint64_t last_ns, last_works;
	uint64_t t = now_ns(), works;
	double rate;

	if (!opt->interval_ns)
		return;
	if (!last_ns)
		last_ns = sh->born_ns;
	if (t - last_ns < opt->interval_ns)
		return;
	works = all_works(opt, sh);
	rate = (works - last_works) * 1e9 / (t - last_ns);
	if (opt->json)
		printf("{\"event\":\"progress\",\"monotonic\":%.6f,\"works\":%llu,\"work_per_s\":%.3f}\n",
		       t / 1e9, (unsigned long long)works, rate);
	else
		printf("%8.3f s  %10llu works  %10.1f works/s (simulated)\n", (t - sh->born_ns) / 1e9,
		       (unsigned long long)works, rate);
	fflush(stdout);
	last_ns = t;
	last_works = works;
}

/* ---- the result ---- */

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/*
 * CPU time minus GPU time is between "sent - completed" and "seen - completed"
 * of every work. Returns 0 if both are one clock, else the upper bound, which is
 * the tighter one because of polling.
 */
static int64_t clock_offset(const struct result *r)
{
	if (r->clock_lo <= 0 && r->clock_hi >= 0)
		return 0;
	return r->clock_hi;
}

static size_t collect(const struct options *opt, const struct shared *sh, int64_t *out)
{
	size_t n = 0;

	for (unsigned int i = 0; i < opt->processes; i++) {
		const struct result *r = &sh->result[i];
		int64_t offset = clock_offset(r);

		for (uint64_t k = 0; k < r->samples && k < MAX_SAMPLES; k++)
			out[n++] = r->latency_raw[k] + offset;
	}
	return n;
}

static void percentiles(const struct options *opt, const struct shared *sh, double us[2])
{
	int64_t *all = malloc(sizeof(*all) * MAX_SAMPLES * opt->processes);
	size_t n = all ? collect(opt, sh, all) : 0;

	us[0] = us[1] = 0;
	if (n) {
		qsort(all, n, sizeof(*all), compare);
		us[0] = all[(n - 1) / 2] / 1e3;
		us[1] = all[(n - 1) * 99 / 100] / 1e3;
	}
	free(all);
}

struct totals {
	uint64_t works, latencies, alloc_bytes, cpu_us;
	double seconds, gpu_seconds;
	const struct rm_error *error;
	const struct result *one;	/* source of the GPU's description */
};

static struct totals add_up(const struct options *opt, const struct shared *sh)
{
	uint64_t start = UINT64_MAX, end = 0, gpu_first = UINT64_MAX, gpu_last = 0;
	struct totals t = { .error = &sh->result[0].error, .one = &sh->result[0] };

	for (unsigned int i = 0; i < opt->processes; i++) {
		const struct result *r = &sh->result[i];

		t.works += r->works;
		t.latencies += r->samples;
		t.alloc_bytes += r->alloc_bytes;
		t.cpu_us += r->cpu_us;
		if (!t.error->call[0] && r->error.call[0])
			t.error = &r->error;
		if (!r->end_ns)
			continue;
		t.one = r;
		start = r->start_ns < start ? r->start_ns : start;
		end = r->end_ns > end ? r->end_ns : end;
		if (r->works) {
			gpu_first = r->gpu_first_ns < gpu_first ? r->gpu_first_ns : gpu_first;
			gpu_last = r->gpu_last_ns > gpu_last ? r->gpu_last_ns : gpu_last;
		}
	}
	t.seconds = end > start ? (end - start) / 1e9 : 0;
	t.gpu_seconds = gpu_last > gpu_first ? (gpu_last - gpu_first) / 1e9 : 0;
	return t;
}

static void print_json(const struct options *opt, const struct shared *sh, const struct totals *t,
		       const double lat[2])
{
	printf("{\"event\":\"result\",");
	print_gpu(opt, t->one);
	printf(",\"alloc_bytes\":%llu,\"works\":%llu,\"seconds\":%.6f,\"gpu_seconds\":%.6f,"
	       "\"work_per_s\":%.3f,\"kernel_us\":%.3f,\"depth\":%u,\"streams\":%u,\"processes\":%u,"
	       "\"latencies\":%llu,\"lat_p50_us\":%.1f,\"lat_p99_us\":%.1f,\"cpu_us\":%llu,\"monotonic\":%.6f",
	       (unsigned long long)t->alloc_bytes, (unsigned long long)t->works, t->seconds,
	       t->gpu_seconds, t->seconds ? t->works / t->seconds : 0, opt->kernel_us, opt->depth,
	       opt->streams, opt->processes, (unsigned long long)t->latencies, lat[0], lat[1], (unsigned long long)t->cpu_us,
	       now_ns() / 1e9);
	printf(",\"process\":[");
	for (unsigned int i = 0; i < opt->processes; i++)
		printf("%s{\"pid\":%d,\"works\":%llu,\"exit\":%d}", i ? "," : "",
		       (int)sh->result[i].pid, (unsigned long long)sh->result[i].works,
		       sh->result[i].exit_code);
	printf("],\"first_error\":");
	print_error(t->error);
	printf(",\"simulated\":true}\n");
}

void report_result(const struct options *opt, struct shared *sh)
{
	struct totals t = add_up(opt, sh);
	double lat[2];

	percentiles(opt, sh, lat);
	if (opt->json)
		print_json(opt, sh, &t, lat);
	else if (t.one->end_ns && !opt->hold)
		printf("GPU %u %s: %llu works in %.3f s = %.1f works/s, latency p50 %.1f us p99 %.1f us "
		       "(simulated)\n", opt->gpu, t.one->name, (unsigned long long)t.works, t.seconds,
		       t.seconds ? t.works / t.seconds : 0, lat[0], lat[1]);
	fflush(stdout);
}
