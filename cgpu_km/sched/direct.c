// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns what the words of channels are set to. Takes gpu->lock. */
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>

#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "sched/direct.h"
#include "sched/pccsr.h"
#include "sched/run_state.h"
#include "state/container.h"

static bool direct_freeze;
module_param(direct_freeze, bool, 0644);
MODULE_PARM_DESC(direct_freeze, "experimental, ignored but on the simulated driver: freeze channels by their registers (default: off)");

/* Channels of a slot, each of which is a read and a write under gpu->lock. */
#define CHANNELS_MAX	256

/* How long the words may take to show the effect, and the interval of readings until then. A
 * kernel that resists preemption takes longer: the driver's call waits for that as ever.
 */
#define EFFECT_NS	NSEC_PER_MSEC
#define LOOK_US		10

/* Freezes in a row after which channels stayed enabled: registers that do not act. */
#define FAILURES	8

/* A register of a simulated GPU is ordinary memory; one of a real GPU is a mapping of a BAR. */
static bool is_simulated(const void __iomem *reg)
{
	return reg && virt_addr_valid((__force const void *)reg);
}

static void stop_using_locked(struct ckm_gpu *gpu, const char *why)
{
	gpu->run.direct_off = true;
	pr_warn("GPU %u: direct_freeze is ignored: %s\n", gpu->index, why);
}

static bool is_allowed_locked(struct ckm_gpu *gpu)
{
	if (!READ_ONCE(direct_freeze) || gpu->run.direct_off)
		return false;
	if (!ckm_driver_is_simulated()) {
		stop_using_locked(gpu, "it is an experiment for the simulated driver only");
		return false;
	}
	return is_simulated(gpu->run.runlist) && gpu->run.source == CGPU_RUN_CHRAM &&
	       ckm_run_state_usable_locked(gpu) && ckm_gpu_is_awake(gpu);
}

/* What the word of a channel shows; REFUSED also without a word that may be written. */
static u32 shown_locked(const struct ckm_gpu *gpu, const struct cgpu_core_ops *core,
			const struct ckm_obj *obj)
{
	if (!obj->word || !is_simulated(obj->word->reg))
		return CGPU_WORD_REFUSED;
	return core->nv.run_word(gpu->run.source, readl(obj->word->reg));
}

static void write_locked(const struct ckm_obj *obj, u32 value)
{
	writel(value, (void __iomem *)obj->word->reg);
}

/* Disable the slot's channels that show ENABLE. False: one of them shows no state; nothing was
 * written.
 */
static bool disable_locked(struct ckm_gpu *gpu, const struct cgpu_core_ops *core,
			   struct ckm_slot *slot)
{
	struct ckm_obj *obj;

	if (slot->channel_count > CHANNELS_MAX)
		return false;
	list_for_each_entry(obj, &slot->channels, sched)
		if (shown_locked(gpu, core, obj) & (CGPU_WORD_ABSENT | CGPU_WORD_REFUSED))
			return false;
	list_for_each_entry(obj, &slot->channels, sched)
		if (shown_locked(gpu, core, obj) & CGPU_WORD_ENABLED) {
			write_locked(obj, NV_CHRAM_UPDATE_DISABLE);
			obj->disabled = true;
		}
	writel(NV_RUNLIST_PREEMPT_RUNLIST, gpu->run.runlist + NV_RUNLIST_PREEMPT);
	return true;
}

/* What is not yet as wanted of the channels that were disabled here, CGPU_WORD_*; 0: nothing. */
static u32 missing_locked(const struct ckm_gpu *gpu, const struct ckm_slot *slot, bool freeze)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	struct ckm_obj *obj;
	u32 missing = 0, shown;

	if (!core)
		return CGPU_WORD_REFUSED;
	list_for_each_entry(obj, &slot->channels, sched) {
		if (!obj->disabled)
			continue;
		shown = shown_locked(gpu, core, obj);
		missing |= shown & (CGPU_WORD_ABSENT | CGPU_WORD_REFUSED);
		missing |= freeze ? shown & (CGPU_WORD_ENABLED | CGPU_WORD_ON_ENGINE) :
				    ~shown & CGPU_WORD_ENABLED;
	}
	ckm_core_leave();
	return missing;
}

/* Wait until the words show the effect. Returns what is missing at last. */
static u32 wait_for_effect(struct ckm_gpu *gpu, u32 sched_id, bool freeze)
{
	u64 end = ktime_get_ns() + EFFECT_NS;
	const struct ckm_slot *slot;
	bool late;
	u32 missing;

	do {
		usleep_range(LOOK_US, 2 * LOOK_US);
		late = ktime_get_ns() > end;
		mutex_lock(&gpu->lock);
		slot = gpu->slot[sched_id];
		missing = slot ? missing_locked(gpu, slot, freeze) : 0;
		mutex_unlock(&gpu->lock);
	} while (missing && !late);
	return missing;
}

bool ckm_direct_freeze(struct ckm_gpu *gpu, u32 sched_id)
{
	const struct cgpu_core_ops *core;
	struct ckm_slot *slot;
	bool begun = false;
	u32 missing;

	lockdep_assert_held(&gpu->ctrl_lock);
	if (!READ_ONCE(direct_freeze))
		return false;
	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	core = ckm_core_enter();
	if (core) {
		begun = slot && !slot->frozen_by_call && is_allowed_locked(gpu) &&
			disable_locked(gpu, core, slot);
		ckm_core_leave();
	}
	if (begun)
		slot->frozen_by_word = true;
	mutex_unlock(&gpu->lock);
	if (!begun)
		return false;
	missing = wait_for_effect(gpu, sched_id, true);
	mutex_lock(&gpu->lock);
	if (!(missing & CGPU_WORD_ENABLED))
		gpu->run.direct_failed = 0;
	else if (++gpu->run.direct_failed == FAILURES)
		stop_using_locked(gpu, "channels stay enabled");
	mutex_unlock(&gpu->lock);
	return !missing;
}

/* Enable what was disabled here. False: the driver has to be called for a channel, because it
 * lost its word since.
 */
static bool enable_locked(struct ckm_slot *slot)
{
	struct ckm_obj *obj;
	bool all = true;

	list_for_each_entry(obj, &slot->channels, sched) {
		if (!obj->disabled)
			continue;
		if (obj->word)
			write_locked(obj, NV_CHRAM_UPDATE_ENABLE);
		else
			all = false;
	}
	return all;
}

static void forget_locked(struct ckm_slot *slot)
{
	struct ckm_obj *obj;

	list_for_each_entry(obj, &slot->channels, sched)
		obj->disabled = false;
	slot->frozen_by_word = false;
}

bool ckm_direct_thaw(struct ckm_gpu *gpu, u32 sched_id)
{
	struct ckm_slot *slot;
	bool all;

	lockdep_assert_held(&gpu->ctrl_lock);
	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	all = slot && slot->frozen_by_word && enable_locked(slot) && !slot->frozen_by_call;
	mutex_unlock(&gpu->lock);
	if (all)
		all = !wait_for_effect(gpu, sched_id, false);
	mutex_lock(&gpu->lock);
	slot = gpu->slot[sched_id];
	if (slot && slot->frozen_by_word)
		forget_locked(slot);
	mutex_unlock(&gpu->lock);
	return all;
}
