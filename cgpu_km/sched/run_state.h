/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The run state: does a container's channel have work? The GPU keeps a word of state for each
 * channel. When a process registers the channel, the driver returns to nvidia-uvm the address of
 * the word (channel RAM, from Ampere on) and the channel's number, by which a Turing GPU has it
 * (sched/pccsr.h). This module keeps the address while nvidia-uvm retains the channel. Words are
 * only read.
 *
 * gpu->lock guards a word from its addition to its removal, so no word is read after the
 * driver was called to release its channel.
 */
#ifndef CKM_RUN_STATE_H
#define CKM_RUN_STATE_H

#include "core/core_ops.h"
#include "state/gpu.h"
#include "state/rm_object.h"

struct ckm_container;

/* Find the GPU's PCI device and registers, and trust the source. After gpu->arch is known; sleeps,
 * takes gpu->lock. Stop undoes it, before the GPU is closed.
 */
void ckm_run_state_start(struct ckm_gpu *gpu);
void ckm_run_state_stop(struct ckm_gpu *gpu);

/**
 * ckm_run_word_add() - keep the word of a channel that the driver retained
 * @word: zeros; in a record that lives until ckm_run_word_remove()
 * @ct: container of the channel
 * @channel: pinned by the caller
 * @info: the driver's UvmGpuChannelInstanceInfo of it, filled
 *
 * The word is not kept if the channel is not one that is scheduled, if it has a word, or if
 * there is no address of it or one that cannot be read. The channel's slot then stays in
 * an unknown state. Sleeps; takes rm_lock, gpu->lock.
 *
 * Return: true if it is kept.
 */
bool ckm_run_word_add(struct ckm_run_word *word, struct ckm_container *ct,
		      struct cgpu_obj *channel, const void *info);

/* To be called before the driver releases the channel; no-op for a word that is not kept.
 * Sleeps; takes gpu->lock.
 */
void ckm_run_word_remove(struct ckm_run_word *word);

/**
 * ckm_run_state_read_locked() - read the words of all slots
 * @gpu: any GPU
 * @core: the active core, entered under gpu->lock
 * @known: set to the slots of which every channel on its list has a word that can be
 *	trusted; 0 while the source is not used
 * @busy: set to those of @known with work
 * @tsgs: of each slot, how many of its TSGs have work, to 255; set only if @known is not 0.
 *	NULL: not wanted
 *
 * Reads at most RUN_WORDS_MAX words; a read of a GPU's register takes about a microsecond.
 * Also checks the words against the freezes and thaws in force. Caller holds gpu->lock.
 */
void ckm_run_state_read_locked(struct ckm_gpu *gpu, const struct cgpu_core_ops *core,
			       u32 *known, u32 *busy, u8 *tsgs);

/* True if a reading can be used: words exist, the parameter run_state is set, and the
 * source was not found wrong. Caller holds gpu->lock.
 */
bool ckm_run_state_usable_locked(const struct ckm_gpu *gpu);
/* The source in use, by its name in `stat`. Caller holds gpu->lock. */
const char *ckm_run_state_source_locked(const struct ckm_gpu *gpu);

/* Slots of @mask are about to be frozen or thawed; @done: these are, since @now_ns
 * (monotonic). A word is compared only with a freeze or thaw that is complete. Caller
 * holds gpu->lock.
 */
void ckm_run_state_moving_locked(struct ckm_gpu *gpu, u32 mask);
void ckm_run_state_moved_locked(struct ckm_gpu *gpu, u32 done, u64 now_ns);

/* Trust the source again: when a policy is set. Caller holds gpu->lock. */
void ckm_run_state_reset_locked(struct ckm_gpu *gpu);

#endif
