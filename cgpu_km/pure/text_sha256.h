/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* SHA-256 (FIPS 180-4), for directory names. Inside the core only. */
#ifndef CGPU_PURE_TEXT_SHA256_H
#define CGPU_PURE_TEXT_SHA256_H

#include "../core/env.h"

void cgpu_sha256(const u8 *data, size_t len, u8 digest[32]);

#endif
