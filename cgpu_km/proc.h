/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* /proc/cgpu_km; docs/proc.md is the contract. */
#ifndef CKM_PROC_H
#define CKM_PROC_H

#include <linux/types.h>

struct ckm_container;
struct ckm_gpu;

u64 ckm_default_memsize(void);

/**
 * ckm_from_outside() - whether the current task may not administer the module, whatever its capabilities
 *
 * A container that has the host's network namespace and CAP_NET_ADMIN, or
 * CAP_SYS_ADMIN, is root enough for both interfaces. It is told by its pid or
 * user namespace. Any context with a current task.
 */
bool ckm_from_outside(void);

int ckm_proc_add_gpu(struct ckm_gpu *gpu);
void ckm_proc_remove_gpu(struct ckm_gpu *gpu);

/* Its directory under each of its GPUs. Removing waits for readers: not under
 * a lock they take.
 */
int ckm_proc_add_container(struct ckm_container *ct);
void ckm_proc_remove_container(struct ckm_container *ct);

int ckm_proc_init(void);
void ckm_proc_exit(void);

#endif
