/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* RM objects of tenants: allocation, use by calls, mappings, release with dependants. */
#ifndef CKM_RM_OBJECT_H
#define CKM_RM_OBJECT_H

#include <linux/build_bug.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/rbtree.h>
#include <linux/rcupdate.h>
#include <linux/rhashtable-types.h>
#include <linux/types.h>

#include "pure/mem_tree.h"

struct ckm_container;
struct ckm_gpu;
struct ckm_obj;
struct ckm_slot;
struct ckm_space;

/* A channel's word of state in the GPU's registers, while nvidia-uvm retains the channel
 * (sched/run_state.h). Either side may go first and clears the pointer of the other.
 */
struct ckm_run_word {
	struct ckm_obj *obj;		/* gpu->lock; NULL: the channel was released */
	struct ckm_gpu *gpu;		/* NULL: the word is not kept */
	const void __iomem *reg;
};

/* A TSG. It can have several handles, in several clients: a client of MPS dups the TSG of the
 * server and makes its channels there. The handles share this record and the charge.
 */
struct ckm_group {
	struct kref ref;		/* of its handles and channels */
	u32 set_us;			/* gpu->lock; timeslice that the module set, 0: none, U32_MAX: unknown */
	struct list_head sched;		/* gpu->lock; on slot->tsgs while @handles is not empty */
	struct list_head handles;	/* gpu->lock; ckm_obj.sched, GR engines only */
	u64 timeslice_us;		/* ct->rm_lock; as requested by the tenant, 0: never */
	u32 changes;			/* ct->rm_lock; number of channels added */
	u32 counted;			/* gpu->lock; in this reading of the run state it had work */
	bool scheduled;			/* READ_ONCE; enabled by its owner at least once */
	u8 type;			/* NV2080_ENGINE_TYPE_*, U8_MAX: none; set before LIVE */
	bool on_graphics;		/* surely on the runlist of graphics; set before LIVE */
};

/* An RM object of a tenant. A channel of a graphics/compute or video engine is on a list of its
 * slot, and so is the group of a TSG of a graphics/compute engine.
 */
struct ckm_obj {
	struct cgpu_obj core;		/* ct->rm_lock */
	struct rhash_head node;		/* ct->rm_lock; in ct->objs, by client and object handle */
	struct rcu_head rcu;		/* ckm_obj_is_owned() reads without a lock */
	struct list_head sched;		/* gpu->lock; empty: on no list; a TSG's: group->handles */
	struct list_head bound;		/* ct->rm_lock; clients: on ckm_backing.clients */
	u64 seq;			/* gpu->lock; channels: the slot's list is in this order */
	u64 pt_bytes;			/* address ranges: bytes of page tables; set before LIVE */
	struct ckm_space *space;	/* a reference; address ranges and spaces, NULL: the device's; set before LIVE */
	bool in_space;			/* ct->rm_lock; counted there (rm_tables.c) */
	u32 notifiers[2];		/* TSGs: handles of errors, ECC errors; set before LIVE */
	struct list_head dma_maps;	/* ct->rm_lock; memory: ckm_dma_map.of */
	struct list_head cpu_maps;	/* ct->rm_lock; memory: ckm_cpu_map.of (rm_map.c) */
	struct hlist_head views;	/* ct->rm_lock; memory: ckm_view.of, of control files */
	bool parted;			/* READ_ONCE; address spaces: had a partial unmap */
	bool shared;			/* READ_ONCE; its owner lets other processes dup it */
	u32 cpu_map_count;		/* ct->rm_lock; length of @cpu_maps */
	struct ckm_group *group;	/* a reference; TSGs and channels; set before LIVE */
	u32 enabled_at;			/* ct->rm_lock; group->changes + 1 when enabled, 0: never */
	bool refused[2];		/* gpu->lock; its last thaw alone failed; [1]: its last freeze */
	bool no_restart;		/* gpu->lock; its last RESTART_RUNLIST failed */
	struct ckm_run_word *word;	/* gpu->lock; channels; NULL: none */
	u32 pid;			/* clients, scheduled ones: tgid that the driver uses */
	bool ends;			/* ct->os_event_lock; clients: their file is being released */
};

static_assert(sizeof(struct ckm_obj) <= 296);
static_assert(sizeof(struct ckm_group) <= 64);

/* The record of a new TSG, with one reference; NULL: no memory. */
struct ckm_group *ckm_group_alloc(void);
void ckm_group_get(struct ckm_group *group);

/* A PENDING object that is on no list; NULL: no memory. ckm_obj_free() drops its reference
 * to its group, and frees it after an RCU grace period, since ckm_obj_is_owned() may still
 * read it.
 */
struct ckm_obj *ckm_obj_alloc(u32 hclient, u32 hobject, u32 cls, u32 kind);
/* Room for what a new channel depends on, none set; it goes with @obj. False: no memory. */
bool ckm_obj_alloc_deps(struct ckm_obj *obj);
/* The record of a new address space, for its first handle. False: no memory. */
bool ckm_obj_new_space(struct ckm_obj *obj);
/* @obj, which is not LIVE yet, is in the address space @from, in that of the range @from, or a second handle of it. */
void ckm_obj_set_space(struct ckm_obj *obj, const struct cgpu_obj *from);
void ckm_obj_free(struct ckm_obj *obj);

/* Add @obj to the tree below @parent, NULL for a client, and to the names, and pin it. 0;
 * -EEXIST: the handle is taken; -EINVAL: not below this parent, or that is being removed;
 * -ENOMEM. Caller holds rm_lock.
 */
int ckm_obj_add_locked(struct ckm_container *ct, struct cgpu_obj *obj, struct cgpu_obj *parent);
/* Take an object that nothing is below and that was never LIVE out again and uncharge it; a
 * pinned one is freed by the last unpin. No-op if it is out already. Caller holds rm_lock;
 * takes gpu->lock.
 */
void ckm_obj_remove_locked(struct ckm_container *ct, struct cgpu_obj *obj);
/* Take @root, which the caller has pinned, and all that goes with it out, uncharge and free it, @root with
 * the last unpin. No-op if it is out already. The driver has freed it.
 * Its names are free at the end of the call, not before. Proportional to what is removed;
 * sleeps, and takes rm_lock for some objects at a time.
 */
void ckm_objs_remove(struct ckm_container *ct, struct cgpu_obj *root);
/* The same for each client on @clients, a list by ckm_obj.bound that gets no new ones. */
void ckm_clients_remove(struct ckm_container *ct, struct list_head *clients);
/* False: the container has max_objects objects and mappings, or no system memory for one more. Caller holds rm_lock. */
bool ckm_objs_have_room_locked(struct ckm_container *ct);
/* NULL: none has these handles. Caller holds rm_lock. */
struct cgpu_obj *ckm_obj_find_locked(struct ckm_container *ct, u32 client, u32 object);
/* As ckm_obj_find_locked(), but NULL also for one that is not LIVE. */
struct cgpu_obj *ckm_obj_live_locked(struct ckm_container *ct, u32 client, u32 object);

/* Whether @object is LIVE and belongs to a client of the backing file with id @owner. Takes
 * no lock. A free that begins at the same time may be missed, as if the call had come before.
 */
bool ckm_obj_is_owned(struct ckm_container *ct, u64 owner, u32 client, u32 object);

/* Pin a LIVE object: it is not freed until unpin, and a tenant's call that would free it
 * is refused meanwhile. NULL: no such object, or not LIVE. unpin of NULL is a no-op. Both
 * sleep and take rm_lock.
 */
struct cgpu_obj *ckm_obj_pin(struct ckm_container *ct, u32 client, u32 object);
void ckm_obj_unpin(struct ckm_container *ct, struct cgpu_obj *obj);

/**
 * ckm_obj_pin_memory() - pin a memory object and take a reference to its charge
 * @ct: container of the object
 * @client: handle of its client
 * @object: its handle
 * @obj: set to the pinned object, NULL: not found; to be unpinned also after an error
 * @mem: set only on success; NULL: nothing is charged
 *
 * Sleeps; takes rm_lock.
 *
 * Return: NV_OK; NV_ERR_OBJECT_NOT_FOUND; NV_ERR_NOT_SUPPORTED: not a memory object.
 */
u32 ckm_obj_pin_memory(struct ckm_container *ct, u32 client, u32 object,
		       struct cgpu_obj **obj, struct cgpu_mem **mem);

/* A reference to the memory record of a pinned object; NULL: none. These three sleep and
 * take rm_lock.
 */
struct cgpu_mem *ckm_obj_get_mem(struct ckm_container *ct, struct cgpu_obj *obj);
/* The same for the context reserve of a pinned channel, or else of its TSG. */
struct cgpu_mem *ckm_obj_get_context(struct ckm_container *ct, struct cgpu_obj *channel);
void ckm_obj_put_mem(struct ckm_container *ct, struct cgpu_mem *mem);

/* The container's names: 0 or -ENOMEM. Exit sleeps; no object is left. */
int ckm_objs_init_names(struct ckm_container *ct);
void ckm_objs_exit_names(struct ckm_container *ct);

int ckm_objs_init(void);
void ckm_objs_exit(void);

#endif
