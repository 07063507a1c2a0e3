/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Device numbers of containers: one major, a minor for each node. */
#ifndef CKM_MINOR_H
#define CKM_MINOR_H

#include <linux/types.h>

struct ckm_container;
struct ckm_slot;
struct file;
struct file_operations;

/* Valid from ckm_minors_init() on. */
u32 ckm_major(void);

/**
 * ckm_container_by_minor() - look up a container by the minor of one of its nodes
 * @minor: of ckm_major()
 * @node: set to CGPU_NODE_*
 * @slot: set to the slot of a GPU node, NULL for other nodes
 *
 * Takes minors_lock.
 *
 * Return: the container with a reference; NULL: no such minor, or the container is
 * dying. @node and @slot are not set then.
 */
struct ckm_container *ckm_container_by_minor(u32 minor, u32 *node, struct ckm_slot **slot);

/* Whether @file is on a container's node. No lock. */
bool ckm_is_front(const struct file *file);

/* Allocate a minor for each node of the container: 0, -ENOMEM or -ENOSPC. Sleeps; takes
 * minors_lock.
 */
int ckm_minors_add(struct ckm_container *ct);
void ckm_minors_remove(struct ckm_container *ct);

/* @fops: file operations of the nodes. 0, or the error of the char device region. */
int ckm_minors_init(const struct file_operations *fops);
void ckm_minors_exit(void);

#endif
