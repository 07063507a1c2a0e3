// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Clocks: the answers are those of the simulated GSP (gsp: ../../simgpu/gsp). */
#include "gsp/clocks.h"
#include "nvsim.h"

static NV_STATUS ctl_clocks(struct nvctl *c)
{
	return gsp_clocks(c->cmd, nvsim_chip->graphics_khz, nvsim_chip->memory_khz, c->params);
}

#define SUB NVT_BIT(NVT_SUBDEVICE)

const struct nvctl_entry nvsim_ctrl_clock[] = {
	{ GSP_CLOCK_INTERNAL_DOMAINS, 8, SUB, 0, ctl_clocks },
	{ GSP_CLOCK_DOMAINS, 8, SUB, 0, ctl_clocks },
	{ GSP_CLOCK_MAP_DOMAINS, 520, SUB, 0, ctl_clocks },
	{ GSP_CLOCK_RATES, 532, SUB, 0, ctl_clocks },
	{ GSP_CLOCK_BEFORE_RATES, 4, SUB, 0, ctl_clocks },
	{}
};
