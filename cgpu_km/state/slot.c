// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the slots of a GPU and the sum of their limits. Takes gpu->lock. */
#include <linux/ktime.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "core_ref.h"
#include "pure/mem_ledger.h"
#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/slot.h"

/* All or none: a container without the ceiling that was asked for would have more. */
static int add_to_sched(struct ckm_slot *slot, const struct ckm_slot_request *req, u64 cookie,
			const char **why)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	struct cgpu_sched *sched = slot->gpu->sched;
	u64 now = ktime_get_ns();
	int ret;

	lockdep_assert_held(&slot->gpu->lock);
	ret = core->sched.add(sched, cookie, req->weight, req->highprio, now, &slot->sched_id,
			      &slot->granted_weight);
	*why = ret == -EINVAL ? "weight must be 1 to max_inst and highprio 0 or 1"
			      : "this GPU has no free instance (max_inst) or weight (free_weight) left";
	if (!ret && req->ceiling) {
		ret = core->sched.set_ceiling(sched, slot->sched_id, req->ceiling, now);
		*why = "ceiling must be weight to max_inst, or 0 for none";
		if (ret)
			core->sched.del(sched, slot->sched_id, now);
	}
	ckm_core_leave();
	return ret;
}

static size_t add_holder(char *text, size_t len, const char *words, const char *name, u64 bytes)
{
	return len + scnprintf(text + len, CKM_HOLDERS_MAX - len, "%s %s%s %llu MiB", len ? "," : "", words, name,
			       bytes / CGPU_MIB);
}

/* Each container of @gpu with the memory that it uses, or with @limits its limit. */
static size_t add_slots_locked(const struct ckm_gpu *gpu, char *text, size_t len, bool limits)
{
	u32 i;

	lockdep_assert_held(&gpu->lock);
	for (i = 0; i < CGPU_SLOTS; i++) {
		const struct ckm_slot *slot = gpu->slot[i];
		u64 bytes = !slot ? 0 : limits ? slot->ledger.limit_bytes : slot->ledger.used_bytes;

		if (bytes)
			len = add_holder(text, len, "", slot->ct->dir, bytes);
	}
	return len;
}

void ckm_slots_holders_locked(const struct ckm_gpu *gpu, char *text)
{
	u64 used = ckm_slots_used_locked(gpu);
	size_t len = 0;

	lockdep_assert_held(&gpu->lock);
	if (gpu->ended_bytes)
		len = add_holder(text, len, "", "destroyed containers", gpu->ended_bytes);
	if (gpu->total_bytes > used)
		len = add_holder(text, len, "", "the driver and what runs outside of containers at most",
				 gpu->total_bytes - used);
	add_slots_locked(gpu, text, len, false);
}

/* Log what each container on @gpu holds, when @refused found no room. */
static void say_holders(struct ckm_gpu *gpu, const struct ckm_container *refused, const char *why)
{
	char *text = kzalloc(CKM_HOLDERS_MAX, GFP_KERNEL);
	struct cgpu_sched_view view;
	struct ckm_container *ct;
	struct ckm_slot *slot;
	u64 limits, limit, used;
	size_t len;

	lockdep_assert_held(&ckm_lock);
	if (!text)
		return;
	spin_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	limits = gpu->limits_bytes;
	len = add_slots_locked(gpu, text, len, true);
	spin_unlock(&gpu->lock);
	list_for_each_entry(ct, &ckm_ended, node) {	/* as many as tenants like: only what the line has room for */
		if (len >= CKM_HOLDERS_MAX - 1)
			break;
		slot = ckm_container_slot_of(ct, gpu->index);
		if (!slot)
			continue;
		ckm_slot_limits(slot, &limit, &used);
		if (used)
			len = add_holder(text, len, "destroyed ", ct->dir, used);
	}
	pr_notice_ratelimited("container %s refused: %s. GPU %u: %llu of %llu MiB, %u of %u instances, %u of their weight free; held by%s\n",
			      refused->dir, why, gpu->index, limits / CGPU_MIB,
			      ckm_gpu_most_bytes(gpu, gpu->overcommit_pct) / CGPU_MIB, view.instances,
			      view.max_inst, view.free_weight, len ? text : " none");
	kfree(text);
}

u64 ckm_slots_used_locked(const struct ckm_gpu *gpu)
{
	u64 used = gpu->ended_bytes;
	u32 i;

	lockdep_assert_held(&gpu->lock);
	for (i = 0; i < CGPU_SLOTS; i++)
		used += gpu->slot[i] ? gpu->slot[i]->ledger.used_bytes : 0;
	return used;
}

int ckm_slot_add(struct ckm_slot *slot, const struct ckm_slot_request *req, u64 cookie,
		 const char **why)
{
	struct ckm_gpu *gpu = slot->gpu;
	u64 limit;
	int ret;

	spin_lock(&gpu->lock);
	limit = req->limit_bytes ?: ckm_gpu_default_memsize_locked(gpu);
	*why = "the memory limits of this GPU's containers would exceed its memory";
	ret = -EINVAL;
	if (limit < CGPU_MIB || limit > S64_MAX) {
		*why = "a memory limit is 1 MiB at least";
		goto out;
	}
	ret = -ENOSPC;
	if (!ckm_gpu_has_room_locked(gpu, gpu->limits_bytes, limit))
		goto out;
	ret = add_to_sched(slot, req, cookie, why);
	if (ret)
		goto out;
	cgpu_ledger_init(&slot->ledger, limit);
	gpu->slot[slot->sched_id] = slot;
	gpu->limits_bytes += limit;
	if (!slot->granted_weight)
		pr_warn("container %s: GPU %u has no weight left: 0, runs under policy 5 only\n",
			slot->ct->dir, gpu->index);
out:
	spin_unlock(&gpu->lock);
	if (ret == -ENOSPC)
		say_holders(gpu, slot->ct, *why);
	return ret;
}

void ckm_slot_remove(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;
	u32 kind;

	spin_lock(&gpu->lock);
	core = ckm_core_enter();
	core->sched.del(gpu->sched, slot->sched_id, ktime_get_ns());
	core->check.touched(gpu->check, gpu->sched, slot->sched_id, ktime_get_ns());
	ckm_core_leave();
	gpu->slot[slot->sched_id] = NULL;
	slot->ended = true;
	slot->removed = true;
	gpu->ended_bytes += slot->ledger.used_bytes;
	for (kind = 0; kind < CGPU_QUOTAS; kind++)
		gpu->ended_quota[kind] += slot->quota[kind];
	ckm_slot_less_locked(slot);
	spin_unlock(&gpu->lock);
	ckm_gpu_kick(gpu);
}

void ckm_slot_less_locked(struct ckm_slot *slot)
{
	u64 limit = slot->ledger.used_bytes;

	lockdep_assert_held(&slot->gpu->lock);
	if (!slot->removed)	/* no limit is less */
		limit = max_t(u64, limit, CGPU_MIB);
	if (!slot->ended || limit >= slot->ledger.limit_bytes)
		return;
	slot->gpu->limits_bytes -= slot->ledger.limit_bytes - limit;
	cgpu_ledger_set_limit(&slot->ledger, limit);
}

void ckm_slot_end(struct ckm_slot *slot)
{
	spin_lock(&slot->gpu->lock);
	slot->ended = true;
	ckm_slot_less_locked(slot);
	spin_unlock(&slot->gpu->lock);
}

void ckm_slot_channels_changed_locked(struct ckm_slot *slot)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;
	u64 now = ktime_get_ns();

	lockdep_assert_held(&gpu->lock);
	core = ckm_core_enter();
	core->sched.set_channels(gpu->sched, slot->sched_id, slot->channel_count,
				 slot->tsg_count, now);
	core->check.touched(gpu->check, gpu->sched, slot->sched_id, now);
	ckm_core_leave();
	ckm_gpu_kick(gpu);
}

void ckm_slot_limits(struct ckm_slot *slot, u64 *limit, u64 *used)
{
	spin_lock(&slot->gpu->lock);
	*limit = slot->ledger.limit_bytes;
	*used = slot->ledger.used_bytes;
	spin_unlock(&slot->gpu->lock);
}

/* A context is measured only while no other call on the GPU may take or give back memory. A tenant can make
 * such calls without end, so that no context is measured, its own or another's. Therefore the first contexts
 * of a container have the usual charge, and each later one UNMEASURED_MIB until one of any container is
 * measured. Not on Turing, where none is, nor where a context that was made alone took no memory.
 */
#define UNMEASURED_FREE	4u
#define UNMEASURED_MIB	128u	/* of the GPUs that tests/nvsim/profiles describes none takes more */

u64 ckm_slot_context_bytes(struct ckm_slot *slot, enum cgpu_engine engine)
{
	struct ckm_gpu *gpu = slot->gpu;
	u64 bytes = ckm_gpu_context_bytes(gpu, engine);
	bool unknown, over, first;

	spin_lock(&gpu->lock);
	unknown = gpu->arch >= NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_GA100 && !gpu->context_bytes[engine] && !gpu->context_is_free[engine];
	if (unknown && slot->unmeasured[engine] <= UNMEASURED_FREE)
		slot->unmeasured[engine]++;
	over = unknown && slot->unmeasured[engine] > UNMEASURED_FREE;
	first = over && !slot->unmeasured_said;
	slot->unmeasured_said |= over;
	spin_unlock(&gpu->lock);
	if (first)
		ckm_say(slot->ct, "no context of GPU %u could be measured, as other calls ran each time: each is charged %u MiB until one is\n",
			gpu->index, UNMEASURED_MIB);
	return over ? max_t(u64, bytes, (u64)UNMEASURED_MIB * CGPU_MIB) : bytes;
}
