/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The effect check (`check` in names): do freezes and timeslices change the GPU time that
 * containers get? Once a second, while containers have the GPU open under a policy that
 * uses a control, it reads the driver's utilisation samples, which name the process on the
 * engine, and passes them to the core for evaluation (core/sched_check.h).
 */
#ifndef CKM_EFFECT_CHECK_H
#define CKM_EFFECT_CHECK_H

struct ckm_gpu;

/* Allocate and free its memory and work item, for the lifetime of @gpu. 0 or -ENOMEM. */
int ckm_check_alloc(struct ckm_gpu *gpu);
void ckm_check_free(struct ckm_gpu *gpu);

/* Reset it after attach; stop it and end a hold before this module's RM client is freed.
 * Both sleep and take gpu->lock; stop waits for the work item.
 */
void ckm_check_start(struct ckm_gpu *gpu);
void ckm_check_stop(struct ckm_gpu *gpu);

#endif
