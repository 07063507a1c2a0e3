// SPDX-License-Identifier: MIT
/* TSGs, channels and the work in them. */
#include <string.h>
#include <sys/mman.h>

#include "fuzz.h"

#define ENTRIES		16u
#define PB_AT		(ENTRIES * 16)
#define RING_AT		(PB_AT + ENTRIES * 32)
#define USERD_AT	1024u
#define RING_BYTES	4096u

static struct object *new_tsg(struct thread *t, uint32_t engine)
{
	struct object *space = object_pick(t, OBJ_VASPACE), s;
	struct nv_tsg_params p = { .engineType = engine };

	if (!space)
		return NULL;
	s = *space;
	p.hVASpace = s.handle;
	return alloc_object(t, &s, s.parent, KEPLER_CHANNEL_GROUP_A, OBJ_TSG, &p, sizeof(p));
}

static volatile uint32_t *doorbell(struct thread *t)
{
	struct object *sub = object_pick(t, OBJ_SUBDEVICE), s, *usermode;
	char *page;

	if (!sub)
		return NULL;
	s = *sub;
	usermode = alloc_object(t, &s, s.handle, card.arch->usermode, OBJ_USERMODE, NULL, 0);
	page = usermode ? map_cpu(t, usermode, s.handle, NVC361_NV_USERMODE__SIZE, false) : NULL;
	return page ? (volatile uint32_t *)(page + NVC361_NOTIFY_CHANNEL_PENDING) : NULL;
}

static void engine_object(struct thread *t, const struct object *channel, uint32_t engine)
{
	struct nv_copy_params copy = { .version = 1, .engineType = engine };
	bool gr = engine == NV2080_ENGINE_TYPE_GRAPHICS;

	alloc_object(t, channel, channel->handle, gr ? card.arch->compute : card.arch->copy, OBJ_ENGINE,
		     gr ? NULL : &copy, gr ? 0 : sizeof(copy));
}

static void remember_ring(struct thread *t, const struct ring *ring)
{
	t->ring[t->rings < MAX_RINGS ? t->rings++ : (int)rng_below(&t->rng, MAX_RINGS)] = *ring;
}

static void make_channel(struct thread *t)
{
	uint32_t engine = rng_percent(&t->rng, 70) ? NV2080_ENGINE_TYPE_GRAPHICS : NV2080_ENGINE_TYPE_COPY0;
	struct object *made = new_tsg(t, engine), tsg, memory;
	struct nv_chan_params p = { .gpFifoEntries = ENTRIES, .engineType = engine };
	struct nv_schedule schedule = { .bEnable = 1 };
	struct nv_token token = { 0 };
	struct ring ring = { 0 };

	if (!made)
		return;
	tsg = *made;
	made = alloc_sysmem(t, RING_BYTES);
	if (!made)
		return;
	memory = *made;
	t->building = ring.cpu = map_cpu(t, &memory, tsg.parent, RING_BYTES, true);
	ring.va = map_gpu(t, &memory, RING_BYTES);
	if (!ring.cpu || !ring.va)
		return;
	p.gpFifoOffset = ring.va + RING_AT;
	p.hUserdMemory[0] = memory.handle;
	p.userdOffset[0] = USERD_AT;
	made = alloc_object(t, &tsg, tsg.handle, card.arch->gpfifo, OBJ_CHANNEL, &p, sizeof(p));
	if (!made)
		return;
	ring.channel = *made;
	count_one(COUNT_CHANNELS);
	engine_object(t, &ring.channel, engine);
	control(t, &ring.channel, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, &token, sizeof(token));
	control(t, &tsg, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &schedule, sizeof(schedule));
	ring.token = token.workSubmitToken;
	ring.doorbell = doorbell(t);
	if (ring.doorbell)
		remember_ring(t, &ring);
}

/* All objects needed to run work. */
static void op_channel(struct thread *t)
{
	make_channel(t);
	t->building = NULL;
}

static void op_tsg(struct thread *t)
{
	new_tsg(t, rng_percent(&t->rng, 60) ? NV2080_ENGINE_TYPE_GRAPHICS : rng_below(&t->rng, 12));
}

static void put_work(struct thread *t, struct ring *ring)
{
	uint32_t slot = ring->queued++ % ENTRIES;
	uint64_t va = ring->va + PB_AT + slot * sizeof(struct nvsim_work), words = sizeof(struct nvsim_work) / 4;
	struct nvsim_work work = {
		.op = 1 + rng_below(&t->rng, 3),
		.amount = rng_below(&t->rng, 200000),
		.sem_va = ring->va + slot * 16,
		.sem_value = ring->queued,
	};

	if (rng_percent(&t->rng, 5))
		work.op = rng_next(&t->rng);
	if (rng_percent(&t->rng, 3))
		work.sem_va = rng_next(&t->rng);
	memcpy(ring->cpu + PB_AT + slot * sizeof(work), &work, sizeof(work));
	((volatile uint64_t *)(ring->cpu + RING_AT))[slot] =
		rng_percent(&t->rng, 3) ? rng_next(&t->rng)
					: (va & 0xfffffffcull) | (va >> 32 & 0xff) << 32 | words << 42;
}

static void op_work(struct thread *t)
{
	struct ring *ring;
	int n = 1 + rng_below(&t->rng, 8);

	if (!t->rings)
		return;
	ring = &t->ring[rng_below(&t->rng, t->rings)];
	for (int i = 0; i < n; i++)
		put_work(t, ring);
	atomic_thread_fence(memory_order_seq_cst);
	((volatile uint32_t *)(ring->cpu + USERD_AT))[NV_USERD_GPPUT / 4] =
		rng_percent(&t->rng, 2) ? rng_next(&t->rng) : ring->queued % ENTRIES;
	atomic_thread_fence(memory_order_seq_cst);
	*ring->doorbell = rng_percent(&t->rng, 3) ? rng_below(&t->rng, 64) : ring->token;
	count_one(COUNT_WORKS);
}

const struct op ops_context[] = {
	{ "channel", 8, op_channel },
	{ "tsg", 3, op_tsg },
	{ "work", 8, op_work },
	{ 0 },
};
