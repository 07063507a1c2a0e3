/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Backing files: for each open of one of our nodes, a private open file of the driver,
 * on an inode of our internal mount and in no fd table.
 *
 * A backing file can outlive the front file: a mapping, REGISTER_FD or an export holds a
 * reference to it. Its inode is evicted after the driver's release has returned; only
 * then are its charges dropped.
 */
#ifndef CKM_BACKING_FILE_H
#define CKM_BACKING_FILE_H

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/rwsem.h>
#include <linux/xarray.h>

#include "state/rm_maps.h"

struct cgpu_mem;
struct ckm_container;
struct ckm_managed_space;
struct ckm_slot;

struct ckm_backing {
	struct inode inode;		/* of the backing file */
	struct ckm_container *ct;	/* a reference */
	struct ckm_slot *slot;		/* GPU nodes; lives as long as ct */
	struct file *real;		/* the backing file; valid as long as this record */
	const struct file_operations *drv;	/* the driver's; one module reference */
	void (*ends)(struct ckm_backing *backing);	/* before the driver's release; sleeps; NULL: nothing to do */
	void (*release)(struct ckm_backing *backing);	/* at eviction: drops the charges; sleeps */
	struct file_operations guard;	/* f_op of @real instead of @drv */
	u32 node;			/* CGPU_NODE_* */
	u64 id;				/* never reused; clients are bound to it */
	struct list_head ctl_file;	/* ct->end_lock; ctl nodes: on ct->ctl_files until the driver's release */
	bool ends_itself;		/* ct->end_lock; ctl nodes: the end of the container frees no client of it */
	struct list_head clients;	/* ct->rm_lock; ckm_obj.bound: clients bound to this file */
	struct xarray exports;		/* ct->rm_lock; exported memory, by index (rm_export.c) */
	u32 export_bytes;		/* ct->rm_lock; charged to ct for the driver's table of @exports */
	u64 space_flags;		/* uvm nodes: the tenant's UVM_INITIALIZE flags */
	const void *space_mm;		/* uvm nodes: of the process that made the space; compared */
	bool space_no_hmm;		/* acquire; uvm nodes: has an address space without HMM */
	bool given_up;			/* set once: a call ran unseen, no further ones */
	bool registered;		/* set once, before REGISTER_FD: may have no clients */
	struct rb_root uvm_ranges;	/* ct->rm_lock; uvm nodes: ckm_uvm_range.node (uvm_range.c) */
	u32 uvm_groups;			/* ct->rm_lock; uvm nodes: range groups */
	bool uvm_space;			/* ct->rm_lock; uvm nodes: its address space is charged */
	struct ckm_managed_space *managed;	/* uvm nodes: set once; NULL: no managed memory */
	u64 pt_bytes;			/* ct->rm_lock; uvm nodes: bytes charged on each slot */
	int keeps_gpus;			/* xchg; ctl nodes: its one ATTACH_GPUS_TO_FD was made */
	bool in_transfer;		/* ct->rm_lock; an export or import is in flight */
	struct cgpu_mem *map_mem;	/* cmpxchg, set once; system memory that it can map; a reference */
	int maps_zeros;			/* xchg; the next mmap shows zeros (rm_shared.c) */
	int view_taken;			/* xchg; ctl nodes: a call has made its one mapping context */
	bool view_made;			/* release, set once; ctl nodes: that call gave it the memory of @view */
	struct ckm_view view;		/* ctl and GPU nodes; this and the rest (rm_view.c) */
	struct rw_semaphore view_lock;	/* held for reading while the driver fills page tables in */
	const struct vm_area_struct *view_filled;	/* view_lock; until its close; of an mmap that has filled in */
	bool view_ended;		/* view_lock; what it showed is the driver's again, or freed */
	const struct vm_operations_struct *view_drv;	/* view_lock; the driver's; NULL: not mapped yet */
	struct vm_operations_struct view_ops;	/* view_lock, written once; @view_drv with our fault, access and close */
};

/**
 * ckm_backing_open() - open a backing file
 * @ct: the container
 * @slot: its slot for a GPU node, NULL for the other nodes
 * @node: CGPU_NODE_*
 * @rdev: device number of the driver's node
 * @flags: f_flags of the front file; access mode and O_NONBLOCK are used
 * @release: called once when the file is evicted, to drop its charges; may sleep
 *
 * Holds a reference to @ct, dropped after @release.
 *
 * Context: Process, no lock held; sleeps.
 * Return: the record, which lives as long as its file; ERR_PTR(-ENOMEM);
 * ERR_PTR(-ENXIO) if another driver serves @rdev; or the error of the driver's open.
 */
struct ckm_backing *ckm_backing_open(struct ckm_container *ct, struct ckm_slot *slot,
				     u32 node, dev_t rdev, unsigned int flags,
				     void (*release)(struct ckm_backing *backing));

/* Copy O_NONBLOCK from the front file's @flags to the backing file. Takes its f_lock. */
void ckm_backing_mirror_flags(struct ckm_backing *backing, unsigned int flags);

/* The internal mount: 0 or -errno. The exit sleeps until each record is freed. */
int ckm_backing_init(void);
void ckm_backing_exit(void);

#endif
