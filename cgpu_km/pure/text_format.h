/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Typed state -> text of /proc reads, into the caller's buffer. Every function
 * returns the number of bytes written, or -ENOSPC if they do not fit.
 */
#ifndef CGPU_PURE_TEXT_FORMAT_H
#define CGPU_PURE_TEXT_FORMAT_H

#include "../core/env.h"
#include "mem_ledger.h"
#include "../core/sched_stat.h"

struct cgpu_pid_mem {
	u32 pid;
	u64 bytes;
};

/* "Free: <bytes>\n" then "PID: <pid> Mem: <bytes>\n" each, in the order given */
int cgpu_format_meminfo(char *buf, size_t size, u64 free_bytes,
			const struct cgpu_pid_mem *pids, u32 count);
/* Merge entries of one pid, sort by pid; returns the new count. */
u32 cgpu_format_merge_pids(struct cgpu_pid_mem *pids, u32 count);
/* The container's stat file: one "name value" line each (docs/reference/proc.md). */
int cgpu_format_slot_stat(char *buf, size_t size, const struct cgpu_ledger *led,
			  const struct cgpu_sched_stat *st, u64 refused_calls);

/* The lines of that file about the waits for turns, and for budget. */
int cgpu_format_slot_waits(char *buf, size_t size, const struct cgpu_sched_stat *st);

#endif
