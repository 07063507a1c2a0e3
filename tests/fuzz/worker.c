// SPDX-License-Identifier: MIT
/* A process of threads, each with a model of its own, and one thread that disturbs them. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "fuzz.h"

#define EPOCH		400	/* steps after which everything is closed and made anew */
#define CHILD_STEPS	40

/* ---- seats ---- */

struct seat *seat_take(pid_t pid)
{
	for (int i = 0; i < MAX_SEATS; i++) {
		int free = SEAT_FREE;

		if (!atomic_compare_exchange_strong(&shared->seat[i].state, &free, SEAT_RUNS))
			continue;
		atomic_store(&shared->seat[i].pid, pid);
		atomic_store(&shared->seat[i].row, -1);
		return &shared->seat[i];
	}
	return NULL;
}

void seat_leave(pid_t pid)
{
	for (int i = 0; i < MAX_SEATS; i++)
		if (atomic_load(&shared->seat[i].pid) == pid)
			atomic_store(&shared->seat[i].state, SEAT_FREE);
}

static void wait_if_paused(struct thread *t)
{
	if (!atomic_load_explicit(&shared->pause, memory_order_relaxed))
		return;
	child_end(t);
	atomic_store(&t->seat->state, SEAT_PAUSED);
	while (atomic_load(&shared->pause) && !atomic_load(&shared->stop))
		usleep(2000);
	atomic_store(&t->seat->state, SEAT_RUNS);
}

void thread_log(struct thread *t, const char *form, ...)
{
	char line[512];
	va_list args;
	int n;

	if (t->log < 0)
		return;
	n = snprintf(line, sizeof(line), "%lu ", (unsigned long)t->step);
	va_start(args, form);
	n += vsnprintf(line + n, sizeof(line) - n - 1, form, args);
	va_end(args);
	n = n < (int)sizeof(line) - 1 ? n : (int)sizeof(line) - 2;
	line[n] = '\n';
	if (write(t->log, line, n + 1) < 0)
		t->log = -1;
}

/* ---- steps ---- */

static const struct op *const all_ops[] = { ops_rm, ops_call, ops_uvm, ops_file, ops_context };

static const struct op *pick_op(struct rng *r)
{
	int total = 0, at, lists = opt.contexts ? 5 : 4;

	for (int i = 0; i < lists; i++)
		for (const struct op *o = all_ops[i]; o->name; o++)
			total += o->weight;
	at = rng_below(r, total);
	for (int i = 0; i < lists; i++)
		for (const struct op *o = all_ops[i]; o->name; o++) {
			at -= o->weight;
			if (at < 0)
				return o;
		}
	return &ops_rm[0];
}

/* One in four epochs is nearly without faults: deep states need many successful calls. */
static void begin_epoch(struct thread *t)
{
	static const int percent[] = { 2, 12, 25, 50 };

	drop_all(t);
	t->mutate_percent = opt.rewrite ? 0 : percent[rng_below(&t->rng, 4)];
	thread_log(t, "epoch: %d %% wrong", t->mutate_percent);
	make_base(t);
	t->calm = true;
	for (const struct op *o = ops_uvm; o->name; o++)
		if (!strcmp(o->name, "space"))
			o->run(t);
	t->calm = false;
}

void thread_step(struct thread *t)
{
	int percent = t->mutate_percent;
	const struct op *op;
	struct rng chance;

	t->rng = rng_for(opt.seed, t->process << 8 | t->number, t->generation, t->step);
	if (t->step % EPOCH == 0 && t->generation < 1000) {
		begin_epoch(t);
		percent = t->mutate_percent;
		guide_forget(&t->guide);
		coverage_collect();	/* what the base reaches is no merit of the step */
	}
	if (opt.guided) {
		chance = rng_for(~opt.seed, t->process << 8 | t->number, t->generation, t->step);
		guide_step(&t->guide, &shared->corpus, &t->rng, &chance, percent);
		t->mutate_percent = guide_percent(&t->guide);
	}
	op = pick_op(&t->rng);
	thread_log(t, "%s%s", op->name, t->rng.play ? " of the corpus" : "");
	op->run(t);
	if (coverage_collect() && opt.guided)
		guide_keep(&t->guide, &shared->corpus, &chance);
	t->mutate_percent = percent;
	t->step++;
	atomic_store_explicit(&t->seat->step, t->step, memory_order_relaxed);
}

/* ---- children that share the files ---- */

/* Free the seat before reaping the child. This process may be killed at any point:
 * main() then reaps the child and finds the seat by the pid that is still in it.
 */
void child_end(struct thread *t)
{
	siginfo_t info;

	if (!t->child)
		return;
	if (!kill(t->child, SIGKILL))
		count_one(COUNT_KILLS);
	waitid(P_PID, t->child, &info, WEXITED | WNOWAIT);
	atomic_store(&t->child_seat->state, SEAT_FREE);
	waitpid(t->child, NULL, 0);
	t->child = 0;
}

static void run_child(struct thread *t, struct seat *seat, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)	/* it was killed before that */
		_exit(0);
	if (!atomic_compare_exchange_strong(&seat->pid, &parent, getpid()))	/* or is now, and the seat another's */
		_exit(0);
	t->seat = seat;
	if (!arena_make(&t->arena))
		_exit(0);
	t->child = 0;
	t->generation += 1000 + t->step;	/* another stream */
	t->log = -1;
	for (int i = 0; i < CHILD_STEPS && !atomic_load(&shared->stop); i++) {
		wait_if_paused(t);
		thread_step(t);
	}
	_exit(0);
}

void op_fork(struct thread *t)
{
	pid_t parent = getpid();
	struct seat *seat;

	child_end(t);
	if (!opt.forks || t->generation >= 1000)
		return;
	seat = seat_take(parent);
	if (!seat)
		return;
	t->child = fork();
	if (!t->child)
		run_child(t, seat, parent);
	if (t->child < 0) {
		t->child = 0;
		atomic_store(&seat->state, SEAT_FREE);
		return;
	}
	t->child_seat = seat;
	count_one(COUNT_FORKS);
}

/* ---- the disturbing thread ---- */

static void rewrite_words(struct rng *r, struct arena *a)
{
	static const uint32_t pool[] = { 0, 1, 2, 0x40, 0x3e, 0x80, 0xffffffff, 0x80000000, 1u << 29,
					 0xa06c0101, 0x2080110b, 0x5c000001 };
	volatile uint32_t *top = (volatile uint32_t *)(a->ours + (rng_percent(r, 50) ? ARENA_TOP : ARENA_NESTED));

	for (int i = 0; i < 200; i++) {
		uint32_t at = rng_below(r, 32), was = top[at];

		top[at] = pool[rng_below(r, 12)];
		if (rng_percent(r, 80))
			top[at] = was;
	}
}

static void disturb(struct rng *r, struct arena *a)
{
	char *at = a->given + (rng_percent(r, 50) ? ARENA_TOP : ARENA_NESTED);

	switch (rng_below(r, 6)) {
	case 0:
		mprotect(at, 4096, rng_percent(r, 50) ? PROT_READ : PROT_NONE);
		sched_yield();
		mprotect(at, 4096, PROT_READ | PROT_WRITE);
		break;
	case 1:		/* not munmap(): another thread's mmap() would move in */
		mmap(at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		sched_yield();
		mmap(at, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->memfd, at - a->given);
		break;
	case 2:
		madvise(at, 4096, MADV_REMOVE);
		break;
	default:
		rewrite_words(r, a);
	}
	count_one(COUNT_DISTURBED);
}

static atomic_bool threads_done;

static void *disturber(void *arg)
{
	struct process *p = arg;
	struct rng r = rng_for(opt.seed, 0xd157, p->number, p->generation);

	while (!atomic_load(&threads_done)) {
		struct thread *t = p->thread[rng_below(&r, opt.threads)];

		usleep(200 + rng_below(&r, 2000));
		/* Every other half second is left to calls that work. */
		if (atomic_load(&shared->pause) || (t->step / 200) % 2 || !opt.disturb)
			continue;
		disturb(&r, &t->arena);
	}
	return NULL;
}

/* ---- life and end ---- */

static void *thread_main(void *arg)
{
	struct thread *t = arg;
	struct seat *seat = t->seat;

	while (!atomic_load(&shared->stop) && (!opt.steps || t->step < opt.steps)) {
		wait_if_paused(t);
		thread_step(t);
	}
	drop_all(t);
	atomic_store(&seat->state, SEAT_FREE);
	return NULL;
}

static int open_log(const struct thread *t)
{
	char path[256];
	int fd, kept;

	if (!opt.log)
		return -1;
	snprintf(path, sizeof(path), "%s.%d.%d.%d", opt.log, t->process, t->generation, t->number);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	kept = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_KEPT_FD);
	close(fd);
	return kept;
}

struct thread *make_thread(struct process *p, int number)
{
	struct thread *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd;

	if (t == MAP_FAILED || !arena_make(&t->arena))
		return NULL;
	fd = fcntl(t->arena.memfd, F_DUPFD_CLOEXEC, FIRST_KEPT_FD);
	close(t->arena.memfd);
	t->arena.memfd = fd;
	t->process = p->number;
	t->number = number;
	t->generation = p->generation;
	t->home = p;
	t->next_handle = 0x5c000000u | p->number << 20 | number << 16;
	t->next_va = (1ull << 36) + ((uint64_t)number << 34);
	t->log = open_log(t);
	t->seat = seat_take(getpid());
	return t->seat ? t : NULL;
}

/* The mapping at @at, if there is one, and those beside it. Safe in a signal handler, but for sscanf(), which this libc
 * does without memory.
 */
static void say_mappings(uintptr_t at)
{
	static char text[1 << 18];
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	char *line = text, *before = NULL, *end;
	size_t length = 0;
	uintptr_t to;
	ssize_t n;

	while (fd >= 0 && length < sizeof(text) - 1 &&
	       (n = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
		length += n;
	text[length] = 0;
	for (; (end = strchr(line, '\n')); before = line, line = end + 1) {
		if (sscanf(line, "%*x-%" SCNxPTR, &to) != 1 || to <= at)
			continue;
		before = before ? before : line;
		if (write(STDERR_FILENO, before, end + 1 - before) < 0)
			break;
		break;
	}
	close(fd);
}

/* A fault of this process is a fault of the fuzzer and is reported as such. Code 1: nothing is mapped there; 2: not for
 * that access.
 */
static void say_fault(int number, siginfo_t *info, void *context)
{
	const ucontext_t *u = context;
	char line[96];
	int n = snprintf(line, sizeof(line), "abifuzz: signal %d, code %d at %p, ip %#llx; mapped there:\n", number,
			 info->si_code, info->si_addr, (unsigned long long)u->uc_mcontext.gregs[REG_RIP]);

	if (write(STDERR_FILENO, line, n) < 0)
		n = 0;
	say_mappings((uintptr_t)info->si_addr);
	signal(number, SIG_DFL);
	raise(number);
}

static void catch_faults(void)
{
	struct sigaction act = { .sa_sigaction = say_fault, .sa_flags = SA_SIGINFO };

	sigaction(SIGSEGV, &act, NULL);
	sigaction(SIGBUS, &act, NULL);
	signal(SIGPIPE, SIG_IGN);
}

int worker_main(int number, int generation)
{
	static struct process p;
	pthread_t id[MAX_THREADS], disturbing;
	bool alone = opt.only_thread >= 0;

	catch_faults();
	p.number = number;
	p.generation = generation;
	for (int i = 0; i < opt.threads; i++) {
		p.thread[i] = make_thread(&p, i);
		if (!p.thread[i]) {
			perror("abifuzz: a thread");
			return 1;
		}
	}
	for (int i = 0; i < opt.threads; i++)
		if (!alone || i == opt.only_thread)
			pthread_create(&id[i], NULL, thread_main, p.thread[i]);
		else
			atomic_store(&p.thread[i]->seat->state, SEAT_FREE);
	pthread_create(&disturbing, NULL, disturber, &p);
	for (int i = 0; i < opt.threads; i++)
		if (!alone || i == opt.only_thread)
			pthread_join(id[i], NULL);
	atomic_store(&threads_done, true);
	pthread_join(disturbing, NULL);
	return 0;
}
