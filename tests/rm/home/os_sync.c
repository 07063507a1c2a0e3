// SPDX-License-Identifier: MIT
/*
 * RM's operating system layer: locks, time, deferred work, messages. One thread runs RM, so a lock
 * that is taken twice is a deadlock and ends the program.
 */
#include "home.h"

#include <execinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../simgpu/gsp/engine.h"

void home_die(const char *format, ...)
{
	void *at[24];
	va_list a;

	va_start(a, format);
	fputs("rm: ", stderr);
	vfprintf(stderr, format, a);
	fputc('\n', stderr);
	va_end(a);
	backtrace_symbols_fd(at, backtrace(at, 24), 2);
	_exit(70);
}

/* ---- locks: @held counts readers, or is -1 for a writer or an owner ---- */

struct lock {
	int held;
};

static struct lock *new_lock(void)
{
	struct lock *l = calloc(1, sizeof(*l));

	if (!l)
		home_die("no memory for a lock");
	return l;
}

static void take(struct lock *l, const char *kind)
{
	if (l->held)
		home_die("a %s is taken twice: deadlock", kind);
	l->held = -1;
}

static void drop(struct lock *l, const char *kind)
{
	if (l->held != -1)
		home_die("a %s is dropped that is not held", kind);
	l->held = 0;
}

NV_STATUS os_alloc_spinlock(void **l)
{
	*l = new_lock();
	return NV_OK;
}

NvU64 os_acquire_spinlock(void *l)
{
	take(l, "spinlock");
	return 0;
}

void os_release_spinlock(void *l, NvU64 flags)
{
	(void)flags;
	drop(l, "spinlock");
}

NV_STATUS os_alloc_mutex(void **l)
{
	*l = new_lock();
	return NV_OK;
}

NV_STATUS os_acquire_mutex(void *l)
{
	take(l, "mutex");
	return NV_OK;
}

NV_STATUS os_cond_acquire_mutex(void *l)
{
	if (((struct lock *)l)->held)
		return NV_ERR_TIMEOUT_RETRY;
	return os_acquire_mutex(l);
}

void os_release_mutex(void *l)
{
	drop(l, "mutex");
}

/* Semaphores count; one that would wait can never be woken. */
void *os_alloc_semaphore(NvU32 count)
{
	struct lock *l = new_lock();

	l->held = (int)count;
	return l;
}

NV_STATUS os_cond_acquire_semaphore(void *semaphore)
{
	struct lock *l = semaphore;

	if (!l->held)
		return NV_ERR_TIMEOUT_RETRY;
	l->held--;
	return NV_OK;
}

NV_STATUS os_acquire_semaphore(void *l)
{
	if (os_cond_acquire_semaphore(l) != NV_OK)
		home_die("a semaphore would wait for ever");
	return NV_OK;
}

NV_STATUS os_release_semaphore(void *l)
{
	((struct lock *)l)->held++;
	return NV_OK;
}

void *os_alloc_rwlock(void)
{
	return new_lock();
}

NV_STATUS os_cond_acquire_rwlock_read(void *rwlock)
{
	struct lock *l = rwlock;

	if (l->held < 0)
		return NV_ERR_TIMEOUT_RETRY;
	l->held++;
	return NV_OK;
}

NV_STATUS os_acquire_rwlock_read(void *l)
{
	if (os_cond_acquire_rwlock_read(l) != NV_OK)
		home_die("a lock is taken to read by its writer: deadlock");
	return NV_OK;
}

NV_STATUS os_acquire_rwlock_write(void *l)
{
	take(l, "lock for writing");
	return NV_OK;
}

NV_STATUS os_cond_acquire_rwlock_write(void *l)
{
	if (((struct lock *)l)->held)
		return NV_ERR_TIMEOUT_RETRY;
	return os_acquire_rwlock_write(l);
}

void os_release_rwlock_read(void *l)
{
	((struct lock *)l)->held--;
}

void os_release_rwlock_write(void *l)
{
	drop(l, "lock for writing");
}

NV_STATUS os_alloc_wait_queue(os_wait_queue **q)
{
	*q = (void *)new_lock();
	return NV_OK;
}

void nvlink_acquireLock(void *l)
{
	take(l, "lock of nvlink");
}

void nvlink_releaseLock(void *l)
{
	drop(l, "lock of nvlink");
}

/* ---- time. RM asks for it wherever it waits, so that the engines run from here. ---- */

static NvU64 monotonic(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (NvU64)t.tv_sec * 1000000000 + (NvU64)t.tv_nsec;
}

static void run_engines(void)
{
	static bool inside;
	unsigned int i;

	if (inside)
		return;
	inside = true;
	for (i = 0; i < cards_nr; i++)
		if (cards[i]->card.gpu)
			gsp_engine_poll(&cards[i]->card);
	inside = false;
}

gsp_u64 gsp_host_now_ns(void)
{
	return monotonic();
}

NvU64 os_get_current_tick(void)
{
	run_engines();
	return monotonic();
}

NV_STATUS os_get_current_time(NvU32 *seconds, NvU32 *us)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	*seconds = (NvU32)t.tv_sec;
	*us = (NvU32)t.tv_nsec / 1000;
	return NV_OK;
}

NV_STATUS os_delay_us(NvU32 us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };

	run_engines();
	nanosleep(&t, NULL);
	return NV_OK;
}

NV_STATUS os_delay(NvU32 ms)
{
	return os_delay_us(ms * 1000);
}

NV_STATUS os_schedule(void)
{
	run_engines();
	return NV_OK;
}

/* ---- deferred work: run after the call that queued it, when no lock is held ---- */

#define WORK 4096
static void *work[WORK];
static unsigned int work_nr;

NV_STATUS os_queue_work_item(struct os_work_queue *queue, void *item)
{
	(void)queue;
	if (work_nr == WORK)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	work[work_nr++] = item;
	return NV_OK;
}

void home_run_work(void)
{
	unsigned int i;

	for (i = 0; i < work_nr; i++)
		rm_execute_work_item(NULL, work[i]);
	work_nr = 0;
}

/* ---- messages: RM's own on stderr, from the level of errors on ---- */

#define LEVEL_ERROR 4

int nv_printf(NvU32 level, const char *format, ...)
{
	va_list a;
	int n;

	if (level < LEVEL_ERROR && !getenv("RM_VERBOSE"))
		return 0;
	va_start(a, format);
	n = vfprintf(stderr, format, a);
	va_end(a);
	return n;
}

void gsp_host_log(const char *format, ...)
{
	va_list a;

	va_start(a, format);
	vfprintf(stderr, format, a);
	va_end(a);
}

NV_STATUS nv_log_error(nv_state_t *nv, NvU32 xid, const char *format, va_list a)
{
	(void)nv;
	fprintf(stderr, "Xid %u: ", xid);
	vfprintf(stderr, format, a);
	fputc('\n', stderr);
	return NV_OK;
}

void out_string(const char *s)
{
	fputs(s, stderr);
}

NvS32 os_snprintf(char *to, NvU32 bytes, const char *format, ...)
{
	va_list a;
	int n;

	va_start(a, format);
	n = vsnprintf(to, bytes, format, a);
	va_end(a);
	return n;
}

/* RM's assertions end here. */
#define BREAKPOINTS_SHOWN 32
static unsigned int breakpoints;

void os_dbg_breakpoint(void)
{
	void *at[16];

	if (++breakpoints > BREAKPOINTS_SHOWN)
		return;
	fputs("rm: breakpoint\n", stderr);
	backtrace_symbols_fd(at, backtrace(at, 16), 2);
}

void os_bug_check(NvU32 code, const char *text)
{
	home_die("bug check %x: %s", code, text);
}

void nvlink_assert(int ok)
{
	if (!ok)
		home_die("an assertion of nvlink");
}
