// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns what files show of memory. Takes view_lock of a container and of a file, rm_lock. */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/sched.h>

#include "compat.h"
#include "intercept/backing_file.h"
#include "intercept/rm_view.h"
#include "state/container.h"
#include "state/rm_maps.h"
#include "state/rm_object.h"
#include "uapi.h"

/* Mappings that a walk passes under rm_lock at a time. */
#define WALK_STEP	16

static struct ckm_backing *backing_of(const struct vm_area_struct *vma)
{
	return container_of(file_inode(vma->vm_file), struct ckm_backing, inode);
}

/* view_ended does not change while the driver fills in, so what it fills in is taken away afterwards. */
static vm_fault_t checked_fault(struct vm_fault *vmf)
{
	struct ckm_backing *backing = backing_of(vmf->vma);
	vm_fault_t ret = VM_FAULT_SIGBUS;

	/* Of a private mapping the kernel wants all pages at mmap, and has a BUG_ON() for the fault. */
	if (!(vmf->vma->vm_flags & VM_SHARED))
		return VM_FAULT_SIGBUS;
	down_read(&backing->view_lock);
	if (!backing->view_ended)
		ret = backing->view_drv->fault(vmf);
	up_read(&backing->view_lock);
	return ret;
}

static int checked_access(struct vm_area_struct *vma, unsigned long addr, void *buf, int len, int write)
{
	struct ckm_backing *backing = backing_of(vma);
	int ret = -EINVAL;

	down_read(&backing->view_lock);
	if (!backing->view_ended && backing->view_drv->access)
		ret = backing->view_drv->access(vma, addr, buf, len, write);
	up_read(&backing->view_lock);
	return ret;
}

static void checked_close(struct vm_area_struct *vma)
{
	struct ckm_backing *backing = backing_of(vma);

	down_write(&backing->view_lock);
	if (backing->view_filled == vma)
		backing->view_filled = NULL;
	up_write(&backing->view_lock);
	if (backing->view_drv->close)
		backing->view_drv->close(vma);
}

/* An mmap has filled in, and the kernel does not know its mapping as one of the file yet: its node was never in a tree. */
static bool is_filling_locked(const struct ckm_backing *backing)
{
	const struct vm_area_struct *vma = backing->view_filled;

	return vma && !READ_ONCE(vma->shared.rb.__rb_parent_color);
}

static int map_locked(struct ckm_backing *backing, struct vm_area_struct *vma)
{
	int ret = backing->drv->mmap(backing->real, vma);

	if (ret)
		return ret;
	/* Pages without a struct page alone can be taken away. */
	if ((vma->vm_flags & (VM_PFNMAP | VM_MIXEDMAP)) != VM_PFNMAP || !vma->vm_ops || !vma->vm_ops->fault)
		return -ENXIO;
	if (!backing->view_drv) {
		backing->view_drv = vma->vm_ops;
		backing->view_ops = *vma->vm_ops;
		backing->view_ops.fault = checked_fault;
		backing->view_ops.access = checked_access;
		backing->view_ops.close = checked_close;
	}
	vma->vm_ops = &backing->view_ops;
	/* One mmap at a time is waited for. What the driver mapped for another process's comes with the fault. */
	if (is_filling_locked(backing))
		ckm_zap_vma(vma);
	else
		backing->view_filled = vma;
	return 0;
}

int ckm_view_mmap(struct ckm_backing *backing, struct vm_area_struct *vma)
{
	int ret = -ENXIO;

	down_write(&backing->view_lock);
	if (!backing->view_ended)
		ret = map_locked(backing, vma);
	up_write(&backing->view_lock);
	return ret;
}

int ckm_view_mmap_system(struct ckm_backing *backing, struct vm_area_struct *vma)
{
	int ret = -ENXIO;

	/* Of ckm_view_begin_locked(): what it wrote before is seen. */
	if (!smp_load_acquire(&backing->view_made))
		return -EINVAL;
	down_read(&backing->view_lock);
	if (!backing->view_ended)
		ret = backing->drv->mmap(backing->real, vma);
	up_read(&backing->view_lock);
	return ret;
}

void ckm_view_begin_locked(struct ckm_backing *backing, struct ckm_obj *memory, struct ckm_cpu_map *map)
{
	struct ckm_view *view = &backing->view;

	lockdep_assert_held(&backing->ct->rm_lock);
	/* A GPU's node without @map shows registers: nothing to take away. */
	if (view->memory || (!map && backing->node != CGPU_NODE_CTL))
		return;
	view->memory = memory;
	view->map = map;
	view->walk = backing->ct->view_walk;	/* not of interest to one that runs */
	list_add_tail(&view->node, &backing->ct->views);
	if (map)
		map->view = view;
	else
		hlist_add_head(&view->of, &memory->views);
	/* Read by ckm_view_mmap_system(), without the lock. */
	smp_store_release(&backing->view_made, true);
}

/* The rest of an mmap that has filled in, for which no other process and no memory of its own is waited: not for its
 * mmap_lock, which the process can keep for as long as it wants.
 */
static void wait_filled(struct ckm_backing *backing)
{
	bool filling;

	for (;;) {
		down_read(&backing->view_lock);
		filling = is_filling_locked(backing);
		up_read(&backing->view_lock);
		if (!filling)
			return;
		usleep_range(100, 1000);
	}
}

/* Caller holds ct->view_lock, so the driver has not released the file. */
static void set_ended(struct ckm_view *view, bool ended)
{
	struct ckm_backing *backing = container_of(view, struct ckm_backing, view);

	lockdep_assert_held(&backing->ct->view_lock);
	down_write(&backing->view_lock);
	backing->view_ended = ended;
	up_write(&backing->view_lock);
	/* Pages of system memory stay with the mappings that there are. */
	if (!ended || backing->node == CGPU_NODE_CTL)
		return;
	wait_filled(backing);
	unmap_mapping_range(backing->real->f_mapping, 0, 0, 1);
}

void ckm_view_end(struct ckm_container *ct, struct ckm_cpu_map *map, bool ended)
{
	struct ckm_view *view;

	mutex_lock(&ct->view_lock);
	mutex_lock(&ct->rm_lock);
	view = map->view;
	mutex_unlock(&ct->rm_lock);
	if (view)
		set_ended(view, ended);
	mutex_unlock(&ct->view_lock);
}

/* Below @root, or without one of a client of the control file with id @owner. */
static bool goes(const struct ckm_view *view, const struct cgpu_obj *root, u64 owner)
{
	const struct cgpu_obj *obj = &view->memory->core;

	if (!root)
		return obj->owner == owner;
	while (obj && obj != root)
		obj = obj->parent;
	return obj;
}

/* The next view that goes; NULL: none in this step, and with @more false none at all. Those that were passed
 * are behind those that were not.
 */
static struct ckm_view *next_locked(struct ckm_container *ct, const struct cgpu_obj *root, u64 owner,
				    bool *more)
{
	struct ckm_view *view;
	u32 n;

	lockdep_assert_held(&ct->rm_lock);
	*more = true;
	for (n = 0; n < WALK_STEP; n++) {
		view = list_first_entry_or_null(&ct->views, struct ckm_view, node);
		if (!view || view->walk == ct->view_walk) {
			*more = false;
			return NULL;
		}
		view->walk = ct->view_walk;
		list_move_tail(&view->node, &ct->views);
		if (goes(view, root, owner))
			return view;
	}
	return NULL;
}

static void walk(struct ckm_container *ct, const struct cgpu_obj *root, u64 owner)
{
	struct ckm_view *view;
	bool more;

	mutex_lock(&ct->view_lock);
	mutex_lock(&ct->rm_lock);
	ct->view_walk++;
	do {
		view = next_locked(ct, root, owner, &more);
		mutex_unlock(&ct->rm_lock);
		if (view)
			set_ended(view, true);
		cond_resched();
		mutex_lock(&ct->rm_lock);
	} while (more);
	mutex_unlock(&ct->rm_lock);
	mutex_unlock(&ct->view_lock);
}

/* Memory that is being freed: nothing maps or unmaps it, and no file with a view of it is released under the lock,
 * so its list does not change.
 */
static void end_own(struct ckm_container *ct, const struct ckm_obj *memory)
{
	struct ckm_cpu_map *map;
	struct ckm_view *view;

	mutex_lock(&ct->view_lock);
	list_for_each_entry(map, &memory->cpu_maps, of) {
		if (map->view)
			set_ended(map->view, true);
		cond_resched();
	}
	hlist_for_each_entry(view, &memory->views, of) {
		set_ended(view, true);
		cond_resched();
	}
	mutex_unlock(&ct->view_lock);
}

void ckm_views_end(struct ckm_container *ct, const struct cgpu_obj *root)
{
	bool none, leaf;

	mutex_lock(&ct->rm_lock);
	none = list_empty(&ct->views);
	leaf = !root->child;
	mutex_unlock(&ct->rm_lock);
	if (leaf)
		end_own(ct, container_of(root, struct ckm_obj, core));
	else if (!none)
		walk(ct, root, 0);
}

static void end_view(struct ckm_container *ct, struct ckm_view *view)
{
	mutex_lock(&ct->view_lock);
	mutex_lock(&ct->rm_lock);
	ckm_view_drop_locked(view);
	mutex_unlock(&ct->rm_lock);
	mutex_unlock(&ct->view_lock);
}

void ckm_views_file_ends(struct ckm_backing *backing)
{
	if (backing->node == CGPU_NODE_CTL)
		walk(backing->ct, NULL, backing->id);
	if (backing->node != CGPU_NODE_UVM)
		end_view(backing->ct, &backing->view);
}
