/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Front files: what tenants open. A front file refers to its backing file until it is closed or its
 * container is destroyed, whichever comes first. So a file that was passed to a process elsewhere keeps
 * nothing of a container that has ended; a mapping does, and is made by the container's own processes
 * only.
 */
#ifndef CKM_FRONT_FILE_H
#define CKM_FRONT_FILE_H

#include <linux/poll.h>
#include <linux/types.h>

struct ckm_backing;
struct ckm_container;
struct file;

/* Make @file, which is being opened, the front file of @backing. 0: @backing is closed with it. -ENOMEM
 * or -ENODEV (the container was destroyed): @backing stays the caller's. Process context; sleeps.
 */
int ckm_front_init(struct file *file, struct ckm_backing *backing);
/* At the last close of @file. */
void ckm_front_release(struct file *file);

/* The backing file of a file on a container's node, with a reference, to be given back by ckm_front_put().
 * NULL: any other file, or the container was destroyed. Neither sleeps; process context.
 */
struct ckm_backing *ckm_front_get(struct file *file);
void ckm_front_put(struct ckm_backing *backing);

/* Whether the current process may map @file: the one that opened it can see the process by a pid. */
bool ckm_front_may_map(const struct file *file);

/* As the driver's poll. Waiters are on a queue of the front file: the driver's ends with the backing file. */
__poll_t ckm_front_poll(struct file *file, poll_table *wait);

/* The container was destroyed: front files give their backing files back, in a work item. */
void ckm_fronts_end(struct ckm_container *ct);
void ckm_fronts_init(struct ckm_container *ct);

#endif
