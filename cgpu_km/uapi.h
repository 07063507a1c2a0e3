/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The interface to user space: limits, policy numbers, the generic netlink family. The
 * text interface is docs/reference/proc.md.
 *
 * Only #define and enum are used, so that a test can compare the daemon's copy
 * (cgpu_common/kernel_abi.py) with the output of the preprocessor.
 */
#ifndef CGPU_UAPI_H
#define CGPU_UAPI_H

#define CGPU_ID_MAX		128	/* bytes of a container id, without NUL */
#define CGPU_DIR_LEN		12	/* characters of a directory name */
#define CGPU_MAX_INST_MIN	1
#define CGPU_MAX_INST_MAX	25
#define CGPU_MAX_INST_BURST_MAX	100	/* parts of the GPU under burst; containers: still 25 */
#define CGPU_MAX_INST_DEFAULT	20
#define CGPU_MAX_GPUS		32	/* the driver's NV_MAX_GPUS (nv-modeset-interface.h) */
#define CGPU_PRIO_RATIO_MIN	20
#define CGPU_PRIO_RATIO_MAX	99
#define CGPU_PRIO_RATIO_DEFAULT	80
#define CGPU_SLICE_US_MIN	1000
#define CGPU_SLICE_US_MAX	100000
#define CGPU_OVERCOMMIT_MIN	100	/* percent of the GPU's memory */
#define CGPU_OVERCOMMIT_MAX	1000
#define CGPU_MIB		1048576

/* The policies: number, name in enumerators, name in files and commands, which is that of core/policy_NAME.c too.
 * cgpu_common/policies.py has what the daemon and the commands know about each.
 */
#define CGPU_POLICIES(POLICY)			\
	POLICY(0, FAIR,		fair)		\
	POLICY(1, PREEMPTIVE,	preemptive)	\
	POLICY(2, WEIGHTED,	weighted)	\
	POLICY(3, FIXED,	fixed)		\
	POLICY(4, SOFT,		soft)		\
	POLICY(5, NATIVE,	native)		\
	POLICY(6, BURST,	burst)
#define CGPU_POLICIES_WIDE	"burst"	/* those that take up to CGPU_MAX_INST_BURST_MAX, in words */

#define CGPU_POLICY_ENUMERATOR(nr, NAME, name) CGPU_POLICY_##NAME = nr,
enum cgpu_policy_nr {
	CGPU_POLICIES(CGPU_POLICY_ENUMERATOR)
	CGPU_POLICY_COUNT
};

/* Generic netlink. Every command requires CAP_NET_ADMIN in the initial user namespace and
 * a process of the initial pid namespace. The family is visible in the initial network
 * namespace only.
 */
#define CGPU_GENL_NAME		"cgpu"
#define CGPU_GENL_VERSION	1
#define CGPU_GENL_MCGRP_EVENTS	"events"

enum cgpu_genl_cmd {
	CGPU_CMD_UNSPEC		= 0,
	CGPU_CMD_CREATE		= 1,	/* ID, SLOTS, [COOKIE] -> one CONTAINER message */
	CGPU_CMD_DESTROY	= 2,	/* ID, [COOKIE]; ENOENT: no such container */
	CGPU_CMD_LIST		= 3,	/* dump: one CONTAINER message each */
	/* ID, [COOKIE], SLOTS: LIMIT/WEIGHT/HIGHPRIO/CEILING/HOST_LIMIT of the GPUs named; all or none */
	CGPU_CMD_SET		= 4,
	CGPU_CMD_GPUS		= 5,	/* dump: one GPU message each */
	CGPU_CMD_EVENT		= 6,	/* multicast: EVENT and the attributes of enum cgpu_event */
	CGPU_CMD_SET_GPU	= 7,	/* GPU: INDEX and those marked "set" below; all or none */
};

/* Values of CGPU_A_EVENT (docs/reference/netlink.md). CREATED, DYING, GONE and CHANGED
 * carry a CONTAINER message. The others carry a GPU nest of INDEX, UUID, PCI, NV_MINOR
 * and TOTAL, and the attributes named here. An event of a container also carries its ID,
 * COOKIE and DIR. CORE and REDIRECTIONS concern all GPUs and have no GPU nest. Events
 * marked 1/s are sent at most once a second for each container and GPU; SUPPRESSED is the
 * number of further ones since. Every event may carry LOST.
 */
enum cgpu_event {
	CGPU_EVENT_CREATED	= 1,	/* the container was created */
	CGPU_EVENT_DYING	= 2,	/* destroyed, and its end is not over */
	CGPU_EVENT_GONE		= 3,	/* ended: id, slots and limits are free; memory may be held still */
	/* 1/s: an allocation exceeded the limit. PID, ASKED, LIMIT, USED of the first */
	CGPU_EVENT_REFUSED	= 4,
	CGPU_EVENT_CHANGED	= 5,	/* limit, weight, priority or ceiling changed */
	/* 1/s: turns ended late, or a freeze was held up. OVERRUNS, PREEMPT_SLOW: totals */
	CGPU_EVENT_OVERRUN	= 6,
	/* 1/s: the driver refused a call. CONTROL, STATUS of the latest */
	CGPU_EVENT_CONTROL_FAILED	= 7,
	CGPU_EVENT_CONTROLS	= 8,	/* a control was lost or is back. OLD, NEW, INEFFECTIVE */
	CGPU_EVENT_POLICY	= 9,	/* OLD, NEW */
	CGPU_EVENT_ATTACHED	= 10,	/* the first container was created: the GPU is referenced */
	CGPU_EVENT_DETACHED	= 11,	/* the last container is gone */
	/* a core swap ended, or a core was refused at load: CORE, CANDIDATE, ERRNO, WHY */
	CGPU_EVENT_CORE		= 12,
	/* the driver's functions are no longer redirected (EIO: calls of containers fail), or are
	 * again (0); or nvidia-uvm's could not be redirected when it was loaded: ERRNO, WHY
	 */
	CGPU_EVENT_REDIRECTIONS	= 13,
	/* 1/s: more than the container's part of what a GPU has a fixed number of. RESOURCE, PID,
	 * ASKED, LIMIT, USED of the first
	 */
	CGPU_EVENT_QUOTA	= 14,
};

/* Attributes of a message. A CONTAINER message carries ID, COOKIE, DIR, MAJOR, CTL_MINOR,
 * UVM_MINOR, STATE and SLOTS; a GPU message carries one CGPU_A_GPU nest.
 */
enum cgpu_attr {
	CGPU_A_UNSPEC		= 0,
	CGPU_A_PAD		= 1,
	CGPU_A_ID		= 2,	/* string, <= CGPU_ID_MAX */
	CGPU_A_COOKIE		= 3,	/* u64; 0 or absent on create: chosen by the kernel */
	CGPU_A_DIR		= 4,	/* string: name under /proc/cgpu_km/N/ */
	CGPU_A_MAJOR		= 5,	/* u32 */
	CGPU_A_CTL_MINOR	= 6,	/* u32: minor of its nvidiactl node */
	CGPU_A_UVM_MINOR	= 7,	/* u32: minor of its nvidia-uvm node */
	CGPU_A_STATE		= 8,	/* u8: 0 live, 1 dying */
	CGPU_A_SLOTS		= 9,	/* nest of CGPU_A_SLOT nests (same number, repeated) */
	CGPU_A_SLOT		= 10,	/* nest of cgpu_slot_attr */
	CGPU_A_EVENT		= 11,	/* u32 */
	CGPU_A_GPU		= 12,	/* nest of cgpu_gpu_attr */
	/* In events only. A control is 1 (freeze and thaw) or 2
	 * (timeslice); a set of controls is their sum.
	 */
	CGPU_A_PID		= 13,	/* u32: process, in the initial pid namespace */
	CGPU_A_ASKED		= 14,	/* u64 bytes; these three of QUOTA: in RESOURCE's own unit */
	CGPU_A_LIMIT		= 15,	/* u64 bytes */
	CGPU_A_USED		= 16,	/* u64 bytes in use at the refusal */
	CGPU_A_OLD		= 17,	/* u32: policy, or set of controls */
	CGPU_A_NEW		= 18,	/* u32 */
	/* u32: lost controls with calls that succeeded and had no effect */
	CGPU_A_INEFFECTIVE	= 19,
	CGPU_A_CONTROL		= 20,	/* u32; 3: the runlist restart that both depend on */
	CGPU_A_STATUS		= 21,	/* u32: the driver's NV_STATUS */
	CGPU_A_OVERRUNS		= 22,	/* u64: as in N/C/stat */
	CGPU_A_PREEMPT_SLOW	= 23,	/* u64: as in N/C/stat */
	CGPU_A_SUPPRESSED	= 24,	/* u32: further events of this kind since the last one */
	/* u64: events not sent for lack of memory since the module was loaded */
	CGPU_A_LOST		= 25,
	CGPU_A_CORE		= 26,	/* string: version of the active core; absent: none */
	/* string: version of the core to be activated; its module's name if it has none */
	CGPU_A_CANDIDATE	= 27,
	CGPU_A_ERRNO		= 28,	/* u32; 0: the candidate is active, or no redirection is off */
	CGPU_A_WHY		= 29,	/* string: the reason, a sentence */
	CGPU_A_RESOURCE		= 30,	/* string: channels, groups, bar1_bytes, nvdec …: as in N/C/stat */
};

enum cgpu_slot_attr {
	CGPU_S_UNSPEC		= 0,
	CGPU_S_PAD		= 1,
	CGPU_S_GPU		= 2,	/* u32: N of /proc/cgpu_km/N */
	CGPU_S_MINOR		= 3,	/* u32: minor of the container's GPU node */
	CGPU_S_NV_MINOR		= 4,	/* u32: M of the driver's /dev/nvidiaM */
	CGPU_S_LIMIT		= 5,	/* u64 bytes */
	CGPU_S_USED		= 6,	/* u64 bytes */
	CGPU_S_WEIGHT		= 7,	/* u32 slices per round; in the reply: granted */
	CGPU_S_HIGHPRIO		= 8,	/* u8 */
	CGPU_S_CEILING		= 9,	/* u32 slices per round, 0: none; policy 6 */
	/* u64 bytes of system memory by the driver, 0: no limit; of the whole container */
	CGPU_S_HOST_LIMIT	= 10,
	CGPU_S_COUNT
};

enum cgpu_gpu_attr {
	CGPU_G_UNSPEC		= 0,
	CGPU_G_PAD		= 1,
	CGPU_G_INDEX		= 2,	/* u32 */
	CGPU_G_UUID		= 3,	/* string "GPU-…" */
	CGPU_G_PCI		= 4,	/* string "dddd:bb:ss.f" */
	CGPU_G_NV_MINOR		= 5,	/* u32 */
	CGPU_G_TOTAL		= 6,	/* u64 bytes; 0: not yet known */
	CGPU_G_POLICY		= 7,	/* u32; set */
	CGPU_G_MAX_INST		= 8,	/* u32; set */
	CGPU_G_FREE_WEIGHT	= 9,	/* u32 */
	CGPU_G_PRIO_RATIO	= 10,	/* u32; set */
	CGPU_G_SLICE_US		= 11,	/* u32; set, 0: derived from the freeze control's latency */
	CGPU_G_INSTANCES	= 12,	/* u32: number of containers, dying ones included */
	CGPU_G_UVM		= 13,	/* u32: 0 deny, 1 account; set */
	CGPU_G_DEFAULT_MEMSIZE	= 14,	/* u64 bytes; set, 0: the default of all GPUs */
	CGPU_G_OVERCOMMIT	= 15,	/* u32 percent of TOTAL: maximum of LIMITS; set */
	CGPU_G_SLICE_IS_SET	= 16,	/* u32; 0: SLICE_US is derived from the latency */
	CGPU_G_USED		= 17,	/* u64 bytes charged to its containers and held of destroyed ones */
	/* u64 bytes free as reported by the driver; absent while not attached */
	CGPU_G_DRIVER_FREE	= 18,
	CGPU_G_BORN		= 19,	/* u64; changed: settings were reset to the defaults */
	/* u64 bytes: sum of its containers' limits, dying ones included, and what is held of destroyed ones */
	CGPU_G_LIMITS		= 20,
	CGPU_G_COUNT
};

#endif
