// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Clocks: the firmware's own controls, which are in no public header, here and in nvsim. Numbers, sizes and layouts as
 * libcuda of 535, 550 and 555 uses them for the clock rates among a device's attributes. The domains and their masks are
 * the published answer of an RTX 3060, the rates are constants of the product.
 */
#include "clocks.h"

#define DOMAINS_MAX 32
#define OK 0
#define INVALID_ARGUMENT 0x1f		/* NV_ERR_INVALID_ARGUMENT */

/* A domain has one bit in libcuda's own queries and another one in those for rates. */
static const struct domain {
	gsp_u32 public, internal;
} domains[] = {
	{ 0x1, 0x1 },		/* graphics */
	{ 0x4, 0x10 },		/* memory */
	{ 0x8, 0x100000 },	/* video */
};

#define DOMAINS (sizeof(domains) / sizeof(domains[0]))
#define INTERNAL_GRAPHICS 0x1
#define INTERNAL_MEMORY 0x10
#define INTERNAL_ALL 0x03fc007f

struct map {
	gsp_u32 public, internal, parts, percent;
};

struct rate {
	gsp_u32 internal, reserved, khz, reserved2;
};

/* {0, mask of domains} */
static void list_domains(gsp_u32 *p)
{
	gsp_u32 i;

	p[1] = 0;
	for (i = 0; i < DOMAINS; i++)
		p[1] |= domains[i].public;
}

static int map_domain(struct map *m)
{
	gsp_u32 i;

	for (i = 0; i < DOMAINS; i++) {
		if (domains[i].public != m->public)
			continue;
		m->internal = domains[i].internal;
		m->parts = 1;
		m->percent = 100;
		return OK;
	}
	return INVALID_ARGUMENT;
}

/* {0, count, {domain, internal domain, how many, percent}[32]} */
static int map_domains(gsp_u32 *p)
{
	struct map *m = (struct map *)(p + 2);
	gsp_u32 i;
	int status = OK;

	if (!p[1] || p[1] > DOMAINS_MAX)
		return INVALID_ARGUMENT;
	for (i = 0; i < p[1] && status == OK; i++)
		status = map_domain(&m[i]);
	return status;
}

/* {16 bytes that libcuda leaves as they are, count, {internal domain, -, kHz, -}[32]} */
static int rates(gsp_u32 graphics_khz, gsp_u32 memory_khz, gsp_u32 *p)
{
	struct rate *r = (struct rate *)(p + 5);
	gsp_u32 i;

	if (!p[4] || p[4] > DOMAINS_MAX)
		return INVALID_ARGUMENT;
	for (i = 0; i < p[4]; i++)
		r[i].khz = r[i].internal == INTERNAL_GRAPHICS ? graphics_khz :
			   r[i].internal == INTERNAL_MEMORY ? memory_khz : 0;
	return OK;
}

int gsp_clocks(gsp_u32 cmd, gsp_u32 graphics_khz, gsp_u32 memory_khz, void *params)
{
	gsp_u32 *p = params;

	switch (cmd) {
	case GSP_CLOCK_INTERNAL_DOMAINS:	/* {mask of internal domains, 0} */
		p[0] = INTERNAL_ALL;
		p[1] = 0;
		return OK;
	case GSP_CLOCK_DOMAINS:
		list_domains(p);
		return OK;
	case GSP_CLOCK_MAP_DOMAINS:
		return map_domains(p);
	case GSP_CLOCK_RATES:
		return rates(graphics_khz, memory_khz, p);
	}
	p[0] = 0;		/* GSP_CLOCK_BEFORE_RATES: libcuda continues without it */
	return OK;
}
