// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/slab.h>
#include <linux/stringify.h>

#include "container.h"
#include "core_link.h"
#include "events.h"
#include "gpu.h"
#include "proc.h"
#include "settings.h"

/* A GPU's settings as they would be: values are tried here and then taken over. */
struct trial {
	struct cgpu_turn *turn;
	u64 default_memsize;
	u32 overcommit_pct;
	bool slice_is_set;
	bool uvm_account;
};

/* Outside of the core's section, where nothing is allocated. The core, and so
 * the size, stays while gpu->lock is held.
 */
static struct cgpu_turn *copy_turn(struct ckm_gpu *gpu)
{
	const struct cgpu_core_ops *core;
	size_t size;

	lockdep_assert_held(&gpu->lock);
	core = ckm_core_enter();
	if (!core)
		return ERR_PTR(-ENODEV);
	size = core->turn_size;
	ckm_core_leave();
	return kmemdup(gpu->turn, size, GFP_KERNEL) ?: ERR_PTR(-ENOMEM);
}

static u64 most_bytes(const struct ckm_gpu *gpu, u32 overcommit_pct)
{
	return div_u64(gpu->total_bytes * overcommit_pct, 100);
}

bool ckm_gpu_has_room_locked(struct ckm_gpu *gpu, u64 others, u64 bytes)
{
	u64 most = most_bytes(gpu, gpu->overcommit_pct);

	lockdep_assert_held(&gpu->lock);
	return bytes <= gpu->total_bytes && others <= most && bytes <= most - others;
}

u64 ckm_gpu_default_memsize_locked(struct ckm_gpu *gpu)
{
	lockdep_assert_held(&gpu->lock);
	return gpu->default_memsize ?: ckm_default_memsize();
}

/* ---- GPUs ---- */

static int try_slice(const struct cgpu_core_ops *core, struct trial *t, u64 slice_us, u64 now)
{
	t->slice_is_set = slice_us;
	if (!slice_us)		/* a start; the turn thread follows the lever from there */
		slice_us = div_u64(core->turn_auto_slice_ns(0), 1000);
	return core->turn_set_slice_us(t->turn, slice_us, now);
}

static int try_overcommit(const struct ckm_gpu *gpu, struct trial *t, u64 pct, const char **why)
{
	*why = "overcommit: " __stringify(CGPU_OVERCOMMIT_MIN) " to "
	       __stringify(CGPU_OVERCOMMIT_MAX) " percent";
	if (pct < CGPU_OVERCOMMIT_MIN || pct > CGPU_OVERCOMMIT_MAX)
		return -EINVAL;
	*why = "overcommit: the memory limits that are there add up to more";
	if (pct < t->overcommit_pct && gpu->limits_bytes > most_bytes(gpu, pct))
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
		ret = core->turn_set_policy(t->turn, value, now);
		*why = ret == -EOPNOTSUPP ? "policy: the lever it needs does not work on this GPU"
					  : "policy: 0 to 5";
		return ret;
	case CGPU_G_MAX_INST:
		ret = core->turn_set_max_inst(t->turn, value, now);
		*why = ret == -EBUSY ? "max_inst: more containers or weight than that are there"
				     : "max_inst: " __stringify(CGPU_MAX_INST_MIN) " to "
				       __stringify(CGPU_MAX_INST_MAX);
		return ret;
	case CGPU_G_PRIO_RATIO:
		*why = "prio_ratio: " __stringify(CGPU_PRIO_RATIO_MIN) " to "
		       __stringify(CGPU_PRIO_RATIO_MAX) " percent";
		return core->turn_set_prio_ratio(t->turn, value, now);
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

	if (!core)
		return -ENODEV;
	for_each_set_bit(attr, &given, ARRAY_SIZE(values->value)) {
		ret = try_value(core, gpu, t, attr, values->value[attr], why);
		if (ret)
			break;
	}
	ckm_core_leave();
	return ret;
}

int ckm_gpu_set(struct ckm_gpu *gpu, const struct ckm_gpu_values *values, const char **why)
{
	struct trial t;
	int ret;

	*why = NULL;
	mutex_lock(&gpu->lock);
	t = (struct trial){
		.turn = copy_turn(gpu),
		.default_memsize = gpu->default_memsize,
		.overcommit_pct = gpu->overcommit_pct,
		.slice_is_set = gpu->slice_is_set,
		.uvm_account = gpu->uvm_account,
	};
	if (IS_ERR(t.turn)) {
		mutex_unlock(&gpu->lock);
		return PTR_ERR(t.turn);
	}
	ret = try_values(gpu, &t, values, why);
	if (!ret) {
		swap(gpu->turn, t.turn);
		gpu->default_memsize = t.default_memsize;
		gpu->overcommit_pct = t.overcommit_pct;
		gpu->slice_is_set = t.slice_is_set;
		/* What is mapped stays, and stays charged. */
		WRITE_ONCE(gpu->uvm_account, t.uvm_account);
	}
	mutex_unlock(&gpu->lock);
	kfree(t.turn);
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
	if (v->limit_bytes < CGPU_MIB || v->limit_bytes > S64_MAX)
		return -EINVAL;
	*why = "memsize: the limits of this GPU's containers would exceed its memory";
	if (!ckm_gpu_has_room_locked(gpu, gpu->limits_bytes - v->slot->ledger.limit_bytes,
				     v->limit_bytes))
		return -ENOSPC;
	return 0;
}

static int try_slot(const struct ckm_slot_values *v, struct cgpu_turn *turn, const char **why)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	u64 now = ktime_get_ns();
	int ret = 0;

	if (!core)
		return -ENODEV;
	if (v->given & BIT(CGPU_S_WEIGHT)) {
		ret = core->turn_set_weight(turn, v->slot->turn_slot, v->weight, now);
		*why = ret == -ENOSPC ? "weight: the sum of weights would exceed max_inst"
				      : "weight: 0 to max_inst";
	}
	if (!ret && (v->given & BIT(CGPU_S_HIGHPRIO))) {
		ret = core->turn_set_highprio(turn, v->slot->turn_slot, v->highprio, now);
		*why = "highprio: 0 or 1";
	}
	ckm_core_leave();
	if (!ret && (v->given & BIT(CGPU_S_LIMIT)))
		ret = try_limit(v, why);
	return ret;
}

static void take_over(const struct ckm_slot_values *v, struct cgpu_turn **turn)
{
	struct ckm_gpu *gpu = v->slot->gpu;
	const struct cgpu_core_ops *core;

	swap(gpu->turn, *turn);
	if (!(v->given & BIT(CGPU_S_LIMIT)))
		return;
	gpu->limits_bytes += v->limit_bytes - v->slot->ledger.limit_bytes;
	core = ckm_core_enter();
	core->ledger_set_limit(&v->slot->ledger, v->limit_bytes);
	ckm_core_leave();
}

/* Who takes more than one holds ckm_lock, so that two of them do not wait for
 * each other.
 */
static void lock_all(struct ckm_slot_values *values, u32 count)
{
	u32 i;

	if (count == 1) {
		mutex_lock(&values->slot->gpu->lock);
		return;
	}
	for (i = 0; i < count; i++)
		mutex_lock_nest_lock(&values[i].slot->gpu->lock, &ckm_lock);
}

int ckm_slots_set(struct ckm_slot_values *values, u32 count, const char **why)
{
	struct cgpu_turn **turn = kcalloc(count, sizeof(*turn), GFP_KERNEL);
	int ret = 0;
	u32 i;

	*why = NULL;
	if (!turn)
		return -ENOMEM;
	lock_all(values, count);
	for (i = 0; !ret && i < count; i++) {
		turn[i] = copy_turn(values[i].slot->gpu);
		if (IS_ERR(turn[i])) {
			ret = PTR_ERR(turn[i]);
			turn[i] = NULL;
			break;
		}
		ret = try_slot(&values[i], turn[i], why);
	}
	for (i = 0; !ret && i < count; i++)
		take_over(&values[i], &turn[i]);
	for (i = 0; i < count; i++)
		mutex_unlock(&values[i].slot->gpu->lock);
	for (i = 0; i < count; i++) {
		kfree(turn[i]);
		if (!ret)
			ckm_gpu_kick(values[i].slot->gpu);
	}
	kfree(turn);
	return ret;
}
