/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Environment of push*.c: the kernel or user space. */
#ifndef PUSH_ENV_H
#define PUSH_ENV_H

#ifdef __KERNEL__
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/string.h>
#include <linux/types.h>
#define push_div(a, b) div64_u64(a, b)
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
#define push_div(a, b) ((a) / (b))
#endif

static inline u64 push_min(u64 a, u64 b)
{
	return a < b ? a : b;
}

static inline u64 push_max(u64 a, u64 b)
{
	return a > b ? a : b;
}

#endif
