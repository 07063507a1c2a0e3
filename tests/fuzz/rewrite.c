// SPDX-License-Identifier: MIT
/*
 * Each word of each call, rewritten between a first read of it and a second.
 *
 * The last word of an argument is on an absent page: a copy-in of the argument
 * faults there, after it has read the words before. One of those words changes
 * then. This is no race: it happens in every call. Code that reads once is
 * unaffected. Code that checks one copy and uses another executes an unchecked
 * call, and the accounts show it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "absent_page.h"
#include "fuzz.h"

#define QUIET_STEPS	400
#define END		16	/* words */
#define PATIENCE	3000	/* steps in which a call may come up by itself, and valid */

uint32_t rewritten[MAX_ROWS], rewritable[MAX_ROWS];

static const uint32_t values[] = {
	0, 0xffffffff, 0x40, 1u << 29 /* bytes: 512 MiB */, 0x00000027, 0x5c000001, 0xa06c0101,
};
#define VALUES	(sizeof(values) / sizeof(values[0]))

static uint32_t cursor[MAX_ROWS];
static char *edge;		/* the absent page begins here */
static uint32_t *word;
static uint32_t value;

static void rewrite_word(void)
{
	if (word)
		*(volatile uint32_t *)word = value;
	word = NULL;
	count_one(COUNT_DISTURBED);
}

/* Of a long one the words at both ends: between are lists. */
static void aim(char *argument, uint32_t size, int row)
{
	uint32_t all = size / 4 - 1, words = all < 2 * END ? all : 2 * END, n = cursor[row]++;
	uint32_t at = n % words < END ? n % words : all - words + n % words;

	if (words > rewritable[row])
		rewritable[row] = words;
	if (n < words && rewritten[row] < rewritable[row])
		rewritten[row]++;
	word = (uint32_t *)(argument + at * 4);
	value = values[n / words % VALUES];
}

/* The last word of @size bytes on the absent page; the others are written now. */
static char *place(const void *bytes, uint32_t size)
{
	char *at = edge - (size - 4);

	memcpy(at, bytes, size - 4);
	fault_arm((const char *)bytes + size - 4, 4);
	return at;
}

static bool fits(uint32_t size)
{
	return size >= 8 && size % 4 == 0 && size <= 0x10000;
}

/* Alternates between the call's parameters and the call itself: only one can cross the edge. */
int rewrite_ioctl(struct call *c, const struct arena *a)
{
	static uint32_t turn;
	bool nested = c->inner >= 0 && fits(c->nested_size) && (turn++ & 1);
	char *at;
	int ret;

	word = NULL;
	if (nested) {
		at = place(c->nested, c->nested_size);
		aim(at, c->nested_size, c->inner);
		memcpy(a->ours + ARENA_TOP + c->pointer_at, &at, 8);
		ret = ioctl(c->fd, c->request, a->given + ARENA_TOP);
		memcpy(a->ours + ARENA_NESTED, at, c->nested_size);
		return ret;
	}
	if (c->row < 0 || !fits(c->top_size))
		return ioctl(c->fd, c->request, a->given + ARENA_TOP);
	memcpy(c->top, a->ours + ARENA_TOP, c->top_size);
	at = place(c->top, c->top_size);
	aim(at, c->top_size, c->row);
	ret = ioctl(c->fd, c->request, at);
	memcpy(a->ours + ARENA_TOP, at, c->top_size);
	return ret;
}

static bool is_left(int row, uint64_t step)
{
	const struct row *r = &rows[row];

	if (r->kind == ROW_CONTROL || r->kind == ROW_CLASS || ((r->size || r->kind == ROW_UVM) && !fits(r->size)) ||
	    (rewritable[row] && rewritten[row] >= rewritable[row]))
		return false;
	return step >= PATIENCE || !atomic_load(&shared->hit[row][0]);
}

/* A call of a node that is not done and does not come up by itself. False: there is none. */
static bool next_row(struct thread *t)
{
	static int last;

	for (int i = 1; i <= row_count; i++) {
		int row = (last + i) % row_count;

		if (!is_left(row, t->step))
			continue;
		last = row;
		if (rows[row].kind == ROW_ESCAPE)
			escape_row(t, &rows[row]);
		else
			uvm_row(t, &rows[row]);
		return true;
	}
	return false;
}

int rewrite_main(void)
{
	static struct process p;
	struct thread *t;
	time_t end = time(NULL) + (time_t)opt.seconds;
	bool left = true;

	opt.forks = opt.disturb = false;
	opt.threads = 1;
	edge = fault_area(rewrite_word);
	t = p.thread[0] = make_thread(&p, 0);
	if (!edge || !t) {
		perror("abifuzz: userfaultfd");
		return 1;
	}
	while (time(NULL) < end && left) {
		thread_step(t);
		left = next_row(t) || t->step < PATIENCE;
		if (opt.quiet_s && t->step % QUIET_STEPS == 0) {
			atomic_store(&t->seat->state, SEAT_PAUSED);
			quiet_point();
		}
	}
	drop_all(t);
	report();
	return 0;
}
