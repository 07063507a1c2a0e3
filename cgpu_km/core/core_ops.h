/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What a core gives the shell: everything cgpu_km.ko asks, it asks through
 * this table, so that a core can be replaced while containers run.
 *
 * Trees, memory records, ledgers and looks are the shell's ABI (they have reserved
 * words); only struct cgpu_turn is versioned and migrated. The shell does not know
 * its layout.
 */
#ifndef CGPU_CORE_OPS_H
#define CGPU_CORE_OPS_H

#include "env.h"
#include "format.h"
#include "ledger.h"
#include "look.h"
#include "nv_call.h"
#include "parse.h"
#include "rm_tree.h"
#include "turn.h"
#include "turn_state.h"

#define CGPU_CORE_ABI		5	/* of this table and of the shell's records */

struct cgpu_core_ops {
	u32 abi;
	u32 turn_version;
	u32 turn_size;
	u32 ops_size;		/* of this table */
	const char *version;

	int (*selftest)(void);

	void (*ledger_init)(struct cgpu_ledger *led, u64 limit_bytes);
	int (*ledger_charge)(struct cgpu_ledger *led, u64 bytes);
	bool (*ledger_uncharge)(struct cgpu_ledger *led, u64 bytes);
	void (*ledger_set_limit)(struct cgpu_ledger *led, u64 limit_bytes);
	u64 (*ledger_free)(const struct cgpu_ledger *led);

	void (*turn_init)(struct cgpu_turn *t, u64 now_ns);
	int (*turn_add)(struct cgpu_turn *t, u64 cookie, u32 weight, u32 highprio,
			u64 now_ns, u32 *slot, u32 *granted);
	void (*turn_del)(struct cgpu_turn *t, u32 slot, u64 now_ns);
	int (*turn_set_weight)(struct cgpu_turn *t, u32 slot, u64 weight, u64 now_ns);
	int (*turn_set_highprio)(struct cgpu_turn *t, u32 slot, u64 highprio, u64 now_ns);
	int (*turn_set_policy)(struct cgpu_turn *t, u64 policy, u64 now_ns);
	int (*turn_set_max_inst)(struct cgpu_turn *t, u64 max_inst, u64 now_ns);
	int (*turn_set_prio_ratio)(struct cgpu_turn *t, u64 prio_ratio, u64 now_ns);
	int (*turn_set_slice_us)(struct cgpu_turn *t, u64 slice_us, u64 now_ns);
	u32 (*turn_set_levers)(struct cgpu_turn *t, u32 levers, u64 now_ns);
	void (*turn_set_channels)(struct cgpu_turn *t, u32 slot, u32 channels,
				  u32 tsgs, u64 now_ns);
	bool (*turn_is_frozen)(const struct cgpu_turn *t, u32 slot);
	u64 (*turn_auto_slice_ns)(u64 lever_p50_ns);
	void (*turn_next)(struct cgpu_turn *t, u64 now_ns, struct cgpu_turn_plan *plan);
	void (*turn_ack)(struct cgpu_turn *t, const struct cgpu_turn_plan *plan,
			 const struct cgpu_turn_ack *ack);
	void (*turn_stat)(const struct cgpu_turn *t, u32 slot, u64 now_ns,
			  struct cgpu_turn_stat *st);
	void (*turn_view)(const struct cgpu_turn *t, struct cgpu_turn_view *view);
	void (*turn_slot_view)(const struct cgpu_turn *t, u32 slot,
			       struct cgpu_turn_slot_view *view);
	/* Both fill a buffer of zeros, return 0 or an error, and take no longer than
	 * copying takes: nobody else gets the processor meanwhile.
	 */
	int (*turn_migrate)(struct cgpu_turn *fresh, const void *old, u32 old_version);
	/* The way back: @t for a core of @older_version that does not know this one's.
	 * NULL: there is none.
	 */
	int (*turn_back)(const struct cgpu_turn *t, void *older, u32 older_version);

	int (*parse_u64)(const char *text, size_t len, u64 *value);
	int (*parse_inst)(const char *text, size_t len, struct cgpu_inst_cmd *cmd,
			  size_t *at);
	int (*parse_check_id)(const char *id, size_t len);
	void (*parse_dir)(const char *id, size_t len, bool collides, char *dir);

	int (*format_meminfo)(char *buf, size_t size, u64 free_bytes,
			      const struct cgpu_pid_mem *pids, u32 count);
	u32 (*format_merge_pids)(struct cgpu_pid_mem *pids, u32 count);
	int (*format_slot_stat)(char *buf, size_t size, const struct cgpu_ledger *led,
				const struct cgpu_turn_stat *st, u64 refused_calls);

	const struct cgpu_escape *(*call_escape)(u32 branch, u32 nr, u32 size, u32 node);
	const struct cgpu_control *(*call_control)(u32 branch, u32 cmd);
	const struct cgpu_class *(*call_class)(u32 branch, u32 cls);
	const struct cgpu_uvm_call *(*call_uvm)(u32 branch, u32 nr);
	bool (*call_knows_driver)(const char *version);
	u32 (*call_branch)(const char *version);
	const struct cgpu_abi *(*call_abi)(u32 branch);
	bool (*call_engine_is_gr)(u32 engine);
	u64 (*call_vidmem_bytes)(u64 size, u32 attr, u32 attr2);
	bool (*call_is_vidmem)(u32 attr, u32 flags);
	u32 (*call_fb_info)(u32 index, u32 real_kib, u64 limit_bytes, u64 used_bytes);

	struct cgpu_obj *(*tree_find)(const struct cgpu_tree *tree, u32 hclient, u32 hobject);
	struct cgpu_obj *(*tree_live)(const struct cgpu_tree *tree, u32 hclient, u32 hobject);
	int (*tree_add)(struct cgpu_tree *tree, struct cgpu_obj *obj, struct cgpu_obj *parent);
	int (*tree_free_begin)(struct cgpu_tree *tree, struct cgpu_obj *obj);
	void (*tree_free_cancel)(struct cgpu_tree *tree, struct cgpu_obj *obj);
	struct cgpu_obj *(*tree_remove)(struct cgpu_tree *tree, struct cgpu_obj *obj);
	struct cgpu_obj *(*tree_client_of)(const struct cgpu_tree *tree, u64 owner);
	void (*mem_get)(struct cgpu_mem *mem);
	bool (*mem_put)(struct cgpu_mem *mem);

	int (*turn_set_switch_ns)(struct cgpu_turn *t, u64 switch_ns, u64 now_ns);
	u32 (*turn_lever_moved)(struct cgpu_turn *t, u32 lever, u32 moved, u64 now_ns);
	u64 (*call_managed_bytes)(u64 start, u64 end);
	u64 (*call_object_overhead)(u32 kind, u32 cls);
	u64 (*call_page_tables)(u64 bytes);
	u64 (*call_overhead_charge)(u64 overhead, u64 limit_bytes);

	void (*look_init)(struct cgpu_look *l, u64 now_ns);
	void (*look_acted)(struct cgpu_look *l, const struct cgpu_turn *t,
			   const struct cgpu_turn_plan *plan, const struct cgpu_turn_ack *ack,
			   bool committed, u64 now_ns);
	void (*look_touched)(struct cgpu_look *l, const struct cgpu_turn *t, u32 slot,
			     u64 now_ns);
	u64 (*look_until_ns)(const struct cgpu_turn *t, u64 now_ns);
	void (*look_sample)(struct cgpu_look *l, const struct cgpu_turn *t, u64 at_ns, u32 slot);
	void (*look_judge)(struct cgpu_look *l, const struct cgpu_turn *t, u64 now_ns,
			   struct cgpu_look_finding *find);
	void (*look_hold)(struct cgpu_look *l, struct cgpu_turn *t, u32 mask, u64 now_ns);
};

extern const struct cgpu_core_ops cgpu_core_ops;

#endif
