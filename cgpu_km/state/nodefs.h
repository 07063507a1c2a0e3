/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The nodes of containers: file system type "cgpu", mounted at /dev/cgpu, with a
 * directory for each container. A node is a character device of this module's major. For
 * a node that is itself a mount point, as the runtime mounts it in a container, stat()
 * returns the driver's device number, because the driver's libraries open no file with
 * another number (docs/decisions/0011).
 *
 * There is one superblock. It exists from the first mount until the last mount of it or
 * of one of its files is gone, and pins the module. Without it containers have no nodes;
 * the next mount creates the nodes of all existing containers.
 */
#ifndef CKM_NODEFS_H
#define CKM_NODEFS_H

struct ckm_container;

/* Create or remove the nodes of a container and its sysfs entries. 0, -ENOMEM or an error
 * of device_add(). Callers hold ckm_lock; sleep.
 */
int ckm_nodes_add(struct ckm_container *ct);
void ckm_nodes_remove(struct ckm_container *ct);

/* The device class that the functions above need. */
int ckm_nodes_init(void);
void ckm_nodes_exit(void);

/* Last step of load and first of unload: the file system can be mounted in between. */
int ckm_nodefs_register(void);
void ckm_nodefs_unregister(void);

#endif
