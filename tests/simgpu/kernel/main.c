// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A simulated GPU as a PCI device, for NVIDIA's own driver (docs/develop/simulated-driver.md). Its memory is RAM that
 * the kernel was told to leave alone (mem=).
 */
#include <linux/io.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <asm/msr.h>

#include "simgpu.h"

struct engine_rules simgpu_rules = {
	.timeslice_us = 1024, .ctxsw_us = 82, .copy_mbps = 12000, .sm_count = 40, .launch_ns = 2000, .wave_ns = 10000,
	.poll_us = 20, .idle_poll_us = 200, .stubborn_ms = 1000, .chram_us = 200,
};

struct simgpu *simgpu_card[SIMGPU_CARDS];

static char *chips[SIMGPU_CARDS] = { "TU104" };
static int nr_chips = 1;
static int fb_mib = 15360;
static ulong regs_at = 0x78000000, fb_at = 0x400000000;

module_param_array(chips, charp, &nr_chips, 0444);
MODULE_PARM_DESC(chips, "chip of each card: TU104, GA100, GA102, AD102, GH100");
module_param(fb_mib, int, 0444);
MODULE_PARM_DESC(fb_mib, "video memory of each card, MiB");
module_param(regs_at, ulong, 0444);
MODULE_PARM_DESC(regs_at, "address of RAM for the first card's registers; 64 MiB a card");
module_param(fb_at, ulong, 0444);
MODULE_PARM_DESC(fb_at, "address of RAM for the first card's video memory, aligned to its size as a power of two");

#define SIMGPU_RULE(field, text) \
	module_param_named(field, simgpu_rules.field, int, 0644); \
	MODULE_PARM_DESC(field, text)

SIMGPU_RULE(timeslice_us, "default timeslice of a group");
SIMGPU_RULE(ctxsw_us, "cost of a switch between groups");
SIMGPU_RULE(copy_mbps, "speed of a copy, bytes per microsecond");
SIMGPU_RULE(launch_ns, "what a launch takes besides its waves");
SIMGPU_RULE(wave_ns, "what a wave of sm_count CTAs takes");
SIMGPU_RULE(poll_us, "how often an idle engine looks at the doorbell");
SIMGPU_RULE(idle_poll_us, "the same after 5 ms without work");
SIMGPU_RULE(commit_required, "SET_TIMESLICE takes effect at RESTART_RUNLIST only");
SIMGPU_RULE(disable_needs_restart, "DISABLE_CHANNELS takes effect at RESTART_RUNLIST only");

struct gsp_card *gsp_host_card(gsp_u64 bar0)
{
	int i;

	for (i = 0; i < SIMGPU_CARDS; i++)
		if (simgpu_card[i] && simgpu_card[i]->gsp.bar0 == bar0)
			return &simgpu_card[i]->gsp;
	return NULL;
}
EXPORT_SYMBOL(gsp_host_card);

/* The kernel's RAM, or a card's video memory or registers by their bus addresses. Any context. */
void *gsp_host_sysmem(gsp_u64 address, gsp_u64 bytes)
{
	int i;

	if (pfn_valid(PHYS_PFN(address)) && pfn_valid(PHYS_PFN(address + bytes - 1)))
		return phys_to_virt(address);
	for (i = 0; i < SIMGPU_CARDS; i++) {
		struct gsp_card *c = simgpu_card[i] ? &simgpu_card[i]->gsp : NULL;

		if (c && address >= c->bar1 && address - c->bar1 + bytes <= c->fb_bytes)
			return c->fb + (address - c->bar1);
		if (c && address >= c->bar0 && address - c->bar0 + bytes <= SIMGPU_REGS_BYTES)
			return (u8 *)c->regs + (address - c->bar0);
	}
	pr_warn_ratelimited("simgpu: no memory at %llx\n", address);
	return NULL;
}
EXPORT_SYMBOL(gsp_host_sysmem);

gsp_u64 gsp_host_now_ns(void)
{
	return ktime_get_ns();
}
EXPORT_SYMBOL(gsp_host_now_ns);

void *gsp_host_alloc(gsp_u64 bytes)
{
	return kvzalloc(bytes, GFP_KERNEL);
}
EXPORT_SYMBOL(gsp_host_alloc);

void gsp_host_free(void *memory)
{
	kvfree(memory);
}
EXPORT_SYMBOL(gsp_host_free);

void gsp_host_log(const char *format, ...)
{
	struct va_format f = { .fmt = format };
	va_list args;

	va_start(args, format);
	f.va = &args;
	pr_info("simgpu: %pV", &f);
	va_end(args);
}
EXPORT_SYMBOL(gsp_host_log);

static void card_free(struct simgpu *g)
{
	if (g->gsp.regs)
		memunmap((void *)g->gsp.regs);
	if (g->gsp.fb)
		memunmap(g->gsp.fb);
	kvfree(g);
}

static struct simgpu *card_create(int index)
{
	struct simgpu *g = kvzalloc(sizeof(*g), GFP_KERNEL);
	u64 aperture = roundup_pow_of_two((u64)fb_mib) * SZ_1M;

	if (!g)
		return ERR_PTR(-ENOMEM);
	g->gsp.chip = gsp_chip_by_name(chips[index]);
	g->gsp.index = index;
	g->gsp.bar0 = regs_at + index * SZ_64M;
	g->gsp.bar2 = g->gsp.bar0 + SZ_32M;
	g->gsp.bar1 = fb_at + index * aperture;
	g->gsp.bar1_bytes = aperture;
	g->gsp.fb_bytes = (u64)fb_mib * SZ_1M;
	g->gsp.regs = memremap(g->gsp.bar0, SIMGPU_REGS_BYTES, MEMREMAP_WB);
	g->gsp.fb = memremap(g->gsp.bar1, g->gsp.fb_bytes, MEMREMAP_WB);
	if (!g->gsp.chip || !g->gsp.regs || !g->gsp.fb || (g->gsp.bar1 & (aperture - 1))) {
		pr_err("simgpu: card %d: %s, registers at %llx, video memory at %llx+%llx: no such chip, no such RAM (mem=), or not aligned\n",
		       index, chips[index], g->gsp.bar0, g->gsp.bar1, aperture);
		card_free(g);
		return ERR_PTR(-EINVAL);
	}
	memset((void *)g->gsp.regs, 0, SIMGPU_REGS_BYTES);
	gsp_card_reset(&g->gsp);
	simgpu_engines_init(g);
	return g;
}

static void remove_cards(void)
{
	int i;

	for (i = 0; i < SIMGPU_CARDS; i++) {
		struct simgpu *g = simgpu_card[i];

		if (!g)
			continue;
		simgpu_pci_remove(g);
		simgpu_engines_exit(g);
		simgpu_card[i] = NULL;
		card_free(g);
	}
}

/*
 * NVIDIA's driver gives out write-combined memory only where entry 1 of the page attribute table has that type. This
 * kernel leaves the table as after reset, since a card's RAM has two mappings that need not agree (nopat). An emulated
 * processor's memory has no types.
 */
#define PAT_ENTRY_1 0xff00u
#define PAT_ENTRY_1_WC 0x0100u

static u32 pat_before[2];

static void set_pat(void *value)
{
	u32 *pat = value;

	wrmsr(MSR_IA32_CR_PAT, pat[0], pat[1]);
}

static void offer_write_combining(void)
{
	u32 pat[2];

	rdmsr(MSR_IA32_CR_PAT, pat_before[0], pat_before[1]);
	pat[0] = (pat_before[0] & ~PAT_ENTRY_1) | PAT_ENTRY_1_WC;
	pat[1] = pat_before[1];
	on_each_cpu(set_pat, pat, 1);
}

static int __init simgpu_init(void)
{
	int i, err;

	for (i = 0; i < nr_chips; i++) {
		struct simgpu *g = card_create(i);

		if (IS_ERR(g)) {
			remove_cards();
			return PTR_ERR(g);
		}
		simgpu_card[i] = g;
		err = simgpu_pci_add(g);
		if (err) {
			remove_cards();
			return err;
		}
	}
	offer_write_combining();
	return 0;
}

static void __exit simgpu_exit(void)
{
	remove_cards();
	on_each_cpu(set_pat, pat_before, 1);
}

module_init(simgpu_init);
module_exit(simgpu_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Simulated NVIDIA GPU as a PCI device, for tests");
