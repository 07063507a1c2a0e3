// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * 5, native: memory limits only. Everybody is thawed, weight 0 included, and
 * every timeslice goes back to the driver's own. Always possible: it is where
 * a lost control ends.
 */
#include "policy.h"

const struct cgpu_policy cgpu_policy_native = {
	.thaw_first	= 1,
};
