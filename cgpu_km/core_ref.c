// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the pointer to the active core. Callers that change it hold ckm_lock. */
#include <linux/rcupdate.h>
#include <linux/slab.h>

#include "core_ref.h"
#include "registry.h"

/* Writers hold ckm_lock and the gpu->lock of every GPU. Readers hold one of these locks
 * or are in an RCU read section.
 */
static struct ckm_core __rcu *active;
static bool pinned;			/* ckm_lock */

struct ckm_core *ckm_core_active_locked(void)
{
	return rcu_dereference_protected(active, lockdep_is_held(&ckm_lock));
}

void ckm_core_set_active(struct ckm_core *core)
{
	lockdep_assert_held(&ckm_lock);
	rcu_assign_pointer(active, core);
}

const struct cgpu_core_ops *ckm_core_enter_if_any(void)
{
	struct ckm_core *entry;

	rcu_read_lock();
	entry = rcu_dereference(active);
	if (!entry) {
		rcu_read_unlock();
		return NULL;
	}
	__release(RCU);		/* sparse: taken over by ckm_core_leave() */
	return entry->ops;
}

const struct cgpu_core_ops *ckm_core_enter(void)
{
	rcu_read_lock();
	__release(RCU);
	return rcu_dereference(active)->ops;
}

void ckm_core_leave(void)
{
	__acquire(RCU);
	rcu_read_unlock();
}

struct cgpu_sched *ckm_core_alloc_sched(void)
{
	struct ckm_core *entry = ckm_core_active_locked();

	return entry ? kzalloc(entry->ops->sched_size, GFP_KERNEL) : NULL;
}

int ckm_core_pin(void)
{
	struct ckm_core *entry = ckm_core_active_locked();

	if (!entry || !try_module_get(entry->owner))
		return -ENODEV;
	pinned = true;
	return 0;
}

void ckm_core_unpin(void)
{
	module_put(ckm_core_active_locked()->owner);
	pinned = false;
}

bool ckm_core_is_pinned(void)
{
	lockdep_assert_held(&ckm_lock);
	return pinned;
}
