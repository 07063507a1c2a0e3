// SPDX-License-Identifier: MIT OR GPL-2.0-only
#include "home.h"

#include <stdlib.h>

static u8 *at(struct home *h, u64 va, u64 len)
{
	if (va < h->base || va - h->base > h->size || len > h->size - (va - h->base))
		return NULL;
	return h->mem + (va - h->base);
}

static bool mem_read(void *ctx, u64 va, void *buf, u32 len)
{
	struct home *h = ctx;
	u8 *from = at(h, va, len);

	if (from)
		memcpy(buf, from, len);
	h->reads += len;
	return from;
}

static bool mem_write(void *ctx, u64 va, const void *buf, u32 len)
{
	struct home *h = ctx;
	u8 *to = at(h, va, len);

	if (!to)
		return false;
	memcpy(to, buf, len);
	h->writes += len;
	if (h->logged < sizeof(h->log) / sizeof(h->log[0])) {
		h->log[h->logged][0] = va;
		h->log[h->logged++][1] = len;
	}
	return true;
}

static bool mem_exchange(void *ctx, u64 va, u64 *seen, u64 to, u32 len)
{
	struct home *h = ctx;
	u64 old = *seen, now = 0;

	if (!at(h, va, len))
		return false;
	memcpy(&now, at(h, va, len), len);
	if (h->lost) {
		h->lost--;
		now++;
		memcpy(at(h, va, len), &now, len);
	}
	*seen = now;
	return now != old || mem_write(ctx, va, &to, len);
}

static const struct push_mem memory = { mem_read, mem_write, mem_exchange };

struct home *home_new(u64 size)
{
	struct home *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	h->base = HOME_BASE;
	h->size = size;
	h->mem = calloc(1, size);
	if (!h->mem) {
		free(h);
		return NULL;
	}
	h->cost.sm_count = 40;
	h->cost.copy_bytes_us = 10000;
	h->cost.launch_ns = 2000;
	h->cost.wave_ns = 10000;
	push_init(&h->p, &memory, h, &h->cost);
	return h;
}

void home_free(struct home *h)
{
	free(h->mem);
	free(h);
}

/* For Python, which cannot read the structures. */
u8 *home_mem(struct home *h)
{
	return h->mem;
}

u64 home_value(struct home *h, u32 what)
{
	switch (what) {
	case 0: return h->p.kind;
	case 1: return h->p.ns;
	case 2: return h->reads;
	case 3: return h->writes;
	case 4: return h->logged;
	case 5: return h->p.at;
	}
	return 0;
}

const char *home_why(struct home *h)
{
	return h->p.why;
}

const u64 *home_log(struct home *h)
{
	return h->log[0];
}

void home_lose(struct home *h, u64 times)
{
	h->lost = times;
}

void home_move(struct home *h, u64 base)
{
	h->base = base;
}

void home_entry(struct home *h, u32 word0, u32 word1)
{
	push_entry(&h->p, word0, word1);
}

u32 home_next(struct home *h)
{
	return push_next(&h->p);
}

u32 home_ready(struct home *h)
{
	return push_ready(&h->p);
}

u32 home_finish(struct home *h, u64 now)
{
	return push_finish(&h->p, now);
}
