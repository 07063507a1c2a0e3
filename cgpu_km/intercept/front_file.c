// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the front files. Takes fronts_lock, front->lock. */
#include <linux/file.h>
#include <linux/kref.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "intercept/backing_file.h"
#include "intercept/front_file.h"
#include "state/container.h"
#include "state/minor.h"

struct ckm_front {
	struct kref ref;		/* of its file, and of the worker that wakes @waiters */
	struct list_head node;		/* fronts_lock; on ct->fronts while there is a backing file */
	spinlock_t lock;
	struct ckm_backing *backing;	/* lock; a reference; NULL: the container was destroyed */
	struct pid_namespace *pids;	/* a reference; of the process that opened the file */
	wait_queue_head_t waiters;	/* in poll */
	wait_queue_head_t *source;	/* lock; the driver's, in the backing file; NULL: not polled yet */
	wait_queue_entry_t relay;	/* on @source; wakes @waiters */
};

/* Of all containers: a front file may outlive the container in which its list begins. */
static DEFINE_SPINLOCK(fronts_lock);

static int wake_waiters(wait_queue_entry_t *relay, unsigned int mode, int flags, void *key)
{
	struct ckm_front *front = container_of(relay, struct ckm_front, relay);

	if (key)
		wake_up_poll(&front->waiters, key_to_poll(key));
	else
		wake_up(&front->waiters);
	return 0;
}

int ckm_front_init(struct file *file, struct ckm_backing *backing)
{
	struct ckm_front *front = kzalloc(sizeof(*front), GFP_KERNEL_ACCOUNT);
	struct ckm_container *ct = backing->ct;
	bool dying;

	if (!front)
		return -ENOMEM;
	kref_init(&front->ref);
	spin_lock_init(&front->lock);
	front->backing = backing;
	init_waitqueue_head(&front->waiters);
	init_waitqueue_func_entry(&front->relay, wake_waiters);
	spin_lock(&fronts_lock);
	dying = READ_ONCE(ct->dying);	/* set before the work item takes the lock */
	if (!dying) {
		ckm_container_use(ct);
		list_add_tail(&front->node, &ct->fronts);
	}
	spin_unlock(&fronts_lock);
	if (dying) {
		kfree(front);
		return -ENODEV;
	}
	front->pids = get_pid_ns(task_active_pid_ns(current));
	file->private_data = front;
	return 0;
}

/* The backing file, which is the caller's from here on. NULL: it was taken before. */
static struct ckm_backing *detach_locked(struct ckm_front *front)
{
	wait_queue_head_t *source;
	struct ckm_backing *backing;

	lockdep_assert_held(&fronts_lock);
	list_del_init(&front->node);
	spin_lock(&front->lock);
	backing = front->backing;
	source = front->source;
	front->backing = NULL;
	front->source = NULL;
	spin_unlock(&front->lock);
	if (source)
		remove_wait_queue(source, &front->relay);
	return backing;
}

static void free_front(struct kref *ref)
{
	kfree(container_of(ref, struct ckm_front, ref));
}

void ckm_front_release(struct file *file)
{
	struct ckm_front *front = file->private_data;
	struct ckm_backing *backing;

	spin_lock(&fronts_lock);
	backing = detach_locked(front);
	spin_unlock(&fronts_lock);
	if (backing)
		ckm_front_put(backing);
	put_pid_ns(front->pids);
	kref_put(&front->ref, free_front);
}

struct ckm_backing *ckm_front_get(struct file *file)
{
	struct ckm_front *front = ckm_is_front(file) ? file->private_data : NULL;
	struct ckm_backing *backing;

	if (!front)
		return NULL;
	spin_lock(&front->lock);
	backing = front->backing;
	if (backing) {
		get_file(backing->real);
		ckm_container_use(backing->ct);
	}
	spin_unlock(&front->lock);
	return backing;
}

void ckm_front_put(struct ckm_backing *backing)
{
	struct ckm_container *ct = backing->ct;

	fput(backing->real);	/* ct is valid as long as it has a user */
	ckm_container_unuse(ct);
}

bool ckm_front_may_map(const struct file *file)
{
	const struct ckm_front *front = file->private_data;

	return pid_nr_ns(task_tgid(current), front->pids);
}

/* ---- poll ---- */

struct relay_table {
	poll_table table;
	struct ckm_front *front;
};

/* The driver waits on one queue for each file. */
static void follow(struct file *real, wait_queue_head_t *source, poll_table *table)
{
	struct ckm_front *front = container_of(table, struct relay_table, table)->front;

	spin_lock(&front->lock);
	if (front->backing && !front->source) {
		front->source = source;
		add_wait_queue(source, &front->relay);
	}
	spin_unlock(&front->lock);
}

__poll_t ckm_front_poll(struct file *file, poll_table *wait)
{
	struct relay_table relay = { .front = file->private_data };
	struct ckm_backing *backing;
	__poll_t mask = DEFAULT_POLLMASK;

	/* Before the driver's poll: what happens in between wakes the waiter. */
	poll_wait(file, &relay.front->waiters, wait);
	backing = ckm_front_get(file);
	if (!backing)
		return EPOLLERR | EPOLLHUP;
	if (backing->drv->poll) {
		init_poll_funcptr(&relay.table, follow);
		ckm_backing_mirror_flags(backing, file->f_flags);
		mask = backing->drv->poll(backing->real, &relay.table);
	}
	ckm_front_put(backing);
	return mask;
}

/* ---- the end of a container ---- */

static void end_fronts(struct work_struct *work)
{
	struct ckm_container *ct = container_of(work, struct ckm_container, fronts_end);
	struct ckm_backing *backing;
	struct ckm_front *front;

	do {
		backing = NULL;
		spin_lock(&fronts_lock);
		front = list_first_entry_or_null(&ct->fronts, struct ckm_front, node);
		if (front) {	/* on the list: its release has not begun */
			kref_get(&front->ref);
			backing = detach_locked(front);
		}
		spin_unlock(&fronts_lock);
		if (front) {	/* without the lock: a tenant makes any number of waiters */
			wake_up_poll(&front->waiters, EPOLLERR | EPOLLHUP);
			kref_put(&front->ref, free_front);
		}
		if (backing)
			ckm_front_put(backing);
		cond_resched();
	} while (front);
	ckm_container_put(ct);
}

void ckm_fronts_end(struct ckm_container *ct)
{
	bool none;

	spin_lock(&fronts_lock);
	none = list_empty(&ct->fronts);	/* and none is added */
	spin_unlock(&fronts_lock);
	if (none)
		return;
	ckm_container_get(ct);
	queue_work(ct->ends, &ct->fronts_end);
}

void ckm_fronts_init(struct ckm_container *ct)
{
	INIT_LIST_HEAD(&ct->fronts);
	INIT_WORK(&ct->fronts_end, end_fronts);
}
