// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the table of tasks in intercepted calls. Takes overflow_lock when a bucket is full. */
#include <linux/file.h>
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/rbtree_latch.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>

#include "call.h"

#define BUCKET_BITS	9
#define PLACES		4

/* One cache line. Between begin and end only the task in a place writes it. Other tasks
 * compare the task pointer and skip the place.
 */
struct bucket {
	struct task_struct *task[PLACES];
	struct ckm_call *call[PLACES];
} ____cacheline_aligned_in_smp;

static struct bucket buckets[1 << BUCKET_BITS];

/* A call for which its bucket had no place. Sorted by task, because a tenant with many threads
 * can make many, and each task on the host whose calls are redirected looks here.
 */
struct ckm_call_node {
	struct latch_tree_node node;	/* overflow_lock; readers: RCU */
	struct rcu_head rcu;
	struct task_struct *task;
	struct ckm_call *call;
};
static struct latch_tree_root overflow;
static DEFINE_SPINLOCK(overflow_lock);	/* writers of overflow */
static atomic_t overflows = ATOMIC_INIT(0);	/* entries of it */

static struct ckm_call_node *node_of(struct latch_tree_node *node)
{
	return container_of(node, struct ckm_call_node, node);
}

static __always_inline bool is_before(struct latch_tree_node *a, struct latch_tree_node *b)
{
	return node_of(a)->task < node_of(b)->task;
}

static __always_inline int compare_task(void *task, struct latch_tree_node *node)
{
	struct task_struct *other = node_of(node)->task;

	return (struct task_struct *)task < other ? -1 : (struct task_struct *)task > other;
}

static const struct latch_tree_ops by_task = { .less = is_before, .comp = compare_task };

static struct bucket *bucket_of(struct task_struct *task)
{
	return &buckets[hash_ptr(task, BUCKET_BITS)];
}

static int begin_overflow(struct ckm_call *call)
{
	struct ckm_call_node *node = kzalloc(sizeof(*node), GFP_KERNEL_ACCOUNT);

	if (!node)
		return -ENOMEM;
	node->task = current;
	node->call = call;
	call->overflow = node;
	spin_lock(&overflow_lock);
	latch_tree_insert(&node->node, &overflow, &by_task);
	spin_unlock(&overflow_lock);
	atomic_inc(&overflows);
	return 0;
}

int ckm_call_begin(struct ckm_call *call, struct ckm_backing *backing)
{
	struct bucket *bucket = bucket_of(current);
	u8 i;

	/* The inline copies need no zeroing: they are written before any read. */
	memset(call, 0, offsetof(struct ckm_call, inline_top));
	call->backing = backing;
	for (i = 0; i < PLACES; i++) {
		if (READ_ONCE(bucket->task[i]) ||
		    cmpxchg_acquire(&bucket->task[i], NULL, current))
			continue;
		call->place = i;
		WRITE_ONCE(bucket->call[i], call);
		return 0;
	}
	return begin_overflow(call);
}

int ckm_call_fetch(struct ckm_call *call, unsigned long user, u32 size)
{
	call->top = call->inline_top;
	if (size > sizeof(call->inline_top)) {
		call->top = kmalloc(size, GFP_KERNEL_ACCOUNT);
		if (!call->top)
			return -ENOMEM;
	}
	call->size = size;
	return copy_from_user(call->top, (void __user *)user, size) ? -EFAULT : 0;
}

void ckm_call_end(struct ckm_call *call)
{
	struct bucket *bucket = bucket_of(current);

	if (call->overflow) {
		atomic_dec(&overflows);
		spin_lock(&overflow_lock);
		latch_tree_erase(&call->overflow->node, &overflow, &by_task);
		spin_unlock(&overflow_lock);
		kfree_rcu(call->overflow, rcu);
	} else {
		WRITE_ONCE(bucket->call[call->place], NULL);
		/* The next owner of the place, by cmpxchg_acquire(), has its own call there. */
		smp_store_release(&bucket->task[call->place], NULL);
	}
	if (call->export_file)
		fput(call->export_file);
	if (call->top != call->inline_top)
		kfree(call->top);
	if (call->nested.copy != call->inline_nested)
		kvfree(call->nested.copy);
}

struct ckm_call *ckm_call_mine(void)
{
	struct bucket *bucket = bucket_of(current);
	struct latch_tree_node *node;
	struct ckm_call *found;
	u8 i;

	for (i = 0; i < PLACES; i++)
		if (READ_ONCE(bucket->task[i]) == current)
			return READ_ONCE(bucket->call[i]);
	if (!atomic_read(&overflows))	/* this task's own, if there is one, counts */
		return NULL;
	rcu_read_lock();
	node = latch_tree_find(current, &overflow, &by_task);
	found = node ? node_of(node)->call : NULL;
	rcu_read_unlock();
	return found;
}
