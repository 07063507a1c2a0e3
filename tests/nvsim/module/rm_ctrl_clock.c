// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Clocks: firmware's own controls, which are in no public header. Numbers, sizes and layouts as
 * libcuda of 535, 550 and 555 uses them for the clock rates among a device's attributes. The
 * domains and their masks are the published answer of an RTX 3060, the rates are constants of the
 * chip.
 */
#include "nvsim.h"

#define DOMAINS_MAX 32

/* A domain has one bit in libcuda's own queries and another one in those for rates. */
static const struct clock_domain {
	u32 public, internal;
} domains[] = {
	{ 0x1, 0x1 },		/* graphics */
	{ 0x4, 0x10 },		/* memory */
	{ 0x8, 0x100000 },	/* video */
};

#define INTERNAL_GRAPHICS 0x1
#define INTERNAL_MEMORY 0x10
#define INTERNAL_ALL 0x03fc007f

struct clock_map {
	u32 public, internal, parts, percent;
};

struct clock_rate {
	u32 internal, reserved, khz, reserved2;
};

/* {0, mask of domains} */
static NV_STATUS ctl_domains(struct nvctl *c)
{
	u32 *p = c->params;
	size_t i;

	p[1] = 0;
	for (i = 0; i < ARRAY_SIZE(domains); i++)
		p[1] |= domains[i].public;
	return NV_OK;
}

/* {mask of internal domains, 0} */
static NV_STATUS ctl_internal_domains(struct nvctl *c)
{
	u32 *p = c->params;

	p[0] = INTERNAL_ALL;
	p[1] = 0;
	return NV_OK;
}

static NV_STATUS map_domain(struct clock_map *m)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(domains); i++) {
		if (domains[i].public != m->public)
			continue;
		m->internal = domains[i].internal;
		m->parts = 1;
		m->percent = 100;
		return NV_OK;
	}
	return NV_ERR_INVALID_ARGUMENT;
}

/* {0, count, {domain, internal domain, how many, percent}[32]} */
static NV_STATUS ctl_map_domains(struct nvctl *c)
{
	struct clock_map *m = c->params + 8;
	u32 n = ((u32 *)c->params)[1], i;
	NV_STATUS st = NV_OK;

	if (!n || n > DOMAINS_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < n && st == NV_OK; i++)
		st = map_domain(&m[i]);
	return st;
}

static u32 rate(u32 internal)
{
	switch (internal) {
	case INTERNAL_GRAPHICS:
		return nvsim_chip->graphics_khz;
	case INTERNAL_MEMORY:
		return nvsim_chip->memory_khz;
	}
	return 0;
}

/* {16 bytes that libcuda leaves as they are, count, {internal domain, -, kHz, -}[32]} */
static NV_STATUS ctl_rates(struct nvctl *c)
{
	struct clock_rate *r = c->params + 20;
	u32 n = ((u32 *)c->params)[4], i;

	if (!n || n > DOMAINS_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < n; i++)
		r[i].khz = rate(r[i].internal);
	return NV_OK;
}

/* libcuda continues without it, and gets 0. */
static NV_STATUS ctl_before_rates(struct nvctl *c)
{
	*(u32 *)c->params = 0;
	return NV_OK;
}

#define SUB NVT_BIT(NVT_SUBDEVICE)

const struct nvctl_entry nvsim_ctrl_clock[] = {
	{ 0x20809001, 8, SUB, 0, ctl_internal_domains },
	{ 0x20809009, 8, SUB, 0, ctl_domains },
	{ 0x20809064, 520, SUB, 0, ctl_map_domains },
	{ 0x2080a026, 532, SUB, 0, ctl_rates },
	{ 0x2080a084, 4, SUB, 0, ctl_before_rates },
	{}
};
