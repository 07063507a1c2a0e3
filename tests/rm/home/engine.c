// SPDX-License-Identifier: MIT
/*
 * What executes the work of the channels here: push buffers by the decoder of nvsim and simgpu, at once and in order,
 * without runlists, timeslices or time. It serves the work that RM itself needs (it clears and copies memory
 * with a copy engine), and clients that check where their work goes.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../../simgpu/engine/push.h"
#include "../../simgpu/gsp/engine.h"

/* class headers of the host (clc46f.h): fields of USERD */
#define GP_GET 0x88
#define GP_PUT 0x8c
#define USERD_BYTES 512
#define ENTRIES_A_LOOK 64	/* of one channel, before the next has its turn */

struct channel {
	struct push push;
	struct gsp_channel is;
	struct gsp_card *card;
	void *space;
	struct gsp_phys directory;	/* while it is looked at */
	int scheduled, disabled, dead, waiting, in_segment;
	unsigned long long done;
	struct channel *next;
};

static const struct push_cost free_of_time;

/* Bit 63: a physical address, its target below (push_copy.c). */
static int locate(struct channel *c, u64 va, struct gsp_phys *phys, gsp_u64 *left)
{
	if (va & PUSH_PHYSICAL) {
		phys->space = push_target(va) ? GSP_SYSMEM : GSP_FB;
		phys->address = push_address(va);
		*left = 4096 - (phys->address & 4095);
		return 1;
	}
	return gsp_walk(c->card, c->directory, va, phys, left);
}

static bool move(struct channel *c, u64 va, u8 *buffer, u32 bytes, bool to_gpu)
{
	struct gsp_phys phys;
	gsp_u64 left;
	u8 *cpu;

	for (; bytes; va += left, buffer += left, bytes -= left) {
		if (!locate(c, va, &phys, &left))
			return false;
		left = push_min(left, bytes);
		cpu = gsp_cpu(c->card, phys, left);
		if (!cpu)
			return false;
		memcpy(to_gpu ? cpu : buffer, to_gpu ? buffer : cpu, left);
	}
	return true;
}

static bool mem_read(void *ctx, u64 va, void *buffer, u32 bytes)
{
	return move(ctx, va, buffer, bytes, false);
}

static bool mem_write(void *ctx, u64 va, const void *buffer, u32 bytes)
{
	return move(ctx, va, (u8 *)(uintptr_t)buffer, bytes, true);
}

static bool mem_exchange(void *ctx, u64 va, u64 *seen, u64 to, u32 bytes)
{
	u64 old = *seen, now = 0;

	if (!mem_read(ctx, va, &now, bytes))
		return false;
	*seen = now;
	return now != old || mem_write(ctx, va, &to, bytes);
}

static const struct push_mem memory = { mem_read, mem_write, mem_exchange };

void gsp_engine_start(struct gsp_card *card)
{
	card->engine = NULL;
}

void gsp_engine_stop(struct gsp_card *card)
{
	struct channel *c;

	while ((c = card->engine)) {
		gsp_host_log("card %u: channel %x:%x was left\n", card->index, c->is.client, c->is.handle);
		card->engine = c->next;
		free(c);
	}
}

int gsp_engine_channel(struct gsp_card *card, const struct gsp_channel *is)
{
	struct channel *c = calloc(1, sizeof(*c));
	void *userd = gsp_cpu(card, is->userd, USERD_BYTES);

	if (!c || !userd) {
		free(c);
		return 0;
	}
	memset(userd, 0, USERD_BYTES);
	push_init(&c->push, &memory, c, &free_of_time);
	c->push.privileged = true;
	c->is = *is;
	c->card = card;
	c->next = card->engine;
	card->engine = c;
	return 1;
}

static bool names(const struct channel *c, gsp_u32 client, gsp_u32 object)
{
	return c->is.client == client && (c->is.handle == object || c->is.parent == object);
}

void gsp_engine_free(struct gsp_card *card, gsp_u32 client, gsp_u32 object)
{
	struct channel **at = (struct channel **)&card->engine, *c;

	while ((c = *at)) {
		if (names(c, client, object) || (c->is.client == client && object == client)) {
			*at = c->next;
			free(c);
		} else {
			at = &c->next;
		}
	}
}

void gsp_engine_schedule(struct gsp_card *card, gsp_u32 client, gsp_u32 object, int on)
{
	struct channel *c;

	for (c = card->engine; c; c = c->next) {
		if (!names(c, client, object))
			continue;
		c->scheduled = on;
		card->calls->space(card, c->is.client, c->is.handle, &c->space);
	}
}

void gsp_engine_disable(struct gsp_card *card, gsp_u32 client, gsp_u32 channel, int off)
{
	struct channel *c;

	for (c = card->engine; c; c = c->next)
		if (c->is.client == client && c->is.handle == channel)
			c->disabled = off;
}

/* Nothing runs beside anything here. */
void gsp_engine_timeslice(struct gsp_card *card, gsp_u32 client, gsp_u32 tsg, gsp_u64 us)
{
	(void)card, (void)client, (void)tsg, (void)us;
}

void gsp_engine_preempt(struct gsp_card *card, gsp_u32 client, gsp_u32 object)
{
	(void)card, (void)client, (void)object;
}

void gsp_engine_restart(struct gsp_card *card, gsp_u32 client, gsp_u32 channel)
{
	(void)card, (void)client, (void)channel;
}

static bool next_entry(struct channel *c, volatile u32 *userd)
{
	u32 get = userd[GP_GET / 4], words[2];

	if (get == userd[GP_PUT / 4] || get >= c->is.entries)
		return false;
	if (!mem_read(c, c->is.gpfifo + get * 8ull, words, sizeof(words))) {
		c->push.why = "GPFIFO not mapped";
		c->dead = 1;
		return false;
	}
	push_entry(&c->push, words[0], words[1]);
	return true;
}

/* The segment until it ends or waits. */
static bool segment(struct channel *c)
{
	enum push_step step;
	u32 did;

	for (;;) {
		step = push_next(&c->push);
		if (step != PUSH_WORK)
			break;
		do
			did = push_finish(&c->push, gsp_host_now_ns());
		while (did & PUSH_MORE);
		if (did & PUSH_BROKEN) {
			step = PUSH_FAULT;
			break;
		}
	}
	c->waiting = step == PUSH_WAIT;
	c->dead = step == PUSH_FAULT;
	return step == PUSH_END;
}

static void look(struct channel *c)
{
	volatile u32 *userd = gsp_cpu(c->card, c->is.userd, USERD_BYTES);
	int left;

	if (!userd || !c->scheduled || c->disabled || c->dead || !c->space ||
	    !c->card->calls->directory(c->card, c->space, &c->directory))
		return;
	for (left = ENTRIES_A_LOOK; left; left--) {
		if (c->waiting && !push_ready(&c->push))
			return;
		if (!c->in_segment && !next_entry(c, userd))
			break;
		c->in_segment = !segment(c);
		if (c->in_segment)
			break;
		userd[GP_GET / 4] = (userd[GP_GET / 4] + 1) % c->is.entries;
		c->done++;
	}
	if (c->dead)
		gsp_host_log("card %u: channel %x:%x is dead: %s\n", c->card->index, c->is.client,
			     c->is.handle, c->push.why);
}

void gsp_engine_poll(struct gsp_card *card)
{
	struct channel *c;

	for (c = card->engine; c; c = c->next)
		look(c);
}
