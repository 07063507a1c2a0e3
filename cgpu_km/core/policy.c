// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The policies by number. Each is a file of its own. */
#include "policy.h"

#define CGPU_POLICY_ROW(nr, NAME, name) [nr] = &cgpu_policy_##name,
static const struct cgpu_policy *const policies[CGPU_POLICY_COUNT] = {
	CGPU_POLICIES(CGPU_POLICY_ROW)
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
