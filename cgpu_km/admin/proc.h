/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* /proc/cgpu_km; docs/reference/proc.md is the contract. */
#ifndef CKM_PROC_H
#define CKM_PROC_H

/* A directory for each GPU, and in it one for each container with a slot on it. Removal
 * waits for readers: not under a lock that a reader takes.
 */
extern const struct ckm_observer ckm_proc_observer;

/* The root directory: 0 or -ENOMEM. The exit waits for readers. */
int ckm_proc_init(void);
void ckm_proc_exit(void);

#endif
