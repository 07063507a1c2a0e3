/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The lock of the module and the two lists it guards.
 *
 * Lock order, outermost first:
 *   s_umount         of the file system of nodes (nodefs.c)
 *   power_lock       of the driver's own suspend (sleep.c)
 *   ckm_lock         lists of containers and GPUs, attach and detach
 *   gpu->events.lock   order of events (notify.h); also send_lock in notify.c
 *   ct->end_lock     release of a container's control files, end of their clients
 *   ct->os_event_lock  order of a container's OS events in the driver's list
 *   ct->view_lock    what a container's files show of video memory (rm_view.c)
 *   ct->rm_lock      object tree of a container
 *   threads_lock     GPUs that are paused while the system sleeps (sched_thread.c)
 *   slot->enable_lock  lets one call per slot wait for a worker that takes the two below
 *   gpu->ctrl_lock  calls that freeze, thaw or set timeslices
 *   gpu->lock        scheduler state, ledgers, channel lists of one GPU; a spinlock, because each
 *                    container's tasks take it: one that slept could be throttled (bounds.md)
 *   core section     (core_ref.h)
 * view_lock of a backing file is taken under ct->view_lock or mmap_lock; the driver's faults are in it.
 * awake_lock (sched_thread.c) is taken for reading before ckm_lock, or by a trylock under end_lock; for writing under
 * power_lock alone.
 * gpu->open_lock (gpu->open, and the calls that need it) is taken under ckm_lock, threads_lock
 * or alone; no lock of this list is taken under it.
 *
 * None is held across a copy to or from user memory. Only power_lock, awake_lock, ckm_lock, os_event_lock, end_lock,
 * threads_lock, enable_lock, ctrl_lock and open_lock are held across calls into the driver, and of
 * these a tenant's task holds os_event_lock and enable_lock only, which are its own container's.
 */
#ifndef CKM_REGISTRY_H
#define CKM_REGISTRY_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>

extern struct mutex ckm_lock;
extern struct list_head ckm_containers;	/* ckm_lock; ckm_container.node */
extern struct list_head ckm_ended;	/* ckm_lock; ckm_container.node; destroyed, but something holds it */
extern struct list_head ckm_gpus;	/* ckm_lock; ckm_gpu.node */

struct ckm_container;
struct ckm_gpu;

/* Callbacks of the layer that shows GPUs and containers. */
struct ckm_observer {
	int (*gpu_added)(struct ckm_gpu *gpu);			/* under ckm_lock */
	void (*gpu_removed)(struct ckm_gpu *gpu);		/* under ckm_lock */
	int (*container_added)(struct ckm_container *ct);	/* under ckm_lock */
	void (*container_removed)(struct ckm_container *ct);	/* no lock: waits for readers */
};

extern const struct ckm_observer *ckm_observer;	/* set once, by main.c */

/**
 * ckm_from_outside() - whether the current task is outside the initial namespaces
 *
 * Capabilities do not suffice as a check: a container with the host's network
 * namespace and CAP_NET_ADMIN, or with CAP_SYS_ADMIN, passes those of both interfaces.
 * Any context with a current task, no lock.
 *
 * Return: true if its pid or user namespace is not the initial one. Such a task may not
 * administer the module; procfs cannot hide the tree from one reader, so open fails.
 */
bool ckm_from_outside(void);

#endif
