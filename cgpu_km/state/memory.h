/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Charges of a slot: video memory and ids; and of a container: system memory. Sizes are bytes. */
#ifndef CKM_MEMORY_H
#define CKM_MEMORY_H

#include <linux/build_bug.h>
#include <linux/list.h>
#include <linux/types.h>

#include "pure/mem_quota.h"
#include "pure/mem_tree.h"
#include "state/mem_kind.h"

struct ckm_container;
struct ckm_slot;
struct pid;

/* One charge of one slot: video memory, the reserve of a context, the id of a channel or
 * channel group (0 bytes), or a session of a video engine; or system memory of the container
 * (0 bytes of the slot's).
 */
struct ckm_mem {
	struct cgpu_mem core;		/* ct->rm_lock */
	struct list_head node;		/* on slot->mems */
	u8 ids[CGPU_QUOTAS];		/* ct->rm_lock; returned together with the memory */
	u8 kind;			/* enum ckm_mem_kind; set before the record is on the list */
	u64 host_bytes;			/* ct->rm_lock; system memory, of ct->host_used */
	struct cgpu_mem *under;		/* ct->rm_lock; reference of a channel to its group's */
	struct pid *opener;		/* a reference; process that made the charge, alive or not */
};
static_assert(sizeof(struct ckm_mem) <= 72);	/* docs/develop/bounds.md */

/* Take a reference to a record; NULL: NULL. Caller holds rm_lock. */
struct cgpu_mem *ckm_mem_get_locked(struct ckm_container *ct, struct cgpu_mem *mem);
/* Drop a reference to a record, NULL: no-op. The last one uncharges it, frees it and drops
 * its reference to @under. Caller holds rm_lock.
 */
void ckm_mem_put_locked(struct ckm_container *ct, struct cgpu_mem *mem);

/**
 * ckm_mem_charge_locked() - charge @bytes to a slot
 * @slot: charged
 * @kind: shown for it
 * @bytes: 0 is allowed
 *
 * Caller holds rm_lock; takes gpu->lock.
 *
 * Return: a record with one reference. ERR_PTR(-ENOMEM): over the limit, which is
 * counted and sent as an event, or no memory for the record.
 */
struct cgpu_mem *ckm_mem_charge_locked(struct ckm_slot *slot, enum ckm_mem_kind kind, u64 bytes);
/* The same for system memory that the driver allocates, which is in no memory cgroup. @slot: that
 * of the parent, which keeps the record. Over the limit is counted and logged.
 */
struct cgpu_mem *ckm_mem_charge_host_locked(struct ckm_slot *slot, u64 bytes);
/* The driver has no video memory for what @mem was charged for, inside the slot's limit: log what each container on the
 * card holds, and send an event. Sleeps; takes gpu->lock.
 */
void ckm_mem_no_room(struct ckm_slot *slot, const struct cgpu_mem *mem);
/* The container's last reference is gone, and with its clients all that the driver may have kept of an allocation that
 * was refused: give those charges back. There are no others. Sleeps; takes rm_lock, gpu->lock.
 */
void ckm_slot_mems_end(struct ckm_slot *slot);
/* Correct such a charge to @bytes, never upwards. Caller holds rm_lock. */
void ckm_mem_correct_host_locked(struct ckm_container *ct, struct cgpu_mem *mem, u64 bytes);
/* Bytes of system memory that @mem is charged for. Caller holds rm_lock. */
u64 ckm_mem_host_bytes_locked(const struct cgpu_mem *mem);
/* Charge system memory without a record, which the caller uncharges. 0; -ENOMEM over the limit,
 * which is counted and logged. Callers hold rm_lock.
 */
int ckm_host_charge_locked(struct ckm_container *ct, u64 bytes);
/* Of system memory for each object and mapping that a container has beyond so many. */
#define CKM_HOST_OBJECT_BYTES	4096ull
#define CKM_HOST_OBJECTS_FREE	4096ull

/* Whether one more object or mapping is within the limit of system memory; if not, that is counted and logged. */
bool ckm_host_has_room_locked(struct ckm_container *ct);
/* Bytes of system memory in use, with what RM takes for the objects and mappings there are. No lock. */
u64 ckm_host_used(const struct ckm_container *ct);
void ckm_host_uncharge_locked(struct ckm_container *ct, u64 bytes);

/* Number of the process that made the charge, in the initial namespace; it may have ended. 0: the
 * number is another's by now. Caller holds rm_lock.
 */
u32 ckm_mem_pid_locked(const struct ckm_mem *mem);

/* Take one id for @mem; it is returned with the last reference to @mem. 0, or -ENOSPC: the
 * slot's quota is used up. Caller holds rm_lock; takes gpu->lock.
 */
int ckm_mem_take_id_locked(struct ckm_slot *slot, struct cgpu_mem *mem, enum cgpu_quota_kind kind);
/* Give @mem a reference to @under, dropped when @mem is freed. Caller holds rm_lock. */
void ckm_mem_keep_locked(struct cgpu_mem *mem, struct cgpu_mem *under);
/* Correct the charge of @mem to @bytes, the size that the driver really took. 0; -ENOMEM:
 * over the limit, the charge is unchanged. Caller holds rm_lock; takes gpu->lock.
 */
int ckm_mem_correct_locked(struct ckm_slot *slot, struct cgpu_mem *mem, u64 bytes);
/* Add @more to, or subtract @less from, the estimate of what the driver keeps in video
 * memory for the slot's objects in addition to their own size. Only the part above an
 * allowance is charged (pure/mem_estimate.c). 0; -ENOMEM: over the limit, nothing
 * changed. Callers hold rm_lock; takes gpu->lock.
 */
int ckm_slot_overhead_locked(struct ckm_slot *slot, u64 more);
void ckm_slot_overhead_less_locked(struct ckm_slot *slot, u64 less);
/* The same for one object; releasing the object subtracts its part. -EINVAL: the object
 * was released already.
 */
int ckm_obj_overhead_locked(struct ckm_container *ct, struct cgpu_obj *obj, u64 more);
void ckm_obj_overhead_less_locked(struct ckm_container *ct, struct cgpu_obj *obj, u64 less);

/* Bytes that the driver allocated for a memory object; 0: the driver does not report them.
 * An RM call, so the caller holds no lock.
 */
u64 ckm_real_bytes(u32 client, u32 memory);
/* Bytes of a pinned memory object, at least; and an estimate in bytes of the page tables for one mapping of it. Both may
 * be an RM call, so the caller holds no lock. Take rm_lock.
 */
u64 ckm_bytes_of(struct ckm_container *ct, struct cgpu_obj *memory);
u64 ckm_page_tables_of(struct ckm_container *ct, struct cgpu_obj *memory);

#endif
