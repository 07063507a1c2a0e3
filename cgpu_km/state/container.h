/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Containers and their slots. The lock order is in registry.h. */
#ifndef CKM_CONTAINER_H
#define CKM_CONTAINER_H

#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/ratelimit.h>
#include <linux/rbtree.h>
#include <linux/rhashtable-types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "core/nv_row.h"
#include "pure/mem_ledger.h"
#include "pure/mem_quota.h"
#include "pure/mem_tree.h"
#include "state/mem_kind.h"
#include "uapi.h"

struct ckm_backing;
struct ckm_gpu;
struct ckm_proc_dir;
struct dentry;

enum ckm_event_kind {
	CKM_EVENT_REFUSED,
	CKM_EVENT_OVERRUN,
	CKM_EVENT_CONTROL,
	CKM_EVENT_QUOTA,
	CKM_EVENT_KINDS,
};

/* The first refusal since an event was sent. */
struct ckm_refusal {
	u32 pid;
	u64 asked, limit, used;		/* bytes, ids, or sessions */
};

/* Pending events of a slot (notify.c). gpu->lock. */
struct ckm_slot_events {
	unsigned long next_allowed[CKM_EVENT_KINDS];	/* jiffies; not sent before */
	u32 count[CKM_EVENT_KINDS];	/* since the last one sent; of overruns 0 or 1 */
	struct ckm_refusal memory, quota;
	bool by_driver;			/* @memory was inside the limit: the card has no room */
	const char *resource;		/* of @quota: its name in N/C/stat */
	u32 control, status;		/* of the latest failed call */
	u64 overruns, preempt_slow;	/* values of the last event sent */
};

struct ckm_slot {
	struct ckm_container *ct;
	struct ckm_gpu *gpu;
	u32 sched_id;
	u32 minor;			/* of the container's node for this GPU */
	u32 granted_weight;		/* at creation, for the reply */
	struct cgpu_ledger ledger;	/* gpu->lock */
	u64 used_by[CKM_MEM_KINDS];	/* gpu->lock; together ledger.used_bytes */
	struct list_head channels;	/* gpu->lock; ckm_obj.sched, of GR and video engines */
	struct list_head tsgs;		/* gpu->lock; of GR engines only */
	u32 channel_count, tsg_count;	/* gpu->lock */
	struct mutex enable_lock;	/* held by the one call that waits for a freeze */
	struct list_head mems;		/* ct->rm_lock; ckm_mem.node */
	u64 quota[CGPU_QUOTAS];		/* gpu->lock; its part of gpu->quota */
	u32 unmeasured[CGPU_ENGINES];	/* gpu->lock; contexts made while their size was not known */
	bool unmeasured_said;		/* gpu->lock; the kernel log has a line */
	u64 overhead;			/* ct->rm_lock; estimate for all objects and mappings */
	struct cgpu_mem *overhead_mem;	/* ct->rm_lock; the charged part of it, or NULL */
	const void *uvm_device;		/* ct->rm_lock; what nvidia-uvm calls the GPU (uvm_charge.c); compared */
	atomic64_t refused_calls;
	bool ended;			/* gpu->lock; destroyed: the limit is what is used, and 1 MiB */
	bool removed;			/* gpu->lock; in no slot of the GPU: the limit is what is used */
	struct ckm_slot_events pending;	/* gpu->lock */
	struct ckm_proc_dir *proc;
};

/* What the driver keeps in lists that it walks for all containers (state/listed.h). */
enum ckm_listed {
	CKM_CLIENTS,		/* of the host */
	CKM_DEVICES,		/* of the card; a subdevice for each */
	CKM_EVENTS,		/* of an engine: event objects */
	CKM_OS_EVENTS,		/* of the host */
	CKM_LISTED_KINDS,
};

struct ckm_container {
	struct kref ref;		/* of @users, of backing files, dma-bufs, uvm dups */
	struct kref users;		/* of the list until destroy, of front files and their calls */
	struct list_head node;		/* ckm_lock; in ckm_containers, or once removed in ckm_ended */
	char id[CGPU_ID_MAX + 1];
	char dir[CGPU_DIR_LEN + 1];
	char ipc[CGPU_ID_MAX + 1];	/* ipc_lock of container.c; "": no sharing */
	u64 cookie;
	u64 serial;			/* ascending along the list: position of a dump */
	u32 ctl_minor, uvm_minor;
	struct dentry *nodes;		/* ckm_lock; directory of its nodes; NULL: none */
	bool dying;			/* written under ckm_lock, read without */
	bool removed;			/* written once by @end or @gone; its slots, name and minors are free */
	struct mutex rm_lock;		/* tree, memory records */
	struct cgpu_tree tree;		/* rm_lock */
	struct rhashtable objs;		/* rm_lock; readers: also RCU; ckm_obj.node */
	struct rb_root dma_maps;	/* rm_lock; ckm_dma_map.node (rm_map_dma.c) */
	struct rb_root cpu_maps;	/* rm_lock; ckm_cpu_map.node (rm_map.c) */
	u32 maps;			/* rm_lock; number of both */
	struct list_head views;		/* rm_lock; ckm_view.node (rm_view.c) */
	u64 view_walk;			/* rm_lock; number of walks of @views */
	struct mutex view_lock;		/* one walk at a time; keeps the files of @views from their release */
	struct mutex end_lock;		/* ctl_files; clients end by their file's release or by @end, not by both */
	struct list_head ctl_files;	/* end_lock; ckm_backing.ctl_file, before the driver's release */
	u32 listed[CKM_LISTED_KINDS];	/* rm_lock */
	struct list_head os_events;	/* rm_lock; struct os_event of rm_os_event.c */
	struct mutex os_event_lock;	/* order of the driver's list of them, and of os_events */
	u64 pool_bytes;			/* rm_lock; of semaphore pools, as counted by uvm_range.c */
	u32 uvm_external;		/* rm_lock; external ranges of nvidia-uvm */
	u32 uvm_groups;			/* rm_lock; range groups of all its files */
	u64 host_limit;			/* READ_ONCE; bytes of system memory by the driver, 0: no limit */
	u64 host_used, host_refused;	/* rm_lock; bytes, but for objects (ckm_host_used()); allocations over the limit */
	bool kept;			/* rm_lock; set once: the driver may keep what its tenant did not get (rm_alloc.c) */
	struct workqueue_struct *queue;	/* recounts, which its tenant can delay */
	struct workqueue_struct *ends;	/* @fronts_end, @end: behind no recount */
	atomic_t recounts;		/* in flight, of managed memory (uvm_managed.c) */
	wait_queue_head_t recounted;
	u32 handles;			/* rm_lock; the last that this module chose or tried (rm_export.c) */
	struct ratelimit_state said, limits, alarms;	/* of ckm_say(), ckm_say_limit(), ckm_alarm() */
	struct list_head fronts;	/* fronts_lock of front_file.c; ckm_front.node */
	struct work_struct fronts_end;	/* queued once, when it is destroyed */
	struct work_struct end;		/* queued after the last user, and when a control file is gone then */
	struct work_struct gone;	/* queued when the last reference is dropped */
	u32 slot_count;
	struct ckm_slot slot[];
};

/* A line of the kernel log about a container. Each container has three rates of its own: lines that it
 * can cause at will (@said) suppress neither another container's lines nor its own alarms, and what a
 * library asks for in vain at each start does not suppress which limit (@limits) it has reached.
 */
#define ckm_say_by(rate, ct, fmt, ...) do {					\
	if (__ratelimit(&(ct)->rate))						\
		pr_notice("container %s: " fmt, (ct)->dir, ##__VA_ARGS__);	\
} while (0)
#define ckm_say(ct, fmt, ...) ckm_say_by(said, ct, fmt, ##__VA_ARGS__)
#define ckm_say_limit(ct, fmt, ...) ckm_say_by(limits, ct, fmt, ##__VA_ARGS__)
#define ckm_alarm(ct, fmt, ...) do {						\
	if (__ratelimit(&(ct)->alarms))						\
		pr_err("container %s: " fmt, (ct)->dir, ##__VA_ARGS__);		\
} while (0)

/* NULL: no container has this id. Caller holds ckm_lock. */
struct ckm_container *ckm_container_find(const char *id);

/* ckm_container_put() never sleeps: ct->gone is queued after the last reference. */
void ckm_container_get(struct ckm_container *ct);
void ckm_container_put(struct ckm_container *ct);

/* A user is a front file, or a call by one, which may make objects: none is added after the last. Put never
 * sleeps: ct->end is queued after the last one. ckm_container_end_again() queues it again, if the last user
 * is gone; the caller has a reference.
 */
void ckm_container_use(struct ckm_container *ct);
void ckm_container_unuse(struct ckm_container *ct);
void ckm_container_end_again(struct ckm_container *ct);

/* Make @ct->queue and @ct->ends, named by @ct->dir. A work item on them holds a reference to the container. The
 * exit waits for them. 0 or -ENOMEM.
 */
int ckm_container_init_queues(struct ckm_container *ct);
void ckm_container_exit_queues(struct ckm_container *ct);

/* Whether @gpu_id, the driver's, is that of one of the container's GPUs. No lock. */
bool ckm_container_has_gpu_id(const struct ckm_container *ct, u32 gpu_id);

/* The slot on GPU @gpu_index; NULL: none. Slots are fixed at creation, so no lock. */
struct ckm_slot *ckm_container_slot_of(struct ckm_container *ct, u32 gpu_index);

/* ckm_container_shares(): true if memory exported by one container may be imported by the
 * other, that is, both have the same ipc name and it is not empty. An administrator sets
 * it with ckm_container_set_ipc(): 0; -EINVAL: not a valid name; -ENODEV: no core is
 * loaded. ckm_container_ipc() copies it to @name, CGPU_ID_MAX + 1 bytes. All take
 * ipc_lock.
 */
bool ckm_container_shares(struct ckm_container *a, struct ckm_container *b);
int ckm_container_set_ipc(struct ckm_container *ct, const char *name, size_t len);
void ckm_container_ipc(struct ckm_container *ct, char *name);

/* Mark a call that may allocate or free video memory on any of the container's GPUs as in
 * flight. The size of a context is measured only while no other such call is in flight
 * (gpu->mem_ops_inflight). Any context, no lock.
 */
void ckm_mem_ops_begin(struct ckm_container *ct);
void ckm_mem_ops_end(struct ckm_container *ct);

/* The workqueue of the ends. 0 or -ENOMEM. */
int ckm_containers_init(void);
void ckm_containers_exit(void);

#endif
