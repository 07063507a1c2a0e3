/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Creation and destruction of containers. */
#ifndef CKM_INSTANCE_H
#define CKM_INSTANCE_H

#include <linux/types.h>

#include "state/slot.h"
#include "uapi.h"

struct ckm_container;

struct ckm_create {
	const char *id;
	u64 cookie;			/* 0: the module chooses one */
	u32 slots;
	struct ckm_slot_request slot[CGPU_MAX_GPUS];
};

/**
 * ckm_container_create() - create a container with its slots, nodes and proc files
 * @req: id, cookie and slots
 * @why: on an error, the cause in words
 *
 * Context: Process. Caller holds ckm_lock; sleeps. The first container attaches to the
 * driver.
 * Return: the container, valid until ckm_lock is dropped. ERR_PTR of -EINVAL: bad id,
 * GPU listed twice, limit below 1 MiB, weight or highprio out of range; -EEXIST: the id
 * exists; -EBUSY: it is that of a container whose end is not over; -ENODEV: no such GPU, or no core; -ENOSPC: no instance, weight, memory or
 * minor left; -ENOMEM; or an error of ckm_gpus_attach(). After an error nothing is
 * changed.
 */
struct ckm_container *ckm_container_create(const struct ckm_create *req, const char **why);

/**
 * ckm_container_destroy() - remove a container's nodes and drop the list's reference
 * @id: its id
 * @cookie: its cookie, 0 matches any
 *
 * Its open files give back what they hold. When that is done and its last call has returned, its clients end in
 * the driver, which takes its memory away from mappings, and its slots, name, minors and limits are free. What a
 * dma-buf, or nvidia-uvm for a mapping, still has is charged to the GPU until it goes (ckm_ended).
 *
 * Context: Process. Caller holds ckm_lock; sleeps.
 * Return: 0, also if it is dying already; -ENOENT: no such id, or another cookie.
 */
int ckm_container_destroy(const char *id, u64 cookie);

/* After ckm_container_destroy(): wait until @id is free, for two seconds at most. A call that has not returned
 * holds it for longer. Sleeps, can be killed; takes ckm_lock.
 */
void ckm_container_wait_removed(const char *id);

#endif
