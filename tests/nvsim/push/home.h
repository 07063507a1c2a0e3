/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A home for push*.c in user space: one stretch of GPU memory, and a log of the writes. */
#ifndef PUSH_HOME_H
#define PUSH_HOME_H

#include "../../simgpu/engine/push.h"

#define HOME_BASE 0x200000000ull

struct home {
	struct push p;
	struct push_cost cost;
	u64 base, size, reads, writes;	/* bytes of GPU memory, and moved */
	u64 lost;			/* exchanges that the "CPU" is to win */
	u64 log[256][2];		/* address and length of the first writes */
	u32 logged;
	u8 *mem;
};

struct home *home_new(u64 size);
void home_free(struct home *h);

#endif
