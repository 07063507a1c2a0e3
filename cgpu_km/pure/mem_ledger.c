// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* A container's account on one GPU: charge, uncharge, limit. */
#include "mem_ledger.h"

#include "../uapi.h"

/**
 * cgpu_ledger_init() - an empty ledger
 * @led: storage of the caller
 * @limit_bytes: what may be charged
 */
void cgpu_ledger_init(struct cgpu_ledger *led, u64 limit_bytes)
{
	memset(led, 0, sizeof(*led));
	led->limit_bytes = limit_bytes;
}

/**
 * cgpu_ledger_charge() - charge before the driver is called
 * @led: the slot's ledger
 * @bytes: how much
 *
 * Context: Caller serialises.
 * Return: 0, or -ENOMEM if it would exceed the limit; then nothing is charged
 * and the refusal is counted.
 */
int cgpu_ledger_charge(struct cgpu_ledger *led, u64 bytes)
{
	/* Nothing costs nothing, even while use is above a lowered limit. */
	if (bytes > cgpu_ledger_free(led)) {
		led->refused++;
		return -ENOMEM;
	}
	led->used_bytes += bytes;
	if (led->used_bytes > led->peak_bytes)
		led->peak_bytes = led->used_bytes;
	return 0;
}

/**
 * cgpu_ledger_uncharge() - drop a charge
 * @led: the slot's ledger
 * @bytes: how much
 *
 * Context: Caller serialises.
 * Return: false if @bytes exceeds the charged amount (a bug of the caller); the ledger is
 * set to 0 then.
 */
bool cgpu_ledger_uncharge(struct cgpu_ledger *led, u64 bytes)
{
	if (bytes > led->used_bytes) {
		led->used_bytes = 0;
		return false;
	}
	led->used_bytes -= bytes;
	return true;
}

/**
 * cgpu_ledger_set_limit() - change the limit of a live ledger
 * @led: the slot's ledger
 * @limit_bytes: may be below use; charges then fail until use is below it
 *
 * Context: Caller serialises.
 */
void cgpu_ledger_set_limit(struct cgpu_ledger *led, u64 limit_bytes)
{
	led->limit_bytes = limit_bytes;
}

/**
 * cgpu_ledger_free() - what can still be charged
 * @led: the slot's ledger
 *
 * Return: bytes, 0 when use is at or above the limit.
 */
u64 cgpu_ledger_free(const struct cgpu_ledger *led)
{
	if (led->used_bytes >= led->limit_bytes)
		return 0;
	return led->limit_bytes - led->used_bytes;
}

/**
 * cgpu_ledger_check_limit() - is this a limit that may be written to memsize
 * @limit_bytes: bytes
 *
 * Return: 0, or -EINVAL outside 1 MiB .. 2^63-1.
 */
int cgpu_ledger_check_limit(u64 limit_bytes)
{
	return limit_bytes < CGPU_MIB || limit_bytes >> 63 ? -EINVAL : 0;
}
