/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The active core: how the module calls it, and the reference that keeps it loaded. */
#ifndef CKM_CORE_REF_H
#define CKM_CORE_REF_H

#include <linux/module.h>

#include "core/core_ops.h"

/* A registered core, on the list of core_swap.c. */
struct ckm_core {
	struct list_head node;
	const struct cgpu_core_ops *ops;
	struct module *owner;
};

/**
 * ckm_core_enter() - begin a section in which the active core stays loaded
 *
 * The section is an RCU read section, so callers never wait for a core swap. It must
 * not sleep; sleeping locks are taken before it. Scheduler state of a GPU may be passed
 * only to a core that was entered under gpu->lock, because a swap replaces core and
 * state together under that lock.
 *
 * Context: For a GPU, slot or container, which the caller keeps. There is an active core as
 * long as one of these is: GPUs are listed by one, and freed before the last one goes
 * (ckm_core_unregister()); containers keep the module of the active one.
 * Return: operations of the active core, valid until ckm_core_leave(); never NULL.
 */
const struct cgpu_core_ops *ckm_core_enter(void);
void ckm_core_leave(void);

static inline void ckm_core_left(const struct cgpu_core_ops *const *core)
{
	ckm_core_leave();
}

/* A section of one operation: ckm_core_call(nv.share_stays(type)). What it points to is not valid any more. */
#define ckm_core_call(operation)								\
({												\
	const struct cgpu_core_ops *const entered __attribute__((cleanup(ckm_core_left))) =	\
		ckm_core_enter();								\
	entered->operation;									\
})

/* The same for a caller that has none of these. NULL: no core is registered; then
 * ckm_core_leave() must not be called.
 */
const struct cgpu_core_ops *ckm_core_enter_if_any(void);

/* Zeroed memory of the size of the active core's scheduler state; NULL: no memory, or no
 * core. Caller holds ckm_lock: the size is valid until the lock is dropped.
 */
struct cgpu_sched *ckm_core_alloc_sched(void);

/* The active core's module is pinned while a container exists. ckm_core_pin() returns 0
 * or -ENODEV: no core, or its module is being unloaded. Callers hold ckm_lock.
 */
int ckm_core_pin(void);
void ckm_core_unpin(void);
bool ckm_core_is_pinned(void);

/* NULL: no core is registered. Caller holds ckm_lock. */
struct ckm_core *ckm_core_active_locked(void);
/* NULL: no core. Caller holds ckm_lock and the gpu->lock of every GPU. */
void ckm_core_set_active(struct ckm_core *core);

#endif
