/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Keeps processes from mapping a card's BARs past the driver. */
#ifndef CKM_BARS_H
#define CKM_BARS_H

struct ckm_gpu;

/* Claim the memory BARs of a GPU while the module is attached. Until the release, mmap() of its resourceN files in sysfs,
 * and of /dev/mem there, fails for every process, unless the kernel allows any (iomem=relaxed). From 5.12 on the kernel
 * ends mappings made before, but for those of a BAR that the driver has claimed itself. A BAR that cannot be claimed is
 * logged. Sleeps. After ckm_run_state_start(), before ckm_run_state_stop().
 */
void ckm_bars_claim(struct ckm_gpu *gpu);
void ckm_bars_release(struct ckm_gpu *gpu);

#endif
