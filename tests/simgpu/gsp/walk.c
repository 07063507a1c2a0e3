// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * From a GPU address to memory, by the page tables that RM has written. Formats: version 2
 * of open-gpu-doc (pascal/gp100-mmu-format.pdf), version 3 of dev_mmu.h of Hopper.
 */
#include "chip.h"
#include "engine.h"

/* Bits 2:1 of an entry: in a directory 0 is no table, in a page table 0 is video memory. */
enum { APERTURE_NONE, APERTURE_FB };
enum { PAGE_FB, PAGE_PEER };
#define V3_ADDRESS 0x000ffffffffff000ull

void *gsp_fb(struct gsp_card *card, gsp_u64 address, gsp_u64 bytes)
{
	if (address > card->fb_bytes || bytes > card->fb_bytes - address) {
		gsp_host_log("card %u: no video memory at %llx+%llx\n", card->index, address, bytes);
		return 0;
	}
	return card->fb + address;
}

static enum gsp_space space_of(gsp_u32 aperture)
{
	return aperture > APERTURE_FB ? GSP_SYSMEM : GSP_FB;
}

static enum gsp_space space_of_page(gsp_u32 aperture)
{
	if (aperture == PAGE_FB)
		return GSP_FB;
	return aperture == PAGE_PEER ? GSP_PEER : GSP_SYSMEM;
}

static gsp_u64 load64(struct gsp_card *card, struct gsp_phys p)
{
	volatile gsp_u64 *cpu = gsp_cpu(card, p, 8);

	return cpu ? *cpu : 0;
}

/* Version 2 keeps the address from bit 8 on: 25 bits of it for a card's memory, 46 for the system's. */
static gsp_u64 address_of(struct gsp_card *card, gsp_u64 entry, enum gsp_space space)
{
	if (card->chip->mmu == GSP_MMU_V3)
		return entry & V3_ADDRESS;
	return (entry >> 8 & (space == GSP_SYSMEM ? 0x3fffffffffffull : 0x1ffffff)) << 12;
}

/* Bits 35:33 of version 2, 63:61 of version 3. */
static gsp_u32 peer_of(struct gsp_card *card, gsp_u64 entry)
{
	return entry >> (card->chip->mmu == GSP_MMU_V3 ? 61 : 33) & (GSP_PEERS - 1);
}

static int directory(struct gsp_card *card, gsp_u64 entry, struct gsp_phys *next)
{
	gsp_u32 aperture = entry >> 1 & 3;

	if (aperture == APERTURE_NONE)
		return 0;
	next->space = space_of(aperture);
	next->address = address_of(card, entry, next->space);
	return 1;
}

/* The table of big pages is named in the first half of its entry, in units of 256 bytes. */
static int big_directory(struct gsp_card *card, gsp_u64 entry, struct gsp_phys *next)
{
	gsp_u32 aperture = entry >> 1 & 3;

	if (aperture == APERTURE_NONE)
		return 0;
	next->space = space_of(aperture);
	if (card->chip->mmu == GSP_MMU_V3)
		next->address = entry & (V3_ADDRESS | 0xf00);
	else
		next->address = (entry >> 4 &
				 (next->space == GSP_FB ? 0x1fffffff : 0x3ffffffffffffull)) << 8;
	return 1;
}

static int page(struct gsp_card *card, gsp_u64 entry, gsp_u64 va, gsp_u64 size, struct gsp_phys *phys,
		gsp_u64 *left)
{
	gsp_u32 aperture = entry >> 1 & 3;

	if (!(entry & 1))
		return 0;
	phys->space = space_of_page(aperture);
	phys->peer = peer_of(card, entry);
	phys->address = address_of(card, entry, phys->space) + (va & (size - 1));
	*left = size - (va & (size - 1));
	return 1;
}

int gsp_walk(struct gsp_card *card, struct gsp_phys at, gsp_u64 va, struct gsp_phys *phys,
	     gsp_u64 *left)
{
	static const gsp_u32 shift[] = { 47, 38, 29 };
	struct gsp_phys table;
	gsp_u64 big, small;
	gsp_u32 i;

	if (card->chip->mmu == GSP_MMU_V3) {
		at.address += (va >> 56 & 1) * 8;
		if (!directory(card, load64(card, at), &at))
			return 0;
	}
	for (i = 0; i < sizeof(shift) / sizeof(shift[0]); i++) {
		at.address += (va >> shift[i] & 511) * 8;
		if (!directory(card, load64(card, at), &at))
			return 0;
	}
	/*
	 * The last directory has two entries for 2 MiB: big pages, or one huge page, and small
	 * pages.
	 */
	at.address += (va >> 21 & 255) * 16;
	big = load64(card, at);
	if (page(card, big, va, 2 << 20, phys, left))
		return 1;
	at.address += 8;
	small = load64(card, at);
	if (directory(card, small, &table)) {
		table.address += (va >> 12 & 511) * 8;
		if (page(card, load64(card, table), va, 4096, phys, left))
			return 1;
	}
	if (!big_directory(card, big, &table))
		return 0;
	table.address += (va >> 16 & 31) * 8;
	return page(card, load64(card, table), va, 64 << 10, phys, left);
}

void *gsp_cpu(struct gsp_card *card, struct gsp_phys p, gsp_u64 bytes)
{
	struct gsp_card *peer;

	if (p.space == GSP_FB)
		return gsp_fb(card, p.address, bytes);
	if (p.space == GSP_SYSMEM)
		return gsp_host_sysmem(p.address, bytes);
	peer = card->peers[p.peer % GSP_PEERS];
	if (!peer) {
		gsp_host_log("card %u: no peer %u\n", card->index, p.peer);
		return 0;
	}
	return gsp_fb(peer, p.address, bytes);
}
