// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What the CPU sees of the card: registers, the PRAMIN window, BAR2 and BAR1. RM's functions for
 * these are replaced, so no access has to trap: registers are RAM but for the few below; BAR2 is a
 * pointer into video memory; BAR1 shows video memory one to one, without RM's page tables for it.
 */
#include "card.h"

#define REGS_BYTES (16u << 20)

enum {
	PBUS_BAR0_WINDOW = 0x1700,
	PTIMER_TIME_0 = 0x9400, PTIMER_TIME_1 = 0x9410,
	VF_TIMER_TIME_0 = 0xbb0080, VF_TIMER_TIME_1 = 0xbb0084, VF_DOORBELL = 0xbb0090,
	UFLUSH_FIRST = 0x70000, UFLUSH_LAST = 0x70010,
	VF_L2_SYSMEM_INVALIDATE = 0xb80f00, VF_L2_PEERMEM_INVALIDATE = 0xb80f04,
	PFB_PRI_MMU_INVALIDATE = 0x100cbc, VF_MMU_INVALIDATE = 0xb830b0,
	VF_ACCESS_COUNTER_NOTIFY_BUFFER_SIZE = 0xb83110,
	PRAMIN = 0x700000, PRAMIN_END = 0x800000,
};

/* The window: bits 23:0 the address in 64 KiB, 25:24 the kind of memory, 0 video memory. */
static void *pramin(struct gsp_card *card, NvU32 reg, NvU32 bytes)
{
	NvU64 base = (NvU64)(card->bar0_window & 0xffffff) << 16;

	if (card->bar0_window >> 24 & 3)
		return gsp_host_sysmem(base + reg - PRAMIN, bytes);
	return gsp_fb(card, base + reg - PRAMIN, bytes);
}

static NvU32 load(struct gsp_card *card, NvU32 reg)
{
	NvU64 now = gsp_host_now_ns();
	volatile NvU32 *p;
	NvU32 value;

	if (reg >= PRAMIN && reg < PRAMIN_END) {
		p = pramin(card, reg, 4);
		return p ? *p : 0;
	}
	switch (reg) {
	case PBUS_BAR0_WINDOW:
		return card->bar0_window;
	case PTIMER_TIME_0:
	case VF_TIMER_TIME_0:
		return (NvU32)now & ~0x1f;
	case PTIMER_TIME_1:
	case VF_TIMER_TIME_1:
		return (NvU32)(now >> 32);
	case VF_ACCESS_COUNTER_NOTIFY_BUFFER_SIZE:
		return 0x100;
	}
	if (gsp_interrupt_load(card, reg, &value))
		return value;
	return reg < REGS_BYTES ? card->regs[reg / 4] : ~0u;
}

static void store(struct gsp_card *card, NvU32 reg, NvU32 value)
{
	volatile NvU32 *p;

	if (reg >= PRAMIN && reg < PRAMIN_END) {
		p = pramin(card, reg, 4);
		if (p)
			*p = value;
		return;
	}
	switch (reg) {
	case PBUS_BAR0_WINDOW:
		card->bar0_window = value;
		return;
	case VF_DOORBELL:
		gsp_engine_poll(card);
		return;
	case PFB_PRI_MMU_INVALIDATE:	/* over at once: nothing is cached */
	case VF_MMU_INVALIDATE:
	case VF_L2_SYSMEM_INVALIDATE:
	case VF_L2_PEERMEM_INVALIDATE:
		return;
	}
	if (reg >= UFLUSH_FIRST && reg <= UFLUSH_LAST)	/* the same */
		return;
	if (gsp_interrupt_store(card, reg, value))
		return;
	if (reg < REGS_BYTES)
		card->regs[reg / 4] = value;
}

/*
 * RM's access functions. RM reads the boot words with a mapping of BAR0 before there is a GPU
 * object that knows its address: those are RAM.
 */
NvU32 osDevReadReg032(struct OBJGPU *gpu, DEVICE_MAPPING *mapping, NvU32 reg)
{
	struct gsp_card *card = gsp_card_of(gpu);

	if (card)
		return load(card, reg);
	return reg < mapping->gpuNvLength ? mapping->gpuNvAddr[reg / 4].Reg032[0] : ~0u;
}

NvU16 osDevReadReg016(struct OBJGPU *gpu, DEVICE_MAPPING *mapping, NvU32 reg)
{
	return (NvU16)(osDevReadReg032(gpu, mapping, reg & ~3u) >> (reg & 2) * 8);
}

NvU8 osDevReadReg008(struct OBJGPU *gpu, DEVICE_MAPPING *mapping, NvU32 reg)
{
	return (NvU8)(osDevReadReg032(gpu, mapping, reg & ~3u) >> (reg & 3) * 8);
}

void osDevWriteReg032(struct OBJGPU *gpu, DEVICE_MAPPING *mapping, NvU32 reg, NvU32 value)
{
	struct gsp_card *card = gsp_card_of(gpu);

	(void)mapping;
	if (card)
		store(card, reg, value);
}

static void merge(struct OBJGPU *gpu, DEVICE_MAPPING *mapping, NvU32 reg, NvU32 value, NvU32 mask)
{
	NvU32 shift = (reg & 3) * 8, word = osDevReadReg032(gpu, mapping, reg & ~3u);

	osDevWriteReg032(gpu, mapping, reg & ~3u, (word & ~(mask << shift)) | value << shift);
}

void osDevWriteReg016(struct OBJGPU *gpu, DEVICE_MAPPING *mapping, NvU32 reg, NvU16 value)
{
	merge(gpu, mapping, reg, value, 0xffff);
}

void osDevWriteReg008(struct OBJGPU *gpu, DEVICE_MAPPING *mapping, NvU32 reg, NvU8 value)
{
	merge(gpu, mapping, reg, value, 0xff);
}

/*
 * Write through PRAMIN, read through BAR2: RM's own check of page tables that nothing walks here.
 */
NV_STATUS kbusVerifyBar2_GM107(struct OBJGPU *gpu, struct KernelBus *bus, MEMORY_DESCRIPTOR *memory,
			       NvU8 *cpu, NvU64 offset, NvU64 bytes)
{
	(void)gpu, (void)bus, (void)memory, (void)cpu, (void)offset, (void)bytes;
	return NV_OK;
}

NV_STATUS kbusVerifyBar2_GH100(struct OBJGPU *gpu, struct KernelBus *bus, MEMORY_DESCRIPTOR *memory,
			       NvU8 *cpu, NvU64 offset, NvU64 bytes)
{
	return kbusVerifyBar2_GM107(gpu, bus, memory, cpu, offset, bytes);
}

/* RM waits there for an interrupt of its own making. */
NV_STATUS osVerifySystemEnvironment(struct OBJGPU *gpu)
{
	(void)gpu;
	return NV_OK;
}

static int is_contiguous(MEMORY_DESCRIPTOR *memory, NvU64 offset, NvU64 bytes)
{
	NvU64 first = memdescGetPhysAddr(memory, 0, offset), at;

	for (at = 4096 - (offset & 4095); at < bytes; at += 4096)
		if (memdescGetPhysAddr(memory, 0, offset + at) != first + at)
			return 0;
	return 1;
}

NvU8 *kbusMapBar2Aperture_VBAR2(struct OBJGPU *gpu, struct KernelBus *bus, MEMORY_DESCRIPTOR *memory,
				NvU32 flags)
{
	struct gsp_card *card = gsp_card_of(gpu);
	NvU64 address = memdescGetPhysAddr(memory, 0, 0);

	(void)bus, (void)flags;
	if (memdescGetAddressSpace(memory) != ADDR_FBMEM)
		return gsp_host_sysmem(address, memory->Size);
	if (!is_contiguous(memory, 0, memory->Size)) {
		gsp_host_log("card %u: BAR2 of scattered memory, %llx bytes\n", card->index, memory->Size);
		return 0;
	}
	return gsp_fb(card, address, memory->Size);
}

void kbusUnmapBar2ApertureWithFlags_VBAR2(struct OBJGPU *gpu, struct KernelBus *bus,
					  MEMORY_DESCRIPTOR *memory, NvU8 **cpu, NvU32 flags)
{
	(void)gpu, (void)bus, (void)memory, (void)flags;
	*cpu = 0;
}

/* Scattered memory has no place in an aperture without page tables. */
NV_STATUS kbusMapFbAperture_GM107(struct OBJGPU *gpu, struct KernelBus *bus, MEMORY_DESCRIPTOR *memory,
				  NvU64 offset, NvU64 *aperture, NvU64 *bytes, NvU32 flags,
				  struct Device *device)
{
	struct gsp_card *card = gsp_card_of(gpu);

	(void)bus, (void)flags, (void)device;
	if (memdescGetAddressSpace(memory) != ADDR_FBMEM)
		return NV_ERR_NOT_SUPPORTED;
	if (!is_contiguous(memory, offset, *bytes)) {
		gsp_host_log("card %u: BAR1 of scattered memory, %llx bytes\n", card->index, *bytes);
		return NV_ERR_NOT_SUPPORTED;
	}
	*aperture = memdescGetPhysAddr(memory, 0, offset);
	return NV_OK;
}

NV_STATUS kbusUnmapFbAperture_GM107(struct OBJGPU *gpu, struct KernelBus *bus,
				    MEMORY_DESCRIPTOR *memory, NvU64 aperture, NvU64 bytes, NvU32 flags)
{
	(void)gpu, (void)bus, (void)memory, (void)aperture, (void)bytes, (void)flags;
	return NV_OK;
}
