// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A GPU's PCI device, where the machine has one at the GPU's address: QEMU's bochs-display, whose BAR0 is 16 MiB of
 * RAM. The kernel found it and gave it its addresses as those of a real GPU; what its registers show is written here.
 * They are those of the manuals: NV_PMC_BOOT_0 and, on Turing, NV_PCCSR_CHANNEL. Without the device a GPU has no
 * registers, and is whole in all else.
 */
#include <linux/io.h>
#include <linux/moduleparam.h>
#include <linux/pci.h>
#include <linux/sizes.h>

#include "nvsim.h"

#define BOARD_VENDOR	0x1234		/* QEMU's */
#define BOARD_DEVICE	0x1111
#define BAR0		0

#define PCCSR		0x800000	/* dev_fifo.ref (TU104): NV_PCCSR, eight bytes for each channel */
#define PCCSR_CHANNELS	4096
#define PCCSR_WORDS	2		/* of 32 bits, for each channel: instance block, state */
#define PCCSR_BYTES	(PCCSR_CHANNELS * PCCSR_WORDS * sizeof(u32))

/* dev_master.ref: chip and revision A1 */
static u32 boot_0(void)
{
	return (nvsim_chip->chip.arch | nvsim_chip->chip.impl) << 20 | 0xa1;
}

static bool is_board(struct pci_dev *pdev)
{
	return pdev->vendor == BOARD_VENDOR && pdev->device == BOARD_DEVICE &&
	       pci_resource_len(pdev, BAR0) >= SZ_16M;
}

/* As nvidia.ko does it when it binds the device. */
static int take(struct pci_dev *pdev)
{
	int err = pci_enable_device(pdev);

	if (err)
		return err;
	err = pci_request_region(pdev, BAR0, "nvsim");
	if (err)
		pci_disable_device(pdev);
	return err;
}

static void give(struct pci_dev *pdev)
{
	pci_release_region(pdev, BAR0);
	pci_disable_device(pdev);
}

static bool map(struct nvboard *b)
{
	u64 bar0 = pci_resource_start(b->pdev, BAR0);

	b->boot = ioremap(bar0, sizeof(u32));
	b->pccsr = ioremap(bar0 + PCCSR, PCCSR_BYTES);
	return b->boot && b->pccsr;
}

static void unmap(struct nvboard *b)
{
	if (b->boot)
		iounmap(b->boot);
	if (b->pccsr)
		iounmap(b->pccsr);
	*b = (struct nvboard) {};
}

void nvsim_board_find(struct nvgpu *gpu)
{
	struct pci_dev *pdev = pci_get_domain_bus_and_slot(0, gpu->bus, 0);
	struct nvboard *b = &gpu->board;

	if (!pdev)
		return;
	if (!is_board(pdev) || take(pdev))
		goto err_put;
	b->pdev = pdev;
	if (!map(b))
		goto err_give;
	writel(boot_0(), b->boot);
	memset_io(b->pccsr, 0, PCCSR_BYTES);
	return;

err_give:
	unmap(b);
	give(pdev);
err_put:
	pci_dev_put(pdev);
}

void nvsim_board_put(struct nvgpu *gpu)
{
	struct pci_dev *pdev = gpu->board.pdev;

	if (!pdev)
		return;
	memset_io(gpu->board.pccsr, 0, PCCSR_BYTES);
	unmap(&gpu->board);
	give(pdev);
	pci_dev_put(pdev);
}

/* NULL: the GPU shows no registers. */
u32 *nvsim_board_word(const struct nvgpu *gpu, u32 channel)
{
	if (!gpu->board.pccsr || channel >= PCCSR_CHANNELS)
		return NULL;
	return (u32 __force *)gpu->board.pccsr + channel * PCCSR_WORDS + 1;
}

/* What the kernel records of a device that it put to sleep. */
static int set_asleep(const char *text, const struct kernel_param *kp)
{
	int i, err = param_set_int(text, kp);

	for (i = 0; !err && i < NVSIM_MAX_GPUS; i++)
		if (nvsim_gpu[i] && nvsim_gpu[i]->board.pdev)
			nvsim_gpu[i]->board.pdev->current_state = nvsim.asleep ? PCI_D3hot : PCI_D0;
	return err;
}

const struct kernel_param_ops nvsim_board_asleep = { .set = set_asleep, .get = param_get_int };
