/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Memory accounting of one slot (container x GPU), in bytes. Caller serialises. */
#ifndef CGPU_PURE_MEM_LEDGER_H
#define CGPU_PURE_MEM_LEDGER_H

#include "../core/env.h"

struct cgpu_ledger {
	u64 limit_bytes;
	u64 used_bytes;
	u64 peak_bytes;
	u64 refused;		/* charges refused since creation */
};

void cgpu_ledger_init(struct cgpu_ledger *led, u64 limit_bytes);

/* 0, or -ENOMEM (over the limit: nothing charged, @refused counted). An
 * overflowing sum is over any limit.
 */
int cgpu_ledger_charge(struct cgpu_ledger *led, u64 bytes);

/* Returns false (and sets 0 used) if @bytes exceeds the charged amount. */
bool cgpu_ledger_uncharge(struct cgpu_ledger *led, u64 bytes);

/* A limit below use is accepted; charges fail until use is below it again. */
void cgpu_ledger_set_limit(struct cgpu_ledger *led, u64 limit_bytes);

/* max(0, limit - used) */
u64 cgpu_ledger_free(const struct cgpu_ledger *led);

/* 0, or -EINVAL for a limit outside 1 MiB .. 2^63-1. */
int cgpu_ledger_check_limit(u64 limit_bytes);

#endif
