// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns no state: the mapping is kept in gpu->run. Takes no lock. */
#include <linux/io.h>
#include <linux/pci.h>

#include "core/nv_abi.h"
#include "core_ref.h"
#include "sched/pccsr.h"

#define PCCSR_BYTES	(NV_PCCSR_CHANNELS * NV_PCCSR_STRIDE)
#define BAR0		0

bool ckm_gpu_is_awake(const struct ckm_gpu *gpu)
{
	return !gpu->pdev ||
	       (gpu->pdev->current_state == PCI_D0 && !pci_channel_offline(gpu->pdev));
}

/* Part of the registers. nvidia.ko has requested all of BAR0, for itself. */
static const void __iomem *map(struct pci_dev *pdev, u32 offset, u32 bytes)
{
	if (!(pci_resource_flags(pdev, BAR0) & IORESOURCE_MEM) ||
	    pci_resource_len(pdev, BAR0) < offset + bytes)
		return NULL;
	return ioremap(pci_resource_start(pdev, BAR0) + offset, bytes);
}

static bool has_pccsr(const struct ckm_gpu *gpu)
{
	const void __iomem *boot = map(gpu->pdev, NV_PMC_BOOT_0, sizeof(u32));
	bool has;

	if (!boot)
		return false;
	has = ckm_core_call(nv.has_pccsr(gpu->arch, readl(boot)));
	iounmap((void __iomem *)boot);
	return has;
}

const void __iomem *ckm_pccsr_map(const struct ckm_gpu *gpu)
{
	const void __iomem *pccsr;

	/* Other chips have other registers there: leave theirs alone. */
	if (gpu->arch != NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_TU100 || !gpu->pdev || !ckm_gpu_is_awake(gpu) || !has_pccsr(gpu))
		return NULL;
	pccsr = map(gpu->pdev, NV_PCCSR, PCCSR_BYTES);
	if (!pccsr)
		pr_warn("GPU %u: its registers cannot be mapped; no run state of channels\n",
			gpu->index);
	return pccsr;
}

const void __iomem *ckm_pccsr_word(const void __iomem *pccsr, u32 channel)
{
	return channel < NV_PCCSR_CHANNELS ?
	       pccsr + channel * NV_PCCSR_STRIDE + NV_PCCSR_CHANNEL : NULL;
}
