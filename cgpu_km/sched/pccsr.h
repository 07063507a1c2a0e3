/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The registers of a Turing GPU that have its channels' words of state (PCCSR). The driver returns
 * no address of them, so this module maps them: 32 KiB of BAR0, which are only read.
 */
#ifndef CKM_PCCSR_H
#define CKM_PCCSR_H

#include "core/core_ops.h"
#include "state/gpu.h"

/* False: the GPU is known to be asleep or off the bus, and its registers must not be read. A
 * simulated GPU may have no PCI device, and is always awake. Caller holds gpu->lock, or owns
 * gpu->pdev.
 */
bool ckm_gpu_is_awake(const struct ckm_gpu *gpu);

/* Map the registers. NULL: the GPU is not Turing by its driver and its own register, has no PCI
 * device, or the mapping fails. Sleeps; caller owns gpu->pdev.
 */
const void __iomem *ckm_pccsr_map(const struct ckm_gpu *gpu);

/* A channel's word, given the number that the driver returned for it; NULL: no such channel. */
const void __iomem *ckm_pccsr_word(const void __iomem *pccsr, u32 channel);

#endif
