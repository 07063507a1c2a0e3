/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Access to fields of the driver's structs at the byte offsets of core/nv_abi.h. */
#ifndef CKM_FIELDS_H
#define CKM_FIELDS_H

#include <linux/types.h>

#include "compat.h"

static inline u16 get16(const u8 *s, u32 at)
{
	return get_unaligned((const u16 *)(s + at));
}

static inline u32 get32(const u8 *s, u32 at)
{
	return get_unaligned((const u32 *)(s + at));
}

static inline u64 get64(const u8 *s, u32 at)
{
	return get_unaligned((const u64 *)(s + at));
}

static inline void put32(u8 *s, u32 at, u32 value)
{
	put_unaligned(value, (u32 *)(s + at));
}

static inline void put64(u8 *s, u32 at, u64 value)
{
	put_unaligned(value, (u64 *)(s + at));
}

#endif
