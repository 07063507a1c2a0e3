// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The table of operations that the module calls; the only file that sees all parts of the core. */
#include "core_ops.h"
#include "nv_struct.h"

#ifndef CGPU_VERSION
#error "CGPU_VERSION comes from the VERSION file, by way of the build"
#endif

/* The self-test of a core, which must pass before a swap to it: one case of each
 * part, cheap enough to run at every load.
 */
static int selftest(void)
{
	if (cgpu_sched_auto_slice_ns(1000000) != 20000000)
		return -EINVAL;
	if (cgpu_run_word(CGPU_RUN_CHRAM, ~0u) != CGPU_WORD_ABSENT)
		return -EINVAL;
	if (cgpu_call_control(CGPU_BRANCH_FIRST, 0) ||
	    cgpu_call_class(CGPU_BRANCH_FIRST, 0xffffffffu) ||
	    !cgpu_call_escape(CGPU_BRANCH_FIRST, NV_ESC_RM_FREE, sizeof(struct nvos00), CGPU_NODE_CTL))
		return -EINVAL;
	return 0;
}

const struct cgpu_core_ops cgpu_core_ops = {
	.abi			= CGPU_CORE_ABI,
	.sched_version		= CGPU_SCHED_VERSION,
	.sched_size		= sizeof(struct cgpu_sched),
	.ops_size		= sizeof(struct cgpu_core_ops),
	.version		= CGPU_VERSION,
	.selftest		= selftest,
	.sched = {
		.init			= cgpu_sched_init,
		.add			= cgpu_sched_add,
		.del			= cgpu_sched_del,
		.set_weight		= cgpu_sched_set_weight,
		.set_highprio		= cgpu_sched_set_highprio,
		.set_ceiling		= cgpu_sched_set_ceiling,
		.set_policy		= cgpu_sched_set_policy,
		.set_max_inst		= cgpu_sched_set_max_inst,
		.set_prio_ratio		= cgpu_sched_set_prio_ratio,
		.set_slice_us		= cgpu_sched_set_slice_us,
		.set_controls		= cgpu_sched_set_controls,
		.set_channels		= cgpu_sched_set_channels,
		.is_frozen		= cgpu_sched_is_frozen,
		.auto_slice_ns		= cgpu_sched_auto_slice_ns,
		.step			= cgpu_sched_step,
		.stat			= cgpu_sched_stat,
		.view			= cgpu_sched_view,
		.slot_view		= cgpu_sched_entity_view,
		.migrate		= cgpu_sched_migrate,
		.control_moved		= cgpu_sched_control_moved,
		.freeze_failed		= cgpu_sched_freeze_failed,
		.set_paused		= cgpu_sched_set_paused,
		.set_costs		= cgpu_sched_set_costs,
	},
	.check = {
		.init			= cgpu_check_init,
		.touched		= cgpu_check_touched,
		.until_ns		= cgpu_check_until_ns,
		.sample			= cgpu_check_sample,
		.evaluate		= cgpu_check_evaluate,
		.hold			= cgpu_check_hold,
		.is_blind		= cgpu_check_is_blind,
	},
	.nv = {
		.escape			= cgpu_call_escape,
		.control		= cgpu_call_control,
		.class			= cgpu_call_class,
		.uvm			= cgpu_call_uvm,
		.knows_driver		= cgpu_call_knows_driver,
		.branch			= cgpu_call_branch,
		.part			= cgpu_call_part,
		.abi			= cgpu_call_abi,
		.async_copies		= cgpu_call_async_copies,
		.engine			= cgpu_call_engine,
		.on_graphics		= cgpu_call_on_graphics,
		.engine_of_kind		= cgpu_call_engine_of_kind,
		.is_vidmem		= cgpu_call_is_vidmem,
		.has_page_size		= cgpu_call_has_page_size,
		.fb_info		= cgpu_call_fb_info,
		.not_there		= cgpu_call_not_there,
		.peers			= cgpu_call_peers,
		.thermal_reads		= cgpu_call_thermal_reads,
		.may_map_dma		= cgpu_call_may_map_dma,
		.force_cilp		= cgpu_call_force_cilp,
		.share_stays		= cgpu_call_share_stays,
		.run_word		= cgpu_run_word,
		.has_pccsr		= cgpu_run_has_pccsr,
	},
};
