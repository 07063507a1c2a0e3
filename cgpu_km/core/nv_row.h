/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The types of the call table's rows: nv_table_*.c has the rows, nv_call.c searches them. */
#ifndef CGPU_CORE_NV_ROW_H
#define CGPU_CORE_NV_ROW_H

#include "env.h"

/* Nodes a frontend call may arrive on. */
#define CGPU_NODE_CTL	1u
#define CGPU_NODE_GPU	2u
#define CGPU_NODE_UVM	4u

enum cgpu_verdict {
	CGPU_REFUSE = 0,
	CGPU_PASS,		/* forwarded; with @copied_in, a kernel copy of its parameters is */
	CGPU_ANSWER_OK,		/* accepted, not forwarded: virtualised */
	/* frontend: each has a handler in the module */
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
	CGPU_GET_TIMESLICE,	/* answered: the value set last */
	CGPU_OWN_CHANNELS,	/* list checked for ownership, not forwarded */
	CGPU_EXPORT,		/* objects onto a control file: it holds their charge */
	CGPU_IMPORT,		/* and from it: references like dups */
	/* uvm */
	CGPU_UVM_MAP,		/* its references are charged in the driver's dup */
	CGPU_UVM_MANAGED,	/* about managed memory: only where that is charged */
	/* frontend again: numbers stay what they are for an older core */
	CGPU_OS_EVENT,		/* its client must be the container's */
	CGPU_SHARE,		/* of an object of the caller's own: kept for CGPU_DUP, not forwarded */
	CGPU_UNMAP,		/* its part of BAR1 is given back */
	/* controls again */
	CGPU_SHARE_POLICY,	/* forwarded if it stays with the user or the process, else answered */
	CGPU_NOT_THERE,		/* answered: no peer, no NVLink, no fabric */
	CGPU_READ_THERMAL,	/* forwarded if each instruction only reads */
	CGPU_FORCE_CILP,	/* forwarded as preemption between instructions */
	CGPU_ADDR_SPACE,	/* forwarded unless it names shared data, which the driver has not */
	/* uvm again */
	CGPU_ANSWER_NOTHING,	/* answered as not needed: NV_WARN_NOTHING_TO_DO */
	/* frontend once more */
	CGPU_RENAME_MAP,	/* kept for CGPU_UNMAP where the mapping is charged, else forwarded */
	CGPU_KEEP_GPUS,		/* ids of the container's GPUs: answered, the module keeps them */
	/* controls once more */
	CGPU_GPU_ID,		/* forwarded if its first word is the id of a GPU of the container */
	CGPU_PEERS,		/* forwarded among several GPUs of the container; else CGPU_NOT_THERE */
	CGPU_BIND,		/* forwarded if its first word is an engine as the object's own */
	CGPU_GONE,		/* no row from that branch on; no look-up returns it */
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
	CGPU_KIND_TSG,		/* charged ctx_reserve when it is on the runlist of a GR engine */
	CGPU_KIND_CHANNEL,
	CGPU_KIND_COMPUTE,	/* engine object: its channel must be on a GR engine */
	CGPU_KIND_COPY,
	CGPU_KIND_SHARED_DATA,	/* not forwarded: its mapping shows zeros */
	CGPU_KIND_PEERS,	/* of two GPUs of the container: goes with either's subdevice */
	/* engine objects of video engines: a session each, on a channel of that engine */
	CGPU_KIND_NVDEC,
	CGPU_KIND_NVENC,
	CGPU_KIND_NVJPG,
	CGPU_KIND_OFA,
	CGPU_KIND_DOORBELL,	/* the registers of the usermode classes, which each process maps */
	CGPU_KIND_NOTIFIER,	/* a name for the beginning of system memory, where the driver writes errors */
	CGPU_KIND_GONE = CGPU_GONE,
};

/* What a channel's engine is to us. */
enum cgpu_engine {
	CGPU_ENGINE_OTHER = 0,	/* asynchronous copies: not scheduled */
	CGPU_ENGINE_GR,		/* graphics and compute, and the copies on their runlist */
	CGPU_ENGINE_NVDEC,	/* video engines, in the order of their kinds of objects */
	CGPU_ENGINE_NVENC,
	CGPU_ENGINE_NVJPG,
	CGPU_ENGINE_OFA,
	CGPU_ENGINES
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

/* The first branch; nv_branch.c has them all. */
#define CGPU_BRANCH_FIRST	535

/* For make abi-doc, the comparison with the driver's headers and the fuzzer, which define
 * CGPU_DOC. The module reads none of it, and is built without.
 */
struct cgpu_doc {
#ifdef CGPU_DOC
	const char *name;
	const char *source;	/* the header that defines it */
	const char *note;
#endif
};

/*
 * A branch is its predecessor and its differences. A row holds from the branch @since on, until a
 * later row of its number takes its place; of a call in two sizes both rows have the same @since.
 * Number and @since are the first members of each row: the look-ups count on it.
 */
struct cgpu_escape {
	u32 nr;
	u32 since;
	u32 size;		/* of the argument; 0: any */
	u32 nodes;		/* CGPU_NODE_* it is valid on */
	u32 verdict;
	u32 status_at;		/* offset of the RM status, 0: none */
	struct cgpu_doc doc;
	u32 fd_at;
	u32 fd_kind;
};

struct cgpu_control {
	u32 cmd;
	u32 since;
	u32 params_size;
	u32 verdict;
	struct cgpu_doc doc;
	bool copied_in;		/* params_size is required */
	u32 fd_at;
	u32 fd_kind;
};

struct cgpu_class {
	u32 cls;
	u32 since;
	u32 params_size;	/* of pAllocParms */
	u32 kind;
	struct cgpu_doc doc;
	bool copied_in;		/* params_size bytes are required */
	bool graphics;		/* refused as a class of graphics, which the kernel log says */
};

struct cgpu_uvm_call {
	u32 nr;
	u32 since;
	u32 size;
	u32 verdict;
	u32 status_at;
	struct cgpu_doc doc;
	u32 fd_at;
	u32 fd_kind;
};

#endif
