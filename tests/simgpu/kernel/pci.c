// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A PCI domain of its own for each card: a root bus with one device whose configuration space is an array and whose
 * BARs are RAM. The interrupt line is the kernel's alone: it is raised by software, with interrupts off as by a device.
 */
#include <linux/io.h>
#include <linux/irq.h>
#include <linux/irqdomain.h>
#include <linux/pci.h>
#include <linux/string.h>

#include "simgpu.h"

#define BAR0 0x10
#define BAR1 0x14			/* 64 bits */
#define BAR3 0x1c			/* 64 bits */
#define BAR5 0x24
#define MEM64_PREFETCH 0xc
#define CAP_PM 0x60
#define CAP_EXP 0x78
#define XVE 0x88000			/* NV_PCFG: where registers show configuration space */

static struct simgpu *card_on(struct pci_bus *bus)
{
	return container_of(to_pci_sysdata(bus), struct simgpu, sysdata);
}

static void put(struct simgpu *g, int at, u32 v)
{
	memcpy(g->config + at, &v, 4);
}

static int config_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *val)
{
	*val = ~0u;
	if (devfn || where + size > SIMGPU_CONFIG_BYTES)
		return PCIBIOS_DEVICE_NOT_FOUND;
	*val = 0;
	memcpy(val, card_on(bus)->config + where, size);
	return PCIBIOS_SUCCESSFUL;
}

/* A BAR keeps the address bits above its size: so the kernel finds the size. */
static void write_bar(struct simgpu *g, int where, u32 val)
{
	u64 mask = ~(g->gsp.bar1_bytes - 1);

	switch (where) {
	case BAR0:
		put(g, where, val & ~(SIMGPU_REGS_BYTES - 1));
		break;
	case BAR1:
		put(g, where, (val & (u32)mask) | MEM64_PREFETCH);
		break;
	case BAR1 + 4:
		put(g, where, val & (u32)(mask >> 32));
		break;
	case BAR3:
		put(g, where, (val & ~(SIMGPU_INST_BYTES - 1)) | MEM64_PREFETCH);
		break;
	case BAR3 + 4:
		put(g, where, val);
		break;
	}
}

static int config_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 val)
{
	struct simgpu *g = card_on(bus);

	if (devfn || where + size > SIMGPU_CONFIG_BYTES)
		return PCIBIOS_DEVICE_NOT_FOUND;
	if (size == 4 && where >= BAR0 && where <= BAR5)
		write_bar(g, where, val);
	else if (where == PCI_COMMAND && size == 2)
		memcpy(g->config + where, &val, 2);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops ops = { .read = config_read, .write = config_write };

static void fill_config(struct simgpu *g)
{
	put(g, PCI_VENDOR_ID, g->gsp.chip->device_id);
	put(g, PCI_COMMAND, PCI_STATUS_CAP_LIST << 16);
	put(g, PCI_CLASS_REVISION, PCI_CLASS_DISPLAY_3D << 16 | 0xa1);
	put(g, BAR0, g->gsp.bar0);
	put(g, BAR1, (u32)g->gsp.bar1 | MEM64_PREFETCH);
	put(g, BAR1 + 4, g->gsp.bar1 >> 32);
	put(g, BAR3, (u32)g->gsp.bar2 | MEM64_PREFETCH);
	put(g, PCI_SUBSYSTEM_VENDOR_ID, g->gsp.chip->subsystem_id);
	put(g, PCI_CAPABILITY_LIST, CAP_PM);
	put(g, CAP_PM, 3 << 16 | CAP_EXP << 8 | PCI_CAP_ID_PM);
	put(g, CAP_EXP, 2 << 16 | PCI_CAP_ID_EXP);
	put(g, CAP_EXP + PCI_EXP_DEVCAP, 0x8fe0);
	put(g, CAP_EXP + PCI_EXP_LNKCAP, 0x456103);		/* x16, 8 GT/s */
	put(g, CAP_EXP + PCI_EXP_LNKCTL, 0x1030000);		/* status: x16 at 8 GT/s */
	memcpy((u8 *)g->gsp.regs + XVE, g->config, SIMGPU_CONFIG_BYTES);
}

static void add_window(struct simgpu *g, int i, const char *name, u64 at, u64 bytes, ulong flags, struct list_head *list)
{
	g->window[i] = (struct resource) {
		.name = name, .start = at, .end = at + bytes - 1, .flags = IORESOURCE_MEM | flags,
	};
	if (request_resource(&iomem_resource, &g->window[i]))
		pr_warn("simgpu: %pR is in use\n", &g->window[i]);
	pci_add_resource(list, &g->window[i]);
}

static void raise_line(struct irq_work *work)
{
	generic_handle_irq(container_of(work, struct simgpu, line)->irq);
}

void gsp_host_interrupt(struct gsp_card *card)
{
	irq_work_queue(&simgpu_of(card)->line);
}
EXPORT_SYMBOL(gsp_host_interrupt);

int simgpu_pci_add(struct simgpu *g)
{
	const ulong prefetch = IORESOURCE_MEM_64 | IORESOURCE_PREFETCH;
	struct pci_dev *dev;
	LIST_HEAD(list);

	g->irq = irq_alloc_desc(NUMA_NO_NODE);
	if (g->irq < 0)
		return g->irq;
	init_irq_work(&g->line, raise_line);
	irq_set_chip_and_handler(g->irq, &dummy_irq_chip, handle_simple_irq);
	fill_config(g);
	g->sysdata.domain = g->gsp.index + 1;
	g->sysdata.node = NUMA_NO_NODE;
	g->busn = (struct resource) { .name = "simgpu bus", .flags = IORESOURCE_BUS };
	add_window(g, 0, "simgpu video memory", g->gsp.bar1, g->gsp.bar1_bytes, prefetch, &list);
	add_window(g, 1, "simgpu registers", g->gsp.bar0, SIMGPU_REGS_BYTES, 0, &list);
	add_window(g, 2, "simgpu instance memory", g->gsp.bar2, SIMGPU_INST_BYTES, prefetch, &list);
	pci_add_resource(&list, &g->busn);
	g->bus = pci_scan_root_bus(NULL, 0, &ops, &g->sysdata, &list);
	if (!g->bus) {
		irq_free_desc(g->irq);
		pci_free_resource_list(&list);
		return -ENODEV;
	}
	pci_bus_claim_resources(g->bus);
	list_for_each_entry(dev, &g->bus->devices, bus_list)
		dev->irq = g->irq;
	pci_bus_add_devices(g->bus);
	return 0;
}

void simgpu_pci_remove(struct simgpu *g)
{
	int i;

	if (!g->bus)
		return;
	pci_lock_rescan_remove();
	pci_stop_root_bus(g->bus);
	pci_remove_root_bus(g->bus);
	pci_unlock_rescan_remove();
	irq_work_sync(&g->line);
	for (i = 0; i < ARRAY_SIZE(g->window); i++)
		if (g->window[i].parent)
			release_resource(&g->window[i]);
	irq_free_desc(g->irq);
	g->bus = NULL;
}
