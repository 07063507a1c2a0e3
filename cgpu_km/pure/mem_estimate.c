// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What an object costs of video memory before the driver has given any. */
#include "mem_estimate.h"

#include "../core/nv_abi.h"
#include "../core/nv_call.h"

#define KIB	1024ull
#define MIB	(1024ull * KIB)

/**
 * cgpu_estimate_vidmem_bytes() - what an allocation of video memory takes
 * @size: as the tenant gave it
 * @attr: NVOS32 attributes, for the page size
 * @attr2: NVOS32 attributes, for the size of a huge page
 *
 * Return: @size rounded up to 64 KiB or to the page size; U64_MAX on overflow.
 */
u64 cgpu_estimate_vidmem_bytes(u64 size, u32 attr, u32 attr2)
{
	u64 page = 64 * KIB;

	if (((attr >> NVOS32_ATTR_PAGE_SIZE_SHIFT) & 3) == NVOS32_ATTR_PAGE_SIZE_HUGE) {
		/* 0 default and 1: 2 MiB; 2: 512 MiB; 3: 256 GiB */
		switch ((attr2 >> NVOS32_ATTR2_HUGE_SHIFT) & 3) {
		case NVOS32_ATTR2_PAGE_SIZE_HUGE_512MB:
			page = 512 * MIB;
			break;
		case 3:
			page = 256 * 1024 * MIB;
			break;
		default:
			page = 2 * MIB;
		}
	}
	if (size > ~0ull - page)
		return ~0ull;
	if (size == 0)
		size = 1;
	return (size + page - 1) & ~(page - 1);
}

/**
 * cgpu_estimate_managed_bytes() - what a managed range is charged, wherever its pages are
 * @start: first address
 * @end: behind the last
 *
 * Each 2 MiB block that the range touches, which is what uvm takes of the card at a time
 * (uvm_pmm_gpu.h, UVM_CHUNK_SIZE_MAX).
 *
 * Return: bytes, 0 for an empty range.
 */
u64 cgpu_estimate_managed_bytes(u64 start, u64 end)
{
	return end > start ? ((end - 1) / (2 * MIB) - start / (2 * MIB) + 1) * 2 * MIB : 0;
}

/**
 * cgpu_estimate_bar1_bytes() - what a mapping takes of BAR1
 * @bytes: size of the memory
 * @offset: of the mapping in it
 * @length: of the mapping
 *
 * Return: whole pages, of 2 MiB where the memory may have them; U64_MAX on overflow.
 */
u64 cgpu_estimate_bar1_bytes(u64 bytes, u64 offset, u64 length)
{
	u64 page = bytes >= 2 * MIB ? 2 * MIB : 64 * KIB, end = offset + length;

	if (end < offset || end > ~0ull - page)
		return ~0ull;
	return ((end + page - 1) & ~(page - 1)) - (offset & ~(page - 1));
}

/**
 * cgpu_estimate_object_overhead() - what the driver keeps on the card for an object
 * @kind: enum cgpu_kind
 * @cls: its class
 *
 * Instance blocks, page directories, fault buffers: an upper bound, not measured on hardware.
 */
u64 cgpu_estimate_object_overhead(u32 kind, u32 cls)
{
	if (kind == CGPU_KIND_CHANNEL)
		return 64 * KIB;
	return kind == CGPU_KIND_DEVICE || cls == FERMI_VASPACE_A ? 128 * KIB : 0;
}

/**
 * cgpu_estimate_page_tables() - what the driver keeps on the card for one mapping
 * @bytes: of memory that is mapped
 *
 * A page table for each 2 MiB begun, and the three levels above it (uvm_pascal_mmu.c): an
 * upper bound, not measured on hardware.
 */
u64 cgpu_estimate_page_tables(u64 bytes)
{
	return 12 * KIB + (bytes / (2 * MIB) + 1) * 4 * KIB;
}

/**
 * cgpu_estimate_overhead_charge() - the part of the overhead that is charged
 * @overhead: of all objects and mappings of a container on a GPU
 * @limit_bytes: its memory limit
 *
 * Free of charge are 16 MiB and 1/512 of the limit, which is what mapping the whole limit
 * once with the smallest pages takes.
 */
u64 cgpu_estimate_overhead_charge(u64 overhead, u64 limit_bytes)
{
	u64 included = 16 * MIB + limit_bytes / 512;

	return overhead > included ? overhead - included : 0;
}
