/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* One thread per GPU: asks the turn engine, pulls the levers, tells it when
 * each took effect.
 */
#ifndef CKM_TURN_THREAD_H
#define CKM_TURN_THREAD_H

#include <linux/types.h>

struct ckm_gpu;
struct ckm_slot;

int ckm_turn_thread_start(struct ckm_gpu *gpu);
void ckm_turn_thread_stop(struct ckm_gpu *gpu);	/* no-op if it does not run */

/* A channel of @slot, or those of a TSG (@object is its handle), are about to be
 * schedulable or became it: if the slot is out of turn, freeze them now. Called in the
 * tenant's own call, before it gets the answer.
 */
void ckm_turn_catch_up(struct ckm_slot *slot, u32 client, u32 object);

/* Whether it is out of turn; under gpu->lever_lock it stays what it is. */
bool ckm_turn_is_frozen(struct ckm_slot *slot);

#endif
