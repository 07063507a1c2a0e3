// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns claims on the memory BARs of GPUs. Takes no lock. */
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/ioport.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/pci.h>

#include "admin/bars.h"
#include "state/gpu.h"

/* sysfs lets root map a PCI device's resourceN files, for reading also where /sys is mounted read-only. It checks
 * neither a capability nor the device cgroup: root of an ordinary container would have the doorbells of others, and the
 * video memory that they have mapped. The kernel refuses a mapping of a region that is claimed as exclusive
 * (iomem_is_exclusive()).
 *
 * The driver's own region is as large as the BAR (BAR0, by nv_pci_probe()): the claim is within it. It stays while the
 * module is attached, which pins the driver.
 */
static struct resource *claim(struct resource *bar)
{
	struct resource *parent = &iomem_resource, *held = bar->child;

	if (held && held->start == bar->start && held->end == bar->end)
		parent = held;
	return __request_region(parent, bar->start, resource_size(bar), KBUILD_MODNAME, IORESOURCE_EXCLUSIVE);
}

void ckm_bars_claim(struct ckm_gpu *gpu)
{
	struct resource *bar;
	u32 i;

	BUILD_BUG_ON(CKM_BARS != PCI_STD_NUM_BARS);
	if (!gpu->pdev)
		pr_notice("GPU %u: no PCI device has its address, so its BARs are not claimed\n", gpu->index);
	for (i = 0; gpu->pdev && i < CKM_BARS; i++) {
		bar = &gpu->pdev->resource[i];
		if (!(bar->flags & IORESOURCE_MEM) || !bar->start)
			continue;
		gpu->bar[i] = claim(bar);
		if (!gpu->bar[i])
			pr_warn("GPU %u: BAR%u cannot be claimed (/proc/iomem), so root of a container may map it from sysfs\n",
				gpu->index, i);
	}
}

/* Since 5.13 all files of BARs have one mapping, by physical addresses. Before, each has its own. */
static bool revoke(const struct ckm_gpu *gpu, u32 i)
{
	const struct resource *bar = &gpu->pdev->resource[i];
	struct file *file;
	char path[64];
	bool shared;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource%u", pci_name(gpu->pdev), i);
	file = filp_open(path, O_RDONLY, 0);
	if (IS_ERR(file))
		return false;
	shared = file_inode(file)->i_sb->s_magic == SYSFS_MAGIC && file->f_mapping != file_inode(file)->i_mapping;
	if (shared)
		unmap_mapping_range(file->f_mapping, bar->start, resource_size(bar), 1);
	fput(file);
	return shared;
}

/* The kernel takes away what was mapped before a claim, but not where the claim is within the driver's region. */
void ckm_bars_revoke(struct ckm_gpu *gpu)
{
	u32 i;

	for (i = 0; i < CKM_BARS; i++)
		if (gpu->bar[i] && !revoke(gpu, i) && !gpu->bars_said) {
			gpu->bars_said = true;
			pr_warn("GPU %u: what is mapped of BAR%u from sysfs cannot be taken away: root of a container may have mapped it before\n",
				gpu->index, i);
		}
}

void ckm_bars_release(struct ckm_gpu *gpu)
{
	u32 i;

	for (i = 0; i < CKM_BARS; i++) {
		/* By its parent: the driver's region has the same addresses. */
		if (gpu->bar[i])
			__release_region(gpu->bar[i]->parent, gpu->bar[i]->start, resource_size(gpu->bar[i]));
		gpu->bar[i] = NULL;
	}
}
