// SPDX-License-Identifier: MIT
/* What is asked at the socket: a line "verb name=value ...", answered by a line of JSON. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rmlever.h"

#define LINE_MAX_BYTES	16384
#define OBJECTS_SHOWN	CHANNELS_MAX
#define TIMES_MAX	20000

/* A request: its options, and what its calls came to. */
struct request {
	FILE *out;
	char *verb, *options;
	int64_t first_bad;		/* the first status that was not 0 */
	uint64_t begin_ns, end_ns;	/* of all calls */
	uint32_t calls, failed;
	uint32_t took_ns[TIMES_MAX];
	struct object object[OBJECTS_SHOWN];
	struct channel_name list[CHANNELS_MAX];
};

/* ---- options ---- */

static const char *option(const struct request *r, const char *name)
{
	size_t length = strlen(name);
	const char *at = r->options;

	while (at && *at) {
		if (strncmp(at, name, length) == 0 && at[length] == '=')
			return at + length + 1;
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	return NULL;
}

static uint64_t number(const struct request *r, const char *name, uint64_t otherwise)
{
	const char *text = option(r, name);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static void nap_us(uint64_t us)
{
	struct timespec t = { .tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 };

	if (us)
		nanosleep(&t, NULL);
}

static void note(struct request *r, struct outcome out)
{
	if (!r->calls)
		r->begin_ns = out.begin_ns;
	r->end_ns = out.end_ns;
	if (r->calls < TIMES_MAX)
		r->took_ns[r->calls] = out.end_ns - out.begin_ns;
	r->calls++;
	if (!out.status)
		return;
	if (!r->failed++)
		r->first_bad = out.status;
}

/* ---- which objects ---- */

static bool all_engines(const struct request *r)
{
	const char *text = option(r, "engine");

	return text && strncmp(text, "all", 3) == 0;
}

/* Into r->object: those of the graphics engines, unless engine=all. */
static unsigned int mine(struct request *r, enum kind kind)
{
	struct object *out = r->object;
	unsigned int n = objects_list(kind, out, OBJECTS_SHOWN), kept = 0;

	for (unsigned int i = 0; i < n; i++)
		if (all_engines(r) || object_is_graphics(&out[i]))
			out[kept++] = out[i];
	return kept;
}

/* Into r->list: list=client:channel,... in hex, anybody's; else our own, at most channels=. */
static uint32_t chosen(struct request *r, unsigned int count)
{
	const char *text = option(r, "list");
	struct channel_name *list = r->list;
	uint64_t max = number(r, "channels", CHANNELS_MAX);
	uint32_t n = 0;
	char *end;

	for (; text && *text && *text != ' ' && n < CHANNELS_MAX; text = *end == ',' ? end + 1 : end) {
		list[n].client = strtoul(text, &end, 16);
		if (*end != ':')
			return 0;
		list[n++].handle = strtoul(end + 1, &end, 16);
		if (*end != ',' && *end != ' ' && *end)
			return 0;
	}
	if (option(r, "list"))
		return n;
	for (; n < count && n < max; n++)
		list[n] = (struct channel_name) { r->object[n].client, r->object[n].handle };
	return n;
}

/* ---- the verbs ---- */

static void each_tsg(struct request *r, struct outcome (*call)(struct request *, const struct object *))
{
	struct object *tsg = r->object;
	unsigned int n = mine(r, TSG);
	uint64_t times = number(r, "n", 1);

	for (uint64_t i = 0; i < times; i++) {
		for (unsigned int k = 0; k < n; k++)
			note(r, call(r, &tsg[k]));
		nap_us(number(r, "gap_us", 0));
	}
}

static struct outcome call_timeslice(struct request *r, const struct object *tsg)
{
	return lever_timeslice(tsg, number(r, "us", 1024));
}

static struct outcome call_preempt(struct request *r, const struct object *tsg)
{
	return lever_preempt(tsg, number(r, "wait", 1), number(r, "timeout_us", 0));
}

static void do_timeslice(struct request *r)
{
	each_tsg(r, call_timeslice);
}

static void do_preempt(struct request *r)
{
	each_tsg(r, call_preempt);
}

/* One channel stands for its runlist. */
static void do_restart(struct request *r)
{
	struct object *channel = r->object;
	uint64_t times = mine(r, CHANNEL) ? number(r, "n", 1) : 0;

	for (uint64_t i = 0; i < times; i++) {
		note(r, lever_restart(channel, number(r, "force", 1), number(r, "bypass", 0)));
		nap_us(number(r, "gap_us", 0));
	}
}

static void disable_all(struct request *r, bool disable)
{
	struct object *channel = r->object;
	unsigned int own = mine(r, CHANNEL);
	uint32_t n = chosen(r, own);

	for (uint32_t i = 0; own && i < n; i += DISABLE_MAX)
		note(r, lever_disable(channel, r->list + i, n - i < DISABLE_MAX ? n - i : DISABLE_MAX, disable,
				      number(r, "only", 0)));
}

/* restart=1: a RESTART_RUNLIST after it, as the module does with freeze_restart. */
static void do_window(struct request *r)
{
	disable_all(r, strcmp(r->verb, "freeze") == 0);
	if (number(r, "restart", 0))
		do_restart(r);
}

/* n freezes, a thaw after each: the even entries of "ns" are freezes, the odd ones thaws, if all fit into one call. */
static void do_pulse(struct request *r)
{
	uint64_t times = number(r, "n", 1);

	for (uint64_t i = 0; i < times; i++) {
		disable_all(r, true);
		nap_us(number(r, "hold_us", 0));
		disable_all(r, false);
		nap_us(number(r, "gap_us", 0));
	}
}

static void show(struct request *r, const char *name, enum kind kind)
{
	struct object *o = r->object;
	unsigned int n = objects_list(kind, o, OBJECTS_SHOWN);

	fprintf(r->out, ",\"%s\":[", name);
	for (unsigned int i = 0; i < n; i++)
		fprintf(r->out, "%s{\"client\":\"%x\",\"handle\":\"%x\",\"parent\":\"%x\",\"class\":\"%x\",\"engine\":%u}",
			i ? "," : "", o[i].client, o[i].handle, o[i].parent, o[i].class_id, o[i].engine);
	fprintf(r->out, "]");
}

static void do_list(struct request *r)
{
	show(r, "clients", CLIENT);
	show(r, "devices", DEVICE);
	show(r, "subdevices", SUBDEVICE);
	show(r, "tsgs", TSG);
	show(r, "channels", CHANNEL);
}

static void do_timeslices(struct request *r)
{
	struct object *tsg = r->object;
	unsigned int n = mine(r, TSG);

	fprintf(r->out, ",\"timeslice_us\":[");
	for (unsigned int i = 0; i < n; i++) {
		uint64_t us = 0;

		note(r, lever_get_timeslice(&tsg[i], &us));
		fprintf(r->out, "%s%llu", i ? "," : "", (unsigned long long)us);
	}
	fprintf(r->out, "]");
}

static void do_heap(struct request *r)
{
	uint64_t total = 0, left = 0;
	struct object device;

	if (objects_list(DEVICE, &device, 1))
		note(r, lever_heap(&device, &total, &left));
	fprintf(r->out, ",\"total_bytes\":%llu,\"free_bytes\":%llu", (unsigned long long)total,
		(unsigned long long)left);
}

static void do_samples(struct request *r)
{
	struct util_sample sample[SAMPLES_MAX];
	unsigned int n = 0;
	struct object device;

	if (objects_list(DEVICE, &device, 1))
		note(r, lever_samples(&device, sample, SAMPLES_MAX, &n));
	fprintf(r->out, ",\"samples\":[");
	for (unsigned int i = 0; i < n; i++)
		fprintf(r->out, "%s[%llu,%u]", i ? "," : "", (unsigned long long)sample[i].ns, sample[i].pid);
	fprintf(r->out, "]");
}

static const struct {
	const char *name;
	void (*run)(struct request *r);
} verbs[] = {
	{ "list", do_list }, { "heap", do_heap }, { "timeslices", do_timeslices },
	{ "timeslice", do_timeslice }, { "restart", do_restart }, { "preempt", do_preempt },
	{ "freeze", do_window }, { "thaw", do_window }, { "pulse", do_pulse },
	{ "samples", do_samples },
};

static void finish(struct request *r)
{
	fprintf(r->out, ",\"calls\":%u,\"failed\":%u,\"status\":%lld,\"begin_ns\":%llu,\"end_ns\":%llu,\"ns\":[", r->calls,
		r->failed, (long long)r->first_bad, (unsigned long long)r->begin_ns, (unsigned long long)r->end_ns);
	for (uint32_t i = 0; i < r->calls && i < TIMES_MAX; i++)
		fprintf(r->out, "%s%u", i ? "," : "", r->took_ns[i]);
	fprintf(r->out, "]}\n");
	fflush(r->out);
}

static void answer(struct request *r, char *line)
{
	line[strcspn(line, "\r\n")] = 0;
	r->verb = line;
	r->options = strchr(line, ' ');
	if (r->options)
		*r->options++ = 0;
	r->first_bad = r->begin_ns = r->end_ns = r->calls = r->failed = 0;
	fprintf(r->out, "{\"verb\":\"%.20s\",\"pid\":%d", line, getpid());
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
		if (strcmp(line, verbs[i].name))
			continue;
		verbs[i].run(r);
		finish(r);
		return;
	}
	fprintf(r->out, ",\"error\":\"no such verb\"}\n");
	fflush(r->out);
}

void requests_serve(FILE *in, FILE *out)
{
	struct request *r = calloc(1, sizeof(*r));
	char *line = malloc(LINE_MAX_BYTES);

	if (r)
		r->out = out;
	while (r && line && fgets(line, LINE_MAX_BYTES, in))
		answer(r, line);
	free(line);
	free(r);
}
