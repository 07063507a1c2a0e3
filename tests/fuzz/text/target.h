/* SPDX-License-Identifier: MIT */
/* One parser under a fuzzer. LLVMFuzzerTestOneInput() aborts where a property does not hold. */
#ifndef CGPU_FUZZ_TARGET_H
#define CGPU_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HOLDS(condition) do { if (!(condition)) abort(); } while (0)

#endif
