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
	CGPU_CMD_SET		= 4,	/* ID, [COOKIE], SLOTS: LIMIT/WEIGHT/HIGHPRIO of named GPUs */
	CGPU_CMD_GPUS		= 5,	/* dump: one GPU message each */
	CGPU_CMD_EVENT		= 6,	/* multicast: EVENT + container attributes */
};

/* Values of CGPU_A_EVENT. */
enum cgpu_event {
	CGPU_EVENT_CREATED	= 1,	/* the container is there */
	CGPU_EVENT_DYING	= 2,	/* destroyed; files or mappings still hold memory */
	CGPU_EVENT_GONE		= 3,	/* the last reference is gone, memory returned */
	CGPU_EVENT_REFUSED	= 4,	/* an allocation was over the limit (rate limited) */
	CGPU_EVENT_CHANGED	= 5,	/* limit, weight or priority changed */
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
	CGPU_G_POLICY		= 7,	/* u32 */
	CGPU_G_MAX_INST		= 8,	/* u32 */
	CGPU_G_FREE_WEIGHT	= 9,	/* u32 */
	CGPU_G_PRIO_RATIO	= 10,	/* u32 */
	CGPU_G_SLICE_US		= 11,	/* u32 */
	CGPU_G_INSTANCES	= 12,	/* u32 */
};

#endif
