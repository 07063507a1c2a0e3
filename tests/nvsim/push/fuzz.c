// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * fuzz SEED RUNS: push buffers that are almost right, under the sanitizers. Each run is a channel
 * over a small memory full of words that have a meaning in some place; the effect of one step is
 * bounded for all of them.
 */
#include "home.h"

#include <stdio.h>
#include <stdlib.h>

#define SIZE (256u << 10)
#define WORDS 4096
#define STEPS 4000

static u64 state;

static u32 rnd(void)
{
	u64 z = state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (u32)(z >> 32);
}

static u32 pick(const u32 *list, u32 n)
{
	return list[rnd() % n];
}

#define PICK(list) pick(list, sizeof(list) / sizeof((list)[0]))

/* A value: often a small number, an address in memory (whole, its halves, shifted), or flags. */
static u32 value(void)
{
	static const u32 odd[] = {
		0, 1, 2, 3, 4, 8, 16, 0xffffffff, 0x80000000, 0x7fffffff, 0x40, 0x182, 0x3ff,
	};

	switch (rnd() % 6) {
	case 0: return PICK(odd);
	case 1: return (u32)HOME_BASE + (rnd() % SIZE & ~3u);
	case 2: return (u32)(HOME_BASE >> 32);
	case 3: return (u32)((HOME_BASE + rnd() % SIZE) >> 8);
	case 4: return rnd() % 4096;
	}
	return rnd();
}

static u32 method(void)
{
	static const u32 known[] = {
		0x10, 0x14, 0x18, 0x1c, 0x20, 0x5c, 0x60, 0x64, 0x68, 0x6c, 0x78, 0x80, 0x158,
		0x160, 0x168, 0x180, 0x188, 0x1b0, 0x1b4, 0x1dc, 0x240, 0x24c, 0x2b4, 0x2bc,
		0x2c0, 0x300, 0x318, 0x320, 0x400, 0x410, 0x418, 0x41c, 0x49c, 0x700, 0x708,
		0x710, 0x72c, 0x1b00, 0x1b0c,
	};

	return rnd() % 16 ? PICK(known) : rnd() & 0x3ffc;
}

static u32 *one(u32 *w, u32 sub, u32 m, u32 v)
{
	*w++ = 1u << 29 | 1u << 16 | sub << 13 | m >> 2;
	*w++ = v;
	return w;
}

static u32 *address(u32 *w, u32 sub, u32 m)
{
	w = one(w, sub, m, (u32)(HOME_BASE >> 32));
	return one(w, sub, m + 4, (u32)HOME_BASE + rnd() % SIZE);
}

/* A copy or memset that mostly stays inside. */
static u32 *copy(u32 *w)
{
	static const u32 lens[] = { 0, 1, 3, 64, 1000, 5000, 70000, 300000 };
	u32 sub = 3 + rnd() % 3;

	w = address(w, sub, 0x240);
	w = address(w, sub, 0x400);
	w = address(w, sub, 0x408);
	w = one(w, sub, 0x410, rnd() % 3000 - 1000);
	w = one(w, sub, 0x414, rnd() % 3000 - 1000);
	w = one(w, sub, 0x418, PICK(lens));
	w = one(w, sub, 0x41c, rnd() % 8 ? rnd() % 8 : value());
	w = one(w, sub, 0x708, rnd());
	return one(w, sub, 0x300, rnd() & ~0x3000u);
}

static void fill(u32 *w, u32 n)
{
	static const u32 classes[] = { 0xc5c0, 0xc6c0, 0xcbc0, 0xc5b5, 0xc7b5, 0xc8b5, 0xc597, 0 };
	u32 i, count, op, *from;

	for (i = 0; i < 8; i++)
		w = one(w, i, 0, classes[i]);
	for (n -= 16; n; n -= 1 + count, w += 1 + count) {
		if (n > 64 && !(rnd() % 8)) {
			from = w;
			w = copy(w);
			n -= (u32)(w - from);
		}
		op = rnd() % 16 ? 1 + rnd() % 5 : rnd() % 8;
		count = op == 4 || op == 7 ? 0 : rnd() % 12;
		if (count >= n)
			count = n - 1;
		w[0] = op << 29 | (op == 4 ? rnd() & 0x1fff : count) << 16 | (rnd() & 7) << 13;
		w[0] |= method() >> 2;
		for (i = 0; i < count; i++)
			w[1 + i] = value();
	}
}

/* QMDs of all versions, with grids and releases that may be anything. */
static void qmds(u32 *w, u32 bytes)
{
	static const u32 versions[] = { 0x23, 0x24, 0x30, 0x40, 0 };
	u32 i;

	for (; bytes >= 512; bytes -= 512, w += 128) {
		for (i = 0; i < 96; i++)
			w[i] = rnd() % 3 ? 0 : value();
		w[18] = (w[18] & ~0xffu) | PICK(versions);
	}
}

static void fail(const char *what)
{
	fprintf(stderr, "fuzz: %s\n", what);
	abort();
}

static void run(struct home *h)
{
	u64 reads, writes;
	u32 i, did = 0, words = rnd() % 8 ? WORDS : rnd() & 0x1fffff;

	push_entry(&h->p, (u32)HOME_BASE, (u32)(HOME_BASE >> 32) | words << 10);
	for (i = 0; i < STEPS; i++) {
		reads = h->reads;
		writes = h->writes;
		if (!(did & PUSH_MORE)) {
			switch (push_next(&h->p)) {
			case PUSH_END:
				return;
			case PUSH_FAULT:
				/*
				 * a channel would be dead; the fuzzer continues, to reach more code
				 */
				did = 0;
				continue;
			case PUSH_WAIT:
				push_ready(&h->p);
				/* as if the awaited value had come */
				h->p.at++;
				if (h->p.left)
					h->p.left--;
				did = 0;
				continue;
			default:
				break;
			}
		}
		if (h->p.ns < 100 || h->p.ns > 25ull * 3600 * 1000000000)
			fail("time of a work");
		did = push_finish(&h->p, i);
		if (did & PUSH_BROKEN)
			did = 0;
		/*
		 * 1024 words, and what the largest of them moves; a piece; two dependents with
		 * their QMDs
		 */
		if (h->reads - reads > 1024 * 400 + (256u << 10) ||
		    h->writes - writes > 1024 * 260 + (256u << 10))
			fail("more moved in one step than may be");
	}
}

int main(int argc, char **argv)
{
	u64 seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	u64 runs = argc > 2 ? strtoull(argv[2], NULL, 0) : 1000, i, works = 0;

	for (i = 0; i < runs; i++) {
		struct home *h = home_new(SIZE);

		if (!h)
			fail("memory");
		state = seed * 1000003 + i;
		fill((u32 *)h->mem, WORDS);
		qmds((u32 *)(h->mem + WORDS * 4), SIZE - WORDS * 4);
		run(h);
		works += h->writes;
		home_free(h);
	}
	printf("%llu bytes written\n", (unsigned long long)works);
	return 0;
}
