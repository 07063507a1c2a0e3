/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Back files: for every open of one of our nodes a private open file R of the
 * real driver, on an inode of our own internal mount, in no fd table.
 *
 * A back lives as long as R: past the tenant's file when a mapping, REGISTER_FD
 * or an export keeps it. Its end is when R's inode is evicted, which is after
 * the driver's release returned; that is when its charges are settled.
 */
#ifndef CKM_BACKFS_H
#define CKM_BACKFS_H

#include <linux/fs.h>
#include <linux/xarray.h>

struct ckm_container;
struct ckm_slot;

struct ckm_back {
	struct inode inode;		/* R's */
	struct ckm_container *ct;	/* a reference */
	struct ckm_slot *slot;		/* GPU nodes; lives as long as ct */
	struct file *file;		/* R; valid while the back is */
	const struct file_operations *drv;	/* the driver's, with one module reference */
	struct file_operations guard;	/* what R carries instead; unused for uvm */
	u32 node;			/* CGPU_NODE_* */
	u64 id;				/* never reused: what clients are bound to */
	struct list_head clients;	/* ct->rm_lock; ckm_obj.bound: those bound to this file */
	struct xarray exports;		/* ct->rm_lock; what it carries, by place (rm_export.c) */
	u64 space_flags;		/* uvm nodes: what UVM_INITIALIZE was asked, once space_sealed */
	bool space_sealed;		/* acquire; uvm nodes: there is a space, and it has no HMM */
	bool registered;		/* set once: REGISTER_FD was tried on it, and no client is made on it */
	u64 tables;			/* ct->rm_lock; uvm nodes: charged on each slot until R is gone */
	bool in_transfer;		/* ct->rm_lock; an export or import is under way */
};

/* Opens R. Takes a reference on @ct that goes when R does. */
struct ckm_back *ckm_back_open(struct ckm_container *ct, struct ckm_slot *slot,
			       u32 node, dev_t rdev, unsigned int flags);

/* O_NONBLOCK and the like as they are on the tenant's file now. */
void ckm_back_mirror_flags(struct ckm_back *back, unsigned int flags);

int ckm_backfs_init(void);
void ckm_backfs_exit(void);

#endif
