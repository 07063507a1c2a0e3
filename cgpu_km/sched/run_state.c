// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the words of channels and what is read from them. Takes rm_lock, gpu->lock. */
#include <linux/io.h>
#include <linux/ktime.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/uaccess.h>

#include "core/nv_struct.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "sched/pccsr.h"
#include "sched/run_state.h"
#include "state/container.h"

/* Of a GPU and per reading. A tenant can make as many channels as its quota allows. */
#define RUN_WORDS_MAX	256

/* A freeze is complete when the driver acknowledged it, so a few context switches are
 * enough. Shorter than the shortest slice (5 ms): else no frozen slot is ever checked.
 */
#define SETTLED_NS	(3 * NSEC_PER_MSEC)

/* This many contradictions in a row, which are counted at most once per interval: 0.8 s.
 *
 * Frozen channels on the engine, and refused reads: the source is taken out of use. One reading in
 * between without a contradiction, of any slot, starts the count again: a tenant whose kernels resist
 * the freeze must not take the source from the others.
 *
 * Enabled channels that show to be disabled are counted for each slot, and only the slot is not
 * believed any more: a tenant can let its own channels show it, in any number of containers, by a fault
 * of each. If all slots show it, the source is given up, until there is one that did not.
 */
#define CONTRADICTIONS	8
#define COUNT_NS	(100 * NSEC_PER_MSEC)

/* After a word of all ones the GPU is left alone for so long: a read of a GPU that is off
 * the bus can take milliseconds.
 */
#define ABSENT_NS	(100 * NSEC_PER_MSEC)

static unsigned int run_state = 1;
module_param(run_state, uint, 0644);
MODULE_PARM_DESC(run_state, "1: read from the GPU which channels have work (default); 0: do not");

/* What one reading found, by slot. */
struct reading {
	u32 known, busy;
	u32 opened;
	u32 on_frozen, off_frozen;	/* frozen: a channel is on the engine; none is */
	u32 disabled, enabled;		/* thawed: no channel shows ENABLE; one does */
	u32 refused, readable;		/* a read was refused; all words were read */
	u32 words;			/* read so far */
	bool absent;			/* a word was all ones */
	u8 tsgs[CGPU_SLOTS];		/* of each, those with work */
};

/* ---- words ---- */

/* The register is an aligned kernel address that can be read; it is tried once, without a
 * fault, so that a layout of @info that differs from the expected one does no harm.
 */
static const void __iomem *chram_of(const void *info)
{
	const u32 *reg;
	u32 value;

	memcpy(&reg, info + AT(nv_uvm_channel, pChramChannelRegister), sizeof(reg));
	if (!IS_ALIGNED((unsigned long)reg, sizeof(*reg)) ||
	    copy_from_kernel_nofault(&value, reg, sizeof(value)))
		return NULL;
	return (const void __iomem *)reg;
}

static const void __iomem *register_of_locked(const struct ckm_gpu *gpu, const void *info)
{
	u32 channel;

	if (gpu->run.source != CGPU_RUN_PCCSR)
		return chram_of(info);
	memcpy(&channel, info + AT(nv_uvm_channel, chId), sizeof(channel));
	return ckm_pccsr_word(gpu->run.pccsr, channel);
}

/* Its thawed channels showed to be disabled so often, and none of them to be enabled since. What it
 * shows while it is frozen is not believed either.
 */
static bool is_distrusted(const struct ckm_run_state *run, u32 slot)
{
	return run->disabled[slot] >= CONTRADICTIONS;
}

bool ckm_run_word_add(struct ckm_run_word *word, struct ckm_container *ct,
		      struct cgpu_obj *channel, const void *info)
{
	struct ckm_slot *slot = ckm_container_slot_of(ct, channel->gpu);
	struct ckm_obj *obj = container_of(channel, struct ckm_obj, core);
	const void __iomem *reg;
	struct ckm_gpu *gpu;
	bool news = false;

	if (!slot || channel->kind != CGPU_KIND_CHANNEL)
		return false;
	gpu = slot->gpu;
	mutex_lock(&ct->rm_lock);
	spin_lock(&gpu->lock);
	/* A pinned channel may have been released with its client's file: it is on no list. */
	reg = register_of_locked(gpu, info);
	if (reg && channel->state != CGPU_OBJ_DETACHED && !list_empty(&obj->sched) && !obj->word) {
		word->reg = reg;
		word->gpu = gpu;
		word->obj = obj;
		obj->word = word;
		/* A process that starts again after a fault has new channels, which would never be
		 * read if the source was given up. The thread may sleep without an end then.
		 */
		news = !gpu->run.words++ || is_distrusted(&gpu->run, slot->sched_id);
		gpu->run.disabled[slot->sched_id] = 0;
	}
	spin_unlock(&gpu->lock);
	mutex_unlock(&ct->rm_lock);
	if (news)
		ckm_gpu_kick(gpu);
	return word->gpu;
}

void ckm_run_word_remove(struct ckm_run_word *word)
{
	struct ckm_gpu *gpu = word->gpu;

	if (!gpu)
		return;
	spin_lock(&gpu->lock);
	if (word->obj)
		word->obj->word = NULL;
	gpu->run.words--;
	spin_unlock(&gpu->lock);
	word->gpu = NULL;
}

/* ---- the source ---- */

void ckm_run_state_reset_locked(struct ckm_gpu *gpu)
{
	lockdep_assert_held(&gpu->lock);
	gpu->run.wrong = false;
	gpu->run.doubted = false;
	gpu->run.told = false;
	gpu->run.on_frozen = 0;
	memset(gpu->run.disabled, 0, sizeof(gpu->run.disabled));
	gpu->run.refused = 0;
}

void ckm_run_state_start(struct ckm_gpu *gpu)
{
	unsigned int domain, bus, slot, function;
	const void __iomem *pccsr;

	if (sscanf(gpu->desc.pci, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4)
		gpu->pdev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	pccsr = ckm_pccsr_map(gpu);
	spin_lock(&gpu->lock);
	gpu->run.pccsr = pccsr;
	gpu->run.source = pccsr ? CGPU_RUN_PCCSR : CGPU_RUN_CHRAM;
	ckm_run_state_reset_locked(gpu);
	spin_unlock(&gpu->lock);
}

void ckm_run_state_stop(struct ckm_gpu *gpu)
{
	const void __iomem *pccsr;
	struct pci_dev *pdev;

	/* Readers of the words hold gpu->lock, and read none without a source. */
	spin_lock(&gpu->lock);
	pdev = gpu->pdev;
	pccsr = gpu->run.pccsr;
	gpu->pdev = NULL;
	gpu->run.pccsr = NULL;
	gpu->run.source = CGPU_RUN_NONE;
	spin_unlock(&gpu->lock);
	if (pccsr)
		iounmap((void __iomem *)pccsr);
	pci_dev_put(pdev);
}

/* All that have the GPU open, two at least, are distrusted. That may be a fault of the source, or of
 * each of them; what the source shows of these is not used either way. So it is not kept: a container
 * that opens the GPU later, or again, must not lose the source by what its neighbours did before. If it
 * is the source that is wrong, what it shows of one container alone is not used anyway.
 */
static bool is_given_up_locked(const struct ckm_gpu *gpu)
{
	u32 i, opened = 0;

	lockdep_assert_held(&gpu->lock);
	for (i = 0; i < CGPU_SLOTS; i++) {
		if (!gpu->slot[i] || !gpu->slot[i]->channel_count)
			continue;
		if (!is_distrusted(&gpu->run, i))
			return false;
		opened++;
	}
	return opened > 1;
}

bool ckm_run_state_usable_locked(const struct ckm_gpu *gpu)
{
	lockdep_assert_held(&gpu->lock);
	return READ_ONCE(run_state) && gpu->run.source != CGPU_RUN_NONE && gpu->run.words &&
	       !gpu->run.wrong && !gpu->paused && !is_given_up_locked(gpu);
}

const char *ckm_run_state_source_locked(const struct ckm_gpu *gpu)
{
	static const char * const names[] = {
		[CGPU_RUN_NONE] = "none", [CGPU_RUN_CHRAM] = "chram", [CGPU_RUN_PCCSR] = "pccsr",
	};

	return names[ckm_run_state_usable_locked(gpu) ? gpu->run.source : CGPU_RUN_NONE];
}

/* ---- reading ---- */

static bool is_complete(const struct ckm_slot *slot)
{
	struct ckm_obj *obj;

	list_for_each_entry(obj, &slot->channels, sched)
		if (!obj->word)
			return false;
	return true;
}

/* Whether the owner enabled a group of channels, which then show ENABLE unless frozen. With
 * too many groups to look at: assume so.
 */
static bool has_enabled(const struct ckm_slot *slot)
{
	struct ckm_group *group;
	u32 seen = 0;

	list_for_each_entry(group, &slot->tsgs, sched)
		if (READ_ONCE(group->scheduled) || ++seen > RUN_WORDS_MAX)
			return true;
	return false;
}

/* A channel with work was found. One without a record of its TSG has one of its own. */
static void count_tsg(const struct ckm_slot *slot, struct ckm_group *group, struct reading *r)
{
	u8 *tsgs = &r->tsgs[slot->sched_id];

	if (group && group->counted == slot->gpu->run.reading)
		return;
	if (group)
		group->counted = slot->gpu->run.reading;
	*tsgs += *tsgs < U8_MAX;
}

/* Read all words of a slot: what any of them shows. False: a word is no state. */
static bool read_words(const struct cgpu_core_ops *core, const struct ckm_slot *slot,
		       struct reading *r, u32 *shown)
{
	struct ckm_obj *obj;
	u32 one;

	*shown = 0;
	list_for_each_entry(obj, &slot->channels, sched) {
		one = core->nv.run_word(slot->gpu->run.source, readl(obj->word->reg));
		r->words++;
		if (one & CGPU_WORD_ABSENT) {
			r->absent = true;
			return false;
		}
		if (one & CGPU_WORD_REFUSED) {
			r->refused |= BIT(slot->sched_id);
			return false;
		}
		*shown |= one;
		if (one & CGPU_WORD_BUSY)
			count_tsg(slot, obj->group, r);
	}
	r->readable |= BIT(slot->sched_id);
	return true;
}

/* True unless the words contradict the freeze or thaw that is in force for @slot. */
static bool agrees(const struct ckm_slot *slot, bool frozen, u32 shown, struct reading *r)
{
	u32 self = BIT(slot->sched_id);

	if (frozen && (shown & CGPU_WORD_ON_ENGINE)) {
		r->on_frozen |= self;
		return false;
	}
	if (frozen) {
		r->off_frozen |= self;
		return true;
	}
	if (shown & CGPU_WORD_ENABLED) {
		r->enabled |= self;
		return true;
	}
	if (!has_enabled(slot))
		return true;
	r->disabled |= self;
	return false;
}

static void read_slot(struct ckm_gpu *gpu, const struct cgpu_core_ops *core,
		      const struct ckm_slot *slot, u64 now, struct reading *r)
{
	u64 since = gpu->run.since_ns[slot->sched_id];
	u32 shown;

	if (!is_complete(slot))
		return;
	if (!read_words(core, slot, r, &shown)) {
		gpu->run.errors++;
		return;
	}
	if (since <= now && now - since >= SETTLED_NS &&
	    !agrees(slot, core->sched.is_frozen(gpu->sched, slot->sched_id), shown, r)) {
		gpu->run.errors++;
		return;
	}
	if (is_distrusted(&gpu->run, slot->sched_id) && !(r->enabled & BIT(slot->sched_id))) {
		gpu->run.errors++;
		return;
	}
	r->known |= BIT(slot->sched_id);
	if (shown & CGPU_WORD_BUSY)
		r->busy |= BIT(slot->sched_id);
}

/* Each slot has an equal part of the words. Slots with more channels get the rest, about the
 * smallest first: a container with many channels makes none with half as many unknown.
 */
static void read_slots(struct ckm_gpu *gpu, const struct cgpu_core_ops *core, u64 now,
		       struct reading *r)
{
	u32 least = 0, most, i, count;

	for (i = 0; i < CGPU_SLOTS; i++)
		if (gpu->slot[i] && gpu->slot[i]->channel_count)
			r->opened |= BIT(i);
	if (!r->opened)
		return;
	for (most = RUN_WORDS_MAX / hweight32(r->opened); least < RUN_WORDS_MAX; least = most, most *= 2)
		for (i = 0; i < CGPU_SLOTS && !r->absent; i++) {
			count = gpu->slot[i] ? gpu->slot[i]->channel_count : 0;
			if (count > least && count <= most && count <= RUN_WORDS_MAX - r->words)
				read_slot(gpu, core, gpu->slot[i], now, r);
		}
}

/* ---- trust ---- */

/* Count @bad, unless the same reading has a @good one. True: that was one too many. */
static bool contradicted(u8 *counter, u32 bad, u32 good)
{
	if (good)
		*counter = 0;
	else if (bad)
		++*counter;
	return *counter >= CONTRADICTIONS;
}

/* Count, for each slot, that its enabled channels show to be disabled. What another slot shows says
 * nothing of it.
 */
static void count_disabled(struct ckm_run_state *run, const struct reading *r, u32 disabled)
{
	u32 i;

	for (i = 0; i < CGPU_SLOTS; i++) {
		if (r->enabled & BIT(i))
			run->disabled[i] = 0;
		else if ((disabled & BIT(i)) && run->disabled[i] < CONTRADICTIONS)
			run->disabled[i]++;
	}
}

/* Tenants can make all slots disabled again and again: until a policy is set the log has one line of it. */
static void give_up_locked(struct ckm_gpu *gpu, const char *why)
{
	struct ckm_run_state *run = &gpu->run;

	lockdep_assert_held(&gpu->lock);
	if (run->wrong || !run->told)
		pr_warn("GPU %u: the run state of channels is not used: %s\n", gpu->index, why);
	run->told = true;
	ckm_gpu_kick(gpu);
}

static void check(struct ckm_gpu *gpu, const struct reading *r, u64 now)
{
	struct ckm_run_state *run = &gpu->run;
	bool counts = now - run->counted_ns >= COUNT_NS;
	const char *why = NULL;

	/* What agrees counts at once, what contradicts once per interval. */
	if (counts)
		run->counted_ns = now;
	if (contradicted(&run->on_frozen, counts ? r->on_frozen : 0, r->off_frozen))
		why = "frozen channels show to be on the engine";
	if (contradicted(&run->refused, counts ? r->refused : 0, r->readable))
		why = "reads are refused";
	run->wrong = why;
	count_disabled(run, r, counts ? r->disabled : 0);
	if (r->enabled)
		run->doubted = false;
	if (!why && is_given_up_locked(gpu)) {
		run->doubted = true;
		why = "enabled channels show to be disabled";
	}
	if (why)
		give_up_locked(gpu, why);
}

void ckm_run_state_read_locked(struct ckm_gpu *gpu, const struct cgpu_core_ops *core,
			       u32 *known, u32 *busy, u8 *tsgs)
{
	struct reading r = {};
	u64 now = ktime_get_ns();

	lockdep_assert_held(&gpu->lock);
	*known = 0;
	*busy = 0;
	if (!ckm_run_state_usable_locked(gpu) || !ckm_gpu_is_awake(gpu))
		return;
	if (now < gpu->run.absent_until_ns)
		return;
	gpu->run.reading++;
	read_slots(gpu, core, now, &r);
	if (r.absent) {
		gpu->run.absent_until_ns = now + ABSENT_NS;
		return;
	}
	check(gpu, &r, now);
	/* After the source was given up, one slot has to show that it tells enabled channels: words that
	 * are all zeros would make a new container seem idle while it is frozen.
	 */
	if (!ckm_run_state_usable_locked(gpu) || gpu->run.doubted)
		return;
	*known = r.known;
	*busy = r.busy;
	if (tsgs)
		memcpy(tsgs, r.tsgs, sizeof(r.tsgs));
}

void ckm_run_state_moving_locked(struct ckm_gpu *gpu, u32 mask)
{
	lockdep_assert_held(&gpu->lock);
	for (; mask; mask &= mask - 1)
		gpu->run.since_ns[__ffs(mask)] = U64_MAX;
}

void ckm_run_state_moved_locked(struct ckm_gpu *gpu, u32 done, u64 now_ns)
{
	lockdep_assert_held(&gpu->lock);
	for (; done; done &= done - 1)
		gpu->run.since_ns[__ffs(done)] = now_ns;
}
