/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What an unmap call names, by which mappings are sorted: rm_map.c, rm_map_dma.c. */
#ifndef CKM_MAP_NAME_H
#define CKM_MAP_NAME_H

#include <linux/types.h>

/* @object: the memory, or the address space. */
struct ckm_map_name {
	u64 at;
	u32 client, device, object;
};

/* Below 0, 0 or above 0, as memcmp(). */
static inline int ckm_map_name_compare(const struct ckm_map_name *a, const struct ckm_map_name *b)
{
	if (a->at != b->at)
		return a->at < b->at ? -1 : 1;
	if (a->client != b->client)
		return a->client < b->client ? -1 : 1;
	if (a->device != b->device)
		return a->device < b->device ? -1 : 1;
	if (a->object != b->object)
		return a->object < b->object ? -1 : 1;
	return 0;
}

#endif
