/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What an allocation, a mapping or an object takes of the card: the amounts that are charged. */
#ifndef CGPU_PURE_MEM_ESTIMATE_H
#define CGPU_PURE_MEM_ESTIMATE_H

#include "../core/env.h"

u64 cgpu_estimate_vidmem_bytes(u64 size, u32 attr, u32 attr2);	/* U64_MAX on overflow */
u64 cgpu_estimate_managed_bytes(u64 start, u64 end);
u64 cgpu_estimate_bar1_bytes(u64 bytes, u64 offset, u64 length);	/* U64_MAX on overflow */

/* Upper bounds of what the driver keeps on the card beside the requested memory. */
u64 cgpu_estimate_object_overhead(u32 kind, u32 cls);
u64 cgpu_estimate_page_tables(u64 bytes);

/* The part of all that overhead that is charged. */
u64 cgpu_estimate_overhead_charge(u64 overhead, u64 limit_bytes);

#endif
