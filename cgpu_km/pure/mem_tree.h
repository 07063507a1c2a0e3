/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The objects of one container's RM clients, and the memory they keep alive.
 *
 * The caller allocates objects and memory records, finds objects by name, and frees them
 * when they are out of the tree. Caller serialises (the container's mutex). Nothing here is
 * held across a call into the driver. Instead an object is PENDING while the driver creates
 * it, pinned while a call uses it and FREEING while the driver frees it; a call that would
 * race with that is refused.
 *
 * No function here walks what lies below an object, so none takes longer with more objects:
 * freeing marks the root alone and what is below it is judged by its ancestors, and each
 * object counts the pins of all that would go with it. Ancestors are CGPU_TREE_DEPTH at most.
 */
#ifndef CGPU_PURE_MEM_TREE_H
#define CGPU_PURE_MEM_TREE_H

#include "../core/env.h"

#define CGPU_NO_GPU		0xffffffffu

/* Levels of objects. The driver's classes need seven: client, device, group, channel, engine
 * object, and an event or context below.
 */
#define CGPU_TREE_DEPTH		16

enum cgpu_obj_state {
	CGPU_OBJ_PENDING = 1,	/* the driver is making it, or its size is not verified yet */
	CGPU_OBJ_LIVE,
	CGPU_OBJ_FREEING,	/* the driver is freeing it, and with it all that is below it */
	CGPU_OBJ_DETACHED,	/* out of the tree; waits for the last unpin */
};

/* A piece of video memory, charged to one slot until its last reference goes.
 * References: objects (the first and its dups) and uvm's own dups.
 */
struct cgpu_mem {
	u64 bytes;
	u32 refs;
	u32 gpu;		/* index of the slot's GPU */
	u32 pid;		/* tgid that is shown for it, initial namespace */
};

struct cgpu_obj;

/* An object dies with @on too, which is memory, a subdevice or a notifier. Its owner keeps an array of them. */
struct cgpu_dep {
	struct cgpu_obj *on;	/* NULL: none; set before add */
	struct cgpu_obj *of;	/* the object itself */
	struct cgpu_dep *next;	/* those on the same object */
	struct cgpu_dep *prev;
};

/* Of a channel: its USERD and its two error notifiers; of a notifier: its memory; of peers: the subdevices of both GPUs. */
#define CGPU_DEPS		3

struct cgpu_obj {
	struct cgpu_obj *parent;
	struct cgpu_obj *child;		/* first */
	struct cgpu_obj *next;		/* siblings */
	struct cgpu_obj *prev;
	struct cgpu_dep *deps;		/* CGPU_DEPS, for as long as the object is; or NULL */
	struct cgpu_dep *dependant;	/* first of those on this object */
	struct cgpu_mem *mem;		/* a reference, or NULL */
	struct cgpu_mem *userd;		/* channels: their USERD's, which the driver keeps as long */
	u64 owner;			/* the backing file its client is bound to */
	u32 hclient;
	u32 hobject;
	u32 cls;
	u32 gpu;			/* slot's GPU, CGPU_NO_GPU above the device */
	u32 pin_count;			/* calls into the driver that use it now */
	u32 pins_within;		/* of it, of what is below it, and of dependants of those */
	u8 kind;			/* enum cgpu_kind */
	u8 state;
	u8 engine;			/* TSGs, channels: enum cgpu_engine */
	u8 depth;			/* 0: a client */
	u64 bytes;			/* memory that is not charged: its size, 0: not read yet */
	u64 overhead;			/* estimate of what the driver keeps for it on the card */
};

struct cgpu_tree {
	u32 objects;
};

/* Whether @obj and all that it goes with are LIVE. May also be called without serialisation,
 * if the caller guarantees that objects outlive the call. A free that begins at the same time
 * may then be missed, as if the call had come before it.
 */
bool cgpu_tree_is_live(const struct cgpu_obj *obj);

/* Put @obj (names, kind, state and deps filled in) below @parent; NULL for a client. Takes
 * gpu and owner from the parent where the object has none. -EINVAL for memory that is not
 * below a device, for a dependency on something other than memory, a device's subdevice or, of a
 * channel, a notifier, and below CGPU_TREE_DEPTH levels.
 */
int cgpu_tree_add(struct cgpu_tree *tree, struct cgpu_obj *obj, struct cgpu_obj *parent);

/* Pin an object that is in the tree. Unpin returns true if @obj is out of the tree and this
 * was the last pin: the caller frees it.
 */
void cgpu_tree_pin(struct cgpu_obj *obj);
bool cgpu_tree_unpin(struct cgpu_obj *obj);

/* Mark @obj FREEING and pin it. -EBUSY, nothing changed, if it or anything that would go with
 * it is pinned or it is not LIVE. Cancel (the driver refused): LIVE again. The caller unpins
 * it at the end of the call, whatever became of it.
 */
int cgpu_tree_free_begin(struct cgpu_obj *obj);
void cgpu_tree_free_cancel(struct cgpu_obj *obj);

/* What to detach next so that in the end @root can be: something without children and
 * dependants that goes with @root, or @root itself.
 */
struct cgpu_obj *cgpu_tree_leaf(struct cgpu_obj *root);

/* Take a leaf out, whatever its state. It is DETACHED: a pinned one is kept by the caller
 * until the last unpin.
 */
void cgpu_tree_detach(struct cgpu_tree *tree, struct cgpu_obj *leaf);

void cgpu_mem_get(struct cgpu_mem *mem);
/* True if that was the last reference: the caller uncharges and frees it. */
bool cgpu_mem_put(struct cgpu_mem *mem);

#endif
