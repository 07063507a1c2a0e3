// SPDX-License-Identifier: MIT
/* conduct: the module's scheduler thread (cgpu_km/sched/sched_thread.c) in user space. The core decides; the processes make the calls on
 * their own channels, through rmlever. A process stands for a container.
 *
 *   conduct --policy 2 --seconds 11 SOCKET:WEIGHT[:CHANNELS[:TSGS[:HIGHPRIO]]] ...
 *
 * With --states each process keeps a word in SOCKET's name with .state in place of .sock: not 0
 * while it has work. It stands for the run state, which only the kernel can read.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "lever.h"
#include "sched_stat.h"
#include "sched_step.h"

#define MEMBERS_MAX	CGPU_SLOTS
#define NAP_MAX_NS	100000000ull

struct member {
	struct lever lever;
	u32 slot, weight, channels, tsgs, highprio;
	const volatile u32 *busy;	/* NULL: the run state is unknown */
};

static struct {
	struct member member[MEMBERS_MAX];
	u32 members;
	u64 policy, max_inst, slice_us, prio_ratio;
	double seconds;
	bool restart, states;
	struct cgpu_sched turn;
	u64 turns, calls, failed, lever_ns, lever_max_ns, readings;
	long long first_bad;
} c = { .policy = 2, .max_inst = 20, .seconds = 10 };

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	stop = sig;
}

static u64 clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void nap(u64 ns)
{
	struct timespec t = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };

	nanosleep(&t, NULL);
}

static void die(const char *what, int err)
{
	fprintf(stderr, "conduct: %s: %s\n", what, strerror(-err));
	exit(1);
}

/* When the last call was answered, by the process that made it: its way here is not the driver's. */
static u64 answered_ns;

static bool ask(struct member *m, const char *request)
{
	struct answer answer;
	int err = lever_ask(&m->lever, request, &answer);
	u64 took;

	if (err)
		die("a process does not answer", err);
	took = answer.end_ns - answer.begin_ns;
	answered_ns = answer.end_ns;
	c.calls += answer.calls;
	c.failed += answer.failed;
	c.lever_ns += took;
	c.lever_max_ns = took > c.lever_max_ns ? took : c.lever_max_ns;
	if (answer.failed && !c.first_bad)
		c.first_bad = answer.status;
	return answer.calls && !answer.failed;
}

/* Gives the slots for which it was done. */
static u32 ask_all(u32 mask, const char *request)
{
	u32 done = 0;

	for (u32 i = 0; i < c.members; i++)
		if (mask & (1u << c.member[i].slot) && ask(&c.member[i], request))
			done |= 1u << c.member[i].slot;
	return done;
}

/* They share a runlist: any of them will do. */
static bool restart_runlist(u32 mask)
{
	for (u32 i = 0; i < c.members; i++)
		if (mask & (1u << c.member[i].slot))
			return ask(&c.member[i], "restart\n");
	return false;
}

static u32 set_timeslices(u32 mask, const u32 *timeslice_us)
{
	char request[64];
	u32 done = 0;

	for (u32 i = 0; i < c.members; i++) {
		u32 slot = c.member[i].slot;

		if (!(mask & (1u << slot)))
			continue;
		snprintf(request, sizeof(request), "timeslice us=%u\n",
			 timeslice_us[slot] ?: c.turn.timeslice_default_us);
		if (ask(&c.member[i], request))
			done |= 1u << slot;
	}
	return done;
}

static void step(struct cgpu_step *s, struct cgpu_step_event *event)
{
	event->now_ns = clock_ns();
	cgpu_sched_step(&c.turn, NULL, s, event);
}

/* Make the step's call. */
static void call(struct cgpu_step *s)
{
	struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_DONE, .begin_ns = clock_ns() };

	if (s->kind == CGPU_STEP_TIMESLICE)
		event.called = event.done = set_timeslices(s->mask, s->plan.timeslice_us);
	else if (s->kind == CGPU_STEP_RESTART)
		event.done = restart_runlist(s->mask);
	else
		event.done = ask_all(s->mask, s->kind == CGPU_STEP_FREEZE ? "freeze\n" : "thaw\n");
	event.end_ns = answered_ns;
	if (s->kind == CGPU_STEP_RESTART && !event.done)
		event.refused_ns = event.end_ns - event.begin_ns;
	step(s, &event);
}

static void act(struct cgpu_step *s)
{
	while (s->mask)
		call(s);
	c.turns++;
}

static void note_round(void)
{
	static u64 last;
	u64 now = c.turn.rr[CGPU_RR_NORMAL].round;

	if (now == last)
		return;
	last = now;
	printf("{\"event\":\"round\",\"round\":%llu,\"monotonic\":%.6f,\"gpu_ns\":[", (unsigned long long)now,
	       clock_ns() / 1e9);
	for (u32 i = 0; i < c.members; i++) {
		struct cgpu_sched_stat st;

		cgpu_sched_stat(&c.turn, c.member[i].slot, clock_ns(), &st);
		printf("%s%llu", i ? "," : "", (unsigned long long)st.gpu_ns);
	}
	printf("]}\n");
}

static void read_states(struct cgpu_step *s)
{
	struct cgpu_step_event event = { .kind = CGPU_STEP_EVENT_READ };

	for (u32 i = 0; i < c.members; i++) {
		const struct member *m = &c.member[i];

		if (!m->busy)
			continue;
		event.known |= 1u << m->slot;
		event.busy |= *m->busy ? 1u << m->slot : 0;
	}
	c.readings++;
	step(s, &event);
}

/* Between half of it and one and a half, as the module draws it. */
static u64 drawn(u64 mean_ns)
{
	return mean_ns / 2 + (u64)random() % (mean_ns + 1);
}

/* Sleeps to the end of the wait, or until the run state does not fit it. */
static void sleep_on(struct cgpu_step *s)
{
	u64 now = clock_ns(), end = now + NAP_MAX_NS, left, poll_ns;

	if (s->until_ns < end)
		end = s->until_ns;
	for (; now < end && !stop && s->kind == CGPU_STEP_WAIT; now = clock_ns()) {
		left = end - now;
		poll_ns = c.states && s->poll_ns ? drawn(s->poll_ns) : left;
		nap(poll_ns < left ? poll_ns : left);
		if (c.states && s->poll_ns)
			read_states(s);
	}
}

static void run(u64 until_ns)
{
	struct cgpu_step s = { 0 };

	while (!stop && clock_ns() < until_ns) {
		step(&s, &(struct cgpu_step_event) { .kind = CGPU_STEP_EVENT_PLAN, .restarts = c.restart });
		note_round();
		if (s.mask)
			act(&s);
		else
			sleep_on(&s);
	}
}

/* ---- set-up ---- */

static const volatile u32 *map_state(const char *socket)
{
	char path[200];
	void *at;
	int fd;

	snprintf(path, sizeof(path), "%.*s.state", (int)(strlen(socket) - strlen(".sock")), socket);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	at = mmap(NULL, sizeof(u32), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	return at == MAP_FAILED ? NULL : at;
}

static void add_member(char *text)
{
	struct member *m = &c.member[c.members];
	char *colon = strchr(text, ':');
	int err;

	if (c.members == MEMBERS_MAX || !colon)
		die(text, -EINVAL);
	*colon = 0;
	m->channels = m->tsgs = 1;
	if (sscanf(colon + 1, "%u:%u:%u:%u", &m->weight, &m->channels, &m->tsgs, &m->highprio) < 1 || !m->weight)
		die("weight", -EINVAL);
	m->busy = c.states ? map_state(text) : NULL;
	err = lever_connect(&m->lever, text);
	if (err)
		die(text, err);
	c.members++;
}

static void options(int argc, char **argv)
{
	static const struct option names[] = {
		{ "policy", required_argument, NULL, 'p' }, { "max-inst", required_argument, NULL, 'm' },
		{ "slice-us", required_argument, NULL, 's' }, { "seconds", required_argument, NULL, 't' },
		{ "restart", no_argument, NULL, 'r' }, { "states", no_argument, NULL, 'S' },
		{ "prio-ratio", required_argument, NULL, 'P' }, { 0 },
	};
	int o;

	while ((o = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (o) {
		case 'p': c.policy = strtoull(optarg, NULL, 0); break;
		case 'm': c.max_inst = strtoull(optarg, NULL, 0); break;
		case 's': c.slice_us = strtoull(optarg, NULL, 0); break;
		case 't': c.seconds = strtod(optarg, NULL); break;
		case 'r': c.restart = true; break;
		case 'S': c.states = true; break;
		case 'P': c.prio_ratio = strtoull(optarg, NULL, 0); break;
		default: exit(2);
		}
	}
	while (optind < argc)
		add_member(argv[optind++]);
	if (!c.members)
		die("no processes", -EINVAL);
}

static void must(int err, const char *what)
{
	if (err)
		die(what, err);
}

static void configure(void)
{
	u64 now = clock_ns();
	u32 granted;

	cgpu_sched_init(&c.turn, now);
	cgpu_sched_set_controls(&c.turn, CGPU_CTRL_FREEZE | CGPU_CTRL_TIMESLICE, now);
	must(cgpu_sched_set_max_inst(&c.turn, c.max_inst, now), "max-inst");
	if (c.slice_us)
		must(cgpu_sched_set_slice_us(&c.turn, c.slice_us, now), "slice-us");
	if (c.prio_ratio)
		must(cgpu_sched_set_prio_ratio(&c.turn, c.prio_ratio, now), "prio-ratio");
	must(cgpu_sched_set_policy(&c.turn, c.policy, now), "policy");
	for (u32 i = 0; i < c.members; i++) {
		struct member *m = &c.member[i];

		must(cgpu_sched_add(&c.turn, i + 1, m->weight, m->highprio, now, &m->slot, &granted), "weight");
		cgpu_sched_set_channels(&c.turn, m->slot, m->channels, m->tsgs, now);
	}
}

static void report(void)
{
	printf("{\"event\":\"result\",\"policy\":%llu,\"slice_us\":%llu,\"turns\":%llu,\"calls\":%llu,\"failed\":%llu,"
	       "\"status\":%lld,\"lever_mean_us\":%.1f,\"lever_max_us\":%.1f,\"readings\":%llu,\"rounds\":%llu,\"member\":[",
	       (unsigned long long)c.policy, (unsigned long long)c.turn.slice_ns / 1000, (unsigned long long)c.turns,
	       (unsigned long long)c.calls, (unsigned long long)c.failed, c.first_bad,
	       c.calls ? c.lever_ns / 1e3 / c.calls : 0, c.lever_max_ns / 1e3, (unsigned long long)c.readings,
	       (unsigned long long)c.turn.rr[CGPU_RR_NORMAL].round);
	for (u32 i = 0; i < c.members; i++) {
		struct cgpu_sched_stat st;

		cgpu_sched_stat(&c.turn, c.member[i].slot, clock_ns(), &st);
		printf("%s{\"weight\":%u,\"gpu_ns\":%llu,\"turns\":%llu,\"overruns\":%llu}", i ? "," : "",
		       c.member[i].weight, (unsigned long long)st.gpu_ns, (unsigned long long)st.turns,
		       (unsigned long long)st.overruns);
	}
	printf("]}\n");
}

int main(int argc, char **argv)
{
	struct sched_param rt = { .sched_priority = 1 };
	struct sigaction sa = { .sa_handler = on_signal };

	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	options(argc, argv);
	sched_setscheduler(0, SCHED_FIFO, &rt);	/* as the module's thread, where that is allowed */
	configure();
	run(clock_ns() + c.seconds * 1e9);
	report();
	for (u32 i = 0; i < c.members; i++)	/* no channel stays frozen */
		ask(&c.member[i], "thaw\n");
	restart_runlist(~0u);
	return 0;
}
