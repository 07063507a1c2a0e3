// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * 5, native: memory limits only. Every container is thawed, weight 0 included, and
 * every timeslice is the driver's own. Needs no control: the fallback when one is lost.
 */
#include "policy.h"

const struct cgpu_policy cgpu_policy_native = {
	.thaw_first	= 1,
};
