// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Further queries of nvidia-smi: the firmware's own controls, which are in no public header.
 * Layouts as observed of NVML 550.163.01; the values are constants, without a sensor.
 */
#include "nvsim.h"

#define CELSIUS 38

/* An instruction of the thermal control. */
struct thermal {
	u32 result, executed, opcode;
	u32 arg[8];
};

#define THERMAL_MAX 32
#define THERMAL_TARGETS 0x100		/* {count} */
#define THERMAL_TARGET_TYPE 0x101	/* {index, type} */
#define THERMAL_READING 0x1500		/* {index, degrees} */
#define THERMAL_TYPE_GPU 1

static NV_STATUS thermal_step(struct thermal *t)
{
	if (t->opcode == THERMAL_TARGETS) {
		t->arg[0] = 1;
		return NV_OK;
	}
	if (t->opcode != THERMAL_TARGET_TYPE && t->opcode != THERMAL_READING)
		return NV_ERR_NOT_SUPPORTED;
	if (t->arg[0])
		return NV_ERR_INVALID_ARGUMENT;
	t->arg[1] = t->opcode == THERMAL_READING ? CELSIUS : THERMAL_TYPE_GPU;
	return NV_OK;
}

/* {version, revision, size of an instruction, flags, done, count, instructions[32]} */
static NV_STATUS ctl_thermal(struct nvctl *c)
{
	struct thermal *t = c->params + 24;
	u32 *p = c->params, i;

	if (p[2] != sizeof(*t) || p[5] > THERMAL_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	p[4] = 0;
	for (i = 0; i < p[5]; i++) {
		t[i].executed = 1;
		t[i].result = thermal_step(&t[i]);
		if (t[i].result == NV_OK)
			p[4]++;
	}
	return NV_OK;
}

#define SUB NVT_BIT(NVT_SUBDEVICE)

const struct nvctl_entry nvsim_ctrl_smi[] = {
	{ 0x20808513, 1432, SUB, 0, ctl_thermal },
	{}
};
