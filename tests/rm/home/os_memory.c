// SPDX-License-Identifier: MIT
/*
 * RM's operating system layer: memory. Bus and virtual addresses of system memory are the same
 * here.
 */
#include "home.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

NvU32 os_page_size = 4096;
NvU64 os_page_mask = ~4095ull;
NvU8 os_page_shift = 12;

struct home_memory home_memory;

/*
 * The size stands before the block, which keeps the alignment of 16. New memory is garbage, as a
 * kernel's is.
 */
#define HEADER 16
#define GARBAGE 0xa5

NV_STATUS os_alloc_mem(void **address, NvU64 bytes)
{
	unsigned char *p = malloc(bytes + HEADER);

	if (!p)
		return NV_ERR_NO_MEMORY;
	*(NvU64 *)p = bytes;
	memset(p + HEADER, GARBAGE, bytes);
	*address = p + HEADER;
	home_memory.blocks++;
	home_memory.bytes += bytes;
	return NV_OK;
}

void os_free_mem(void *address)
{
	unsigned char *p = address;

	if (!p)
		return;
	p -= HEADER;
	home_memory.blocks--;
	home_memory.bytes -= *(NvU64 *)p;
	free(p);
}

/*
 * Pages for the GPU: a mapping each, from 4 GiB on, where no library is. An address is not used
 * again, so that an access after the end of an allocation faults.
 */
#define PAGES_FROM 0x100000000ull
#define PAGES_TO 0x2000000000ull

struct pages {
	NvU64 address, bytes;
};

static NvU64 next_page = PAGES_FROM;

#if RM_BRANCH >= 550
NV_STATUS nv_alloc_pages(nv_state_t *nv, NvU32 count, NvU64 alignment, NvBool contiguous, NvU32 cache,
			 NvBool zeroed, NvBool unencrypted, NvS32 node, NvU64 *addresses, void **private)
{
#else
NV_STATUS nv_alloc_pages(nv_state_t *nv, NvU32 count, NvBool contiguous, NvU32 cache, NvBool zeroed,
			 NvBool unencrypted, NvS32 node, NvU64 *addresses, void **private)
{
	NvU64 alignment = 4096;
#endif
	struct pages *p = malloc(sizeof(*p));
	NvU32 i, n = contiguous ? 1 : count;

	(void)nv, (void)cache, (void)zeroed, (void)unencrypted, (void)node;
	if (!p)
		return NV_ERR_NO_MEMORY;
	if (alignment < 4096)
		alignment = 4096;
	p->address = (next_page + alignment - 1) & ~(alignment - 1);
	p->bytes = (NvU64)count * 4096;
	if (p->address + p->bytes > PAGES_TO ||
	    mmap((void *)p->address, p->bytes, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) {
		free(p);
		return NV_ERR_NO_MEMORY;
	}
	next_page = p->address + p->bytes;
	for (i = 0; i < n; i++)
		addresses[i] = p->address + i * 4096ull;
	*private = p;
	home_memory.pages += count;
	return NV_OK;
}

NV_STATUS nv_free_pages(nv_state_t *nv, NvU32 count, NvBool contiguous, NvU32 cache, void *private)
{
	struct pages *p = private;

	(void)nv, (void)contiguous, (void)cache;
	munmap((void *)p->address, p->bytes);
	home_memory.pages -= count;
	free(p);
	return NV_OK;
}

void *nv_alloc_kernel_mapping(nv_state_t *nv, void *pages, NvU64 index, NvU32 offset, NvU64 bytes,
			      void **private)
{
	(void)nv, (void)bytes;
	*private = NULL;
	return (char *)((struct pages *)pages)->address + index * 4096 + offset;
}

NV_STATUS nv_alloc_user_mapping(nv_state_t *nv, void *pages, NvU64 index, NvU32 offset, NvU64 bytes,
				NvU32 protection, NvU64 *address, void **private)
{
	(void)nv, (void)bytes, (void)protection;
	*address = ((struct pages *)pages)->address + index * 4096 + offset;
	*private = pages;
	return NV_OK;
}

NV_STATUS os_match_mmap_offset(void *pages, NvU64 offset, NvU64 *index)
{
	struct pages *p = pages;

	if (offset < p->address || offset - p->address >= p->bytes)
		return NV_ERR_OBJECT_NOT_FOUND;
	*index = (offset - p->address) / 4096;
	return NV_OK;
}

/* ---- strings and copies ---- */

void *os_mem_copy(void *to, const void *from, NvU32 bytes)
{
	return memcpy(to, from, bytes);
}

void *os_mem_set(void *to, NvU8 c, NvU32 bytes)
{
	return memset(to, c, bytes);
}

NvS32 os_mem_cmp(const NvU8 *a, const NvU8 *b, NvU32 bytes)
{
	return memcmp(a, b, bytes);
}

/* The caller's memory is ours: a pointer to nothing is seen as NULL only. */
NV_STATUS os_memcpy_from_user(void *to, const void *from, NvU32 bytes)
{
	if (!from && bytes)
		return NV_ERR_INVALID_POINTER;
	memcpy(to, from, bytes);
	return NV_OK;
}

NV_STATUS os_memcpy_to_user(void *to, const void *from, NvU32 bytes)
{
	if (!to && bytes)
		return NV_ERR_INVALID_POINTER;
	memcpy(to, from, bytes);
	return NV_OK;
}
