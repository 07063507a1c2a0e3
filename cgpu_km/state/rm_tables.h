/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Page tables that the driver keeps in an address space when nothing uses them.
 *
 * The driver sets tables aside for a range of addresses or a mapping before it checks the rest of the call. If it then
 * refuses, they stay in the pool of the address space, which the next call takes from: as much as the largest call
 * needed. Of the tables of a range that is freed, those for pages of 64 KiB stay. Both go with the last handle of the
 * address space (tests/rm/test_page_tables.py), and so do their charges, which the functions here move to its record. A
 * device's default address space has its tables in the driver's own heap, and keeps none of the container's.
 */
#ifndef CKM_RM_TABLES_H
#define CKM_RM_TABLES_H

#include <linux/build_bug.h>
#include <linux/kref.h>
#include <linux/types.h>

struct cgpu_obj;

/* An address space of a container, by all its handles. */
struct ckm_space {
	struct kref ref;	/* of its handles, and of the ranges in it */
	u32 handles;		/* ct->rm_lock; LIVE ones */
	u32 gpu;		/* ct->rm_lock; on which it is charged; set with the first handle */
	u64 now;		/* ct->rm_lock; bytes of tables for pages of 64 KiB, of all its ranges */
	u64 most;		/* ct->rm_lock; the highest @now so far */
	u64 freed;		/* ct->rm_lock; charged, the part of @most whose ranges are gone */
	u64 refused;		/* ct->rm_lock; charged, of the largest call that the driver refused */
};

static_assert(sizeof(struct ckm_space) <= 48);

/* One reference; NULL: no memory. The put takes NULL, too. */
struct ckm_space *ckm_space_alloc(void);
void ckm_space_get(struct ckm_space *space);
void ckm_space_put(struct ckm_space *space);

/* In the following @obj is a handle of the address space, or a range in it with @tables bytes. Callers hold rm_lock. */

/* @obj is LIVE from here on. False: there is no record, and ckm_space_gone_locked() is not called. */
bool ckm_space_live_locked(struct ckm_space *space, const struct cgpu_obj *obj, u64 tables);

/* @obj goes: move from the overhead of a range to its space what the driver keeps. Returns what the last handle uncharges
 * on the slot of its GPU.
 */
u64 ckm_space_gone_locked(struct ckm_space *space, struct cgpu_obj *obj, u64 tables);

/* The driver ran a call with @tables bytes for @obj and refused it. Returns the part of them that is on the address space,
 * if there is a record, from here on: the caller's own charge on the same GPU is less by that.
 */
u64 ckm_space_refused_locked(struct ckm_space *space, const struct cgpu_obj *obj, u64 tables);

#endif
