/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A GPU: its state, settings and statistics. */
#ifndef CKM_GPU_H
#define CKM_GPU_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/spinlock.h>
#include <linux/uuid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "core/core_ops.h"
#include "core/nv_struct.h"
#include "driver/driver.h"
#include "pure/mem_quota.h"

struct ckm_container;
struct ckm_slot;
struct ckm_proc_dir;
struct pci_dev;
struct resource;
struct task_struct;

#define CKM_BARS	6	/* of a PCI device */

/* State of the effect check (sched/effect_check.h), shown as `effect_check`. */
enum ckm_check_state {
	CKM_CHECK_IDLE,		/* no container has the GPU open, or the policy uses no control */
	CKM_CHECK_WATCHING,
	CKM_CHECK_HOLDING,	/* containers are frozen for a second, as a test */
	CKM_CHECK_BLIND,	/* no samples, or their clock is unknown, or they show nothing */
};

#define CKM_CTRL_SAMPLES 128

/* What a hand-over is made of, timed apart: on an H100 a freeze takes twice a thaw. */
enum ckm_ctrl_kind {
	CKM_CTRL_OF_FREEZE,
	CKM_CTRL_OF_THAW,
	CKM_CTRL_OF_RESTART,
	CKM_CTRL_OF_TIMESLICE,
	CKM_CTRL_KINDS,
};

struct ckm_ctrl_stat {
	u64 calls, failed;
	u64 max_ns;
	u32 sample_us[CKM_CTRL_SAMPLES];	/* ring of the latest */
	u32 samples;
	u32 usual_us[CKM_CTRL_KINDS];	/* running medians; 0: no call of that kind */
	u32 timeslice_us;		/* the driver's own, as read from a TSG; 0: not read */
	u32 told_switch_us, told_timeslice_us;	/* what the core has */
};

/* Pending events of a GPU (notify.c). */
struct ckm_gpu_events {
	struct delayed_work work;
	struct mutex lock;		/* held from reading the state until sending: keeps order */
	u32 policy, controls;		/* lock; values of the last event sent */
};

/* The state of the channels' words and of their readings (sched/run_state.h). gpu->lock. */
struct ckm_run_state {
	u64 since_ns[CGPU_SLOTS];	/* latest complete freeze or thaw; U64_MAX: under way, or failed */
	u64 counted_ns;			/* when contradictions were counted last */
	u64 read_ns;			/* when the scheduler thread read last */
	u64 cost_ns;			/* how long that reading took */
	u64 shown_ns;			/* when it was read for the GPU's stat last */
	u64 shown_cost_ns;		/* how long that reading took */
	u32 shown_known, shown_busy;	/* what it found */
	u32 shown_words;		/* of how many */
	u64 absent_until_ns;		/* a word was all ones: read none before */
	u64 errors;			/* readings of a slot that could not be used, so far */
	u32 reading;			/* number of the last one */
	const void __iomem *pccsr;	/* mapped while attached; NULL: the source is another */
	enum cgpu_run_source source;	/* of the words; NONE while not attached */
	u32 words;			/* words that are kept */
	u8 on_frozen, refused;		/* contradictions in a row, by kind */
	u8 disabled[CGPU_SLOTS];	/* those of thawed slots that show to be disabled, for each */
	bool wrong;			/* too many of the first two: not used any more */
	bool doubted;			/* all slots were disabled: used once one shows to be enabled */
	bool told;			/* the kernel log has a line why it is not used */
	bool core_knows;		/* the core may have a run state that is not "unknown" */
};

#define CKM_GONE_PIDS	16	/* of a slot */
#define CKM_GONE_LOST_BITS	10
#define CKM_GONE_LOST	(1 << CKM_GONE_LOST_BITS)

/* Processes of a slot whose channels went (gone.c). The driver's utilisation samples come once a
 * second. A process whose channels are gone by then is named in those of the time before.
 */
struct ckm_gone {
	struct {
		u64 at_ns;		/* when the latest of its channels went; 0: unused */
		u32 pid;
		bool high;		/* its container had high priority then */
	} last[CKM_GONE_PIDS];
};

/* Readers of its figure share it, so they take one worker of a GPU, however many they are. */
struct ckm_heap_query {
	struct work_struct work;
	u64 used, free;			/* lock */
	bool known;			/* lock */
};

struct ckm_gpu {
	struct list_head node;		/* ckm_lock */
	u32 index;			/* N of /proc/cgpu_km/N: PCI order */
	struct ckm_gpu_desc desc;
	u64 total_bytes;		/* 0 until attached once */
	uuid_t raw_uuid;		/* the driver's; valid while attached, if has_uuid */
	bool has_uuid;
	u32 instance;			/* the driver's deviceInstance; valid while attached */
	u32 arch;			/* of MC_GET_ARCH_INFO; valid while attached, 0: unknown */
	u64 async_copies;		/* bit n: COPYn has a runlist of its own; valid while attached */
	struct mutex ctrl_lock;
	spinlock_t lock;
	struct cgpu_sched *sched;		/* lock */
	struct ckm_slot *slot[CGPU_SLOTS];	/* lock; by sched_id */
	u64 limits_bytes;		/* lock; sum of the limits of all slots */
	u64 ended_bytes;		/* lock; of it, charges of containers that are gone from @slot */
	u64 ended_quota[CGPU_QUOTAS];	/* lock; and what they have of @quota */
	u64 context_bytes[CGPU_ENGINES];	/* lock; measured size of a context, 0: not measured */
	bool context_is_free[CGPU_ENGINES];	/* lock; one was made alone, and the free memory did not decrease */
	u64 quota[CGPU_QUOTAS];		/* lock; total of each kind (quota.c) */
	/* Calls of tenants that may allocate or free video memory: in flight, and so far. */
	atomic_t mem_ops_inflight, mem_ops_seq;
	u64 sched_seq;			/* lock; ckm_obj.seq of the latest channel */
	bool uvm_account;		/* READ_ONCE; charge managed memory, do not refuse it */
	bool slice_is_set;		/* lock; slice set by an administrator, not derived */
	u32 overcommit_pct;		/* lock; maximum of limits_bytes, percent of total_bytes */
	u64 default_memsize;		/* lock; bytes, 0: the default of all GPUs */
	u64 born_ns;			/* since boot; identifies the GPU: index is reused */
	struct ckm_ctrl_stat ctrl;	/* ctrl_lock; READ_ONCE by ckm_ctrl_figures() */
	bool paused;			/* ctrl_lock and lock; no calls, no reads: the system sleeps */
	u64 alone_seq[2][CGPU_SLOTS];	/* ctrl_lock; by sched_id: of the refused channels, the last tried alone; [1]: for a freeze */
	u64 restarted;			/* ctrl_lock; seq of the channel last used to restart */
	u32 restarted_slot;		/* ctrl_lock; sched_id of its slot */
	struct ckm_run_state run;	/* lock */
	struct pci_dev *pdev;		/* a reference while attached; NULL: none known */
	struct resource *bar[CKM_BARS];	/* ckm_lock; claims of its BARs while attached; NULL: none */
	bool bars_said;			/* ckm_lock; the kernel log has a line about mappings of them */
	u32 hclient, hdevice, hsubdevice;	/* this module's; valid while attached */
	struct rw_semaphore open_lock;	/* open, and calls that need it; only the driver's locks under it */
	bool open;			/* hclient, hdevice and hsubdevice exist */
	struct ckm_heap_query heap;
	struct task_struct *thread;	/* cleared under lock, which readers hold */
	struct list_head thread_node;	/* in sched_thread.c's list while there is a thread */
	struct cgpu_check *check;	/* lock */
	u8 *check_params;		/* check_work only; sizeof(struct nv_util_samples) */
	enum ckm_check_state check_state;	/* written by check_work, and at attach */
	struct ckm_gone gone[CGPU_SLOTS];	/* lock; by sched_id */
	u64 gone_lost_ns[2][CKM_GONE_LOST];	/* lock; by a hash: when the latest forgotten in them went; [1]: with high priority */
	u32 check_loose;		/* check_work only; slots that the last finding has as loose */
	struct delayed_work check_work;
	wait_queue_head_t wait;
	bool kicked;			/* READ_ONCE; the state changed: plan again */
	u64 turns;			/* ctrl_lock; READ_ONCE; plans with calls, so far */
	struct ckm_gpu_events events;
	struct ckm_proc_dir *proc;
};

/* NULL: no such GPU. Caller holds ckm_lock. */
struct ckm_gpu *ckm_gpu_by_index(u32 index);

/**
 * ckm_gpu_read_fb() - read values of FB_GET_INFO_V2 from the driver
 * @gpu: attached
 * @index: indexes of the values
 * @count: number of @index, at most NV_FB_INFO_MAX
 * @kib: the values in KiB; undefined after an error
 *
 * Sleeps: an RM call. Takes no lock: a tenant's task that is throttled in it delays no other.
 *
 * Return: false if the driver fails or answers all ones.
 */
bool ckm_gpu_read_fb(struct ckm_gpu *gpu, const u32 *index, u32 count, u32 *kib);

/* Bytes of video memory in use, by containers and others, and free, as reported by the
 * driver. False if the driver fails. Only while attached; sleeps.
 */
bool ckm_gpu_heap(struct ckm_gpu *gpu, u64 *used, u64 *free);
/* Before the first query. Each is waited for, so none is left when its readers are gone. */
void ckm_gpu_heap_init(struct ckm_gpu *gpu);
/* As ckm_gpu_heap(), but false while not attached, or asleep, and as of a time after the call began. A worker takes
 * open_lock for reading; the caller waits for it, with ckm_lock at most.
 */
bool ckm_gpu_heap_if_open(struct ckm_gpu *gpu, u64 *used, u64 *free);

/* Bytes charged for one context of @engine: its measured size, 0 before there is one. Of
 * graphics/compute at least ctx_reserve_mib. Takes gpu->lock.
 */
u64 ckm_gpu_context_bytes(struct ckm_gpu *gpu, enum cgpu_engine engine);
/* Record @bytes as the measured size of a context. The minimum is kept, so memory taken
 * by others during one measurement does not remain in it. 0: the free memory did not decrease.
 * Takes gpu->lock.
 */
void ckm_gpu_context_seen(struct ckm_gpu *gpu, enum cgpu_engine engine, u64 bytes);

/* The core's view of the scheduler and of one entity; zeros without a core. Caller holds
 * gpu->lock.
 */
void ckm_gpu_view_locked(struct ckm_gpu *gpu, struct cgpu_sched_view *view);
void ckm_gpu_slot_view_locked(struct ckm_gpu *gpu, u32 sched_id,
			      struct cgpu_sched_entity_view *view);

/* Make the scheduler thread plan again. Any context. */
void ckm_gpu_kick(struct ckm_gpu *gpu);

/* Limit in bytes of a new slot for which none is given. Caller holds gpu->lock. */
u64 ckm_gpu_default_memsize_locked(struct ckm_gpu *gpu);

/* True if a limit of @bytes may be added to other limits with the sum @others. Caller
 * holds gpu->lock.
 */
bool ckm_gpu_has_room_locked(struct ckm_gpu *gpu, u64 others, u64 bytes);
/* Maximum sum of limits in bytes with @overcommit_pct percent. */
u64 ckm_gpu_most_bytes(const struct ckm_gpu *gpu, u32 overcommit_pct);
/* Default limit of all GPUs, bytes. No lock. */
u64 ckm_default_memsize(void);
void ckm_set_default_memsize(u64 bytes);

#endif
