/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Resources of which a GPU has a fixed amount and the driver allocates without a limit:
 * ids of channels and of channel groups, BAR1, sessions of video engines. pure/mem_quota.c
 * divides them among the containers.
 */
#ifndef CKM_QUOTA_H
#define CKM_QUOTA_H

#include "pure/mem_quota.h"

struct ckm_gpu;
struct ckm_slot;

/* Set the totals of @gpu; those of ids are read from the driver. False: no memory, nothing is
 * set. @gpu is attached. Sleeps; takes gpu->lock.
 */
bool ckm_quota_learn(struct ckm_gpu *gpu, u64 bar1_bytes);

/* False: the administrator allows none of @kind. No lock. */
bool ckm_quota_has(enum cgpu_quota_kind kind);
/* The name of @kind in N/C/stat. */
const char *ckm_quota_name(enum cgpu_quota_kind kind);

/* Take @amount (ids, sessions, or bytes of BAR1). 0; -ENOSPC: more than the slot may have, which is
 * counted, logged with the container that has the most, and an event. ckm_quota_give() returns it.
 * Both sleep and take gpu->lock.
 */
int ckm_quota_take(struct ckm_slot *slot, enum cgpu_quota_kind kind, u64 amount);
void ckm_quota_give(struct ckm_slot *slot, enum cgpu_quota_kind kind, u64 amount);

/* Returns the amount that the slot has; @view: what it may still take. Takes gpu->lock. */
u64 ckm_quota_view(struct ckm_slot *slot, enum cgpu_quota_kind kind,
		   struct cgpu_quota_view *view);

#endif
