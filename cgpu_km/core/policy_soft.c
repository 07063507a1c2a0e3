// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * 4, soft: every container runs and the hardware divides the GPU by timeslices. It gives
 * idle time away at once; no ratio is promised.
 *
 * The hardware rotates over TSGs, so a container's quantum is divided by how
 * many it has. Very short timeslices cost throughput: the quantum grows with
 * the most crowded container until that one reaches the longest allowed.
 */
#include "policy.h"

#define SOFT_TSG_MIN_US		500u	/* below it switching eats the gain */
#define SOFT_QUANTUM_MIN_US	2000u	/* about twice the driver's default */
#define SOFT_QUANTUM_MAX_US	30000u

static u32 soft_timeslice_us(u32 most, u32 tsgs)
{
	u32 quantum_us;

	if (most > SOFT_QUANTUM_MAX_US / SOFT_TSG_MIN_US)
		quantum_us = SOFT_QUANTUM_MAX_US;
	else
		quantum_us = most * SOFT_TSG_MIN_US;
	if (quantum_us < SOFT_QUANTUM_MIN_US)
		quantum_us = SOFT_QUANTUM_MIN_US;
	if (tsgs > 1)
		quantum_us /= tsgs;
	return quantum_us < SOFT_TSG_MIN_US ? SOFT_TSG_MIN_US : quantum_us;
}

const struct cgpu_policy cgpu_policy_soft = {
	.controls	= CGPU_CTRL_TIMESLICE,
	.limits		= 1,
	.thaw_first	= 1,
	.timeslice_us	= soft_timeslice_us,
};
