/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Answers in place of the driver's, and arguments that are checked before they pass. */
#ifndef CGPU_CORE_NV_ANSWER_H
#define CGPU_CORE_NV_ANSWER_H

#include "env.h"

/* Fill in what a driver answers where there is no peer, no NVLink and no fabric. False
 * for a control that is none of those, or of another size: nothing changed.
 */
bool cgpu_call_not_there(u32 cmd, u8 *params, u32 size);

/* A GPU of a container. */
struct cgpu_peer_gpu {
	u32 gpu_id;		/* the driver's */
	u32 arch;		/* of MC_GET_ARCH_INFO, 0: unknown */
};

enum cgpu_peers {
	CGPU_PEERS_NONE,	/* one GPU: cgpu_call_not_there() */
	CGPU_PEERS_DRIVER,	/* the driver answers */
	CGPU_PEERS_FOREIGN,	/* a GPU that is not the container's, or no list of GPUs */
	CGPU_PEERS_OK,		/* done, and the parameters stay as they are */
	CGPU_PEERS_MIXED,	/* of different architectures: cgpu_call_not_there() */
};

/* Which answer a control with the verdict CGPU_PEERS gets in a container with the @count GPUs @own. */
u32 cgpu_call_peers(u32 cmd, const u8 *params, u32 size, const struct cgpu_peer_gpu *own,
		    u32 count);

/* True if a list of thermal instructions only reads, as far as the driver will read it. */
bool cgpu_call_thermal_reads(const u8 *params, u32 size);

/* A mapping of memory for a GPU (MAP_MEMORY_DMA), by the GPUs of the three objects that it names. */
struct cgpu_dma_map {
	u32 flags;		/* AT(nvos46, flags) */
	u32 kind;		/* enum cgpu_kind of the memory */
	u32 memory;		/* index of its GPU; CGPU_NO_GPU: of none */
	u32 device;		/* that of the device, in whose page tables it is */
	u32 space;		/* that of the address space, or the range of one */
};

/* True if each object is where the driver takes it to be. */
bool cgpu_call_may_map_dma(const struct cgpu_dma_map *map);

/* The most preemptible mode for compute, whatever mode was requested. */
void cgpu_call_force_cilp(u8 *params);

/* True if a share policy (its type) reaches processes of the same user or the same
 * process only.
 */
bool cgpu_call_share_stays(u16 type);

#endif
