/* SPDX-License-Identifier: MIT */
/*
 * What the test clients choose or know beside the driver's ABI (nvabi.h), once for C and Python: rmabi.py reads this
 * file.
 */
#ifndef RM_ABI_H
#define RM_ABI_H

#include "nvabi.h"

#define MAX_GPUS 32

/* Of allocations: attr, attr2, and the flags of an address space: externally owned, page faulting. */
#define ATTR_PAGE_HUGE (NVOS32_ATTR_PAGE_SIZE_HUGE << NVOS32_ATTR_PAGE_SIZE_SHIFT)
#define ATTR_LOCATION_PCI (NVOS32_ATTR_LOCATION_PCI << NVOS32_ATTR_LOCATION_SHIFT)
#define ATTR_NONCONTIG_ALLOWED (3 << NVOS32_ATTR_PHYSICALITY_SHIFT)
#define ATTR2_PAGE_2M (1 << NVOS32_ATTR2_HUGE_SHIFT)
#define VASPACE_FLAGS (1 << 3 | 1 << 6)

/* The simulated GPU's own machine: docs/develop/nvsim.md §2. */
#define OP_KERNEL 1
#define OP_COPY 2
#define OP_RELEASE 3
#define OP_FRAME 4
#define FLAG_STUBBORN 1
#define FLAG_PAUSE_SHIFT 8		/* microseconds */
#define FIRST_VA (1ull << 36)		/* a GPFIFO entry holds 40 bits */
#define VA_ALIGN (2ull << 20)

struct nvsim_work {
	u32 op, flags;
	u64 amount;			/* ns of a kernel, bytes of a copy */
	u64 sem_va, sem_value;
};

struct nvsim_sem {
	u64 value, time_ns;
};

/* Classes of each GPU generation: gpfifo, usermode, compute, copy; newest first. */
#define ABI_ARCHS { \
	{ "Hopper", 0xc86f, 0xc661, 0xcbc0, 0xc8b5 }, \
	{ "Ada", 0xc56f, 0xc561, 0xc9c0, 0xc7b5 }, \
	{ "Ampere", 0xc56f, 0xc561, 0xc6c0, 0xc6b5 }, \
	{ "Turing", 0xc46f, 0xc461, 0xc5c0, 0xc5b5 }, \
}

#endif
