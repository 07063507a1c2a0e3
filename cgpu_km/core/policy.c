// SPDX-License-Identifier: MIT OR GPL-2.0
/* The policies by number. Each is a file of its own. */
#include "policy.h"

#include "../uapi.h"

static const struct cgpu_policy *const policies[CGPU_POLICY_COUNT] = {
	[CGPU_POLICY_FAIR]		= &cgpu_policy_fair,
	[CGPU_POLICY_PREEMPTIVE]	= &cgpu_policy_preempt,
	[CGPU_POLICY_WEIGHTED]		= &cgpu_policy_weighted,
	[CGPU_POLICY_FIXED]		= &cgpu_policy_fixed,
	[CGPU_POLICY_SOFT]		= &cgpu_policy_soft,
	[CGPU_POLICY_NATIVE]		= &cgpu_policy_native,
	[CGPU_POLICY_BURST]		= &cgpu_policy_burst,
};

/**
 * cgpu_policy_get() - the policy of a public number
 * @nr: as written to /proc/cgpu_km/N/policy
 *
 * Return: the policy, or NULL if there is none of that number.
 */
const struct cgpu_policy *cgpu_policy_get(u64 nr)
{
	return nr < CGPU_POLICY_COUNT ? policies[nr] : NULL;
}
