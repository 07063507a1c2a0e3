// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns the charges of managed memory. Takes rm_lock; a recount mmap_lock before it. */
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "core_ref.h"
#include "intercept/backing_file.h"
#include "intercept/uvm_managed.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"

/* A mapping of a uvm file, charged on each GPU of the container because nvidia-uvm may
 * put its pages on any of them. The notifier only triggers a recount; what is left is
 * read from the mappings themselves.
 */
struct managed {
	struct mmu_interval_notifier notifier;
	struct work_struct work;
	struct kref ref;		/* of the list, and of a queued work */
	struct mm_struct *mm;		/* mmgrab(): the notifier's reference may end earlier */
	struct ckm_container *ct;	/* a reference */
	struct list_head node;		/* ct->rm_lock; ct->managed, oldest first */
	const struct file *file;	/* the backing file; compared only */
	bool stale;			/* something was unmapped since the last recount */
	bool listed;			/* ct->rm_lock; on ct->managed */
	u32 mem_ops;			/* ct->rm_lock; in flight until the backing file is gone */
	u64 start, end;			/* addresses in mm */
	u64 bytes;			/* ct->rm_lock; charged on each GPU */
	struct cgpu_mem *mem[];		/* ct->rm_lock; one for each slot */
};

bool ckm_managed_allowed(const struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		if (!READ_ONCE(ct->slot[i].gpu->uvm_account))
			return false;
	return true;
}

static void free_managed(struct kref *ref)
{
	struct managed *m = container_of(ref, struct managed, ref);

	mmdrop(m->mm);
	ckm_container_put(m->ct);
	kfree(m);
}

static void uncharge_locked(struct managed *m)
{
	u32 i;

	for (i = 0; i < m->ct->slot_count; i++) {
		if (m->mem[i])
			ckm_mem_put_locked(m->ct, m->mem[i]);
		m->mem[i] = NULL;
	}
}

static int charge_locked(struct managed *m)
{
	struct cgpu_mem *mem;
	u32 i;

	for (i = 0; i < m->ct->slot_count; i++) {
		mem = ckm_mem_charge_locked(&m->ct->slot[i], m->bytes);
		if (IS_ERR(mem)) {
			uncharge_locked(m);
			return PTR_ERR(mem);
		}
		m->mem[i] = mem;
	}
	return 0;
}

static void unlist_locked(struct managed *m)
{
	lockdep_assert_held(&m->ct->rm_lock);
	list_del(&m->node);
	m->listed = false;
}

/* Caller removed it from the list. Sleeps. */
static void drop(struct managed *m)
{
	mmu_interval_notifier_remove(&m->notifier);
	kref_put(&m->ref, free_managed);
}

/* ---- the rest of a mapping ---- */

/* The first address in @at to @end that no later mapping of the same file has taken
 * over; the length from there goes to @len. Returns @end if there is none. Caller holds
 * rm_lock.
 */
static u64 own_part(const struct managed *m, u64 at, u64 end, u64 *len)
{
	const struct managed *other;
	bool moved = true;

	lockdep_assert_held(&m->ct->rm_lock);
	while (moved && at < end) {
		moved = false;
		*len = end - at;
		other = m;
		list_for_each_entry_continue(other, &m->ct->managed, node) {
			if (other->file != m->file || other->mm != m->mm || other->end <= at)
				continue;
			if (other->start <= at) {
				at = other->end;
				moved = true;
				break;
			}
			*len = min(*len, other->start - at);
		}
	}
	return min(at, end);
}

static u64 bytes_left_locked(const struct managed *m, struct mm_struct *mm)
{
	const struct cgpu_core_ops *core;
	struct vm_area_struct *vma;
	u64 at, end, len, bytes = 0;

	for (vma = find_vma(mm, m->start); vma && vma->vm_start < m->end;
	     vma = find_vma(mm, vma->vm_end)) {
		if (vma->vm_file != m->file)
			continue;
		end = min_t(u64, vma->vm_end, m->end);
		at = own_part(m, max_t(u64, vma->vm_start, m->start), end, &len);
		core = ckm_core_enter();
		for (; at < end; at = own_part(m, at + len, end, &len))
			bytes += core->mem.managed_bytes(at, at + len);
		ckm_core_leave();
	}
	/* Two pieces in one block count the block twice: never raise the charge. */
	return min(bytes, m->bytes);
}

/* True: nothing is left, and the mapping is off the list. */
static bool recount_one_locked(struct managed *m, struct mm_struct *mm)
{
	struct ckm_container *ct = m->ct;
	u64 left;
	u32 i;

	WRITE_ONCE(m->stale, false);
	left = bytes_left_locked(m, mm);
	if (!left) {
		unlist_locked(m);
		uncharge_locked(m);
	} else if (left < m->bytes) {
		for (i = 0; i < ct->slot_count; i++)	/* downwards: cannot fail */
			ckm_mem_correct_locked(&ct->slot[i], m->mem[i], left);
		m->bytes = left;
	}
	return !left;
}

/* Recount the stale mappings of @mm; those of which nothing is left go to @gone. Caller
 * holds mmap_lock for writing, because munmap() lets the driver free with the lock held
 * for reading.
 */
static void recount_locked(struct ckm_container *ct, struct mm_struct *mm, struct list_head *gone)
{
	struct managed *m, *next;

	mmap_assert_write_locked(mm);
	list_for_each_entry_safe(m, next, &ct->managed, node)
		if (m->mm == mm && READ_ONCE(m->stale) && recount_one_locked(m, mm))
			list_add(&m->node, gone);
}

static void drop_all(struct list_head *gone)
{
	struct managed *m, *next;

	list_for_each_entry_safe(m, next, gone, node)
		drop(m);
}

static void recount(struct ckm_container *ct, struct mm_struct *mm)
{
	LIST_HEAD(gone);

	mutex_lock(&ct->rm_lock);
	recount_locked(ct, mm, &gone);
	mutex_unlock(&ct->rm_lock);
	drop_all(&gone);
}

/* An exiting address space drops its mappings, and the last one drops the backing file:
 * that uncharges, and only then is the memory free on the card. Keep the operation in
 * flight until then. False: the mapping is uncharged already.
 */
static bool leave_moving(struct managed *m)
{
	bool listed;

	mutex_lock(&m->ct->rm_lock);
	listed = m->listed;
	if (listed)
		m->mem_ops++;
	mutex_unlock(&m->ct->rm_lock);
	return listed;
}

static void end_moves(struct managed *m)
{
	for (; m->mem_ops; m->mem_ops--)
		ckm_mem_ops_end(m->ct);
}

static void recount_done(struct managed *m)
{
	if (atomic_dec_and_test(&m->ct->recounts))
		wake_up(&m->ct->recounted);
}

static void recount_work(struct work_struct *work)
{
	struct managed *m = container_of(work, struct managed, work);
	struct mm_struct *mm = m->mm;

	if (mmget_not_zero(mm)) {
		mmap_write_lock(mm);
		recount(m->ct, mm);
		mmap_write_unlock(mm);
		mmput(mm);
		ckm_mem_ops_end(m->ct);
	} else if (!leave_moving(m)) {
		ckm_mem_ops_end(m->ct);
	}
	recount_done(m);
	kref_put(&m->ref, free_managed);
}

void ckm_managed_wait(struct ckm_container *ct)
{
	/* A tenant can delay the recount by its own mmap_lock: only its container
	 * waits, for a second at most.
	 */
	if (atomic_read(&ct->recounts))
		wait_event_killable_timeout(ct->recounted, !atomic_read(&ct->recounts), HZ);
}

/* Must not sleep: the OOM reaper calls it too. */
static bool invalidated(struct mmu_interval_notifier *notifier,
			const struct mmu_notifier_range *range, unsigned long seq)
{
	struct managed *m = container_of(notifier, struct managed, notifier);

	mmu_interval_set_seq(notifier, seq);
	if (range->event != MMU_NOTIFY_UNMAP)
		return true;
	WRITE_ONCE(m->stale, true);
	kref_get(&m->ref);
	atomic_inc(&m->ct->recounts);
	ckm_mem_ops_begin(m->ct);
	if (!ckm_queue_work(&m->work)) {	/* queued already */
		ckm_mem_ops_end(m->ct);
		recount_done(m);
		kref_put(&m->ref, free_managed);	/* not the last */
	}
	return true;
}

static const struct mmu_interval_notifier_ops notifier_ops = { .invalidate = invalidated };

/* ---- mapping ---- */

static struct managed *alloc_managed(struct ckm_backing *backing, const struct vm_area_struct *vma)
{
	struct managed *m = kzalloc(struct_size(m, mem, backing->ct->slot_count),
				    GFP_KERNEL_ACCOUNT);
	const struct cgpu_core_ops *core;

	if (!m)
		return NULL;
	kref_init(&m->ref);
	INIT_WORK(&m->work, recount_work);
	ckm_container_get(backing->ct);
	m->ct = backing->ct;
	mmgrab(current->mm);
	m->mm = current->mm;
	m->file = backing->real;
	m->start = vma->vm_start;
	m->end = vma->vm_end;
	core = ckm_core_enter();
	m->bytes = core->mem.managed_bytes(m->start, m->end);
	ckm_core_leave();
	return m;
}

int ckm_managed_mmap(struct ckm_backing *backing, struct vm_area_struct *vma)
{
	struct ckm_container *ct = backing->ct;
	struct managed *m;
	LIST_HEAD(gone);
	int ret;

	m = alloc_managed(backing, vma);
	if (!m)
		return -ENOMEM;
	ret = mmu_interval_notifier_insert_locked(&m->notifier, current->mm, m->start,
						  m->end - m->start, &notifier_ops);
	if (ret) {
		kref_put(&m->ref, free_managed);
		return ret;
	}
	mutex_lock(&ct->rm_lock);
	/* Memory that this process has just unmapped is free, and so is what the new
	 * mapping replaces. From 6.12 on the replaced mapping is closed by now but can
	 * still be found; the newer entry of the list has its addresses.
	 */
	list_add_tail(&m->node, &ct->managed);
	m->listed = true;
	recount_locked(ct, current->mm, &gone);
	ret = charge_locked(m);
	if (ret)
		unlist_locked(m);
	mutex_unlock(&ct->rm_lock);
	drop_all(&gone);
	if (ret)
		goto err_drop;
	vma_set_file(vma, backing->real);
	ckm_mem_ops_begin(ct);
	ret = backing->drv->mmap(backing->real, vma);
	ckm_mem_ops_end(ct);
	if (ret)
		goto err_uncharge;
	return 0;

err_uncharge:
	mutex_lock(&ct->rm_lock);
	unlist_locked(m);
	uncharge_locked(m);
	end_moves(m);
	mutex_unlock(&ct->rm_lock);
err_drop:
	drop(m);
	return ret;
}

void ckm_managed_release(struct ckm_container *ct, struct ckm_backing *backing)
{
	struct managed *m, *next;
	LIST_HEAD(gone);

	mutex_lock(&ct->rm_lock);
	list_for_each_entry_safe(m, next, &ct->managed, node)
		if (m->file == backing->real) {
			uncharge_locked(m);
			unlist_locked(m);
			end_moves(m);
			list_add(&m->node, &gone);
		}
	mutex_unlock(&ct->rm_lock);
	drop_all(&gone);
}
