// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the charges of managed memory. Takes rm_lock; a recount mmap_lock before it. */
#include <linux/interval_tree.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "compat.h"
#include "intercept/backing_file.h"
#include "intercept/uvm_managed.h"
#include "pure/mem_estimate.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"

/* Steps of one recount under rm_lock: mappings of the process and of the file that are looked
 * at. A mapping of which more pieces are left keeps its charge until fewer are.
 */
#define RECOUNT_STEPS	1024

/* The mappings of one uvm file. One address space maps it: ckm_uvm_mmap() checks that. */
struct ckm_managed_space {
	struct kref ref;		/* of the backing file, and of each mapping */
	struct rb_root_cached mappings;	/* ct->rm_lock; managed.range */
	u64 seq;			/* ct->rm_lock; managed.seq of the latest */
	spinlock_t lock;		/* stale */
	struct list_head stale;		/* lock; managed.stale */
};

/* A mapping of a uvm file, charged on each GPU of the container because nvidia-uvm may
 * put its pages on any of them. The notifier only triggers a recount; what is left is
 * read from the mappings themselves.
 */
struct managed {
	struct mmu_interval_notifier notifier;
	struct work_struct work;
	struct kref ref;		/* of the tree, of a queued work, of a recount */
	struct mm_struct *mm;		/* mmgrab(): the notifier's reference may end earlier */
	struct ckm_container *ct;	/* a reference */
	struct ckm_managed_space *space;	/* a reference */
	struct interval_tree_node range;	/* ct->rm_lock; in space->mappings; addresses in mm */
	u64 seq;			/* a later mapping has more, and took its addresses over */
	const struct file *file;	/* the backing file; compared only */
	struct list_head stale;		/* space->lock; on space->stale: unmapped since the recount */
	bool listed;			/* ct->rm_lock; in space->mappings */
	u32 mem_ops;			/* ct->rm_lock; in flight until the backing file is gone */
	u64 start, end;			/* addresses in mm */
	u64 bytes;			/* ct->rm_lock; charged on each GPU */
	struct cgpu_mem *mem[];		/* ct->rm_lock; one for each slot */
};

static void free_space(struct kref *ref)
{
	kfree(container_of(ref, struct ckm_managed_space, ref));
}

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
	kref_put(&m->space->ref, free_space);
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
		mem = ckm_mem_charge_locked(&m->ct->slot[i], CKM_MEM_MANAGED, m->bytes);
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
	interval_tree_remove(&m->range, &m->space->mappings);
	m->listed = false;
}

static void list_locked(struct managed *m)
{
	lockdep_assert_held(&m->ct->rm_lock);
	m->seq = ++m->space->seq;
	interval_tree_insert(&m->range, &m->space->mappings);
	m->listed = true;
}

/* Caller unlisted it. Sleeps. */
static void drop(struct managed *m)
{
	mmu_interval_notifier_remove(&m->notifier);
	spin_lock(&m->space->lock);
	list_del_init(&m->stale);
	spin_unlock(&m->space->lock);
	kref_put(&m->ref, free_managed);
}

/* ---- the rest of a mapping ---- */

/* Bytes to charge for the addresses in @at to @end that no later mapping has taken over. Takes
 * from @steps; meaningless when none is left.
 */
static u64 own_bytes_locked(const struct managed *m, u64 at, u64 end, u32 *steps)
{
	const u64 first = at;
	struct interval_tree_node *node;
	u64 bytes = 0;

	lockdep_assert_held(&m->ct->rm_lock);
	/* Ascending by start. */
	for (node = interval_tree_iter_first(&m->space->mappings, first, end - 1);
	     node && *steps; node = interval_tree_iter_next(node, first, end - 1)) {
		--*steps;
		if (container_of(node, struct managed, range)->seq <= m->seq)
			continue;
		if (node->start > at)
			bytes += cgpu_estimate_managed_bytes(at, node->start);
		at = max_t(u64, at, node->last + 1);
		if (at >= end)
			return bytes;
	}
	return bytes + cgpu_estimate_managed_bytes(at, end);
}

static u64 bytes_left_locked(const struct managed *m, struct mm_struct *mm)
{
	struct vm_area_struct *vma;
	u32 steps = RECOUNT_STEPS;
	u64 bytes = 0;

	for (vma = find_vma(mm, m->start); vma && vma->vm_start < m->end && steps;
	     vma = find_vma(mm, vma->vm_end)) {
		steps--;
		if (vma->vm_file == m->file)
			bytes += own_bytes_locked(m, max_t(u64, vma->vm_start, m->start),
						  min_t(u64, vma->vm_end, m->end), &steps);
	}
	/* Two pieces in one block count the block twice: never raise the charge. */
	return steps ? min(bytes, m->bytes) : m->bytes;
}

/* True: nothing is left, and the mapping is unlisted. */
static bool recount_one_locked(struct managed *m, struct mm_struct *mm)
{
	struct ckm_container *ct = m->ct;
	u64 left;
	u32 i;

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

/* A stale mapping, with a reference; NULL: none is left. */
static struct managed *take_stale(struct ckm_managed_space *space)
{
	struct managed *m;

	spin_lock(&space->lock);
	m = list_first_entry_or_null(&space->stale, struct managed, stale);
	if (m) {
		list_del_init(&m->stale);
		kref_get(&m->ref);
	}
	spin_unlock(&space->lock);
	return m;
}

/* Recount the stale mappings, each under rm_lock of its own. Caller holds mmap_lock for
 * writing, because munmap() lets the driver free with the lock held for reading.
 */
static void recount(struct ckm_container *ct, struct ckm_managed_space *space,
		    struct mm_struct *mm)
{
	struct managed *m;
	bool gone;

	mmap_assert_write_locked(mm);
	while ((m = take_stale(space))) {
		mutex_lock(&ct->rm_lock);
		gone = m->listed && recount_one_locked(m, mm);
		mutex_unlock(&ct->rm_lock);
		if (gone)
			drop(m);
		kref_put(&m->ref, free_managed);
		cond_resched();
	}
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
		recount(m->ct, m->space, mm);
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
	spin_lock(&m->space->lock);
	if (list_empty(&m->stale))
		list_add_tail(&m->stale, &m->space->stale);
	spin_unlock(&m->space->lock);
	kref_get(&m->ref);
	atomic_inc(&m->ct->recounts);
	ckm_mem_ops_begin(m->ct);
	if (!queue_work(m->ct->queue, &m->work)) {	/* queued already */
		ckm_mem_ops_end(m->ct);
		recount_done(m);
		kref_put(&m->ref, free_managed);	/* not the last */
	}
	return true;
}

static const struct mmu_interval_notifier_ops notifier_ops = { .invalidate = invalidated };

/* ---- mapping ---- */

/* The file's, made at its first mapping. Callers hold mmap_lock of the one address space that
 * maps it for writing. NULL: no memory.
 */
static struct ckm_managed_space *space_of(struct ckm_backing *backing)
{
	struct ckm_managed_space *space = backing->managed;

	if (space)
		return space;
	space = kzalloc(sizeof(*space), GFP_KERNEL_ACCOUNT);
	if (!space)
		return NULL;
	kref_init(&space->ref);
	space->mappings = RB_ROOT_CACHED;
	spin_lock_init(&space->lock);
	INIT_LIST_HEAD(&space->stale);
	backing->managed = space;
	return space;
}

static struct managed *alloc_managed(struct ckm_backing *backing, const struct vm_area_struct *vma)
{
	struct ckm_managed_space *space = space_of(backing);
	struct managed *m = NULL;

	if (space)
		m = kzalloc(struct_size(m, mem, backing->ct->slot_count), GFP_KERNEL_ACCOUNT);
	if (!m)
		return NULL;
	kref_get(&space->ref);
	m->space = space;
	INIT_LIST_HEAD(&m->stale);
	kref_init(&m->ref);
	INIT_WORK(&m->work, recount_work);
	ckm_container_get(backing->ct);
	m->ct = backing->ct;
	mmgrab(current->mm);
	m->mm = current->mm;
	m->file = backing->real;
	m->start = vma->vm_start;
	m->end = vma->vm_end;
	m->range.start = m->start;
	m->range.last = m->end - 1;
	m->bytes = cgpu_estimate_managed_bytes(m->start, m->end);
	return m;
}

int ckm_managed_mmap(struct ckm_backing *backing, struct vm_area_struct *vma)
{
	struct ckm_container *ct = backing->ct;
	struct managed *m;
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
	/* Memory that this process has just unmapped is free, and so is what the new
	 * mapping replaces. From 6.12 on the replaced mapping is closed by now but can
	 * still be found; the newer mapping has its addresses.
	 */
	mutex_lock(&ct->rm_lock);
	list_locked(m);
	mutex_unlock(&ct->rm_lock);
	recount(ct, m->space, current->mm);
	mutex_lock(&ct->rm_lock);
	ret = charge_locked(m);
	if (ret)
		unlist_locked(m);
	mutex_unlock(&ct->rm_lock);
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
	struct ckm_managed_space *space = backing->managed;
	struct rb_node *first;
	struct managed *m;

	if (!space)
		return;
	do {
		mutex_lock(&ct->rm_lock);
		first = rb_first_cached(&space->mappings);
		m = first ? rb_entry(first, struct managed, range.rb) : NULL;
		if (m) {
			uncharge_locked(m);
			unlist_locked(m);
			end_moves(m);
		}
		mutex_unlock(&ct->rm_lock);
		if (m)
			drop(m);
		cond_resched();
	} while (m);
	kref_put(&space->ref, free_space);
}
