/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The only file of the core that depends on where it is compiled.
 *
 * Need: u8 u16 u32 u64 s16 s32 s64, bool, size_t, NULL, E* numbers, memset, memcpy,
 *       memcmp, strlen, 64-bit division.
 * Not here, ever: clock, lock, allocation, print, current.
 */
#ifndef CGPU_CORE_ENV_H
#define CGPU_CORE_ENV_H

#ifdef __KERNEL__
#include <linux/errno.h>
#include <linux/math64.h>
#include <linux/stddef.h>
#include <linux/string.h>
#include <linux/types.h>
#else
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
#endif

/* A field that is read without a lock while it changes. */
#ifdef __KERNEL__
#include <linux/compiler.h>
#define CGPU_READ_ONCE(x)	READ_ONCE(x)
#else
#define CGPU_READ_ONCE(x)	__atomic_load_n(&(x), __ATOMIC_RELAXED)
#endif

#endif
