/* SPDX-License-Identifier: MIT */
/* The requests of --request-us: what each consists of, and when it arrives. */
#include <math.h>
#include <stdlib.h>

#include "simload.h"

/* "20000,200x400": one kernel of 20 ms, then 400 of 200 us. */
void requests_parse(struct options *opt, const char *text)
{
	const char *at = text;
	char *end;

	opt->parts = opt->kernels = 0;
	for (;;) {
		double us = strtod(at, &end);
		unsigned long count = 1;

		if (end == at || !(us >= 0.001 && us <= 1e9) || opt->parts == MAX_PARTS)
			option_bad("--request-us", text);
		if (*end == 'x') {
			at = end + 1;
			count = strtoul(at, &end, 10);
			if (end == at || !count || count > 1000000)
				option_bad("--request-us", text);
		}
		opt->request[opt->parts].ns = us * 1000;
		opt->request[opt->parts++].count = count;
		opt->kernels += count;
		if (!*end)
			return;
		if (*end != ',')
			option_bad("--request-us", text);
		at = end + 1;
	}
}

static double uniform(struct requests *r)	/* above 0, up to 1 */
{
	r->random = r->random * 6364136223846793005ull + 1442695040888963407ull;
	return ((r->random >> 11) + 1) / 9007199254740993.0;
}

static void draw_arrival(struct requests *r)
{
	r->arrival_ns += -log(uniform(r)) * 1e9 / r->opt->requests_per_s;
}

void requests_begin(struct requests *r, const struct options *opt, unsigned int index, uint64_t start_ns)
{
	*r = (struct requests) { .opt = opt, .arrival_ns = start_ns, .random = opt->seed * MAX_PROCESSES + index };
	for (int i = 0; i < 4; i++)	/* close seeds begin with close numbers */
		uniform(r);
	draw_arrival(r);
}

uint64_t requests_next(struct requests *r, uint64_t now_ns)
{
	unsigned int n = r->queued;

	if (now_ns < r->arrival_ns || n == r->opt->kernels)
		return 0;
	r->queued++;
	for (unsigned int i = 0; i < r->opt->parts; i++) {
		if (n < r->opt->request[i].count)
			return r->opt->request[i].ns;
		n -= r->opt->request[i].count;
	}
	return 0;
}

bool requests_reap(struct requests *r, uint64_t *arrival_ns)
{
	*arrival_ns = r->arrival_ns;
	if (++r->done < r->opt->kernels)
		return false;
	r->queued = r->done = 0;
	draw_arrival(r);
	return true;
}

uint64_t requests_idle_ns(const struct requests *r, uint64_t now_ns)
{
	return !r->queued && r->arrival_ns > now_ns ? r->arrival_ns - now_ns : 0;
}
