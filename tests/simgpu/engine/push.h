/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The push buffer of a channel: from words in memory to works that take time, and from a work's end
 * to its results in memory. Semaphores, copies, inline data, and the beginning and end of
 * launches; no SASS.
 *
 * Numbers are those of NVIDIA's public class headers (open-gpu-doc: classes/host, dma-copy,
 * compute; clc86f.h of the open driver). Depends on neither the kernel nor nvsim: the caller
 * provides memory, the cost of work and the clock. One caller at a time for each struct push.
 */
#ifndef PUSH_H
#define PUSH_H

#include "push_env.h"

/*
 * Set in an address: it is physical, and the target (clc5b5.h, PHYS_MODE) is in the bits below. Only a
 * privileged channel has such addresses, which only its copies use.
 */
#define PUSH_PHYSICAL (1ull << 63)
#define PUSH_TARGET_SHIFT 60
#define PUSH_TARGET_MASK 3

/* The channel's memory, by GPU address. False: nothing is mapped there. */
struct push_mem {
	bool (*read)(void *ctx, u64 va, void *buf, u32 len);
	bool (*write)(void *ctx, u64 va, const void *buf, u32 len);
	/*
	 * Writes @to over an aligned word of 4 or 8 bytes if it holds *@seen; *@seen becomes the
	 * old value.
	 */
	bool (*exchange)(void *ctx, u64 va, u64 *seen, u64 to, u32 len);
};

/*
 * The cost of work. A launch: launch_ns, and wave_ns for each time that sm_count CTAs fill the GPU.
 */
struct push_cost {
	u32 sm_count, copy_bytes_us;
	u64 launch_ns, wave_ns;
};

enum push_kind {
	PUSH_WORDS,		/* reading the push buffer; also interrupts and yields */
	PUSH_SEM,
	PUSH_COPY,
	PUSH_LAUNCH,
};

enum push_step {
	PUSH_GO,		/* inside: the next word */
	PUSH_END,		/* the segment is over */
	PUSH_WORK,		/* push.ns are to pass, then comes push_finish() */
	PUSH_WAIT,		/* waits for a semaphore, until push_ready() returns true */
	PUSH_FAULT,		/* push.why is the reason */
};

/* Results of push_finish() besides writes. */
#define PUSH_MORE 1		/* goes on with another push.ns */
#define PUSH_INTR 2		/* an interrupt that stalls nothing */
#define PUSH_YIELD 4		/* the rest of the slice is given up */
#define PUSH_COUNTED 8		/* a launch or a copy is complete */
#define PUSH_BROKEN 16		/* a fault: push.why */
#define PUSH_SIGNALLED 32	/* memory was written that others may wait for */

enum push_reduction {
	PUSH_RED_MIN, PUSH_RED_MAX, PUSH_RED_XOR, PUSH_RED_AND, PUSH_RED_OR, PUSH_RED_ADD,
	PUSH_RED_INC, PUSH_RED_DEC, PUSH_RED_NONE,
};

struct push_sem {
	u64 va, value;
	u8 reduction;			/* enum push_reduction; PUSH_RED_NONE: a write */
	bool wide, time, is_signed, intr;
};

#define PUSH_WINDOW 64			/* words read at once */
#define PUSH_QMD_WORDS 96		/* of the longest, Hopper's */
#define PUSH_RELEASES 3
#define PUSH_DEPENDENTS 8		/* QMDs that wait for the end of others, at one time */
#define PUSH_BOUNCE 4096

struct push_copy {
	u32 line, lines, flags;
	u64 at, len;			/* in the line, in units */
	u32 unit_in, unit_out;		/* bytes; 1 unless components are remapped */
	u32 remap;
	bool remapped, constant;
	u64 in, out;			/* the first line's */
	u64 pitch_in, pitch_out;
};

struct push_inline {
	u64 va, pitch;
	u32 line_len, line_at, lines, flags;
	u32 buf[PUSH_WINDOW], fill;	/* bytes of it, the last ones of the line so far */
};

struct push {
	const struct push_mem *mem;
	void *ctx;
	const struct push_cost *cost;
	const char *why;
	bool privileged;		/* a channel of the driver itself; set after push_init() */

	/* the work that was found */
	enum push_kind kind;
	u64 ns;
	struct push_sem sem;
	u32 effects;			/* PUSH_INTR, PUSH_YIELD */

	/* where reading is */
	u64 va, base;			/* of the segment; Hopper's address bits from 40 on */
	u32 words, at, window_at;	/* window_at: index of window[0] and 1, 0: empty */
	u32 op, sub, method, left, spent;
	bool has_work, masked;
	u32 stored_mask;

	/* the awaited value */
	u64 wait_va, wait_value;
	u32 wait_op;
	bool wait_wide;

	u32 cls[8];
	u32 host[0x100 / 4], ce[0x780 / 4], cp[0x500 / 4], report[4], video[3];
	struct push_copy copy;
	struct push_inline i2m;
	u32 qmd[PUSH_QMD_WORDS];
	u64 dependent[PUSH_DEPENDENTS];	/* address, and an order in bits 7:0 */
	u32 dependents;
	u32 window[PUSH_WINDOW];
	u8 bounce[PUSH_BOUNCE];
};

void push_init(struct push *p, const struct push_mem *mem, void *ctx, const struct push_cost *cost);
/* Whether a channel with @word as its first word speaks methods. */
bool push_is_method(u32 word);
/* A GPFIFO entry: the segment it names is read from now on. */
void push_entry(struct push *p, u32 word0, u32 word1);
/*
 * Reads on until there is something to do. Bounded: a long stretch without work is a work of its
 * own.
 */
enum push_step push_next(struct push *p);
bool push_ready(struct push *p);
/* The work's time has passed: PUSH_* above. @now goes into time stamps. */
u32 push_finish(struct push *p, u64 now);

/* between push*.c */
enum push_step push_fault(struct push *p, const char *why);
enum push_step push_work(struct push *p, enum push_kind kind, u64 ns);
enum push_step push_signal(struct push *p, const struct push_sem *sem);
bool push_sem_write(struct push *p, const struct push_sem *sem, u64 now);
enum push_step push_ce_method(struct push *p, u32 m, u32 v);
u32 push_copy_finish(struct push *p, u64 now);
enum push_step push_compute_method(struct push *p, u32 m, u32 v);
u32 push_launch_finish(struct push *p, u64 now);

static inline u32 push_target(u64 va)
{
	return (u32)(va >> PUSH_TARGET_SHIFT) & PUSH_TARGET_MASK;
}

static inline u64 push_address(u64 va)
{
	return va & ((1ull << PUSH_TARGET_SHIFT) - 1);
}

static inline u32 push_bits(u32 v, u32 hi, u32 lo)
{
	return (u32)((v >> lo) & ((2ull << (hi - lo)) - 1));
}

#endif
