// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Push buffer: the copy engine. A copy moves in pieces, so that none holds up the machine, and
 * others get their turn.
 */
#include "push.h"

#define PIECE_BYTES (64u << 10)
#define PIECE_LINES 256
#define REMAP_ELEMENTS 64		/* of at most 16 bytes */
#define R(m) (p->ce[(m) / 4])

/* clc5b5.h, clc8b5.h: methods */
enum {
	SET_SEMAPHORE_A = 0x240, SET_SEMAPHORE_B = 0x244, SET_SEMAPHORE_PAYLOAD = 0x248,
	SET_SEMAPHORE_PAYLOAD_UPPER = 0x24c, SET_SRC_PHYS_MODE = 0x260, SET_DST_PHYS_MODE = 0x264,
	LAUNCH_DMA = 0x300, OFFSET_IN = 0x400,
	OFFSET_OUT = 0x408, PITCH_IN = 0x410, PITCH_OUT = 0x414, LINE_LENGTH_IN = 0x418,
	LINE_COUNT = 0x41c, SET_REMAP_CONST_A = 0x700, SET_REMAP_CONST_B = 0x704,
	SET_REMAP_COMPONENTS = 0x708, SET_DST_WIDTH = 0x710, SET_DST_HEIGHT = 0x714,
	SET_DST_LAYER = 0x71c, SET_DST_ORIGIN = 0x720, SET_SRC_WIDTH = 0x72c,
	SET_SRC_HEIGHT = 0x730, SET_SRC_LAYER = 0x738, SET_SRC_ORIGIN = 0x73c,
};

/* LAUNCH_DMA */
#define TRANSFER(f) push_bits(f, 1, 0)
#define SEMAPHORE(f) push_bits(f, 4, 3)
#define INTERRUPT(f) push_bits(f, 6, 5)
#define SRC_IS_LINES(f) push_bits(f, 7, 7)
#define DST_IS_LINES(f) push_bits(f, 8, 8)
#define MULTI_LINE(f) push_bits(f, 9, 9)
#define REMAP(f) push_bits(f, 10, 10)
#define SRC_PHYSICAL(f) push_bits(f, 12, 12)
#define DST_PHYSICAL(f) push_bits(f, 13, 13)
#define REDUCTION(f) push_bits(f, 17, 14)
#define REDUCTION_UNSIGNED(f) push_bits(f, 18, 18)
#define REDUCE(f) push_bits(f, 19, 19)
#define WIDE_PAYLOAD(f) push_bits(f, 27, 27)
enum { SEM_NONE, SEM_PLAIN, SEM_TIMED };
#define CE_WITH_WIDE_PAYLOAD 0xc7b5	/* the first class with it */

/* SET_REMAP_COMPONENTS */
#define REMAP_SELECT(r, i) push_bits(r, 4 * (i) + 2, 4 * (i))
#define REMAP_SIZE(r) (push_bits(r, 17, 16) + 1)
#define REMAP_NUM_SRC(r) (push_bits(r, 21, 20) + 1)
#define REMAP_NUM_DST(r) (push_bits(r, 25, 24) + 1)
enum { SEL_CONST_A = 4, SEL_CONST_B = 5, SEL_NO_WRITE = 6 };

static u64 address(struct push *p, u32 m)
{
	return (u64)push_bits(R(m), 24, 0) << 32 | R(m + 4);
}

/*
 * Block-linear memory is kept as lines of its width: only copies read it, in the layout in which
 * copies wrote it. The registers have the same offsets from their base for both sides.
 */
static u64 block_origin(struct push *p, u32 width)
{
	u32 height = width + 4, layer = width + 12, origin = width + 16;
	u64 y = (u64)R(layer) * R(height) + (R(origin) >> 16);

	return y * R(width) + (R(origin) & 0xffff);
}

static void remap(struct push *p, struct push_copy *c)
{
	u32 i, n, select;

	c->remap = R(SET_REMAP_COMPONENTS);
	n = REMAP_NUM_DST(c->remap);
	c->unit_in = REMAP_SIZE(c->remap) * REMAP_NUM_SRC(c->remap);
	c->unit_out = REMAP_SIZE(c->remap) * n;
	c->remapped = true;
	c->constant = true;
	for (i = 0; i < n; i++) {
		select = REMAP_SELECT(c->remap, i);
		if (select != SEL_CONST_A && select != SEL_CONST_B)
			c->constant = false;
	}
}

static u64 line_left(const struct push_copy *c)
{
	return (c->len - c->at) * c->unit_out;
}

/* The size of the next piece: as many lines as fit, or a part of one. */
static u64 piece_ns(struct push *p)
{
	const struct push_copy *c = &p->copy;
	u64 lines = push_min(c->lines - c->line, PIECE_LINES), bytes = line_left(c);

	if (bytes < PIECE_BYTES && lines > 1 && c->len)
		bytes += push_min((lines - 1) * c->len * c->unit_out, PIECE_BYTES);
	bytes = push_min(bytes, PIECE_BYTES);
	return push_div(bytes * 1000, push_max(p->cost->copy_bytes_us, 1));
}

static u64 physical(struct push *p, u32 mode)
{
	return PUSH_PHYSICAL | (u64)push_bits(R(mode), 1, 0) << PUSH_TARGET_SHIFT;
}

static enum push_step launch(struct push *p, u32 f)
{
	struct push_copy *c = &p->copy;

	if ((SRC_PHYSICAL(f) || DST_PHYSICAL(f)) && !p->privileged)
		return push_fault(p, "physical copy by a user");
	memset(c, 0, sizeof(*c));
	c->flags = f;
	c->unit_in = 1;
	c->unit_out = 1;
	if (!TRANSFER(f))
		return push_work(p, PUSH_COPY, 0);
	if (REMAP(f))
		remap(p, c);
	c->len = R(LINE_LENGTH_IN);
	c->lines = MULTI_LINE(f) ? R(LINE_COUNT) : 1;
	c->in = address(p, OFFSET_IN);
	c->out = address(p, OFFSET_OUT);
	if (SRC_PHYSICAL(f))
		c->in |= physical(p, SET_SRC_PHYS_MODE);
	if (DST_PHYSICAL(f))
		c->out |= physical(p, SET_DST_PHYS_MODE);
	c->pitch_in = (u64)(s64)(s32)R(PITCH_IN);
	c->pitch_out = (u64)(s64)(s32)R(PITCH_OUT);
	if (!SRC_IS_LINES(f) && !c->constant) {
		c->in += block_origin(p, SET_SRC_WIDTH);
		c->pitch_in = R(SET_SRC_WIDTH);
	}
	if (!DST_IS_LINES(f)) {
		c->out += block_origin(p, SET_DST_WIDTH);
		c->pitch_out = R(SET_DST_WIDTH);
	}
	return push_work(p, PUSH_COPY, piece_ns(p));
}

enum push_step push_ce_method(struct push *p, u32 m, u32 v)
{
	if (m / 4 >= sizeof(p->ce) / 4)
		return PUSH_GO;
	R(m) = v;
	return m == LAUNCH_DMA ? launch(p, v) : PUSH_GO;
}

/* One element to @to, of one at @src: a component that is not written stays. */
static void remap_one(struct push *p, u8 *to, const u8 *src)
{
	u32 r = p->copy.remap, size = REMAP_SIZE(r), select, k;

	for (k = 0; k < REMAP_NUM_DST(r); k++, to += size) {
		select = REMAP_SELECT(r, k);
		if (select == SEL_CONST_A)
			memcpy(to, &R(SET_REMAP_CONST_A), size);
		else if (select == SEL_CONST_B)
			memcpy(to, &R(SET_REMAP_CONST_B), size);
		else if (select < REMAP_NUM_SRC(r))
			memcpy(to, src + select * size, size);
	}
}

static bool move_remapped(struct push *p, u64 in, u64 out, u32 n)
{
	const struct push_copy *c = &p->copy;
	u8 src[REMAP_ELEMENTS * 16];
	u32 i;

	if (!p->mem->read(p->ctx, in, src, n * c->unit_in) ||
	    !p->mem->read(p->ctx, out, p->bounce, n * c->unit_out))
		return false;
	for (i = 0; i < n; i++)
		remap_one(p, p->bounce + i * c->unit_out, src + i * c->unit_in);
	return p->mem->write(p->ctx, out, p->bounce, n * c->unit_out);
}

/* A memset: the first element, then twice as many each time. */
static bool fill(struct push *p, u64 out, u32 n)
{
	u32 bytes = n * p->copy.unit_out, done = p->copy.unit_out, more;

	remap_one(p, p->bounce, NULL);
	for (; done < bytes; done += more) {
		more = (u32)push_min(done, bytes - done);
		memcpy(p->bounce + done, p->bounce, more);
	}
	return p->mem->write(p->ctx, out, p->bounce, bytes);
}

static bool move_plain(struct push *p, u64 in, u64 out, u32 n)
{
	return p->mem->read(p->ctx, in, p->bounce, n) && p->mem->write(p->ctx, out, p->bounce, n);
}

static bool move_units(struct push *p, u64 in, u64 out, u32 n)
{
	if (p->copy.constant)
		return fill(p, out, n);
	return p->copy.remapped ? move_remapped(p, in, out, n) : move_plain(p, in, out, n);
}

/* Units that fit into the buffers; plain ones end where a page does. */
static u32 fitting(const struct push_copy *c, u64 out)
{
	u64 n = PUSH_BOUNCE - out % PUSH_BOUNCE;

	if (c->constant)
		n = PUSH_BOUNCE / c->unit_out;
	else if (c->remapped)
		n = REMAP_ELEMENTS;
	return (u32)push_min(c->len - c->at, n);
}

/* One piece; false where nothing is mapped. */
static bool move(struct push *p)
{
	struct push_copy *c = &p->copy;
	u32 bytes = 0, lines = 0, n;
	u64 in, out;

	while (c->line < c->lines && bytes < PIECE_BYTES && lines < PIECE_LINES) {
		if (c->at >= c->len) {
			c->at = 0;
			c->line++;
			lines++;
			continue;
		}
		in = c->in + c->line * c->pitch_in + c->at * c->unit_in;
		out = c->out + c->line * c->pitch_out + c->at * c->unit_out;
		n = fitting(c, out);
		if (!move_units(p, in, out, n))
			return false;
		c->at += n;
		bytes += n * c->unit_out;
	}
	if (c->line < c->lines && c->at >= c->len) {
		c->at = 0;
		c->line++;
	}
	return true;
}

static bool end_semaphore(struct push *p, u64 now)
{
	u32 f = p->copy.flags;
	bool wide = WIDE_PAYLOAD(f) && p->cls[p->sub] >= CE_WITH_WIDE_PAYLOAD;
	struct push_sem s = {
		.va = address(p, SET_SEMAPHORE_A),
		.value = R(SET_SEMAPHORE_PAYLOAD) | (wide ? (u64)R(SET_SEMAPHORE_PAYLOAD_UPPER) << 32 : 0),
		.reduction = PUSH_RED_NONE, .wide = wide, .time = SEMAPHORE(f) == SEM_TIMED,
		.is_signed = !REDUCTION_UNSIGNED(f),
	};

	if (REDUCE(f)) {
		s.reduction = (u8)REDUCTION(f);
		p->why = "unknown reduction";
		if (s.reduction >= PUSH_RED_NONE)
			return false;
	}
	return push_sem_write(p, &s, now);
}

u32 push_copy_finish(struct push *p, u64 now)
{
	struct push_copy *c = &p->copy;
	u32 did = TRANSFER(c->flags) ? PUSH_COUNTED : 0;

	p->why = "copy of what is not mapped";
	if (!move(p))
		return PUSH_BROKEN;
	if (c->line < c->lines) {
		push_work(p, PUSH_COPY, piece_ns(p));
		return PUSH_MORE;
	}
	if (SEMAPHORE(c->flags) != SEM_NONE) {
		if (!end_semaphore(p, now))
			return PUSH_BROKEN;
		did |= PUSH_SIGNALLED;
	}
	return did | (INTERRUPT(c->flags) ? PUSH_INTR : 0);
}
