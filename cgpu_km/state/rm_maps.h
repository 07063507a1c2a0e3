/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Mappings of memory, and what files show of it. */
#ifndef CKM_RM_MAPS_H
#define CKM_RM_MAPS_H

#include <linux/build_bug.h>
#include <linux/list.h>
#include <linux/rbtree.h>
#include <linux/types.h>

struct ckm_obj;
struct ckm_slot;

/* A MAP_MEMORY_DMA and its charge for page tables, on the GPU of its device, which maps. Looked up by
 * address space, device and address, as the driver does, which ignores the memory handle of an
 * unmap call.
 */
struct ckm_dma_map {
	struct rb_node node;		/* ct->rm_lock; in ct->dma_maps */
	struct list_head of;		/* ct->rm_lock; on its memory's dma_maps */
	struct ckm_obj *memory;		/* frees the mapping when it is released */
	struct ckm_slot *slot;		/* has the charge */
	u32 hclient, hdevice, hdma;
	u64 at;				/* address that the driver returned */
	u64 pt_bytes;			/* bytes */
};
static_assert(sizeof(struct ckm_dma_map) <= 88);	/* docs/develop/bounds.md, as below */

/* A MAP_MEMORY, and its part of BAR1 if it has one. Looked up by the name that the tenant has for it: the address
 * that the driver returned, or what UPDATE_DEVICE_MAPPING_INFO made of it.
 */
struct ckm_cpu_map {
	struct rb_node node;		/* ct->rm_lock; in ct->cpu_maps */
	struct list_head of;		/* ct->rm_lock; on its memory's cpu_maps */
	struct ckm_obj *memory;		/* frees the mapping when it is released */
	struct ckm_slot *slot;		/* has the charge; NULL: it takes no part of BAR1 */
	u32 hclient, hmemory;
	u64 at;				/* the tenant's name */
	u64 linear;			/* address that the driver returned, its own name */
	u64 bytes;
	struct ckm_view *view;		/* ct->rm_lock; of the file that shows it; NULL: none, or it is gone */
};
static_assert(sizeof(struct ckm_cpu_map) <= 96);

/* What a file shows: one mapping of a GPU's node, made for it by MAP_MEMORY, or the one system memory that a control
 * file can map (intercept/rm_view.c).
 */
struct ckm_view {
	struct list_head node;		/* ct->rm_lock; on ct->views while @memory is set */
	struct ckm_obj *memory;		/* ct->rm_lock; NULL: nothing that the driver can take away */
	struct ckm_cpu_map *map;	/* ct->rm_lock; of it; NULL: a control file's */
	struct hlist_node of;		/* ct->rm_lock; control files: on @memory's views */
	u64 walk;			/* ct->rm_lock; the last walk of ct->views that came by */
};

/* @view shows nothing from here on; no-op if it is so already. Caller holds rm_lock. */
void ckm_view_drop_locked(struct ckm_view *view);
/* Uncharge and free @map, which is in no tree (any more). Caller holds rm_lock if it has a view; takes
 * gpu->lock.
 */
void ckm_cpu_map_drop(struct ckm_cpu_map *map);

#endif
