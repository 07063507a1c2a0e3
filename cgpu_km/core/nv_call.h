/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The call table: what happens to each call of a tenant, as data. What is not
 * in a table is refused: the tables are allow-lists. A refused row says what is
 * known about a call that some tool makes.
 *
 * A row holds for a range of driver branches ("580" of 580.105.08): its number,
 * its size and its offsets are those of every branch between. The rows are in
 * nv_table_*.c, docs/abi.md is made from them, make test-abi holds them to the
 * public driver.
 */
#ifndef CGPU_CORE_NV_CALL_H
#define CGPU_CORE_NV_CALL_H

#include "env.h"

/* Nodes a frontend call may arrive on. */
#define CGPU_NODE_CTL	1u
#define CGPU_NODE_GPU	2u
#define CGPU_NODE_UVM	4u

enum cgpu_verdict {
	CGPU_REFUSE = 0,
	CGPU_PASS,		/* forward, sealed */
	CGPU_ANSWER_OK,		/* accepted, not forwarded: virtualised */
	/* frontend: each has a handler in interpose.c */
	CGPU_ALLOC,
	CGPU_ALLOC_MEMORY,
	CGPU_FREE,
	CGPU_CONTROL,
	CGPU_DUP,
	CGPU_MAP,
	CGPU_MAP_DMA,		/* its page tables are estimated */
	CGPU_UNMAP_DMA,
	CGPU_VID_HEAP,
	CGPU_DMABUF,		/* charged until the dma-buf is gone */
	/* controls */
	CGPU_FB_INFO,		/* totals rewritten to the slice, embedded pointer */
	CGPU_FB_INFO_V2,	/* the same, flat */
	CGPU_NO_PIDS,		/* answered: no process */
	CGPU_SCHEDULE,		/* forwarded, then frozen if out of turn */
	CGPU_SET_TIMESLICE,	/* remembered */
	CGPU_GET_TIMESLICE,	/* what was remembered */
	CGPU_OWN_CHANNELS,	/* list checked for ownership, not forwarded */
	CGPU_EXPORT,		/* objects onto a control file: it holds their charge */
	CGPU_IMPORT,		/* and from it: references like dups */
	/* uvm */
	CGPU_UVM_MAP,		/* its references are charged in the driver's dup */
	CGPU_UVM_MANAGED,	/* about managed memory: only where that is charged */
	/* frontend again: numbers stay what they are for an older core */
	CGPU_OS_EVENT,		/* its client must be the container's */
};

/* What an object of a class is to us. */
enum cgpu_kind {
	CGPU_KIND_REFUSED = 0,
	CGPU_KIND_CLIENT,
	CGPU_KIND_DEVICE,
	CGPU_KIND_SUBDEVICE,
	CGPU_KIND_PLAIN,
	CGPU_KIND_VIDMEM,	/* charged by its size */
	CGPU_KIND_SYSMEM,
	CGPU_KIND_TSG,		/* charged ctx_reserve when it is on a GR engine */
	CGPU_KIND_CHANNEL,
	CGPU_KIND_COMPUTE,	/* engine object: its channel must be on a GR engine */
	CGPU_KIND_COPY,
};

/* What the driver does with a file descriptor that it is given. */
enum cgpu_fd_kind {
	CGPU_FD_NONE = 0,
	CGPU_FD_CTL,		/* looks up a control file: ours is put in its place */
	CGPU_FD_GPU,		/* the same, a GPU's file */
	CGPU_FD_RM,		/* the same, either of them */
	CGPU_FD_UVM,		/* looks up a uvm file */
	CGPU_FD_OTHER,		/* looks up or makes a file of another kind */
	CGPU_FD_KEY,		/* only compares the number */
	CGPU_FD_UNUSED,		/* does not look at it */
};

/* The branches for which rows exist and offsets of nv_abi.h hold. */
#define CGPU_BRANCH_OLDEST	515	/* of any row */
#define CGPU_BRANCH_FIRST	535	/* from here on the interposer's offsets hold */
#define CGPU_BRANCH_LAST	595

/* The first member of each row is its number: the look-ups count on it. */
struct cgpu_escape {
	u32 nr;
	u32 size;		/* of the argument; 0: any */
	u32 min_branch;
	u32 max_branch;
	u32 nodes;		/* CGPU_NODE_* it is valid on */
	u32 verdict;
	u32 status_at;		/* offset of the RM status, 0: none */
	const char *name;
	const char *source;
	const char *note;
	u32 fd_at;
	u32 fd_kind;
};

struct cgpu_control {
	u32 cmd;
	u32 params_size;
	u32 min_branch;
	u32 max_branch;
	u32 verdict;
	const char *name;
	const char *source;
	const char *note;
	bool sealed;		/* params_size is required, and sealed */
	u32 fd_at;
	u32 fd_kind;
};

struct cgpu_class {
	u32 cls;
	u32 params_size;	/* of pAllocParms */
	u32 min_branch;
	u32 max_branch;
	u32 kind;
	const char *name;
	const char *source;
	const char *note;
	bool sealed;		/* params_size bytes are required, and sealed */
};

struct cgpu_uvm_call {
	u32 nr;
	u32 size;
	u32 min_branch;
	u32 max_branch;
	u32 verdict;
	u32 status_at;
	const char *name;
	const char *note;
	u32 fd_at;
	u32 fd_kind;
};

/* @branch is one that cgpu_call_branch() gave. NULL: not in the table, refused. */
const struct cgpu_escape *cgpu_call_escape(u32 branch, u32 nr, u32 size, u32 node);
const struct cgpu_control *cgpu_call_control(u32 branch, u32 cmd);
const struct cgpu_class *cgpu_call_class(u32 branch, u32 cls);
const struct cgpu_uvm_call *cgpu_call_uvm(u32 branch, u32 nr);

/* True if this driver's layouts are the ones of the tables: by its branch. */
bool cgpu_call_knows_driver(const char *version);

/* The branch whose rows this driver gets: its own, or for one that is not known
 * (and was accepted by parameter) the nearest older one.
 */
u32 cgpu_call_branch(const char *version);

/* Offsets the shell needs that are not the same in all branches. */
struct cgpu_abi {
	u32 min_branch;
	/* nv-kernel-rmapi-ops.h, in the op's union: NVOS21 until 570, then NVOS64 */
	u32 op_alloc_params_size;
	u32 op_alloc_status;
	u32 dmabuf_handles;	/* nv_ioctl_export_to_dma_buf_fd_t: after mappingType from 570 on */
	/* ctrl2080perf.h: NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE and its gr.procId */
	u32 util_stride;
	u32 util_pid;
};

const struct cgpu_abi *cgpu_call_abi(u32 branch);

/* True for graphics/compute engines (NV2080_ENGINE_TYPE_GR0 … GR7, and 0,
 * which the driver takes as GR0).
 */
bool cgpu_call_engine_is_gr(u32 engine);

/* What a video memory allocation of @size with these attributes will consume:
 * rounded up to 64 KiB or to the page size asked for. U64_MAX on overflow.
 */
u64 cgpu_call_vidmem_bytes(u64 size, u32 attr, u32 attr2);

/* What a managed range of addresses [@start, @end) is charged, wherever its pages
 * are: each 2 MiB block it touches, which is what uvm takes of the card at a
 * time (uvm_pmm_gpu.h, UVM_CHUNK_SIZE_MAX). 0 for an empty one.
 */
u64 cgpu_call_managed_bytes(u64 start, u64 end);

/* What the driver keeps on the card beside what was asked for, estimated from
 * above: for an object (instance blocks, page directories, fault buffers), and
 * for one mapping of @bytes of memory (a page table for each 2 MiB begun, and
 * the three levels above it: uvm_pascal_mmu.c). Not measured on hardware.
 */
u64 cgpu_call_object_overhead(u32 kind, u32 cls);
u64 cgpu_call_page_tables(u64 bytes);

/* How much of all that is charged: what is over 16 MiB and 1/512 of the limit,
 * which is what mapping the whole limit once with the smallest pages takes.
 */
u64 cgpu_call_overhead_charge(u64 overhead, u64 limit_bytes);

/* True if (attr, flags) ask for video memory that is really backed. */
bool cgpu_call_is_vidmem(u32 attr, u32 flags);

/* One FB_GET_INFO entry as the tenant may see it; values in KiB. */
u32 cgpu_call_fb_info(u32 index, u32 real_kib, u64 limit_bytes, u64 used_bytes);

#endif
