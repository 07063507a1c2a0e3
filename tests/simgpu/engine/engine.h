/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The simulated GPU's engines: runlists, timeslices, preemption, channels and the time of their
 * work. A library with two homes: nvsim, and the simulated card under NVIDIA's own driver. A home
 * provides memory by GPU address, rules, and a place for faults and interrupts (struct engine_card).
 *
 * engine.lock guards an engine, its groups and their channels. A home's own locks are outside it;
 * engine_card.mem is called with it held and interrupts off.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <linux/hrtimer.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/time64.h>
#include <linux/types.h>

#include "push.h"

/* nothing is free, or an endless ring of nothing would stop time */
#define ENGINE_WORK_MIN_NS 100
#define ENGINE_WORK_MAX_NS (24ull * 3600 * NSEC_PER_SEC)

/* Personality of a card: module parameters of its home, which may change at any time. */
struct engine_rules {
	int timeslice_us;		/* of a new group */
	int ctxsw_us, copy_mbps, sm_count, launch_ns, wave_ns;
	int poll_us, idle_poll_us;
	int no_preempt, stubborn_ms;
	int control_ineffective;	/* ENGINE_NO_SLICE, ENGINE_NO_DISABLE */
	int commit_required, disable_needs_restart;
	int chram_fault, chram_us;	/* chram_fault: enum engine_chram_fault */
};

#define ENGINE_NOT_RUNG ~0u	/* 0 is the token of a runlist's first channel */
#define ENGINE_NO_SLICE 1
#define ENGINE_NO_DISABLE 2

enum engine_chram_fault {
	ENGINE_CHRAM_RIGHT, ENGINE_CHRAM_ONES, ENGINE_CHRAM_REFUSED, ENGINE_CHRAM_STUCK, ENGINE_CHRAM_NULL,
	ENGINE_CHRAM_ZERO,
};

struct engine;

/* What the engines of one GPU share. Set before engine_init(). */
struct engine_card {
	const struct engine_rules *rules;
	bool pccsr;			/* words of channels are Turing's */
	struct push_mem mem;		/* ctx: engine_chan.space */
	u32 *doorbell;			/* a token, or ENGINE_NOT_RUNG; NULL until there is one */
	atomic_t ring;			/* doorbell rings seen */
	/* Called under engine.lock: neither may sleep. */
	void (*fault)(struct engine *e);	/* channels became dead */
	void (*interrupt)(struct engine *e);	/* a work of @e raised one */
};

/*
 * Ops that no client writes: a GPFIFO entry without work or at its end, and work decoded by
 * engine_chan.push.
 */
#define ENGINE_DESC_EMPTY 0
#define ENGINE_DESC_METHODS ~0u

struct engine_desc {
	u32 op, flags;
	u64 amount, sem_va, sem_value;
};

/* Content of a channel's segments: the first word that it fetches decides. */
enum engine_speech { ENGINE_SPEAKS_UNDECIDED, ENGINE_SPEAKS_DESCRIPTORS, ENGINE_SPEAKS_METHODS };

/* A channel. The home sets what is above the line, then calls engine_add_chan(). */
struct engine_chan {
	struct engine_tsg *tsg;
	void *space;			/* for engine_card.mem */
	u32 *userd_get, *userd_put;	/* in the client's memory: trust nothing read there */
	u64 gp_va;
	u32 entries;
	u32 *chram;			/* its word of state; NULL: none that can be read */
	struct push *push;		/* engine_methods_init() */
	/* engine.lock from here on */
	struct list_head link;		/* engine_tsg.chans */
	bool compute, copy, video;	/* has such an object */
	bool enabled, disabled, disable_req, dead;
	bool has_seg, has_desc;
	u32 get;
	u64 seg_va;
	u32 seg_idx, seg_cnt;
	struct engine_desc desc;
	u64 remaining;
	u64 pause_end;			/* it has no work before, whatever its queue has */
	enum engine_speech speaks;
	bool blocked;			/* on a semaphore; then on engine.waiting */
	struct list_head wait;
};

/* Counters of a group, under the engine's lock; the home's memory, which may outlive the group. */
struct engine_count {
	pid_t tgid;
	u64 busy_ns, switches, works;
};

enum engine_object { ENGINE_OBJECT_COMPUTE, ENGINE_OBJECT_COPY, ENGINE_OBJECT_VIDEO };

struct engine_tsg {
	struct list_head link;		/* engine.tsgs */
	struct list_head chans;
	struct engine_chan *rr;		/* where the next search for work begins */
	struct engine *eng;
	struct engine_count *count;
	u64 slice_ns, slice_req_ns;	/* in force; requested */
	bool enabled;			/* scheduled once */
};

enum engine_phase { ENGINE_IDLE, ENGINE_SWITCH, ENGINE_RUN };

/* Samples of the process on the engine, six times a second; the last 12 s. */
#define ENGINE_SAMPLES 72
#define ENGINE_SAMPLE_NS (NSEC_PER_SEC / 6)

struct engine_sample {
	u64 at;				/* ktime ns */
	pid_t tgid;			/* owner of the work on the engine then, 0: none */
	u32 util;			/* of the time since the sample before, 1/100 % */
};

struct engine_sampler {
	struct engine_sample ring[ENGINE_SAMPLES];
	u32 count;			/* ever taken */
	u64 next, busy_ns;
};

struct engine {
	struct engine_card *card;
	u32 index, type;		/* on the card, 0: graphics; its NV2080_ENGINE_TYPE_* */
	raw_spinlock_t lock;		/* everything below, and the channels of this engine */
	struct hrtimer timer;
	struct list_head tsgs;		/* runlist order */
	struct engine_tsg *cur;		/* being run or switched to */
	struct engine_tsg *rr;		/* ran last: the round robin continues behind it */
	struct engine_tsg *resident;	/* owner of the loaded context */
	int chram_fault;		/* of the words as they were written last */
	bool has_chram;			/* a channel has a word */
	struct engine_chan *chan;	/* of cur, executing a descriptor */
	enum engine_phase phase;
	u64 t;				/* simulated up to here, ktime ns */
	u64 phase_end, slice_end, last_active;
	u64 paused_to;			/* the last pause_end of any channel */
	u32 ring_seen, enabled_chans;
	bool stopped;
	u64 throttled;			/* ns to leave the CPU alone */
	u64 slips;
	struct engine_sampler sampler;
	struct list_head waiting;	/* engine_chan.wait: not runnable until a semaphore changes */
	u32 sems_seen;			/* of engine_sems */
	u64 look_at;			/* ktime ns: then the CPU may have changed one */
	u32 pieces;			/* of copies, since the CPU last had a rest */
	struct push_cost cost;
};

/* runlist.c */
void engine_init(struct engine *e, struct engine_card *card, u32 index, u32 type);
void engine_stop(struct engine *e);
void engine_advance(struct engine *e, u64 now);
void engine_kick(struct engine *e);
void engine_expire(struct engine *e);
void engine_stop_chan(struct engine *e, struct engine_chan *c);
void engine_forget_chan(struct engine *e, struct engine_chan *c);
void engine_forget_tsg(struct engine *e, struct engine_tsg *tsg);
bool engine_tsg_runnable(struct engine_tsg *tsg);

/*
 * control.c: objects and the firmware's controls. Those with an engine as the first argument want
 * e->lock and an advanced engine; the caller kicks it afterwards. The others take the lock.
 */
void engine_add_tsg(struct engine *e, struct engine_tsg *tsg, struct engine_count *count);
void engine_remove_tsg(struct engine_tsg *tsg);
void engine_add_chan(struct engine_chan *c);
void engine_remove_chan(struct engine_chan *c);
void engine_set_object(struct engine_chan *c, u32 cls, enum engine_object object);
bool engine_tsg_dead(const struct engine_tsg *tsg);
void engine_enable_chan(struct engine *e, struct engine_chan *c);
void engine_unschedule_chan(struct engine_chan *c);
void engine_set_timeslice(struct engine *e, struct engine_tsg *tsg, u64 us);
void engine_preempt(struct engine *e, struct engine_tsg *tsg);
void engine_restart(struct engine *e);
void engine_kill_chan(struct engine *e, struct engine_chan *c);
void engine_disable_chan(struct engine_chan *c, bool disable, bool preempt);
bool engine_chan_is_on(struct engine_chan *c);

/* fetch.c */
bool engine_chan_usable(const struct engine_chan *c);
bool engine_chan_has_work(struct engine_chan *c);
struct engine_chan *engine_tsg_fetch(struct engine *e, struct engine_tsg *tsg);
void engine_chan_complete(struct engine *e, struct engine_chan *c);
void engine_chan_fault(struct engine *e, struct engine_chan *c);

/* methods.c */
extern atomic_t engine_sems;		/* semaphores written by any engine */
int engine_methods_init(struct engine_chan *c);
void engine_methods_exit(struct engine_chan *c);
bool engine_methods_entry(struct engine_chan *c, u32 word0, u32 word1);
bool engine_methods_load(struct engine *e, struct engine_chan *c);
bool engine_methods_complete(struct engine *e, struct engine_chan *c);
bool engine_methods_look(struct engine *e, u64 now);
bool engine_methods_tired(const struct engine *e);

/* chram.c: the words of channels that a driver's module may read */
void engine_give_word(struct engine_chan *c, u32 *word);
void engine_chram_show(struct engine *e);
bool engine_chram_stale(const struct engine *e);

static inline bool engine_read(struct engine_chan *c, u64 va, void *buf, u32 len)
{
	return c->tsg->eng->card->mem.read(c->space, va, buf, len);
}

static inline bool engine_write(struct engine_chan *c, u64 va, const void *buf, u32 len)
{
	return c->tsg->eng->card->mem.write(c->space, va, buf, len);
}

#endif
