/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Containers and their slots.
 *
 * Lock order, outermost first:
 *   ckm_lock         the list of containers and GPUs, attach and detach
 *   gpu->news.lock   telling of events, in order (events.h); tell_lock in netlink.c
 *   ct->rm_lock      the container's object tree
 *   slot->enable_lock  which call of a container may wait for lever_lock
 *   gpu->lever_lock  calls that freeze, thaw or set timeslices
 *   gpu->lock        turn state, ledgers, channel lists of one GPU
 *   core section     (core_link.h)
 * None is held across a copy to or from user memory; only enable_lock, lever_lock
 * and ckm_lock are held across calls into the driver.
 */
#ifndef CKM_CONTAINER_H
#define CKM_CONTAINER_H

#include <linux/hashtable.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "core/core_ops.h"
#include "events.h"
#include "uapi.h"

struct ckm_back;
struct ckm_gpu;
struct ckm_proc_dir;

extern struct mutex ckm_lock;
extern struct list_head ckm_containers;	/* ckm_lock */

/* A tenant's object; on its slot's channel or TSG list when it is scheduled
 * on a graphics/compute engine.
 */
struct ckm_obj {
	struct cgpu_obj core;		/* ct->rm_lock */
	struct rcu_head rcu;		/* ckm_tenant_owns() looks without a lock */
	struct list_head sched;		/* gpu->lock; empty: on no list */
	struct list_head bound;		/* ct->rm_lock; clients: on their file's list */
	u64 seq;			/* gpu->lock; lists are in this order */
	u64 tables;			/* address ranges: page tables that came with it; set before it is LIVE */
	struct list_head dma_maps;	/* ct->rm_lock; memory: ckm_dma_map.of */
	bool parted;			/* ct->rm_lock; address spaces: a part of a mapping was unmapped */
	u32 htsg;			/* channels: handle of their TSG */
	u32 changes;			/* ct->rm_lock; TSGs, and channels without: of what is enabled in it */
	u32 enabled_at;			/* ct->rm_lock; changes + 1 when its owner enabled it, 0: not yet */
	bool no_restart;		/* gpu->lock; the driver would not restart the runlist on it */
	u32 pid;			/* clients, scheduled ones: tgid by which the driver calls the client */
};

/* A MAP_MEMORY_DMA and what it was charged for page tables, as part of its
 * memory's overhead. The driver finds a mapping by its address space, device and
 * address, whatever memory the unmapping names: so do we.
 */
struct ckm_dma_map {
	struct hlist_node node;		/* ct->rm_lock; on ct->dma_maps */
	struct list_head of;		/* ct->rm_lock; on its memory's dma_maps */
	struct ckm_obj *memory;		/* goes with it */
	u32 hclient, hdevice, hdma;
	u64 at;				/* as the driver said it */
	u64 tables;
};

/* Video memory, or a context's reserve, of one slot. */
struct ckm_mem {
	struct cgpu_mem core;		/* ct->rm_lock */
	struct list_head node;		/* on slot->mems */
};

struct ckm_slot {
	struct ckm_container *ct;
	struct ckm_gpu *gpu;
	u32 turn_slot;
	u32 minor;			/* of our node for this GPU */
	u32 granted_weight;		/* at creation, for the reply */
	struct cgpu_ledger ledger;	/* gpu->lock */
	struct list_head channels;	/* gpu->lock; ckm_obj.sched, GR engines only */
	struct list_head tsgs;		/* gpu->lock; the same */
	u32 channel_count, tsg_count;	/* gpu->lock */
	struct mutex enable_lock;	/* held by the one call that waits for lever_lock */
	struct list_head mems;		/* ct->rm_lock; ckm_mem.node */
	u64 overhead;			/* ct->rm_lock; estimate of all its objects and mappings */
	struct cgpu_mem *overhead_mem;	/* ct->rm_lock; what of it is charged, or NULL */
	atomic64_t refused_calls;
	struct ckm_slot_news news;	/* gpu->lock */
	struct ckm_proc_dir *proc;
};

struct ckm_container {
	struct kref ref;		/* the list's until destroy, each back's, each uvm dup's */
	struct list_head node;		/* ckm_lock */
	char id[CGPU_ID_MAX + 1];
	char dir[CGPU_DIR_LEN + 1];
	char ipc[CGPU_ID_MAX + 1];	/* ipc_lock of container.c; "": shares with none */
	u64 cookie;
	u64 serial;			/* rises along the list: where a dump goes on */
	u32 ctl_minor, uvm_minor;
	bool dying;			/* ckm_lock for writing; read anywhere */
	struct mutex rm_lock;		/* tree, memory records */
	struct cgpu_tree tree;
	DECLARE_HASHTABLE(dma_maps, 9);	/* rm_lock; ckm_dma_map.node, by address */
	struct list_head managed;	/* rm_lock; what is charged of managed memory (managed.c) */
	atomic_t recounts;		/* of it, under way */
	wait_queue_head_t recounted;
	atomic_t handles;		/* the next of those we choose (rm_export.c) */
	struct work_struct gone;	/* after the last reference */
	u32 slot_count;
	struct ckm_slot slot[];
};

struct ckm_slot_request {
	u32 gpu;
	u32 weight;
	u64 limit_bytes;		/* 0: default_memsize */
	u32 highprio;
};

struct ckm_create {
	const char *id;
	u64 cookie;			/* 0: chosen */
	u32 slots;
	struct ckm_slot_request slot[CGPU_MAX_GPUS];
};

/* Error codes: -EINVAL bad id, GPU listed twice, limit 0; -EEXIST id there;
 * -ENODEV no such GPU or no driver; -ENOSPC no instance, weight or memory
 * left; -EOPNOTSUPP driver not supported. @why says it in words. Nothing is
 * changed by a failure. The container stays valid until ckm_lock is dropped.
 * Caller holds ckm_lock.
 */
struct ckm_container *ckm_container_create(const struct ckm_create *req, const char **why);

/* Nodes go, its slots wait for the last file and mapping. -ENOENT if there is
 * no such id, or its cookie is another (0 matches any). Caller holds ckm_lock.
 */
int ckm_container_destroy(const char *id, u64 cookie);
struct ckm_container *ckm_container_find(const char *id);

void ckm_container_get(struct ckm_container *ct);
void ckm_container_put(struct ckm_container *ct);

/* Work that holds a reference to a container. False if it is queued already. */
bool ckm_queue_work(struct work_struct *work);

/* The container, node and slot behind one of our minors, with a reference;
 * NULL if there is none or it is dying.
 */
struct ckm_container *ckm_container_by_minor(u32 minor, u32 *node, struct ckm_slot **slot);

struct ckm_slot *ckm_container_slot_of(struct ckm_container *ct, u32 gpu_index);
struct ckm_slot *ckm_container_slot(struct ckm_container *ct, const struct ckm_gpu *gpu);

/* R of @back is gone: its clients' objects and memory too. */
void ckm_container_settle(struct ckm_container *ct, struct ckm_back *back);

/* Give back objects linked by hash_next, out of the tree already. Caller holds
 * rm_lock.
 */
void ckm_objs_release_locked(struct ckm_container *ct, struct cgpu_obj *list);
/* The subtree of @root and what depends on it, taken out of the tree and given back;
 * one object at a time, however many there are. Sleeps; caller holds rm_lock.
 */
void ckm_objs_remove_locked(struct ckm_container *ct, struct cgpu_obj *root);
/* Whether there may be another object. Caller holds rm_lock. */
bool ckm_objs_have_room_locked(const struct ckm_container *ct);
/* Drop a reference to a memory record; caller holds rm_lock. */
void ckm_mem_put_locked(struct ckm_container *ct, struct cgpu_mem *mem);

struct ckm_obj *ckm_obj_alloc(u32 hclient, u32 hobject, u32 cls, u32 kind);
void ckm_obj_free(struct ckm_obj *obj);

/* A charge with its record, one reference. -ENOMEM over the limit (counted and
 * announced). Caller holds rm_lock.
 */
struct cgpu_mem *ckm_mem_charge_locked(struct ckm_slot *slot, u64 bytes);
/* What the driver really took. -ENOMEM: more than fits, nothing changed. */
int ckm_mem_correct_locked(struct ckm_slot *slot, struct cgpu_mem *mem, u64 bytes);
/* The driver keeps @more on the card for this slot, beside what was asked for.
 * -ENOMEM: what of it is charged does not fit, nothing changed. Callers hold
 * rm_lock.
 */
int ckm_slot_overhead_locked(struct ckm_slot *slot, u64 more);
void ckm_slot_overhead_less_locked(struct ckm_slot *slot, u64 less);
/* The same as part of an object's, that goes with it. */
int ckm_obj_overhead_locked(struct ckm_container *ct, struct cgpu_obj *obj, u64 more);
void ckm_obj_overhead_less_locked(struct ckm_container *ct, struct cgpu_obj *obj, u64 less);
/* The same on each of the container's GPUs, until the file is gone: what uvm maps
 * by calls that say in memory of the tenant's, which it can change, where. -ENOMEM:
 * nothing changed.
 */
int ckm_back_tables(struct ckm_back *back, u64 more);
void ckm_slot_limits(struct ckm_slot *slot, u64 *limit, u64 *used);

/* Whether memory that one exported may be imported by the other: an administrator
 * gave both the same name, and not the empty one. -EINVAL for what is no name.
 */
bool ckm_container_shares(struct ckm_container *a, struct ckm_container *b);
int ckm_container_set_ipc(struct ckm_container *ct, const char *name, size_t len);
void ckm_container_ipc(struct ckm_container *ct, char *name);

/* Around what may give back memory of the card, on whichever of its GPUs: the
 * size of a context is measured only while nothing else moves. Any context.
 */
void ckm_container_moves_begin(struct ckm_container *ct);
void ckm_container_moves_end(struct ckm_container *ct);

u32 ckm_major(void);
int ckm_containers_init(void);
void ckm_containers_exit(void);

#endif
