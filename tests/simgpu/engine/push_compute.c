// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Push buffer: compute. Inline data, report semaphores, and launches by QMD. */
#include "push.h"

#define R(m) (p->cp[(m) / 4])
#define MAX_NS (24ull * 3600 * 1000000000)

/* clc5c0.h, clc6c0.h, clcbc0.h: methods */
enum {
	REPORT_PAYLOAD_LOWER = 0x158, REPORT_PAYLOAD_UPPER = 0x15c, REPORT_ADDRESS_LOWER = 0x160,
	REPORT_ADDRESS_UPPER = 0x164, REPORT_EXECUTE = 0x168, LINE_LENGTH_IN = 0x180,
	LINE_COUNT = 0x184, OFFSET_OUT_UPPER = 0x188, OFFSET_OUT = 0x18c, PITCH_OUT = 0x190,
	SET_DST_WIDTH = 0x198, SET_DST_HEIGHT = 0x19c, SET_DST_LAYER = 0x1a4,
	SET_DST_ORIGIN_X = 0x1a8, SET_DST_ORIGIN_Y = 0x1ac, LAUNCH_DMA = 0x1b0,
	LOAD_INLINE_DATA = 0x1b4, SET_I2M_SEMAPHORE_A = 0x1dc, SET_I2M_SEMAPHORE_B = 0x1e0,
	SET_I2M_SEMAPHORE_C = 0x1e4, SEND_PCAS_A = 0x2b4, SEND_SIGNALING_PCAS_B = 0x2bc,
	SEND_SIGNALING_PCAS2_B = 0x2c0, INLINE_QMD_A = 0x318, INLINE_QMD_B = 0x31c,
	INLINE_QMD_DATA = 0x320, SET_REPORT_SEMAPHORE_A = 0x1b00, SET_REPORT_SEMAPHORE_D = 0x1b0c,
};

#define FIRST_WITH_PCAS2 0xc6c0
#define FIRST_WITH_REPORT_EXECUTE 0xcbc0
#define FIRST_WITH_LONG_QMD 0xcbc0

/* SEND_SIGNALING_PCAS2_B */
enum {
	PCAS_SCHEDULE = 2, PCAS_COPY_SCHEDULE = 3, PCAS_DECREMENT = 7, PCAS_PREFETCH_SCHEDULE = 9,
	PCAS_PREFETCH_COPY_SCHEDULE = 10, PCAS_PREFETCH_COPY_FORCE = 11, PCAS_INCREMENT = 12,
};

enum { REPORT_RELEASE, REPORT_ACQUIRE, REPORT_ONLY, REPORT_TRAP };

/* Reductions of compute, in their order there */
static const u8 reductions[8] = {
	PUSH_RED_ADD, PUSH_RED_MIN, PUSH_RED_MAX, PUSH_RED_INC, PUSH_RED_DEC, PUSH_RED_AND,
	PUSH_RED_OR, PUSH_RED_XOR,
};

/*
 * Where the fields of a QMD are: first bit and width. clc5c0qmd.h (V02_03), clc6c0qmd.h (V02_04,
 * V03_00), clcbc0qmd.h (V03_00, V04_00). The version is at 583:576 in all of them. Releases: the
 * control field's first bit, then where its parts are from there; the address's and the payload's
 * first bits.
 */
struct field {
	u16 lo, bits;
};

struct release {
	u16 enable, addr, payload, control;	/* first bits */
};

struct layout {
	u8 version;
	u8 releases, dependents;
	u32 words;
	struct field grid[3];
	struct field counter, live;	/* dependencies of a launch: initial, and now (HW_ONLY) */
	struct field red_op, red_format, red_enable, trap, wide, size;	/* from release.control */
	struct release release[PUSH_RELEASES];
	u8 addr_bits;
	struct {
		struct field enable, action, pointer;
	} dependent[2];
};

static const struct layout layouts[] = {
	{
		.version = 0x23, .releases = 2, .dependents = 1, .words = 64,
		.grid = { { 384, 32 }, { 416, 16 }, { 448, 16 } },
		.red_op = { 20, 3 }, .red_format = { 24, 2 }, .red_enable = { 26, 1 },
		.size = { 31, 1 },
		.release = { { 138, 736, 800, 768 }, { 139, 832, 896, 864 } }, .addr_bits = 40,
		/* its "type" is one bit: a queue or a grid */
		.dependent = { { { 141, 1 }, { 142, 1 }, { 480, 32 } } },
	}, {
		.version = 0x24, .releases = 2, .dependents = 1, .words = 64,
		.grid = { { 384, 32 }, { 416, 16 }, { 448, 16 } }, .counter = { 151, 7 },
		.live = { 1728, 7 },
		.red_op = { 20, 3 }, .red_format = { 24, 2 }, .red_enable = { 26, 1 },
		.size = { 31, 1 },
		.release = { { 138, 736, 800, 768 }, { 139, 832, 896, 864 } }, .addr_bits = 40,
		.dependent = { { { 141, 1 }, { 142, 3 }, { 480, 32 } } },
	}, {
		.version = 0x30, .releases = 3, .dependents = 1, .words = 64,
		.grid = { { 384, 32 }, { 416, 16 }, { 448, 16 } }, .counter = { 142, 16 },
		.live = { 1952, 7 },
		.red_op = { 20, 3 }, .red_format = { 24, 2 }, .red_enable = { 26, 1 },
		.trap = { 27, 2 }, .wide = { 29, 1 },
		.size = { 30, 2 }, .addr_bits = 40,
		.release = {
			{ 823, 768, 832, 800 }, { 951, 896, 960, 928 }, { 1719, 1664, 1728, 1696 },
		},
		.dependent = { { { 512, 1 }, { 513, 3 }, { 480, 32 } } },
	}, {
		.version = 0x40, .releases = 3, .dependents = 2, .words = 96,
		.grid = { { 1024, 32 }, { 1056, 16 }, { 1088, 16 } }, .counter = { 0, 16 },
		.live = { 288, 16 },
		.red_op = { 5, 3 }, .red_format = { 8, 2 }, .red_enable = { 4, 1 },
		.trap = { 10, 2 }, .wide = { 12, 1 },
		.size = { 1, 2 }, .addr_bits = 57,
		.release = {
			{ 320, 640, 704, 320 }, { 336, 768, 832, 336 }, { 352, 896, 960, 352 },
		},
		.dependent = {
			{ { 368, 1 }, { 369, 3 }, { 448, 32 } }, { { 373, 1 }, { 374, 3 }, { 480, 32 } },
		},
	},
};

enum { DEPENDENT_SCHEDULE = 1, DEPENDENT_COPY_SCHEDULE = 3, DEPENDENT_DECREMENT = 4 };

static u64 get(const u32 *q, u32 lo, u32 bits)
{
	u64 v = 0;
	u32 i;

	for (i = 0; i < bits; i++)
		v |= (u64)(q[(lo + i) / 32] >> (lo + i) % 32 & 1) << i;
	return v;
}

static u32 part(const u32 *q, u32 base, struct field f)
{
	return (u32)get(q, base + f.lo, f.bits);
}

static const struct layout *layout_of(const u32 *q)
{
	u32 version = (u32)get(q, 580, 4) << 4 | (u32)get(q, 576, 4), i;

	for (i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		if (layouts[i].version == version)
			return &layouts[i];
	return NULL;
}

/* Reads the QMD at @va into p->qmd; its version determines the length. */
static const struct layout *read_qmd(struct push *p, u64 va)
{
	const struct layout *l;

	p->why = "QMD not mapped";
	if (!p->mem->read(p->ctx, va, p->qmd, 64 * 4))
		return NULL;
	p->why = "QMD of an unknown version";
	l = layout_of(p->qmd);
	if (!l || l->words <= 64)
		return l;
	p->why = "QMD not mapped";
	return p->mem->read(p->ctx, va + 64 * 4, p->qmd + 64, (l->words - 64) * 4) ? l : NULL;
}

static u64 launch_ns(const struct push *p, const struct layout *l)
{
	u64 ctas = 1, waves;
	int i;

	for (i = 0; i < 3; i++)
		ctas *= get(p->qmd, l->grid[i].lo, l->grid[i].bits);
	waves = push_div(ctas, push_max(p->cost->sm_count, 1));
	waves += waves * push_max(p->cost->sm_count, 1) < ctas;
	waves = push_min(waves, push_div(MAX_NS, push_max(p->cost->wave_ns, 1)));
	return push_min(p->cost->launch_ns + waves * p->cost->wave_ns, MAX_NS);
}

/* Sets the live counter of the QMD at @va, which p->qmd holds. */
static bool set_live(struct push *p, const struct layout *l, u64 va, u32 n)
{
	u32 index = l->live.lo / 32, lo = l->live.lo % 32, mask = ((1u << l->live.bits) - 1) << lo;

	p->qmd[index] = (p->qmd[index] & ~mask) | (n << lo & mask);
	p->why = "QMD not mapped";
	return p->mem->write(p->ctx, va + 4 * index, &p->qmd[index], 4);
}

enum order { ORDER_SCHEDULE, ORDER_COPY, ORDER_DECREMENT, ORDER_INCREMENT };

/*
 * A QMD runs when it has been scheduled and has no dependency left. A copy resets the live counter
 * to the initial one; a decrement changes the live counter. libcuda's launches on Hopper require
 * that a schedule waits for the counter: its empty grid between two launches counts both.
 */
static enum push_step launch(struct push *p, u64 va, enum order order)
{
	const struct layout *l = read_qmd(p, va);
	u32 n, before;

	if (!l)
		return PUSH_FAULT;
	n = part(p->qmd, 0, l->live);
	before = n;
	if (order == ORDER_COPY)
		n = part(p->qmd, 0, l->counter);
	else if (order == ORDER_DECREMENT && n)
		n--;
	else if (order == ORDER_INCREMENT)
		n++;
	if (n != before && !set_live(p, l, va, n))
		return PUSH_FAULT;
	if (n || order == ORDER_INCREMENT)
		return PUSH_GO;
	return push_work(p, PUSH_LAUNCH, launch_ns(p, l));
}

static bool release(struct push *p, const struct layout *l, const struct release *r, u64 now,
		    u32 *did)
{
	const u32 *q = p->qmd;
	u32 size = part(q, r->control, l->size);
	struct push_sem s = {
		.va = get(q, r->addr, l->addr_bits), .reduction = PUSH_RED_NONE, .time = !size,
		.wide = part(q, r->control, l->wide),
		.is_signed = part(q, r->control, l->red_format) == 1,
	};

	if (!get(q, r->enable, 1))
		return true;
	s.value = get(q, r->payload, s.wide ? 64 : 32);
	if (part(q, r->control, l->red_enable))
		s.reduction = reductions[part(q, r->control, l->red_op)];
	if (part(q, r->control, l->trap))
		*did |= PUSH_INTR;
	*did |= PUSH_SIGNALLED;
	return push_sem_write(p, &s, now);
}

/* Launches that depend on this one; each is checked in turn. */
static bool dependents(struct push *p, const struct layout *l)
{
	u32 i, order;
	u64 va;

	for (i = 0; i < l->dependents; i++) {
		if (!part(p->qmd, 0, l->dependent[i].enable))
			continue;
		switch (part(p->qmd, 0, l->dependent[i].action)) {
		case DEPENDENT_SCHEDULE:
			order = ORDER_SCHEDULE;
			break;
		case DEPENDENT_COPY_SCHEDULE:
			order = ORDER_COPY;
			break;
		case DEPENDENT_DECREMENT:
			order = ORDER_DECREMENT;
			break;
		default:
			continue;
		}
		p->why = "too many dependent QMDs";
		if (p->dependents == PUSH_DEPENDENTS)
			return false;
		va = (u64)part(p->qmd, 0, l->dependent[i].pointer) << 8;
		p->dependent[p->dependents++] = va | order;
	}
	return true;
}

/* The first dependent that may run becomes the next work. */
static u32 next_dependent(struct push *p)
{
	u64 d;

	p->has_work = false;
	while (p->dependents && !p->has_work) {
		d = p->dependent[0];
		memmove(p->dependent, p->dependent + 1, --p->dependents * sizeof(d));
		if (launch(p, d & ~0xffull, d & 0xff) != PUSH_GO)
			return PUSH_BROKEN;
	}
	return p->has_work ? PUSH_MORE : 0;
}

u32 push_launch_finish(struct push *p, u64 now)
{
	const struct layout *l = layout_of(p->qmd);
	u32 did = PUSH_COUNTED, more, i;

	for (i = 0; i < l->releases; i++)
		if (!release(p, l, &l->release[i], now, &did))
			return PUSH_BROKEN;
	if (!dependents(p, l))
		return PUSH_BROKEN;
	more = next_dependent(p);
	return more == PUSH_BROKEN ? more : did | more;
}

static enum push_step pcas(struct push *p, u32 action)
{
	u64 va = (u64)R(SEND_PCAS_A) << 8;

	switch (action) {
	case PCAS_SCHEDULE:
	case PCAS_PREFETCH_SCHEDULE:
		return launch(p, va, ORDER_SCHEDULE);
	case PCAS_COPY_SCHEDULE:
	case PCAS_PREFETCH_COPY_SCHEDULE:
	case PCAS_PREFETCH_COPY_FORCE:
		return launch(p, va, ORDER_COPY);
	case PCAS_INCREMENT:
		return launch(p, va, ORDER_INCREMENT);
	case PCAS_DECREMENT:
		return launch(p, va, ORDER_DECREMENT);
	}
	return PUSH_GO;
}

/*
 * The words of a QMD that comes inline go to its place; with the last one it runs (seen of libcuda:
 * no PCAS follows).
 */
static enum push_step inline_qmd(struct push *p, u32 m, u32 v)
{
	bool hopper = p->cls[p->sub] >= FIRST_WITH_LONG_QMD;
	bool longer = hopper && push_bits(R(INLINE_QMD_A), 30, 30);
	u64 upper = hopper ? push_bits(R(INLINE_QMD_A), 8, 0) : R(INLINE_QMD_A);
	u64 va = upper << 40 | (u64)R(INLINE_QMD_B) << 8;
	u32 at = m - INLINE_QMD_DATA, size = longer ? 384 : 256;

	if (at >= size)
		return PUSH_GO;
	if (!p->mem->write(p->ctx, va + at, &v, 4))
		return push_fault(p, "QMD not mapped");
	return at == size - 4 ? launch(p, va, ORDER_COPY) : PUSH_GO;
}

static bool inline_flush(struct push *p)
{
	struct push_inline *d = &p->i2m;
	bool ok = !d->fill || p->mem->write(p->ctx, d->va + d->line_at - d->fill, d->buf, d->fill);

	d->fill = 0;
	return ok;
}

static enum push_step interrupt(struct push *p)
{
	p->effects |= PUSH_INTR;
	return push_work(p, PUSH_WORDS, 0);
}

static enum push_step inline_done(struct push *p)
{
	u32 f = p->i2m.flags;
	struct push_sem s = {
		.va = (u64)push_bits(R(SET_I2M_SEMAPHORE_A), 24, 0) << 32 | R(SET_I2M_SEMAPHORE_B),
		.value = R(SET_I2M_SEMAPHORE_C), .time = !push_bits(f, 12, 12),
		.intr = push_bits(f, 9, 8),
		.reduction = push_bits(f, 1, 1) ? reductions[push_bits(f, 15, 13)] : PUSH_RED_NONE,
		.is_signed = push_bits(f, 3, 2) == 1,
	};

	if (push_bits(f, 5, 4) == 2)
		return push_signal(p, &s);
	return s.intr ? interrupt(p) : PUSH_GO;
}

static enum push_step inline_launch(struct push *p, u32 f)
{
	struct push_inline *d = &p->i2m;

	memset(d, 0, sizeof(*d));
	d->flags = f;
	d->va = (u64)push_bits(R(OFFSET_OUT_UPPER), 24, 0) << 32 | R(OFFSET_OUT);
	d->pitch = R(PITCH_OUT);
	d->line_len = R(LINE_LENGTH_IN);
	d->lines = R(LINE_COUNT);
	if (!push_bits(f, 0, 0)) {
		/* block-linear memory: as lines of its width, as in push_copy.c */
		d->pitch = R(SET_DST_WIDTH);
		d->va += ((u64)R(SET_DST_LAYER) * R(SET_DST_HEIGHT) + R(SET_DST_ORIGIN_Y)) * d->pitch;
		d->va += R(SET_DST_ORIGIN_X);
	}
	if (d->line_len && d->lines)
		return PUSH_GO;
	d->lines = 0;
	return inline_done(p);
}

/* A line begins with a new word. */
static enum push_step inline_data(struct push *p, u32 v)
{
	struct push_inline *d = &p->i2m;
	u32 n;

	if (!d->lines)
		return PUSH_GO;
	n = (u32)push_min(4, d->line_len - d->line_at);
	memcpy((u8 *)d->buf + d->fill, &v, n);
	d->fill += n;
	d->line_at += n;
	if (d->fill + 4 <= sizeof(d->buf) && d->line_at < d->line_len)
		return PUSH_GO;
	if (!inline_flush(p))
		return push_fault(p, "inline data not mapped");
	if (d->line_at < d->line_len)
		return PUSH_GO;
	d->line_at = 0;
	d->va += d->pitch;
	return --d->lines ? PUSH_GO : inline_done(p);
}

static enum push_step do_report(struct push *p, u32 op, const struct push_sem *s)
{
	if (op == REPORT_RELEASE)
		return push_signal(p, s);
	return op == REPORT_TRAP ? interrupt(p) : push_fault(p, "unknown report operation");
}

static enum push_step report(struct push *p, u32 v)
{
	struct push_sem s = {
		.va = (u64)(p->report[0] & 0xff) << 32 | p->report[1], .value = p->report[2],
		.time = !push_bits(v, 28, 28), .intr = push_bits(v, 20, 20) || push_bits(v, 19, 19),
		.reduction = push_bits(v, 3, 3) ? reductions[push_bits(v, 11, 9)] : PUSH_RED_NONE,
		.is_signed = push_bits(v, 18, 17) == 1,
	};

	return do_report(p, push_bits(v, 1, 0), &s);
}

/*
 * Hopper's own, besides the older one. The public headers do not define the comparison of its
 * acquire.
 */
static enum push_step report_execute(struct push *p, u32 v)
{
	bool wide = push_bits(v, 12, 12);
	struct push_sem s = {
		.va = (u64)push_bits(R(REPORT_ADDRESS_UPPER), 24, 0) << 32 | R(REPORT_ADDRESS_LOWER),
		.value = R(REPORT_PAYLOAD_LOWER) | (wide ? (u64)R(REPORT_PAYLOAD_UPPER) << 32 : 0),
		.wide = wide,
		.time = !push_bits(v, 4, 3), .intr = push_bits(v, 2, 2) || push_bits(v, 14, 13),
		.reduction = push_bits(v, 6, 6) ? reductions[push_bits(v, 9, 7)] : PUSH_RED_NONE,
		.is_signed = push_bits(v, 11, 10) == 1,
	};

	return do_report(p, push_bits(v, 1, 0), &s);
}

enum push_step push_compute_method(struct push *p, u32 m, u32 v)
{
	u32 cls = p->cls[p->sub];
	u64 qmd;

	if (m >= SET_REPORT_SEMAPHORE_A && m <= SET_REPORT_SEMAPHORE_D) {
		p->report[(m - SET_REPORT_SEMAPHORE_A) / 4] = v;
		return m == SET_REPORT_SEMAPHORE_D ? report(p, v) : PUSH_GO;
	}
	if (m / 4 >= sizeof(p->cp) / 4)
		return PUSH_GO;
	R(m) = v;
	if (m >= INLINE_QMD_DATA)
		return inline_qmd(p, m, v);
	switch (m) {
	case LAUNCH_DMA:
		return inline_launch(p, v);
	case LOAD_INLINE_DATA:
		return inline_data(p, v);
	case SEND_SIGNALING_PCAS_B:
		qmd = (u64)R(SEND_PCAS_A) << 8;
		return push_bits(v, 1, 1) ? launch(p, qmd, ORDER_SCHEDULE) : PUSH_GO;
	case SEND_SIGNALING_PCAS2_B:
		return cls >= FIRST_WITH_PCAS2 ? pcas(p, push_bits(v, 3, 0)) : PUSH_GO;
	case REPORT_EXECUTE:
		return cls >= FIRST_WITH_REPORT_EXECUTE ? report_execute(p, v) : PUSH_GO;
	}
	return PUSH_GO;
}
