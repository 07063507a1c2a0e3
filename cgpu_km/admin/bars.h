/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Keeps processes from mapping a card's BARs past the driver. */
#ifndef CKM_BARS_H
#define CKM_BARS_H

struct ckm_gpu;

/* Claim the memory BARs of a GPU while the module is attached. Until the release, mmap() of its resourceN files in sysfs,
 * and of /dev/mem there, fails for every process, unless the kernel allows any (iomem=relaxed). A BAR that cannot be
 * claimed is logged. Sleeps. After ckm_run_state_start(), before ckm_run_state_stop().
 */
void ckm_bars_claim(struct ckm_gpu *gpu);
void ckm_bars_release(struct ckm_gpu *gpu);

/* Take away what processes have mapped of the claimed BARs from sysfs before: SIGBUS. Before Linux 5.13, and without
 * sysfs at /sys, it stays, and the log has a line. Sleeps; caller holds ckm_lock.
 */
void ckm_bars_revoke(struct ckm_gpu *gpu);

#endif
