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
#include <linux/workqueue.h>

#include "core/core_ops.h"
#include "driver.h"
#include "events.h"
#include "look.h"

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
	atomic_t moves, move_seq;	/* tenants' calls under way that take or give memory, and begun so far */
	u64 sched_seq;			/* lock; of the latest scheduled object */
	bool uvm_account;		/* READ_ONCE; managed memory is charged, not refused */
	bool slice_is_set;		/* lock; written by hand: not derived from the lever */
	u32 overcommit_pct;		/* lock; of total_bytes, for limits_bytes */
	u64 default_memsize;		/* lock; bytes, 0: that of all GPUs */
	u64 born_ns;			/* since boot; tells it from one that was here before */
	struct ckm_lever_stat lever;	/* lever_lock */
	u64 restarted;			/* lever_lock; seq of the channel on which the runlist was restarted last */
	u32 restarted_slot;		/* lever_lock; its slot */
	u32 hclient, hdevice, hsubdevice;	/* our own; valid while attached */
	struct mutex open_lock;		/* open; the innermost but for the driver's own */
	bool open;			/* they are there */
	struct task_struct *thread;
	struct cgpu_look *look;		/* lock */
	u8 *look_params;		/* look_work only; NV_UTIL_PARAMS_MAX */
	enum ckm_look_state look_state;	/* lock for writing */
	struct delayed_work look_work;
	wait_queue_head_t wait;
	bool kicked;			/* something changed: plan again */
	u64 turns;			/* turn thread only */
	struct ckm_gpu_news news;
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
/* The same for whoever does not know whether we are attached: false if not.
 * Takes open_lock.
 */
bool ckm_gpu_heap_if_open(struct ckm_gpu *gpu, u64 *used, u64 *free);

/* What one graphics/compute context is charged: ctx_reserve_mib, or what one
 * was seen to take where that is more.
 */
u64 ckm_gpu_context_bytes(struct ckm_gpu *gpu);
/* A context took @bytes; the least of what was seen counts, so that what others
 * took at the same time does not stay in it.
 */
void ckm_gpu_context_seen(struct ckm_gpu *gpu, u64 bytes);

/* What the core says of the state; zeros without a core. Caller holds gpu->lock. */
void ckm_gpu_view_locked(struct ckm_gpu *gpu, struct cgpu_turn_view *view);
void ckm_gpu_slot_view_locked(struct ckm_gpu *gpu, u32 turn_slot,
			      struct cgpu_turn_slot_view *view);

void ckm_gpu_kick(struct ckm_gpu *gpu);

/* The slot's scheduled objects changed: tell the turn engine. Caller holds
 * gpu->lock.
 */
void ckm_gpu_channels_changed_locked(struct ckm_slot *slot);

int ckm_gpus_init(void);
void ckm_gpus_exit(void);

#endif
