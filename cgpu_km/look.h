/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Looks whether the share moves: once a second, while containers have the GPU
 * open under a policy that uses a lever, the driver is asked who was on the
 * engine, and the core decides what that says (core/look.h).
 */
#ifndef CKM_LOOK_H
#define CKM_LOOK_H

#include <linux/types.h>

struct ckm_gpu;
struct ckm_slot;

/* Whether somebody looks, for `lever_look`. */
enum ckm_look_state {
	CKM_LOOK_IDLE,		/* nothing to look at */
	CKM_LOOK_WATCHING,
	CKM_LOOK_HOLDING,	/* containers are frozen out of turn, for a second */
	CKM_LOOK_BLIND,		/* the driver does not tell, or by a clock that is not known */
};

/* Storage, for as long as the GPU is known. -ENOMEM. */
int ckm_look_alloc(struct ckm_gpu *gpu);
void ckm_look_free(struct ckm_gpu *gpu);

/* Begin anew after attach; stop before our client goes. */
void ckm_look_start(struct ckm_gpu *gpu);
void ckm_look_stop(struct ckm_gpu *gpu);

/* Something may be to look at from now on. Any context. */
void ckm_look_wake(struct ckm_gpu *gpu);

#endif
