/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* /proc/cgpu_km; docs/proc.md is the contract. */
#ifndef CKM_PROC_H
#define CKM_PROC_H

#include <linux/types.h>

struct ckm_container;
struct ckm_gpu;

u64 ckm_default_memsize(void);

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
