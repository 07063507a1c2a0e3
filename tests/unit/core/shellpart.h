/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What single files of the module need of the kernel and of state/, for one thread in user space. */
#include <stdlib.h>

#include "core/env.h"
#include "core/sched_stat.h"
#include "core/sched_step.h"

#include "taken.h"

#define NSEC_PER_MSEC		1000000L
#define GFP_KERNEL		0
#define U32_MAX			0xffffffffu
#define BIT(n)			(1u << (n))
#define GENMASK(high, low)	((~0u >> (31 - (high))) & (~0u << (low)))
#define __ffs(x)		((u32)__builtin_ctz(x))
#define hash_32(value, bits)	((u32)(value) * 0x61C88647u >> (32 - (bits)))
#define static_assert		_Static_assert
#define min(a, b)		((a) < (b) ? (a) : (b))
#define max(a, b)		((a) > (b) ? (a) : (b))
#define min_t(type, a, b)	min((type)(a), (type)(b))
#define kvmalloc(size, gfp)	(allocations++, malloc(size))
#define kzalloc(size, gfp)	(allocations++, calloc(1, size))
#define kmalloc			kvmalloc
#define kvfree			free
#define kfree			free
#define struct_size(p, member, n)	(sizeof(*(p)) + (n) * sizeof(*(p)->member))
#define lockdep_assert_held(lock)	((void)(lock))
#define spin_lock(lock)		(++*(lock))
#define spin_unlock(lock)	(--*(lock))

static u32 allocations;

struct list_head {
	struct list_head *next, *prev;
};

#define list_entry(at, type, member)	((type *)((char *)(at) - offsetof(type, member)))
#define list_for_each_entry(pos, head, member)						\
	for (pos = list_entry((head)->next, __typeof__(*pos), member); &pos->member != (head);	\
	     pos = list_entry(pos->member.next, __typeof__(*pos), member))

static inline void INIT_LIST_HEAD(struct list_head *head)
{
	head->next = head->prev = head;
}

static inline void list_add_tail(struct list_head *at, struct list_head *head)
{
	at->prev = head->prev;
	at->next = head;
	head->prev->next = at;
	head->prev = at;
}

#define list_first_entry(head, type, member)	list_entry((head)->next, type, member)

static inline void list_del_init(struct list_head *at)
{
	at->prev->next = at->next;
	at->next->prev = at->prev;
	INIT_LIST_HEAD(at);
}

static inline void list_move_tail(struct list_head *at, struct list_head *head)
{
	list_del_init(at);
	list_add_tail(at, head);
}

enum ckm_ctrl_kind { CKM_CTRL_OF_FREEZE, CKM_CTRL_OF_THAW, CKM_CTRL_OF_TIMESLICE };

struct ckm_slot;

struct ckm_gpu {
	int ctrl_lock, lock;
	u32 hclient, hsubdevice;
	struct { u32 timeslice_us; } ctrl;
	u64 alone_seq[2][CGPU_SLOTS];
	struct ckm_gone gone[CGPU_SLOTS];
	u64 gone_lost_ns[2][CKM_GONE_LOST];
	u64 born_ns;
	struct ckm_slot *slot[CGPU_SLOTS];
};

struct ckm_slot {
	struct ckm_gpu *gpu;
	u32 sched_id, channel_count;
	struct list_head channels, tsgs;
};

struct ckm_group {
	u32 set_us;
	struct list_head sched, handles;
};

struct ckm_obj {
	struct { u32 hclient, hobject; } core;
	struct list_head sched;
	struct ckm_group *group;
	bool refused[2];
	u64 seq;
	u32 pid;
};

u64 ktime_get_ns(void);
void ckm_gpu_slot_view_locked(struct ckm_gpu *gpu, u32 sched_id, struct cgpu_sched_entity_view *view);
void ckm_slot_channels_changed_locked(struct ckm_slot *slot);
void ckm_events_control_failed(struct ckm_gpu *gpu, u32 sched_id, u32 control, u32 status);
u32 ckm_ctrl_timed(struct ckm_gpu *gpu, enum ckm_ctrl_kind kind, u32 client, u32 object, u32 cmd, void *params,
		   u32 size);
u32 ckm_drv_control(u32 client, u32 object, u32 cmd, void *params, u32 size);
bool ckm_ctrl_needs_restart(const struct ckm_gpu *gpu);
bool ckm_ctrl_commit(struct ckm_gpu *gpu, u32 mask, u64 *failed_ns);
