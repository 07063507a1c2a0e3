// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Which controls work, and what becomes of a policy that needs one that does not. */
#include "sched_gpu.h"

#include "policy.h"
#include "sched_account.h"

#include "../uapi.h"

#define NO_EFFECT_MAX	3		/* acts without effect that make a control ineffective */

/**
 * cgpu_sched_set_controls() - set the controls that were found to work
 * @t: the scheduler
 * @controls: CGPU_CTRL_*
 * @now_ns: monotonic
 *
 * Context: Caller serialises.
 * Return: the policy in force: native if the one before needs a control that is gone.
 * Its plan thaws every slot, even if @controls lacks CGPU_CTRL_FREEZE.
 */
u32 cgpu_sched_set_controls(struct cgpu_sched *t, u32 controls, u64 now_ns)
{
	t->controls = controls & (CGPU_CTRL_FREEZE | CGPU_CTRL_TIMESLICE);
	t->ineffective &= ~t->controls;
	t->no_effect_count[0] = 0;
	t->no_effect_count[1] = 0;
	if (cgpu_policy_get(t->policy)->controls & ~t->controls)
		cgpu_sched_set_policy(t, CGPU_POLICY_NATIVE, now_ns);
	return t->policy;
}

/**
 * cgpu_sched_control_moved() - did the share move when a control was used
 * @t: the scheduler
 * @control: one of CGPU_CTRL_*
 * @moved: 1: it did
 * @now_ns: monotonic
 *
 * The status of a call does not show it: calls of an ineffective control succeed. From the
 * first use without effect on, no slot is reported as enforced; after the third in a row
 * freezing is disabled. Timeslices never are: a container that launches one short kernel at a
 * time leaves the GPU before its timeslice ends, and gets as much with an effective control as
 * without one. To disable it would cost all containers their shares.
 *
 * Context: Caller serialises.
 * Return: the policy in force.
 */
u32 cgpu_sched_control_moved(struct cgpu_sched *t, u32 control, u32 moved, u64 now_ns)
{
	u32 *no_effect_count = &t->no_effect_count[control == CGPU_CTRL_TIMESLICE];

	if (!(t->controls & control))
		return t->policy;
	*no_effect_count = moved ? 0 : *no_effect_count + 1;
	if (*no_effect_count >= NO_EFFECT_MAX && control == CGPU_CTRL_TIMESLICE)
		*no_effect_count = NO_EFFECT_MAX - 1;
	if (*no_effect_count >= NO_EFFECT_MAX) {
		t->ineffective |= control;
		return cgpu_sched_set_controls(t, t->controls & ~control, now_ns);
	}
	return t->policy;
}

/**
 * cgpu_sched_set_costs() - what this GPU and its driver need
 * @t: the scheduler
 * @switch_ns: a context switch between two TSGs; 0: CGPU_SWITCH_NS
 * @timeslice_us: of a TSG of which none was set; 0: CGPU_TIMESLICE_US
 * @now_ns: monotonic
 *
 * Context: Caller serialises; no plan with calls is under way.
 * Return: 0 or -EINVAL.
 */
int cgpu_sched_set_costs(struct cgpu_sched *t, u64 switch_ns, u64 timeslice_us, u64 now_ns)
{
	if (switch_ns > CGPU_SWITCH_MAX_NS || timeslice_us > CGPU_TIMESLICE_MAX_US)
		return -EINVAL;
	cgpu_sched_update(t, now_ns);
	t->switch_ns = switch_ns ? (u32)switch_ns : CGPU_SWITCH_NS;
	t->timeslice_default_us = timeslice_us ? (u32)timeslice_us : CGPU_TIMESLICE_US;
	return 0;
}
