/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The objects of one container's RM clients, and the memory they keep alive.
 *
 * The caller allocates objects and memory records and frees them when they are out of
 * the tree. Caller serialises (the container's mutex). Nothing here is held across a
 * call into the driver. Instead an object is PENDING while the driver creates it, pinned
 * while a call uses it and FREEING while the driver frees it; a call that would race
 * with that is refused.
 */
#ifndef CGPU_CORE_MEM_TREE_H
#define CGPU_CORE_MEM_TREE_H

#include "env.h"

#define CGPU_TREE_BUCKETS	1024
#define CGPU_NO_GPU		0xffffffffu

enum cgpu_obj_state {
	CGPU_OBJ_PENDING = 1,	/* the driver is making it, or its size is not verified yet */
	CGPU_OBJ_LIVE,
	CGPU_OBJ_FREEING,	/* the driver is freeing it */
	CGPU_OBJ_DETACHED,	/* out of the tree; waits for busy to become 0 */
};

/* A piece of video memory, charged to one slot until its last reference goes.
 * References: objects (the first and its dups) and uvm's own dups.
 */
struct cgpu_mem {
	u64 bytes;
	u32 refs;
	u32 gpu;		/* index of the slot's GPU */
	u32 pid;		/* tgid that is shown for it, initial namespace */
	u32 pad;
	u64 reserved[2];
};

struct cgpu_obj {
	struct cgpu_obj *hash_next;	/* also links the list a removal returns */
	struct cgpu_obj *parent;
	struct cgpu_obj *child;		/* first */
	struct cgpu_obj *next;		/* siblings */
	struct cgpu_obj *prev;
	struct cgpu_mem *mem;		/* a reference, or NULL */
	struct cgpu_mem *userd;		/* channels: their USERD's, which the driver keeps as long */
	struct cgpu_obj *dep_next;	/* on tree->deps */
	u64 owner;			/* the backing file its client is bound to */
	u32 hclient;
	u32 hobject;
	u32 cls;
	u32 gpu;			/* slot's GPU, CGPU_NO_GPU above the device */
	u32 hdep;			/* dies with this object of the same client, 0: none */
	u32 pin_count;			/* calls into the driver that use it now */
	u8 kind;			/* enum cgpu_kind */
	u8 state;
	u8 gr;				/* on a graphics/compute engine */
	u8 reserved0;
	u32 reserved;
	u64 bytes;			/* memory that is not charged: its size, 0: not read yet */
	u64 overhead;			/* estimate of what the driver keeps for it on the card */
	u64 reserved1;
};

struct cgpu_tree {
	struct cgpu_obj *bucket[CGPU_TREE_BUCKETS];
	struct cgpu_obj *deps;		/* objects with an hdep */
	u32 objects;
	u32 pad;
	u64 reserved[4];
};

struct cgpu_obj *cgpu_tree_find(const struct cgpu_tree *tree, u32 hclient, u32 hobject);

/* The object if it is LIVE, else NULL. These two may also be called without
 * serialisation, if the caller guarantees that objects outlive the search. An object that
 * is returned is valid; NULL may be wrong while the bucket is changed.
 */
struct cgpu_obj *cgpu_tree_live(const struct cgpu_tree *tree, u32 hclient, u32 hobject);

/* Put @obj (hclient, hobject, kind, state filled in) below @parent; NULL for a
 * client. Takes gpu, gr and owner from the parent where the object has none.
 * -EEXIST if the handle is taken; -EINVAL for memory that is not below a device.
 */
int cgpu_tree_add(struct cgpu_tree *tree, struct cgpu_obj *obj, struct cgpu_obj *parent);

/* Mark the subtree of @obj, and what depends on it, FREEING. -EBUSY, nothing
 * marked, if any of it is busy or not LIVE.
 */
int cgpu_tree_free_begin(struct cgpu_tree *tree, struct cgpu_obj *obj);

/* The driver refused: set the subtree back to LIVE. */
void cgpu_tree_free_cancel(struct cgpu_tree *tree, struct cgpu_obj *obj);

/* Take the subtree of @obj and its dependants out, whatever their state.
 * Returns them linked by hash_next, children before parents. Objects still
 * busy are DETACHED: the caller keeps them until their last user is done.
 */
struct cgpu_obj *cgpu_tree_remove(struct cgpu_tree *tree, struct cgpu_obj *obj);

void cgpu_mem_get(struct cgpu_mem *mem);
/* True if that was the last reference: the caller uncharges and frees it. */
bool cgpu_mem_put(struct cgpu_mem *mem);

#endif
