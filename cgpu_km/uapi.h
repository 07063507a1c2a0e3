/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Everything user space may rely on: limits, policy numbers, the generic
 * netlink family. The text interface is docs/proc.md.
 *
 * Kept to #define and enum so that the daemon's mirror of it can be compared
 * by a test that only runs the preprocessor.
 */
#ifndef CGPU_UAPI_H
#define CGPU_UAPI_H

#define CGPU_ID_MAX		128	/* bytes of a container id, without NUL */
#define CGPU_DIR_LEN		12	/* characters of a directory name */
#define CGPU_MAX_INST_MIN	1
#define CGPU_MAX_INST_MAX	25
#define CGPU_MAX_INST_DEFAULT	20
#define CGPU_MAX_GPUS		32	/* the driver's NV_MAX_GPUS (nv-modeset-interface.h) */
#define CGPU_PRIO_RATIO_MIN	20
#define CGPU_PRIO_RATIO_MAX	99
#define CGPU_PRIO_RATIO_DEFAULT	80
#define CGPU_SLICE_US_MIN	1000
#define CGPU_SLICE_US_MAX	100000
#define CGPU_OVERCOMMIT_MIN	100	/* percent of the card's memory */
#define CGPU_OVERCOMMIT_MAX	1000
#define CGPU_MIB		1048576

enum cgpu_policy_nr {
	CGPU_POLICY_FAIR	= 0,	/* fair share */
	CGPU_POLICY_PREEMPT	= 1,	/* preemptive */
	CGPU_POLICY_WEIGHTED	= 2,	/* weight-based preemptive */
	CGPU_POLICY_FIXED	= 3,	/* hard cap weight/max_inst */
	CGPU_POLICY_SOFT	= 4,	/* timeslices, no ratio promised */
	CGPU_POLICY_NATIVE	= 5,	/* the driver's own; memory limits only */
	CGPU_POLICY_COUNT	= 6,
};

/* Generic netlink. Every command needs CAP_NET_ADMIN in the initial user
 * namespace; the family is visible in the initial network namespace only.
 */
#define CGPU_GENL_NAME		"cgpu"
#define CGPU_GENL_VERSION	1
#define CGPU_GENL_MCGRP_EVENTS	"events"

enum cgpu_genl_cmd {
	CGPU_CMD_UNSPEC		= 0,
	CGPU_CMD_CREATE		= 1,	/* ID, SLOTS, [COOKIE] -> one CONTAINER message */
	CGPU_CMD_DESTROY	= 2,	/* ID, [COOKIE]; ENOENT when there is none */
	CGPU_CMD_LIST		= 3,	/* dump: one CONTAINER message each */
	CGPU_CMD_SET		= 4,	/* ID, [COOKIE], SLOTS: LIMIT/WEIGHT/HIGHPRIO of named GPUs; all or none */
	CGPU_CMD_GPUS		= 5,	/* dump: one GPU message each */
	CGPU_CMD_EVENT		= 6,	/* multicast: EVENT + what enum cgpu_event says */
	CGPU_CMD_SET_GPU	= 7,	/* GPU: INDEX and what is marked "set" below; all or none */
};

/* Values of CGPU_A_EVENT (docs/netlink.md). CREATED, DYING, GONE and CHANGED carry
 * a CONTAINER message. The others carry a GPU nest of INDEX, UUID, PCI, NV_MINOR
 * and TOTAL, where they are about a container its ID, COOKIE and DIR, and what is
 * named here; CORE, which is of all GPUs, names none. Those marked 1/s are told at
 * most once a second for each container and GPU; SUPPRESSED says how many more there
 * were. Every event may carry LOST.
 */
enum cgpu_event {
	CGPU_EVENT_CREATED	= 1,	/* the container is there */
	CGPU_EVENT_DYING	= 2,	/* destroyed; files or mappings still hold memory */
	CGPU_EVENT_GONE		= 3,	/* the last reference is gone, memory returned */
	CGPU_EVENT_REFUSED	= 4,	/* 1/s: an allocation over the limit. PID, ASKED, LIMIT, USED of the first */
	CGPU_EVENT_CHANGED	= 5,	/* limit, weight or priority changed */
	CGPU_EVENT_OVERRUN	= 6,	/* 1/s: turns ended late or were resisted. OVERRUNS, RESISTED so far */
	CGPU_EVENT_LEVER_FAILED	= 7,	/* 1/s: the driver refused a call. LEVER, STATUS of the latest */
	CGPU_EVENT_LEVERS	= 8,	/* a lever was lost or is back. OLD, NEW, INERT */
	CGPU_EVENT_POLICY	= 9,	/* OLD, NEW */
	CGPU_EVENT_ATTACHED	= 10,	/* the GPU is held: the first container came */
	CGPU_EVENT_DETACHED	= 11,	/* the last container went */
	CGPU_EVENT_CORE		= 12,	/* a core was to take over, or to come: CORE, CANDIDATE, ERRNO, WHY */
};

/* Attributes of a message. A CONTAINER message carries ID, COOKIE, DIR, MAJOR,
 * CTL_MINOR, UVM_MINOR, STATE and SLOTS; a GPU message carries one GPU nest's
 * attributes at top level inside CGPU_A_GPU.
 */
enum cgpu_attr {
	CGPU_A_UNSPEC		= 0,
	CGPU_A_PAD		= 1,
	CGPU_A_ID		= 2,	/* string, <= CGPU_ID_MAX */
	CGPU_A_COOKIE		= 3,	/* u64; 0 or absent on create: the kernel chooses */
	CGPU_A_DIR		= 4,	/* string: name under /proc/cgpu_km/N/ */
	CGPU_A_MAJOR		= 5,	/* u32 */
	CGPU_A_CTL_MINOR	= 6,	/* u32: minor of its nvidiactl */
	CGPU_A_UVM_MINOR	= 7,	/* u32: minor of its nvidia-uvm */
	CGPU_A_STATE		= 8,	/* u8: 0 live, 1 dying */
	CGPU_A_SLOTS		= 9,	/* nest of CGPU_A_SLOT nests (same number, repeated) */
	CGPU_A_SLOT		= 10,	/* nest of cgpu_slot_attr */
	CGPU_A_EVENT		= 11,	/* u32 */
	CGPU_A_GPU		= 12,	/* nest of cgpu_gpu_attr */
	/* Of events only. A lever is 1 (window) or 2 (timeslice), a set of them their sum. */
	CGPU_A_PID		= 13,	/* u32: process, in the initial pid namespace */
	CGPU_A_ASKED		= 14,	/* u64 bytes */
	CGPU_A_LIMIT		= 15,	/* u64 bytes */
	CGPU_A_USED		= 16,	/* u64 bytes, before it was refused */
	CGPU_A_OLD		= 17,	/* u32: policy, or set of levers */
	CGPU_A_NEW		= 18,	/* u32 */
	CGPU_A_INERT		= 19,	/* u32: of the lost levers, those that were answered and moved nothing */
	CGPU_A_LEVER		= 20,	/* u32; 3: the restart of the runlist that makes either act */
	CGPU_A_STATUS		= 21,	/* u32: the driver's NV_STATUS */
	CGPU_A_OVERRUNS		= 22,	/* u64: N/C/stat */
	CGPU_A_RESISTED		= 23,	/* u64: N/C/stat */
	CGPU_A_SUPPRESSED	= 24,	/* u32 */
	CGPU_A_LOST		= 25,	/* u64: events never sent for want of memory, since the module was loaded */
	CGPU_A_CORE		= 26,	/* string: version of the core that runs now; absent: none */
	CGPU_A_CANDIDATE	= 27,	/* string: version of the other; of one without, its module's name */
	CGPU_A_ERRNO		= 28,	/* u32; 0: the candidate is the one that runs */
	CGPU_A_WHY		= 29,	/* string: a sentence for people */
};

enum cgpu_slot_attr {
	CGPU_S_UNSPEC		= 0,
	CGPU_S_PAD		= 1,
	CGPU_S_GPU		= 2,	/* u32: N of /proc/cgpu_km/N */
	CGPU_S_MINOR		= 3,	/* u32: our minor of its GPU node */
	CGPU_S_NV_MINOR		= 4,	/* u32: M of the driver's /dev/nvidiaM */
	CGPU_S_LIMIT		= 5,	/* u64 bytes */
	CGPU_S_USED		= 6,	/* u64 bytes */
	CGPU_S_WEIGHT		= 7,	/* u32 portions; the reply says what was granted */
	CGPU_S_HIGHPRIO		= 8,	/* u8 */
};

enum cgpu_gpu_attr {
	CGPU_G_UNSPEC		= 0,
	CGPU_G_PAD		= 1,
	CGPU_G_INDEX		= 2,	/* u32 */
	CGPU_G_UUID		= 3,	/* string "GPU-…" */
	CGPU_G_PCI		= 4,	/* string "dddd:bb:ss.f" */
	CGPU_G_NV_MINOR		= 5,	/* u32 */
	CGPU_G_TOTAL		= 6,	/* u64 bytes, 0 while not yet known */
	CGPU_G_POLICY		= 7,	/* u32; set */
	CGPU_G_MAX_INST		= 8,	/* u32; set */
	CGPU_G_FREE_WEIGHT	= 9,	/* u32 */
	CGPU_G_PRIO_RATIO	= 10,	/* u32; set */
	CGPU_G_SLICE_US		= 11,	/* u32; set, 0: chosen from the lever again */
	CGPU_G_INSTANCES	= 12,	/* u32: its containers, dying ones included */
	CGPU_G_UVM		= 13,	/* u32: 0 deny, 1 account; set */
	CGPU_G_DEFAULT_MEMSIZE	= 14,	/* u64 bytes; set, 0: that of all GPUs */
	CGPU_G_OVERCOMMIT	= 15,	/* u32 percent: most that limits add up to; set */
	CGPU_G_SLICE_IS_SET	= 16,	/* u32: 0: the slice is chosen from the lever */
	CGPU_G_USED		= 17,	/* u64 bytes: of its containers */
	CGPU_G_DRIVER_FREE	= 18,	/* u64 bytes, by the driver's account; absent while not attached */
	CGPU_G_BORN		= 19,	/* u64: another one than before, and its values are the defaults */
	CGPU_G_LIMITS		= 20,	/* u64 bytes: limits of its containers together, dying ones included */
};

#endif
