/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The operations of a core: what is replaced while containers run. cgpu_km.ko calls a core
 * through this table only. It has charges, objects and text itself (cgpu_km/pure).
 *
 * Effect checks (they have reserved words) and steps are the shell's records, and part of the
 * ABI. Only struct cgpu_sched is versioned and migrated. Its layout is private to the core.
 */
#ifndef CGPU_CORE_OPS_H
#define CGPU_CORE_OPS_H

#include "env.h"
#include "nv_answer.h"
#include "nv_call.h"
#include "nv_run_word.h"
#include "sched_check.h"
#include "sched_gpu.h"
#include "sched_stat.h"
#include "sched_step.h"

#define CGPU_CORE_ABI		28	/* of this table and of the shell's records */

/* The scheduler of one GPU: sched_gpu.h, sched_stat.h, sched_step.h. */
struct cgpu_sched_ops {
	void (*init)(struct cgpu_sched *t, u64 now_ns);
	int (*add)(struct cgpu_sched *t, u64 cookie, u32 weight, u32 highprio, u64 now_ns,
		   u32 *slot, u32 *granted);
	void (*del)(struct cgpu_sched *t, u32 slot, u64 now_ns);
	int (*set_weight)(struct cgpu_sched *t, u32 slot, u64 weight, u64 now_ns);
	int (*set_highprio)(struct cgpu_sched *t, u32 slot, u64 highprio, u64 now_ns);
	int (*set_ceiling)(struct cgpu_sched *t, u32 slot, u64 ceiling, u64 now_ns);
	int (*set_policy)(struct cgpu_sched *t, u64 policy, u64 now_ns);
	int (*set_max_inst)(struct cgpu_sched *t, u64 max_inst, u64 now_ns);
	int (*set_prio_ratio)(struct cgpu_sched *t, u64 prio_ratio, u64 now_ns);
	int (*set_slice_us)(struct cgpu_sched *t, u64 slice_us, u64 now_ns);
	u32 (*set_controls)(struct cgpu_sched *t, u32 controls, u64 now_ns);
	void (*set_channels)(struct cgpu_sched *t, u32 slot, u32 channels, u32 tsgs, u64 now_ns);
	bool (*is_frozen)(const struct cgpu_sched *t, u32 slot);
	u64 (*auto_slice_ns)(u64 control_p50_ns);
	void (*step)(struct cgpu_sched *t, struct cgpu_check *l, struct cgpu_step *s,
		     const struct cgpu_step_event *event);
	void (*stat)(const struct cgpu_sched *t, u32 slot, u64 now_ns,
		     struct cgpu_sched_stat *st);
	void (*view)(const struct cgpu_sched *t, struct cgpu_sched_view *view);
	void (*slot_view)(const struct cgpu_sched *t, u32 slot,
			  struct cgpu_sched_entity_view *view);
	/* Both fill a buffer of zeros, return 0 or an error, and take no longer than
	 * copying takes: they run without preemption.
	 */
	int (*migrate)(struct cgpu_sched *fresh, const void *old, u32 old_version);
	/* Convert @t for a core of @older_version, which cannot read this layout. NULL: not
	 * possible.
	 */
	int (*migrate_back)(const struct cgpu_sched *t, void *older, u32 older_version);
	u32 (*control_moved)(struct cgpu_sched *t, u32 control, u32 moved, u64 now_ns);
	void (*freeze_failed)(struct cgpu_sched *t, u32 slot, u64 now_ns);
	void (*set_paused)(struct cgpu_sched *t, u32 paused, u64 now_ns);
	int (*set_costs)(struct cgpu_sched *t, u64 switch_ns, u64 timeslice_us, u64 now_ns);
};

/* Whether the controls act: sched_check.h. */
struct cgpu_check_ops {
	void (*init)(struct cgpu_check *l, u64 now_ns);
	void (*touched)(struct cgpu_check *l, const struct cgpu_sched *t, u32 slot, u64 now_ns);
	u64 (*until_ns)(const struct cgpu_sched *t, u64 now_ns);
	void (*sample)(struct cgpu_check *l, struct cgpu_sched *t, u64 at_ns, u32 slot);
	void (*evaluate)(struct cgpu_check *l, const struct cgpu_sched *t, u64 now_ns,
			 struct cgpu_check_finding *find);
	void (*hold)(struct cgpu_check *l, struct cgpu_sched *t, u32 mask, u64 now_ns);
	bool (*is_blind)(const struct cgpu_check *l);
};

/* The call table and answers made from it, words of registers: nv_call.h, nv_answer.h,
 * nv_run_word.h.
 */
struct cgpu_nv_ops {
	const struct cgpu_escape *(*escape)(u32 branch, u32 nr, u32 size, u32 node);
	const struct cgpu_control *(*control)(u32 branch, u32 cmd);
	const struct cgpu_class *(*class)(u32 branch, u32 cls);
	const struct cgpu_uvm_call *(*uvm)(u32 branch, u32 nr);
	bool (*knows_driver)(const char *version);
	u32 (*branch)(const char *version);
	const struct cgpu_branch_part *(*part)(u32 branch);
	const struct cgpu_abi *(*abi)(u32 branch);
	u64 (*async_copies)(const u8 *caps, u32 size);
	u32 (*engine)(u32 branch, u32 type, u64 async_copies);
	bool (*on_graphics)(u32 branch, u32 type, u64 async_copies);
	u32 (*engine_of_kind)(u32 kind);
	bool (*is_vidmem)(u32 attr, u32 flags);
	bool (*has_page_size)(u32 arch, u32 attr, u32 attr2);
	u32 (*fb_info)(u32 index, u32 real_kib, u64 limit_bytes, u64 used_bytes, u64 bar1_used,
		       u64 bar1_left);
	bool (*not_there)(u32 cmd, u8 *params, u32 size);
	u32 (*peers)(u32 cmd, const u8 *params, u32 size, const struct cgpu_peer_gpu *own, u32 count);
	bool (*thermal_reads)(const u8 *params, u32 size);
	bool (*may_map_dma)(const struct cgpu_dma_map *map);
	void (*force_cilp)(u8 *params);
	bool (*share_stays)(u16 type);
	u32 (*run_word)(u32 source, u32 word);
	bool (*has_pccsr)(u32 arch, u32 boot_0);
};

/**
 * struct cgpu_core_ops - the table of a core
 * @abi: CGPU_CORE_ABI of its sources
 * @sched_version: CGPU_SCHED_VERSION of its sources
 * @sched_size: bytes of its struct cgpu_sched
 * @ops_size: bytes of this table
 * @version: X.Y.Z
 * @selftest: 0, or an error for which the core is not taken
 * @sched: the scheduler
 * @check: the effect check
 * @nv: the call table
 *
 * Each operation is there: a core that lacks one is refused when it is registered
 * (core_swap.c). Only @sched.migrate_back may be NULL. A row or an answer that an operation
 * returns may be NULL where its own header says so. The table as a whole is missing while no
 * core is registered, and then there is no GPU and no container (core_ref.h).
 */
struct cgpu_core_ops {
	u32 abi;
	u32 sched_version;
	u32 sched_size;
	u32 ops_size;
	const char *version;

	int (*selftest)(void);

	struct cgpu_sched_ops sched;
	struct cgpu_check_ops check;
	struct cgpu_nv_ops nv;
};

extern const struct cgpu_core_ops cgpu_core_ops;

#endif
