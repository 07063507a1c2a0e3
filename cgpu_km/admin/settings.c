// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Sets values of GPUs and slots, all or none. Takes gpu->lock, of several slots under ckm_lock. */
#include <linux/slab.h>
#include <linux/stringify.h>

#include "admin/settings.h"
#include "core_ref.h"
#include "pure/mem_ledger.h"
#include "registry.h"
#include "sched/run_state.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/notify.h"

/* A copy of a GPU's settings: values are set in it, and taken over if all are valid. */
struct trial {
	struct cgpu_sched *sched;
	u64 default_memsize;
	u32 overcommit_pct;
	bool slice_is_set;
	bool uvm_account;
};

/* Of the active core's state. Cannot change while a gpu->lock is held. */
static size_t sched_size(void)
{
	return ckm_core_call(sched_size);
}

/* To @room, which was made before the lock: under it nothing may sleep. -EAGAIN: the core was swapped
 * since, and its state has another size.
 */
static int copy_sched(const struct ckm_gpu *gpu, struct cgpu_sched *room, size_t size)
{
	lockdep_assert_held(&gpu->lock);
	if (sched_size() != size)
		return -EAGAIN;
	memcpy(room, gpu->sched, size);
	return 0;
}

/* ---- GPUs ---- */

static int try_slice(const struct cgpu_core_ops *core, struct trial *t, u64 slice_us, u64 now)
{
	t->slice_is_set = slice_us;
	if (!slice_us)		/* start value; the scheduler thread adapts it */
		slice_us = div_u64(core->sched.auto_slice_ns(0), 1000);
	return core->sched.set_slice_us(t->sched, slice_us, now);
}

static int try_overcommit(const struct ckm_gpu *gpu, struct trial *t, u64 pct, const char **why)
{
	*why = "overcommit: " __stringify(CGPU_OVERCOMMIT_MIN) " to "
	       __stringify(CGPU_OVERCOMMIT_MAX) " percent";
	if (pct < CGPU_OVERCOMMIT_MIN || pct > CGPU_OVERCOMMIT_MAX)
		return -EINVAL;
	*why = "overcommit: the memory limits that are there add up to more";
	if (pct < t->overcommit_pct && gpu->limits_bytes > ckm_gpu_most_bytes(gpu, pct))
		return -EBUSY;
	t->overcommit_pct = pct;
	return 0;
}

static int try_value(const struct cgpu_core_ops *core, const struct ckm_gpu *gpu, struct trial *t,
		     u32 attr, u64 value, const char **why)
{
	u64 now = ktime_get_ns();
	int ret;

	switch (attr) {
	case CGPU_G_POLICY:
		ret = core->sched.set_policy(t->sched, value, now);
		*why = ret == -EOPNOTSUPP ? "policy: the control it needs does not work on this GPU"
		       : ret == -EBUSY	  ? "policy: max_inst is above "
					    __stringify(CGPU_MAX_INST_MAX) ", which only "
					    CGPU_POLICIES_WIDE " takes"
					  : "policy: no policy has this number";
		return ret;
	case CGPU_G_MAX_INST:
		ret = core->sched.set_max_inst(t->sched, value, now);
		*why = ret == -EBUSY ? "max_inst: more containers or weight than that are there"
				     : "max_inst: " __stringify(CGPU_MAX_INST_MIN) " to "
				       __stringify(CGPU_MAX_INST_MAX)
				       ", under " CGPU_POLICIES_WIDE " to "
				       __stringify(CGPU_MAX_INST_BURST_MAX);
		return ret;
	case CGPU_G_PRIO_RATIO:
		*why = "prio_ratio: " __stringify(CGPU_PRIO_RATIO_MIN) " to "
		       __stringify(CGPU_PRIO_RATIO_MAX) " percent";
		return core->sched.set_prio_ratio(t->sched, value, now);
	case CGPU_G_SLICE_US:
		*why = "slice_us: " __stringify(CGPU_SLICE_US_MIN) " to "
		       __stringify(CGPU_SLICE_US_MAX) " microseconds, or 0";
		return try_slice(core, t, value, now);
	case CGPU_G_UVM:
		*why = "uvm: 0 (deny) or 1 (account)";
		t->uvm_account = value;
		return value > 1 ? -EINVAL : 0;
	case CGPU_G_DEFAULT_MEMSIZE:
		*why = "default_memsize: at least " __stringify(CGPU_MIB) " bytes, or 0";
		t->default_memsize = value;
		return value > S64_MAX || (value && value < CGPU_MIB) ? -EINVAL : 0;
	case CGPU_G_OVERCOMMIT:
		return try_overcommit(gpu, t, value, why);
	}
	*why = "a GPU has no such value";
	return -EINVAL;
}

static int try_values(const struct ckm_gpu *gpu, struct trial *t,
		      const struct ckm_gpu_values *values, const char **why)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	unsigned long given = values->given;
	int ret = 0;
	u32 attr;

	for_each_set_bit(attr, &given, ARRAY_SIZE(values->value)) {
		ret = try_value(core, gpu, t, attr, values->value[attr], why);
		if (ret)
			break;
	}
	ckm_core_leave();
	return ret;
}

static int set_values(struct ckm_gpu *gpu, const struct ckm_gpu_values *values, const char **why)
{
	size_t size = sched_size();
	struct trial t;
	int ret;

	t.sched = kmalloc(size, GFP_KERNEL);
	if (!t.sched)
		return -ENOMEM;
	spin_lock(&gpu->lock);
	t.default_memsize = gpu->default_memsize;
	t.overcommit_pct = gpu->overcommit_pct;
	t.slice_is_set = gpu->slice_is_set;
	t.uvm_account = gpu->uvm_account;
	ret = copy_sched(gpu, t.sched, size) ?: try_values(gpu, &t, values, why);
	if (!ret) {
		swap(gpu->sched, t.sched);
		gpu->default_memsize = t.default_memsize;
		gpu->overcommit_pct = t.overcommit_pct;
		gpu->slice_is_set = t.slice_is_set;
		/* Existing mappings stay, and stay charged. */
		WRITE_ONCE(gpu->uvm_account, t.uvm_account);
		if (values->given & BIT(CGPU_G_POLICY))
			ckm_run_state_reset_locked(gpu);
	}
	spin_unlock(&gpu->lock);
	kfree(t.sched);
	return ret;
}

int ckm_gpu_set(struct ckm_gpu *gpu, const struct ckm_gpu_values *values, const char **why)
{
	int ret;

	*why = NULL;
	do
		ret = set_values(gpu, values, why);
	while (ret == -EAGAIN);
	if (!ret) {
		ckm_gpu_kick(gpu);
		ckm_events_gpu_changed(gpu);
	}
	return ret;
}

/* ---- slots ---- */

static int try_limit(const struct ckm_slot_values *v, const char **why)
{
	struct ckm_gpu *gpu = v->slot->gpu;

	*why = "memsize: at least " __stringify(CGPU_MIB) " bytes";
	if (v->value[CGPU_S_LIMIT] < CGPU_MIB || v->value[CGPU_S_LIMIT] > S64_MAX)
		return -EINVAL;
	*why = "memsize: the limits of this GPU's containers would exceed its memory";
	if (!ckm_gpu_has_room_locked(gpu, gpu->limits_bytes - v->slot->ledger.limit_bytes,
				     v->value[CGPU_S_LIMIT]))
		return -ENOSPC;
	return 0;
}

static int try_ceiling(const struct cgpu_core_ops *core, struct cgpu_sched *sched,
		       const struct ckm_slot_values *v, u64 now, const char **why)
{
	*why = "ceiling: weight to max_inst, or 0 for none";
	return core->sched.set_ceiling(sched, v->slot->sched_id, v->value[CGPU_S_CEILING], now);
}

static int try_slot(const struct ckm_slot_values *v, struct cgpu_sched *sched, const char **why)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	bool ceiling = v->given & BIT(CGPU_S_CEILING), last;
	struct cgpu_sched_entity_view before;
	u64 now = ktime_get_ns();
	int ret = 0;

	/* The ceiling is at least the weight after each of the two: one below the weight before is set last. */
	core->sched.slot_view(sched, v->slot->sched_id, &before);
	last = v->value[CGPU_S_CEILING] && v->value[CGPU_S_CEILING] < before.weight;
	if (ceiling && !last)
		ret = try_ceiling(core, sched, v, now, why);
	if (!ret && (v->given & BIT(CGPU_S_WEIGHT))) {
		ret = core->sched.set_weight(sched, v->slot->sched_id, v->value[CGPU_S_WEIGHT], now);
		*why = ret == -ENOSPC ? "weight: the sum of weights would exceed max_inst"
				      : "weight: 0 to max_inst, at most the ceiling";
	}
	if (!ret && ceiling && last)
		ret = try_ceiling(core, sched, v, now, why);
	if (!ret && (v->given & BIT(CGPU_S_HIGHPRIO))) {
		ret = core->sched.set_highprio(sched, v->slot->sched_id, v->value[CGPU_S_HIGHPRIO], now);
		*why = "highprio: 0 or 1";
	}
	ckm_core_leave();
	if (!ret && (v->given & BIT(CGPU_S_HOST_LIMIT)) && v->value[CGPU_S_HOST_LIMIT] &&
	    (v->value[CGPU_S_HOST_LIMIT] < CGPU_MIB || v->value[CGPU_S_HOST_LIMIT] > S64_MAX)) {
		*why = "host_memsize: at least 1048576 bytes, or 0 for no limit";
		ret = -EINVAL;
	}
	if (!ret && (v->given & BIT(CGPU_S_LIMIT)))
		ret = try_limit(v, why);
	return ret;
}

static void take_over(const struct ckm_slot_values *v, struct cgpu_sched **sched)
{
	struct ckm_gpu *gpu = v->slot->gpu;

	swap(gpu->sched, *sched);
	if (v->given & BIT(CGPU_S_HOST_LIMIT))
		WRITE_ONCE(v->slot->ct->host_limit, v->value[CGPU_S_HOST_LIMIT]);
	if (!(v->given & BIT(CGPU_S_LIMIT)))
		return;
	gpu->limits_bytes += v->value[CGPU_S_LIMIT] - v->slot->ledger.limit_bytes;
	cgpu_ledger_set_limit(&v->slot->ledger, v->value[CGPU_S_LIMIT]);
}

/* Callers that take several locks hold ckm_lock: two of them cannot deadlock. */
static void lock_all(struct ckm_slot_values *values, u32 count)
{
	u32 i;

	if (count == 1) {
		spin_lock(&values->slot->gpu->lock);
		return;
	}
	for (i = 0; i < count; i++)
		spin_lock_nest_lock(&values[i].slot->gpu->lock, &ckm_lock);
}

/* @size: bytes of each of @sched. */
static int set_slots(struct ckm_slot_values *values, u32 count, struct cgpu_sched **sched,
		     size_t size, const char **why)
{
	int ret = 0;
	u32 i;

	lock_all(values, count);
	for (i = 0; !ret && i < count; i++)
		ret = copy_sched(values[i].slot->gpu, sched[i], size) ?:
		      try_slot(&values[i], sched[i], why);
	for (i = 0; !ret && i < count; i++)
		take_over(&values[i], &sched[i]);
	for (i = 0; i < count; i++)
		spin_unlock(&values[i].slot->gpu->lock);
	return ret;
}

static int try_slots(struct ckm_slot_values *values, u32 count, const char **why)
{
	struct cgpu_sched **sched = kcalloc(count, sizeof(*sched), GFP_KERNEL);
	size_t size = sched_size();
	int ret = 0;
	u32 i;

	if (!sched)
		return -ENOMEM;
	for (i = 0; !ret && i < count; i++) {
		sched[i] = kmalloc(size, GFP_KERNEL);
		ret = sched[i] ? 0 : -ENOMEM;
	}
	ret = ret ?: set_slots(values, count, sched, size, why);
	for (i = 0; i < count; i++)
		kfree(sched[i]);
	kfree(sched);
	return ret;
}

int ckm_slots_set(struct ckm_slot_values *values, u32 count, const char **why)
{
	int ret;
	u32 i;

	*why = NULL;
	do
		ret = try_slots(values, count, why);
	while (ret == -EAGAIN);
	for (i = 0; !ret && i < count; i++)
		ckm_gpu_kick(values[i].slot->gpu);
	if (!ret)
		ckm_netlink_event(values->slot->ct, CGPU_EVENT_CHANGED);
	return ret;
}
