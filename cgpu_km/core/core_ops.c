// SPDX-License-Identifier: MIT OR GPL-2.0
#include "core_ops.h"
#include "nv_abi.h"

#ifndef CGPU_VERSION
#error "CGPU_VERSION comes from the VERSION file, by way of the build"
#endif

/* What a core must get right before it may be switched to: one case of each
 * part, cheap enough to run at every load.
 */
static int selftest(void)
{
	struct cgpu_ledger led;
	u64 value;
	char dir[13];

	cgpu_ledger_init(&led, 100);
	if (cgpu_ledger_charge(&led, 100) || cgpu_ledger_charge(&led, 1) != -ENOMEM ||
	    !cgpu_ledger_uncharge(&led, 100) || led.used_bytes != 0)
		return -EINVAL;
	if (cgpu_parse_u64("12\n", 3, &value) || value != 12 ||
	    cgpu_parse_u64("-1", 2, &value) != -EINVAL)
		return -EINVAL;
	cgpu_parse_dir("0123456789abcdef", 16, false, dir);
	if (memcmp(dir, "0123456789ab", 13) != 0)
		return -EINVAL;
	if (cgpu_call_control(CGPU_BRANCH_LAST, 0) ||
	    cgpu_call_class(CGPU_BRANCH_LAST, 0xffffffffu) ||
	    !cgpu_call_escape(CGPU_BRANCH_LAST, NV_ESC_RM_FREE, NVOS00_SIZE, CGPU_NODE_CTL))
		return -EINVAL;
	return 0;
}

const struct cgpu_core_ops cgpu_core_ops = {
	.abi			= CGPU_CORE_ABI,
	.turn_version		= CGPU_TURN_VERSION,
	.turn_size		= sizeof(struct cgpu_turn),
	.ops_size		= sizeof(struct cgpu_core_ops),
	.version		= CGPU_VERSION,
	.selftest		= selftest,
	.ledger_init		= cgpu_ledger_init,
	.ledger_charge		= cgpu_ledger_charge,
	.ledger_uncharge	= cgpu_ledger_uncharge,
	.ledger_set_limit	= cgpu_ledger_set_limit,
	.ledger_free		= cgpu_ledger_free,
	.turn_init		= cgpu_turn_init,
	.turn_add		= cgpu_turn_add,
	.turn_del		= cgpu_turn_del,
	.turn_set_weight	= cgpu_turn_set_weight,
	.turn_set_highprio	= cgpu_turn_set_highprio,
	.turn_set_policy	= cgpu_turn_set_policy,
	.turn_set_max_inst	= cgpu_turn_set_max_inst,
	.turn_set_prio_ratio	= cgpu_turn_set_prio_ratio,
	.turn_set_slice_us	= cgpu_turn_set_slice_us,
	.turn_set_levers	= cgpu_turn_set_levers,
	.turn_set_channels	= cgpu_turn_set_channels,
	.turn_is_frozen		= cgpu_turn_is_frozen,
	.turn_auto_slice_ns	= cgpu_turn_auto_slice_ns,
	.turn_next		= cgpu_turn_next,
	.turn_ack		= cgpu_turn_ack,
	.turn_stat		= cgpu_turn_stat,
	.turn_view		= cgpu_turn_view,
	.turn_slot_view		= cgpu_turn_slot_view,
	.turn_migrate		= cgpu_turn_migrate,
	.parse_u64		= cgpu_parse_u64,
	.parse_inst		= cgpu_parse_inst,
	.parse_check_id		= cgpu_parse_check_id,
	.parse_dir		= cgpu_parse_dir,
	.format_meminfo		= cgpu_format_meminfo,
	.format_merge_pids	= cgpu_format_merge_pids,
	.format_slot_stat	= cgpu_format_slot_stat,
	.call_escape		= cgpu_call_escape,
	.call_control		= cgpu_call_control,
	.call_class		= cgpu_call_class,
	.call_uvm		= cgpu_call_uvm,
	.call_knows_driver	= cgpu_call_knows_driver,
	.call_branch		= cgpu_call_branch,
	.call_abi		= cgpu_call_abi,
	.call_engine_is_gr	= cgpu_call_engine_is_gr,
	.call_vidmem_bytes	= cgpu_call_vidmem_bytes,
	.call_is_vidmem		= cgpu_call_is_vidmem,
	.call_fb_info		= cgpu_call_fb_info,
	.tree_find		= cgpu_tree_find,
	.tree_live		= cgpu_tree_live,
	.tree_add		= cgpu_tree_add,
	.tree_free_begin	= cgpu_tree_free_begin,
	.tree_free_cancel	= cgpu_tree_free_cancel,
	.tree_remove		= cgpu_tree_remove,
	.tree_client_of		= cgpu_tree_client_of,
	.mem_get		= cgpu_mem_get,
	.mem_put		= cgpu_mem_put,
	.turn_set_switch_ns	= cgpu_turn_set_switch_ns,
	.turn_lever_moved	= cgpu_turn_lever_moved,
	.call_managed_bytes	= cgpu_call_managed_bytes,
	.call_object_overhead	= cgpu_call_object_overhead,
	.call_page_tables	= cgpu_call_page_tables,
	.call_overhead_charge	= cgpu_call_overhead_charge,
	.look_init		= cgpu_look_init,
	.look_acted		= cgpu_look_acted,
	.look_touched		= cgpu_look_touched,
	.look_until_ns		= cgpu_look_until_ns,
	.look_sample		= cgpu_look_sample,
	.look_judge		= cgpu_look_judge,
	.look_hold		= cgpu_look_hold,
};
