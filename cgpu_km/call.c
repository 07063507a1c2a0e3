// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns the table of tasks in intercepted calls. Takes overflow_lock when a bucket is full. */
#include <linux/file.h>
#include <linux/hash.h>
#include <linux/rculist.h>
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

/* A call for which its bucket had no place. Readers use RCU, writers overflow_lock. */
struct ckm_call_node {
	struct hlist_node node;
	struct rcu_head rcu;
	struct task_struct *task;
	struct ckm_call *call;
};
static HLIST_HEAD(overflow);
static DEFINE_SPINLOCK(overflow_lock);

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
	hlist_add_head_rcu(&node->node, &overflow);
	spin_unlock(&overflow_lock);
	return 0;
}

int ckm_call_begin(struct ckm_call *call, struct ckm_backing *backing)
{
	struct bucket *bucket = bucket_of(current);
	u8 i;

	/* The inline copy needs no zeroing: ckm_call_fetch() writes it before any read. */
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
		spin_lock(&overflow_lock);
		hlist_del_rcu(&call->overflow->node);
		spin_unlock(&overflow_lock);
		kfree_rcu(call->overflow, rcu);
	} else {
		WRITE_ONCE(bucket->call[call->place], NULL);
		smp_store_release(&bucket->task[call->place], NULL);
	}
	if (call->export_file)
		fput(call->export_file);
	if (call->top != call->inline_top)
		kfree(call->top);
	kvfree(call->nested.copy);
}

struct ckm_call *ckm_call_mine(void)
{
	struct bucket *bucket = bucket_of(current);
	struct ckm_call *found = NULL;
	struct ckm_call_node *node;
	u8 i;

	for (i = 0; i < PLACES; i++)
		if (READ_ONCE(bucket->task[i]) == current)
			return READ_ONCE(bucket->call[i]);
	if (hlist_empty(&overflow))
		return NULL;
	rcu_read_lock();
	hlist_for_each_entry_rcu(node, &overflow, node)
		if (node->task == current) {
			found = node->call;
			break;
		}
	rcu_read_unlock();
	return found;
}
