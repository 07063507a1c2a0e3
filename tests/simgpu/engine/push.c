// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Push buffer: words, methods of the host, semaphores. */
#include "push.h"

#define MAX_WORDS 1024			/* read without finding work; then time passes */
#define MIN_NS 100	/* nothing is free, or an endless ring of nothing would stop time */
#define MAX_TRIES 64			/* of an exchange that keeps losing against the CPU */

/* clc46f.h: methods, and bits of SEMAPHORED and SEM_EXECUTE */
enum {
	SET_OBJECT = 0x00, SEMAPHOREA = 0x10, SEMAPHORED = 0x1c, NON_STALL_INTERRUPT = 0x20,
	SEM_ADDR_LO = 0x5c, SEM_ADDR_HI = 0x60, SEM_PAYLOAD_LO = 0x64, SEM_PAYLOAD_HI = 0x68,
	SEM_EXECUTE = 0x6c, YIELD = 0x80,
};

enum { OLD_ACQUIRE = 1, OLD_RELEASE = 2, OLD_ACQ_GEQ = 4, OLD_ACQ_AND = 8, OLD_REDUCTION = 16 };
enum {
	SEM_ACQUIRE, SEM_RELEASE, SEM_ACQ_STRICT_GEQ, SEM_ACQ_CIRC_GEQ, SEM_ACQ_AND, SEM_ACQ_NOR,
	SEM_REDUCTION,
};
enum { YIELD_NOP = 0 };

/* Methods of the video engines, as libnvcuvid writes them (class b0); the names are open-gpu-doc's. */
enum { VIDEO_SEMAPHORE_A = 0x240, VIDEO_SEMAPHORE_C = 0x248, VIDEO_EXECUTE = 0x300, VIDEO_SEMAPHORE_D = 0x304 };
enum { VIDEO_RELEASE, VIDEO_TRAP = 3 };
#define VIDEO_FRAME_NS 2000000		/* assumed: 500 frames a second */

/* Header words: SEC_OP 31:29, and TERT_OP 17:16 where that is 0 or 2 */
enum { OP_TERT0, OP_INC, OP_TERT2, OP_NONINC, OP_IMMD, OP_ONEINC, OP_RESERVED, OP_END };
enum { TERT_METHOD, TERT_SET_MASK, TERT_STORE_MASK, TERT_USE_MASK };

enum push_step push_fault(struct push *p, const char *why)
{
	p->why = why;
	return PUSH_FAULT;
}

enum push_step push_work(struct push *p, enum push_kind kind, u64 ns)
{
	p->kind = kind;
	p->ns = push_max(ns, MIN_NS) + p->spent;
	p->spent = 0;
	p->has_work = true;
	return PUSH_GO;
}

enum push_step push_signal(struct push *p, const struct push_sem *sem)
{
	p->sem = *sem;
	return push_work(p, PUSH_SEM, 0);
}

void push_init(struct push *p, const struct push_mem *mem, void *ctx, const struct push_cost *cost)
{
	memset(p, 0, sizeof(*p));
	p->mem = mem;
	p->ctx = ctx;
	p->cost = cost;
}

bool push_is_method(u32 word)
{
	u32 op = word >> 29;

	return op == OP_INC || op == OP_NONINC || op == OP_IMMD || op == OP_ONEINC;
}

/*
 * clc86f.h: an entry without words is an order to the host itself; 4 sets the address bits from 40
 * on
 */
void push_entry(struct push *p, u32 word0, u32 word1)
{
	p->words = push_bits(word1, 30, 10);
	p->at = 0;
	p->left = 0;
	p->window_at = 0;
	if (p->words)
		p->va = (word0 & ~3u) | (u64)(word1 & 0xff) << 32 | p->base;
	else if ((word1 & 0xff) == 4)
		p->base = (u64)push_bits(word0, 24, 8) << 40;
}

static bool word(struct push *p, u32 *w)
{
	u32 first = p->at - p->at % PUSH_WINDOW;
	u32 n = (u32)push_min(PUSH_WINDOW, p->words - first);

	if (p->window_at != first + 1) {
		if (!p->mem->read(p->ctx, p->va + 4ull * first, p->window, n * 4))
			return false;
		p->window_at = first + 1;
	}
	*w = p->window[p->at - first];
	return true;
}

static u64 reduced(u64 old, u64 v, u32 op, bool is_signed, bool wide)
{
	s64 a = wide ? (s64)old : is_signed ? (s32)old : (s64)old;
	s64 b = wide ? (s64)v : is_signed ? (s32)v : (s64)(u32)v;
	bool less = is_signed ? a < b : (u64)a < (u64)b;

	if (!wide)
		v = (u32)v;
	switch (op) {
	case PUSH_RED_MIN: return less ? old : v;
	case PUSH_RED_MAX: return less ? v : old;
	case PUSH_RED_XOR: return old ^ v;
	case PUSH_RED_AND: return old & v;
	case PUSH_RED_OR: return old | v;
	case PUSH_RED_ADD: return old + v;
	case PUSH_RED_INC: return old >= v ? 0 : old + 1;
	case PUSH_RED_DEC: return !old || old > v ? v : old - 1;
	}
	return old;
}

static bool reduce(struct push *p, const struct push_sem *s)
{
	u64 mask = s->wide ? ~0ull : 0xffffffff, seen = 0, old, to;
	u32 len = s->wide ? 8 : 4, i;

	if (!p->mem->read(p->ctx, s->va, &seen, len))
		return false;
	for (i = 0; i < MAX_TRIES; i++) {
		old = seen;
		to = reduced(old, s->value, s->reduction, s->is_signed, s->wide) & mask;
		if (!p->mem->exchange(p->ctx, s->va, &seen, to, len))
			return false;
		if (seen == old)
			return true;
	}
	return p->mem->write(p->ctx, s->va, &to, len);
}

/* The time first: a reader that sees the value finds the time. */
bool push_sem_write(struct push *p, const struct push_sem *s, u64 now)
{
	if (s->va & (s->wide ? 7 : 3)) {
		p->why = "semaphore not aligned";
		return false;
	}
	p->why = "semaphore not mapped";
	if (s->time && !p->mem->write(p->ctx, s->va + 8, &now, 8))
		return false;
	if (s->reduction != PUSH_RED_NONE)
		return reduce(p, s);
	return p->mem->write(p->ctx, s->va, &s->value, s->wide ? 8 : 4);
}

/* Whether the awaited value is there. Only reads, so that it may be called at any time. */
static enum push_step acquired(struct push *p)
{
	u64 m = 0, v = p->wait_value;
	bool ok = false;

	if (p->wait_va & (p->wait_wide ? 7 : 3))
		return push_fault(p, "semaphore not aligned");
	if (!p->mem->read(p->ctx, p->wait_va, &m, p->wait_wide ? 8 : 4))
		return push_fault(p, "semaphore not mapped");
	switch (p->wait_op) {
	case SEM_ACQUIRE:
		ok = m == v;
		break;
	case SEM_ACQ_STRICT_GEQ:
		ok = m >= v;
		break;
	case SEM_ACQ_CIRC_GEQ:
		ok = p->wait_wide ? (s64)(m - v) >= 0 : (s32)(u32)(m - v) >= 0;
		break;
	case SEM_ACQ_AND:
		ok = m & v;
		break;
	case SEM_ACQ_NOR:
		ok = (p->wait_wide ? ~(m | v) : (u32)~(m | v)) != 0;
		break;
	}
	return ok ? PUSH_GO : PUSH_WAIT;
}

bool push_ready(struct push *p)
{
	return acquired(p) != PUSH_WAIT;
}

static enum push_step acquire(struct push *p, u64 va, u64 value, u32 op, bool wide)
{
	p->wait_va = va;
	p->wait_value = value;
	p->wait_op = op;
	p->wait_wide = wide;
	return acquired(p);
}

static enum push_step old_semaphore(struct push *p, u32 v)
{
	const u32 *r = p->host + SEMAPHOREA / 4;
	struct push_sem s = {
		.va = (u64)(r[0] & 0xff) << 32 | (r[1] & ~3u), .value = r[2],
		.reduction = PUSH_RED_NONE,
		.is_signed = !push_bits(v, 31, 31),
	};

	switch (push_bits(v, 4, 0)) {
	case OLD_ACQUIRE:
		return acquire(p, s.va, s.value, SEM_ACQUIRE, false);
	case OLD_ACQ_GEQ:
		return acquire(p, s.va, s.value, SEM_ACQ_CIRC_GEQ, false);
	case OLD_ACQ_AND:
		return acquire(p, s.va, s.value, SEM_ACQ_AND, false);
	case OLD_REDUCTION:
		s.reduction = (u8)push_bits(v, 30, 27);
		if (s.reduction >= PUSH_RED_NONE)
			return push_fault(p, "unknown reduction");
		return push_signal(p, &s);
	case OLD_RELEASE:
		s.time = !push_bits(v, 24, 24);
		return push_signal(p, &s);
	}
	return push_fault(p, "unknown semaphore operation");
}

static enum push_step semaphore(struct push *p, u32 v)
{
	const u32 *r = p->host;
	bool wide = push_bits(v, 24, 24);
	u32 op = push_bits(v, 2, 0);
	struct push_sem s = {
		.va = (u64)push_bits(r[SEM_ADDR_HI / 4], 24, 0) << 32 | (r[SEM_ADDR_LO / 4] & ~3u),
		.value = r[SEM_PAYLOAD_LO / 4] | (wide ? (u64)r[SEM_PAYLOAD_HI / 4] << 32 : 0),
		.reduction = PUSH_RED_NONE, .wide = wide, .is_signed = !push_bits(v, 31, 31),
	};

	switch (op) {
	case SEM_ACQUIRE:
	case SEM_ACQ_STRICT_GEQ:
	case SEM_ACQ_CIRC_GEQ:
	case SEM_ACQ_AND:
	case SEM_ACQ_NOR:
		return acquire(p, s.va, s.value, op, wide);
	case SEM_REDUCTION:
		s.reduction = (u8)push_bits(v, 30, 27);
		if (s.reduction >= PUSH_RED_NONE)
			return push_fault(p, "unknown reduction");
		return push_signal(p, &s);
	case SEM_RELEASE:
		s.time = push_bits(v, 25, 25);
		return push_signal(p, &s);
	}
	return push_fault(p, "unknown semaphore operation");
}

/*
 * Methods of the host itself, for any object on the subchannel. Works run in order, so WFI and
 * flushes are already satisfied.
 */
static enum push_step host_method(struct push *p, u32 m, u32 v)
{
	p->host[m / 4] = v;
	switch (m) {
	case SET_OBJECT:
		p->cls[p->sub] = v & 0xffff;
		return PUSH_GO;
	case SEMAPHORED:
		return old_semaphore(p, v);
	case SEM_EXECUTE:
		return semaphore(p, v);
	case NON_STALL_INTERRUPT:
		p->effects |= PUSH_INTR;
		return push_work(p, PUSH_WORDS, 0);
	case YIELD:
		if (push_bits(v, 1, 0) == YIELD_NOP)
			return PUSH_GO;
		p->effects |= PUSH_YIELD;
		return push_work(p, PUSH_WORDS, 0);
	}
	return PUSH_GO;
}

/* Nothing is decoded or encoded: a frame takes its time. */
static enum push_step video_method(struct push *p, u32 m, u32 v)
{
	struct push_sem s = {
		.va = (u64)(p->video[0] & 0xff) << 32 | (p->video[1] & ~3u), .value = p->video[2],
		.reduction = PUSH_RED_NONE, .time = push_bits(v, 0, 0), .intr = push_bits(v, 8, 8),
	};

	if (m >= VIDEO_SEMAPHORE_A && m <= VIDEO_SEMAPHORE_C)
		p->video[(m - VIDEO_SEMAPHORE_A) / 4] = v;
	if (m == VIDEO_EXECUTE) {
		p->effects |= PUSH_COUNTED;
		return push_work(p, PUSH_WORDS, VIDEO_FRAME_NS);
	}
	if (m != VIDEO_SEMAPHORE_D)
		return PUSH_GO;
	if (push_bits(v, 17, 16) == VIDEO_RELEASE)
		return push_signal(p, &s);
	if (push_bits(v, 17, 16) != VIDEO_TRAP)
		return push_fault(p, "unknown semaphore operation");
	p->effects |= PUSH_INTR;
	return push_work(p, PUSH_WORDS, 0);
}

static enum push_step one_method(struct push *p, u32 m, u32 v)
{
	u32 cls = p->cls[p->sub];

	if (p->masked)
		return PUSH_GO;
	if (m < 0x100)
		return host_method(p, m, v);
	switch (cls & 0xff) {
	case 0xb5:
		return push_ce_method(p, m, v);
	case 0xc0:
		return push_compute_method(p, m, v);
	case 0xb0:
	case 0xb7:
	case 0xd1:
	case 0xfa:
		return video_method(p, m, v);
	}
	return cls ? PUSH_GO : push_fault(p, "method without an object");
}

static enum push_step mask_op(struct push *p, u32 h)
{
	u32 mask = push_bits(h, 15, 4);

	switch (push_bits(h, 17, 16)) {
	case TERT_SET_MASK:
		p->masked = !(mask & 1);
		break;
	case TERT_STORE_MASK:
		p->stored_mask = mask;
		break;
	case TERT_USE_MASK:
		p->masked = !(p->stored_mask & 1);
		break;
	}
	return PUSH_GO;
}

/* @h is a header: sets up what follows it, or does it if that is inside. */
static enum push_step header(struct push *p, u32 h)
{
	p->op = h >> 29;
	p->sub = push_bits(h, 15, 13);
	p->method = push_bits(h, 11, 0) << 2;
	p->left = 0;
	switch (p->op) {
	case OP_INC:
	case OP_NONINC:
	case OP_ONEINC:
		p->left = push_bits(h, 28, 16);
		return PUSH_GO;
	case OP_IMMD:
		return one_method(p, p->method, push_bits(h, 28, 16));
	case OP_END:
		p->at = p->words;
		return PUSH_GO;
	case OP_TERT0:
		if (push_bits(h, 17, 16) != TERT_METHOD)
			return mask_op(p, h);
		p->op = OP_INC;
		break;
	case OP_TERT2:
		if (push_bits(h, 17, 16) != TERT_METHOD)
			return push_fault(p, "unknown header");
		p->op = OP_NONINC;
		break;
	default:
		return push_fault(p, "unknown header");
	}
	/* the old format */
	p->left = push_bits(h, 28, 18);
	p->method = push_bits(h, 12, 2) << 2;
	return PUSH_GO;
}

static enum push_step data(struct push *p, u32 v)
{
	enum push_step step = one_method(p, p->method, v);

	if (step != PUSH_GO)
		return step;
	p->left--;
	if (p->op == OP_INC || p->op == OP_ONEINC)
		p->method = (p->method + 4) & 0x3ffc;
	if (p->op == OP_ONEINC)
		p->op = OP_NONINC;
	return PUSH_GO;
}

enum push_step push_next(struct push *p)
{
	enum push_step step;
	u32 n, w;

	p->has_work = false;
	p->effects = 0;
	for (n = 0; n < MAX_WORDS; n++) {
		if (p->at >= p->words)
			return PUSH_END;
		if (!word(p, &w))
			return push_fault(p, "push buffer not mapped");
		/* counted before it is acted upon: it may be the one that ends the segment */
		p->at++;
		step = p->left ? data(p, w) : header(p, w);
		if (step == PUSH_WAIT)
			p->at--;
		if (step != PUSH_GO)
			return step;
		p->spent++;
		if (p->has_work)
			return PUSH_WORK;
	}
	push_work(p, PUSH_WORDS, 0);
	return PUSH_WORK;
}

u32 push_finish(struct push *p, u64 now)
{
	u32 did = p->effects;

	p->effects = 0;
	switch (p->kind) {
	case PUSH_WORDS:
		break;
	case PUSH_SEM:
		did |= PUSH_SIGNALLED | (p->sem.intr ? PUSH_INTR : 0);
		if (!push_sem_write(p, &p->sem, now))
			return PUSH_BROKEN;
		break;
	case PUSH_COPY:
		return push_copy_finish(p, now);
	case PUSH_LAUNCH:
		return push_launch_finish(p, now);
	}
	return did;
}
