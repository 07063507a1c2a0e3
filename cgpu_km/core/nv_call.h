/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The call table: the verdict for each call of a tenant, as data. A call without a row
 * is refused: the tables are allow-lists. A row with the verdict refuse documents a call
 * that some tool makes.
 *
 * A row holds from a driver branch ("580" of 580.105.08) on, until a later row of its number. The
 * rows are in nv_table_*.c, docs/reference/abi.md explains them, make test-abi holds them to
 * the public driver.
 */
#ifndef CGPU_CORE_NV_CALL_H
#define CGPU_CORE_NV_CALL_H

#include "nv_row.h"

/* @branch is one that cgpu_call_branch() gave. NULL: not in the table, refused. */
const struct cgpu_escape *cgpu_call_escape(u32 branch, u32 nr, u32 size, u32 node);
const struct cgpu_control *cgpu_call_control(u32 branch, u32 cmd);
const struct cgpu_class *cgpu_call_class(u32 branch, u32 cls);
const struct cgpu_uvm_call *cgpu_call_uvm(u32 branch, u32 nr);

/* True if this driver's layouts are the ones of the tables: by its branch. */
bool cgpu_call_knows_driver(const char *version);

/* The branch of the rows for this driver: its own, or for an unknown one (accepted by
 * parameter) the nearest older one. 0: no row holds for it, because it is older than all of
 * them or has no number.
 */
u32 cgpu_call_branch(const char *version);

/* A branch whose rows were compared with NVIDIA's sources in part: how many of how many. */
struct cgpu_branch_part {
	u32 branch, compared, rows;
};

/* NULL: all rows of @branch were compared. */
const struct cgpu_branch_part *cgpu_call_part(u32 branch);

/* What the shell needs that is not the same in all branches: offsets, but for reset_aware. */
struct cgpu_abi {
	u32 since;
	/* nv-kernel-rmapi-ops.h, in the op's union: NVOS21 until 570, then NVOS64 */
	u32 op_alloc_params_size;
	u32 op_alloc_status;
	u32 dmabuf_handles;	/* nv_ioctl_export_to_dma_buf_fd_t: after mappingType from 570 on */
	/* ctrl2080perf.h: NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE and its gr.procId */
	u32 util_stride;
	u32 util_pid;
	u32 reset_aware;	/* nv-modeset-interface.h: open_gpu() and close_gpu() have this argument */
	/* alloc_channel.h: NV_CHANNEL_ALLOC_PARAMS; from 610 on behind hHandleVASpace */
	u32 channel_h_userd;
	u32 channel_engine;
	u32 channel_h_ecc;	/* hObjectEccError */
};

const struct cgpu_abi *cgpu_call_abi(u32 branch);

/* The copy engines with a runlist of their own, bit n: COPYn, by the answer to CE_GET_ALL_CAPS of @size bytes. */
u64 cgpu_call_async_copies(const u8 *caps, u32 size);
/* enum cgpu_engine of an NV2080_ENGINE_TYPE_* of @branch on a GPU with the asynchronous copy engines @async_copies,
 * 0: unknown. GR is all that may be on the runlist of graphics: 0, which the driver takes as GR0, the copy engines
 * that are not in @async_copies, and what is not known.
 */
u32 cgpu_call_engine(u32 branch, u32 type, u64 async_copies);
/* True: surely on the runlist of graphics. */
bool cgpu_call_on_graphics(u32 branch, u32 type, u64 async_copies);
/* The video engine whose objects are of @kind (enum cgpu_kind); CGPU_ENGINE_OTHER: none. */
u32 cgpu_call_engine_of_kind(u32 kind);

/* True unless (attr, attr2) request pages that a chip of @arch (MC_GET_ARCH_INFO; 0: unknown)
 * does not have, and on which a driver may not return its locks.
 */
bool cgpu_call_has_page_size(u32 arch, u32 attr, u32 attr2);

/* True if (attr, flags) request video memory, not only addresses. */
bool cgpu_call_is_vidmem(u32 attr, u32 flags);

/* One FB_GET_INFO entry as the tenant may see it; values in KiB. BAR1 is as large as what
 * the container has mapped of it and may still map.
 */
u32 cgpu_call_fb_info(u32 index, u32 real_kib, u64 limit_bytes, u64 used_bytes, u64 bar1_used,
		      u64 bar1_left);

#endif
