// SPDX-License-Identifier: MIT
/* Everything gpuload prints on stdout: simload's lines, with "simulated":false. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gpuload.h"

static void print_gpu(const struct load *l)
{
	printf("\"gpu\":%u,\"name\":\"%s\",\"uuid\":\"%s\",\"total_bytes\":%llu,\"free_bytes\":%llu,\"iterations\":%u",
	       l->opt.gpu, l->name, l->uuid, (unsigned long long)l->total_bytes, (unsigned long long)l->free_bytes,
	       l->iterations);
}

static void print_error(const struct load *l)
{
	if (l->call[0])
		printf("{\"call\":\"%s\",\"status\":%d,\"text\":\"%s\"}", l->call, l->result,
		       cuda_error(&l->cu, l->result));
	else
		printf("null");
}

void report_info(const struct load *l)
{
	printf("{\"event\":\"info\",");
	print_gpu(l);
	printf(",\"first_error\":");
	print_error(l);
	printf(",\"simulated\":false}\n");
	fflush(stdout);
}

void report_ready(const struct load *l)
{
	if (!l->opt.interval_ns && !l->opt.hold)
		return;
	printf("{\"event\":\"ready\",\"pid\":%d,\"monotonic\":%.6f,\"alloc_bytes\":%llu,", (int)getpid(), now_ns() / 1e9,
	       (unsigned long long)l->alloc_bytes);
	print_gpu(l);
	printf("}\n");
	fflush(stdout);
}

void report_progress(struct load *l)
{
	static uint64_t last_ns, last_works;
	uint64_t t = now_ns();

	if (!l->opt.interval_ns || t - last_ns < l->opt.interval_ns)
		return;
	printf("{\"event\":\"progress\",\"monotonic\":%.6f,\"works\":%llu,\"work_per_s\":%.3f}\n", t / 1e9,
	       (unsigned long long)l->works, last_ns ? (l->works - last_works) * 1e9 / (t - last_ns) : 0.0);
	fflush(stdout);
	last_ns = t;
	last_works = l->works;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static uint32_t percentile(const struct load *l, unsigned int per_cent)
{
	static uint32_t sorted[MAX_SAMPLES];
	size_t n = l->samples < MAX_SAMPLES ? l->samples : MAX_SAMPLES;

	if (!n)
		return 0;
	for (size_t i = 0; i < n; i++)
		sorted[i] = l->latency_us[i];
	qsort(sorted, n, sizeof(*sorted), compare);
	return sorted[(n - 1) * per_cent / 100];
}

void report_result(const struct load *l)
{
	double seconds = l->end_ns > l->start_ns ? (l->end_ns - l->start_ns) / 1e9 : 0;

	printf("{\"event\":\"result\",");
	print_gpu(l);
	printf(",\"alloc_bytes\":%llu,\"works\":%llu,\"seconds\":%.6f,\"work_per_s\":%.3f,\"kernel_us\":%.3f,\"depth\":%u,"
	       "\"streams\":%u,\"processes\":1,\"lat_p50_us\":%u,\"lat_p99_us\":%u,\"cpu_us\":%llu,\"monotonic\":%.6f,"
	       "\"process\":[{\"pid\":%d,\"works\":%llu}],\"first_error\":",
	       (unsigned long long)l->alloc_bytes, (unsigned long long)l->works, seconds,
	       seconds ? l->works / seconds : 0, l->opt.kernel_us, l->opt.depth, l->opt.streams, percentile(l, 50),
	       percentile(l, 99), (unsigned long long)l->cpu_us, now_ns() / 1e9, (int)getpid(),
	       (unsigned long long)l->works);
	print_error(l);
	printf(",\"simulated\":false}\n");
	fflush(stdout);
}
