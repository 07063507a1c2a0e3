/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Experimental: a freeze or thaw by the registers of the channels, in place of a call of the
 * driver. Only with the module parameter direct_freeze, and only on the simulated driver: on a real
 * GPU the firmware owns the runlists, and what it makes of a channel that was disabled behind it is
 * not known. This is the only file that writes registers.
 *
 * Callers hold gpu->ctrl_lock. Both functions sleep and take gpu->lock.
 */
#ifndef CKM_DIRECT_H
#define CKM_DIRECT_H

#include "state/gpu.h"

/* Disable all graphics/compute channels of the slot by their words, preempt the runlist, and wait
 * until the words show the effect. False: not allowed, not possible or without effect; the driver
 * has to be called, which freezes what was disabled as well.
 */
bool ckm_direct_freeze(struct ckm_gpu *gpu, u32 sched_id);

/* Enable again what ckm_direct_freeze() disabled, whatever the parameter is by now. False: the
 * driver has to be called, because it froze channels of the slot too or no effect was seen.
 */
bool ckm_direct_thaw(struct ckm_gpu *gpu, u32 sched_id);

#endif
