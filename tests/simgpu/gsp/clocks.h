/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The firmware's controls of clocks, for both homes and nvsim. */
#ifndef GSP_CLOCKS_H
#define GSP_CLOCKS_H

#include "host.h"

enum {
	GSP_CLOCK_INTERNAL_DOMAINS = 0x20809001,	/* 8 bytes of parameters */
	GSP_CLOCK_DOMAINS = 0x20809009,			/* 8 */
	GSP_CLOCK_MAP_DOMAINS = 0x20809064,		/* 520 */
	GSP_CLOCK_RATES = 0x2080a026,			/* 532 */
	GSP_CLOCK_BEFORE_RATES = 0x2080a084,		/* 4 */
};

/* One of those controls, its parameters as long as they have to be. Returns NV_OK or NV_ERR_INVALID_ARGUMENT. */
int gsp_clocks(gsp_u32 cmd, gsp_u32 graphics_khz, gsp_u32 memory_khz, void *params);

#endif
