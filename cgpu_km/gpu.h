/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * GPUs. They are discovered when a driver and a core are there, keep their
 * settings while no container exists, and are attached (driver pinned, turn
 * thread running) from the first container to the last.
 */
#ifndef CKM_GPU_H
#define CKM_GPU_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/wait.h>

#include "core/core_ops.h"
#include "driver.h"

struct ckm_container;
struct ckm_slot;
struct ckm_proc_dir;
struct task_struct;

#define CKM_LEVER_SAMPLES 128

struct ckm_lever_stat {
	u64 calls, failed;
	u64 max_ns;
	u32 sample_us[CKM_LEVER_SAMPLES];	/* the latest, a ring */
	u32 samples;
};

struct ckm_gpu {
	struct list_head node;		/* ckm_lock */
	u32 index;			/* N of /proc/cgpu_km/N: PCI order */
	struct ckm_gpu_desc desc;
	u64 total_bytes;		/* 0 until attached once */
	u32 instance;			/* the driver's deviceInstance; valid while attached */
	struct mutex lever_lock;
	struct mutex lock;
	struct cgpu_turn *turn;		/* lock */
	struct ckm_slot *slot[CGPU_SLOTS];	/* lock; by turn slot */
	u64 limits_bytes;		/* lock; sum of the slots' limits */
	u64 context_bytes;		/* lock; what a context was seen to take, 0: not yet seen */
	atomic_t allocs, alloc_seq;	/* tenants' allocations under way, and begun so far */
	u64 sched_seq;			/* lock; of the latest scheduled object */
	bool slice_is_set;		/* lock; written by hand: not derived from the lever */
	struct ckm_lever_stat lever;	/* lever_lock */
	u32 hclient, hdevice, hsubdevice;	/* our own; valid while attached */
	struct mutex open_lock;		/* open; the innermost but for the driver's own */
	bool open;			/* they are there */
	struct task_struct *thread;
	wait_queue_head_t wait;
	bool kicked;			/* something changed: plan again */
	u64 turns;			/* turn thread only */
	struct ckm_proc_dir *proc;
};

extern struct list_head ckm_gpus;	/* ckm_lock */

struct ckm_gpu *ckm_gpu_by_index(u32 index);	/* ckm_lock */

/* Look again at what the driver has. Called when a core or a driver appears,
 * and before the first container. Caller holds ckm_lock.
 */
void ckm_gpus_scan(void);

/* First container in, last container out. Caller holds ckm_lock. */
int ckm_gpus_attach(const char **why);
void ckm_gpus_detach(void);

/* Without a core there is nobody to ask. Caller holds ckm_lock. */
void ckm_gpus_forget(void);

/* Bytes of the card in use and free, by the driver's own account, whoever has
 * them. False if it does not say. Only while attached.
 */
bool ckm_gpu_heap(struct ckm_gpu *gpu, u64 *used, u64 *free);
/* How much is in use, for whoever does not know whether we are attached: 0 if
 * not. Takes open_lock.
 */
u64 ckm_gpu_driver_used(struct ckm_gpu *gpu);

/* What one graphics/compute context is charged: ctx_reserve_mib, or what one
 * was seen to take where that is more.
 */
u64 ckm_gpu_context_bytes(struct ckm_gpu *gpu);
/* A context took @bytes; the least of what was seen counts, so that what others
 * took at the same time does not stay in it.
 */
void ckm_gpu_context_seen(struct ckm_gpu *gpu, u64 bytes);

void ckm_gpu_kick(struct ckm_gpu *gpu);

/* The slot's scheduled objects changed: tell the turn engine. Caller holds
 * gpu->lock.
 */
void ckm_gpu_channels_changed_locked(struct ckm_slot *slot);

int ckm_gpus_init(void);
void ckm_gpus_exit(void);

#endif
