/* SPDX-License-Identifier: MIT */
/* One process of simload: its memory, its context, its queue. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "simload.h"

#define POLL_MIN_NS	50000ull	/* more often costs CPU, not accuracy */
#define POLL_MAX_NS	20000000ull
#define HOLD_NS		50000000ull

struct worker {
	const struct options *opt;
	struct shared *sh;
	struct result *res;
	struct rm rm;
	struct rm_gpu gpu;
	struct rm_space space;
	struct rm_buffer memory;
	struct rm_group group;
	struct rm_channel channel[MAX_STREAMS];
	uint64_t sent_ns[MAX_STREAMS][8192];	/* when each slot's work was queued */
	uint64_t queued, done;
	bool counting;
	uint64_t random;
	struct requests requests;
};

static bool stopping(const struct worker *w)
{
	return got_signal || __atomic_load_n(&w->sh->stop, __ATOMIC_RELAXED);
}

/* ---- set-up ---- */

static int pick_gpu(struct worker *w)
{
	struct rm_gpu_info list[MAX_GPUS];
	unsigned int count;

	if (rm_list_gpus(&w->rm, list, &count))
		return EXIT_FAILED;
	if (w->opt->gpu >= count) {
		fprintf(stderr, "simload: no GPU %u: %u GPU node%s in %s open%s\n", w->opt->gpu,
			count, count == 1 ? "" : "s", w->rm.dir, count == 1 ? "s" : "");
		return EXIT_NO_GPU;
	}
	if (rm_gpu_open(&w->gpu, &w->rm, &list[w->opt->gpu]) ||
	    rm_gpu_name(&w->gpu, w->res->name))
		return EXIT_FAILED;
	rm_gpu_uuid_text(&w->gpu, w->res->uuid);
	w->res->minor = w->gpu.info.minor;
	return EXIT_OK;
}

static int make_context(struct worker *w)
{
	rm_status st;

	st = rm_group_create(&w->group, &w->space, NV2080_ENGINE_TYPE_GRAPHICS);
	for (unsigned int i = 0; !st && i < w->opt->streams; i++) {
		st = rm_channel_create(&w->channel[i], &w->group, w->opt->depth);
		if (!st && w->opt->registered)
			st = rm_channel_register(&w->channel[i]);
	}
	if (!st)
		st = rm_group_enable(&w->group, true);
	return st ? EXIT_FAILED : EXIT_OK;
}

static int set_up(struct worker *w)
{
	int code;

	if (rm_open(&w->rm, w->opt->dir))
		return EXIT_FAILED;
	code = pick_gpu(w);
	if (code)
		return code;
	if (!w->opt->info) {
		if (rm_space_create(&w->space, &w->gpu))
			return EXIT_FAILED;
		if (w->opt->alloc_bytes &&
		    rm_buffer_create(&w->memory, &w->space, w->opt->alloc_bytes, RM_BUF_GPU))
			return EXIT_MEMORY;
		w->res->alloc_bytes = w->memory.size;
		if (!w->opt->no_context)
			code = make_context(w);
		if (code)
			return code;
	}
	return rm_gpu_memory(&w->gpu, &w->res->memory) ? EXIT_FAILED : EXIT_OK;
}

/* ---- the queue ---- */

static void sample_latency(struct worker *w, int64_t raw)
{
	struct result *r = w->res;
	uint64_t slot = r->samples++;

	if (slot >= MAX_SAMPLES) {	/* every latency seen is kept with the same chance */
		w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
		slot = (w->random >> 33) % r->samples;
	}
	if (slot < MAX_SAMPLES)
		r->latency_raw[slot] = raw;
}

static void count_work(struct worker *w, uint64_t sent, uint64_t seen, uint64_t gpu_ns)
{
	struct result *r = w->res;
	int64_t lo = sent - gpu_ns, hi = seen - gpu_ns;
	bool is_last = !w->opt->parts || requests_reap(&w->requests, &sent);

	w->done++;
	if (lo > r->clock_lo)
		r->clock_lo = lo;
	if (hi < r->clock_hi)
		r->clock_hi = hi;
	if (!w->counting)
		return;
	if (!r->works)
		r->gpu_first_ns = gpu_ns;
	r->gpu_last_ns = gpu_ns;
	if (is_last)
		sample_latency(w, gpu_ns - sent);
	__atomic_store_n(&r->works, r->works + 1, __ATOMIC_RELAXED);
}

/* The time is read after the semaphore: read before, a work that ends between the two would appear to end in the future,
 * and the GPU's clock to be ahead.
 */
static void reap(struct worker *w)
{
	for (unsigned int i = 0; i < w->opt->streams; i++) {
		struct rm_channel *ch = &w->channel[i];
		uint64_t gpu_ns;

		while (rm_channel_reap(ch, &gpu_ns))
			count_work(w, w->sent_ns[i][(ch->done - 1) % ch->entries], now_ns(), gpu_ns);
	}
}

static void refill(struct worker *w)
{
	const struct options *opt = w->opt;
	uint64_t sent = now_ns();

	for (unsigned int i = 0; i < opt->streams; i++) {
		struct rm_channel *ch = &w->channel[i];
		uint64_t before = ch->queued;

		while (ch->queued - ch->done < opt->depth &&
		       (!opt->works || w->queued < opt->works)) {
			w->sent_ns[i][ch->queued % ch->entries] = sent;
			rm_channel_queue(ch, OP_KERNEL, opt->flags, opt->kernel_us * 1000);
			w->queued++;
		}
		if (ch->queued != before)
			rm_channel_kick(ch);
	}
}

static void queue_requests(struct worker *w, uint64_t now)
{
	struct rm_channel *ch = &w->channel[0];
	uint64_t before = ch->queued, ns;

	while (ch->queued - ch->done < w->opt->depth && (ns = requests_next(&w->requests, now))) {
		w->sent_ns[0][ch->queued % ch->entries] = now;
		rm_channel_queue(ch, OP_KERNEL, w->opt->flags, ns);
	}
	if (ch->queued != before)
		rm_channel_kick(ch);
}

/* Between requests until the next one arrives, but not for long: the signal, the ticks. */
static uint64_t nap_time(const struct worker *w, uint64_t poll)
{
	uint64_t idle;

	if (w->opt->hold)
		return w->opt->run_ns && w->opt->run_ns < HOLD_NS ? w->opt->run_ns : HOLD_NS;
	idle = w->opt->parts ? requests_idle_ns(&w->requests, now_ns()) : 0;
	if (!idle)
		return poll;
	return idle < POLL_MAX_NS ? idle : POLL_MAX_NS;
}

static bool busy_phase(const struct options *opt, uint64_t since_start)
{
	return !opt->idle_ns || since_start % (opt->busy_ns + opt->idle_ns) < opt->busy_ns;
}

static uint64_t poll_time(const struct options *opt)
{
	double queue = opt->kernel_us * 1000 * opt->depth;
	uint64_t ns;

	if (opt->poll_ns)
		return opt->poll_ns;
	ns = opt->depth > 1 ? queue / 2 : queue / 4;
	return ns < POLL_MIN_NS ? POLL_MIN_NS : ns > POLL_MAX_NS ? POLL_MAX_NS : ns;
}

/* ---- running ---- */

static int work(struct worker *w, void (*tick)(const struct options *, struct shared *))
{
	const struct options *opt = w->opt;
	uint64_t start = now_ns(), poll = poll_time(opt), t = start;

	w->res->start_ns = start + opt->warmup_ns;
	if (opt->parts)
		requests_begin(&w->requests, opt, w->res - w->sh->result, start);
	while (!stopping(w) && !(opt->run_ns && t - start >= opt->run_ns) &&
	       !(opt->works && w->done >= opt->works)) {
		w->counting = t >= w->res->start_ns;
		if (!opt->hold) {
			reap(w);
			if (opt->parts)
				queue_requests(w, t);
			else if (busy_phase(opt, t - start))
				refill(w);
			if (rm_group_fault(&w->group))
				break;
		}
		if (tick)
			tick(opt, w->sh);
		nap(nap_time(w, poll));
		t = now_ns();
	}
	w->res->end_ns = now_ns();
	if (opt->hold)
		return EXIT_OK;
	reap(w);
	if (!rm_group_fault(&w->group))
		return EXIT_OK;
	snprintf(w->res->error.call, sizeof(w->res->error.call), "channel error notifier");
	w->res->error.status = rm_group_fault(&w->group);
	return EXIT_FAULT;
}

static void tear_down(struct worker *w)
{
	for (unsigned int i = 0; i < MAX_STREAMS; i++)
		if (w->channel[i].group)
			rm_channel_destroy(&w->channel[i]);
	if (w->group.space)
		rm_group_destroy(&w->group);
	if (w->memory.handle)
		rm_buffer_destroy(&w->memory);
	if (w->space.gpu)
		rm_space_destroy(&w->space);
	if (w->gpu.rm)
		rm_gpu_close(&w->gpu);
	rm_close(&w->rm);
}

static uint64_t cpu_us(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return (ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000ull + ru.ru_utime.tv_usec +
	       ru.ru_stime.tv_usec;
}

/* All processes start their work together; one that failed does not hold up the rest. */
static void meet(struct worker *w)
{
	__atomic_add_fetch(&w->sh->started, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&w->sh->started, __ATOMIC_SEQ_CST) < w->opt->processes &&
	       !stopping(w))
		nap(1000000);
}

int worker_run(const struct options *opt, struct shared *sh, unsigned int index,
	       void (*tick)(const struct options *, struct shared *))
{
	static struct worker w;
	struct result *r = &sh->result[index];

	w.opt = opt;
	w.sh = sh;
	w.res = r;
	r->pid = getpid();
	r->clock_lo = INT64_MIN;
	r->clock_hi = INT64_MAX;
	r->exit_code = set_up(&w);
	r->error = w.rm.error;
	r->ready = !r->exit_code;
	if (r->exit_code && r->error.call[0])
		report_error(&r->error);
	if (!opt->info)
		meet(&w);
	if (r->ready && !opt->info) {
		uint64_t cpu = cpu_us();

		report_ready(opt, r);
		r->exit_code = work(&w, tick);
		r->cpu_us = cpu_us() - cpu;
	}
	r->ended = true;
	if (tick)
		report_result(opt, sh);
	tear_down(&w);
	return r->exit_code;
}
