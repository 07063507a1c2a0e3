/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The state of one GPU's scheduler. Storage of the caller, content of the core. */
#ifndef CGPU_CORE_SCHED_STATE_H
#define CGPU_CORE_SCHED_STATE_H

#include "env.h"
#include "sched_wait.h"

#define CGPU_SLOTS	25	/* == CGPU_MAX_INST_MAX, checked where both are seen */
#define CGPU_NO_SLOT	0xffffffffu
#define CGPU_NEVER_NS	0xffffffffffffffffull
#define CGPU_SCHED_VERSION	30	/* of struct cgpu_sched, for cgpu_sched_migrate() */

/* Spans over which what a slot got is summed: a decay by 1/e in 0.4 s, and in 8 s. */
enum cgpu_recent_span {
	CGPU_RECENT_SHORT	= 0,
	CGPU_RECENT_LONG	= 1,
	CGPU_RECENT_COUNT	= 2,
};

struct cgpu_sched_entity {
	u64 cookie;		/* 0: the slot is free */
	u32 weight;
	u32 first_slice;	/* first of its slices, policies 0 and 3 */
	u32 channels;		/* live graphics/compute channels: > 0 means "has opened the GPU" */
	u32 tsgs;		/* live graphics/compute TSGs */
	u8 highprio;
	u8 full_turns;		/* turns in a row that it used up, at most 3; 0: it slept since */
	u8 flicker;		/* points for gaps that are too short to be lent */
	u8 long_bursts;		/* points for work without a longer gap, if it was long */
	u8 brief_work;		/* points for work that ended soon: CGPU_BRIEF_WORK_*, sched_run_state.h */
	u8 retries;		/* doublings of the time until a call that failed is repeated */
	u8 gaps;		/* of high priority, as many as made gap_ns, to 64 */
	u8 close_gaps;		/* those with one reading, in a row; 4: on average they are too short */
	u32 timeslice_us;	/* acknowledged, per TSG; 0: the driver's default */
	u32 gap_ns;		/* the mean of its last gaps */
	s64 deficit_ns;		/* entitled minus got, carried into the next round */
	s64 bg_deficit_ns;	/* the same for turns beside a running high-priority container */
	u64 gpu_ns;		/* how long it could run, as acknowledged; overlap split */
	u64 wait_ns;		/* opened and weight > 0, but out of turn */
	u64 turns;
	u64 overruns;		/* turns that ended more than a tenth of a slice late */
	u64 cap_runtime_ns;	/* got in these 100 ms, policies 0 and 3 beside highprio */
	u32 slow_freezes;	/* points for freezes that took too long */
	u32 preempt_slow;	/* freezes it is taken to have held up */
	u32 failed;		/* calls that failed */
	u32 last_round_served;	/* fixed rounds: the last that it needs no turn in, from 1 */
	u64 unsure_ns;		/* how long what it may do was not known: the last call failed */
	u64 idle_since_ns;	/* first of the readings without work in a row; 0: the last one had work */
	u16 idle_need_us, idle_readings;	/* without work: how long until its time is lent; in a row */
	u64 granted_ns[2];	/* clock of its last grant; [1]: beside */
	u32 owed_ns[2];		/* [1]: beside; got too much, half of each grant is withheld for it */
	u32 ceiling;		/* in parts of max_inst, 0: none; at least weight */
	u64 woken_ns;		/* when it had work again after it slept, or budget after none */
	u64 retry_ns;		/* no call of it that failed is repeated before */
	u64 capped_ns;		/* when it last had no budget; 0: never */
	struct cgpu_wait wait;
	u64 open_ns;		/* of gpu_ns, what may be corrected: since on_ns it is one of several */
	u64 open_turn_ns;	/* what its turn was charged of that */
	s64 open_ceiling_ns;	/* and its ceiling */
	s64 ceiling_budget_ns;	/* what it may still run without a break */
	u64 throttled_ns;	/* the part of wait_ns in which its ceiling was used up */
	u32 freeze_ns, freezes;	/* running upper quartile of its freezes, to 2.048 ms; number, to 128 */
	u64 worked_since_ns;	/* without a gap that readings tell from none; 0: idle, or unknown */
	u64 gap_from_ns;	/* when its last gap began */
	u64 close_since_ns;	/* worked without a gap that could be lent; 0: idle, or unknown */
	u64 on_gpu_ns;		/* when its timeslice began, as far as that is known */
	u64 ts_changed_ns;	/* when its timeslice became another one; 0: never */
	u64 closed_ns;		/* when it last closed the GPU; 0: never */
	u64 slept_gpu_ns;	/* gpu_ns when it last fell asleep: what is more is of the work since */
	u64 probed_ns;		/* when it was last frozen while it may have had the GPU, or came */
	u64 used_up_ns;		/* when it last used up a timeslice while others waited, as far as that is known */
	u64 kernel_ns;		/* about the longest by which a kernel of it delayed its freezes lately */
	u64 recent_ns[CGPU_RECENT_COUNT];	/* of gpu_ns, what is left by a decay of each span */
	u64 at_work_ns;		/* when so many TSGs worked last */
	u64 at_work_alone_ns;	/* when a reading without work of high priority counted last */
	u32 at_work_mean;	/* TSGs with work in the last readings, in 1024ths */
	u8 at_work;		/* TSGs that work at once; 0: unknown */
	u8 at_work_readings;	/* as many as made the mean, to 64 */
	u8 left_unseen;		/* points: another's work ended while it should have had the GPU */
	u8 at_work_last;	/* TSGs with work in the last reading; 0: none */
	u8 tsgs_leave;		/* points: the work of one of several TSGs was over between two readings */
	u8 fell;		/* 1: the last reading was the first with fewer */
	u8 short_dips;		/* 1: of the last time with fewer it was the only one */
	u8 pad[5];
	u32 sleep_us;		/* the mean of its last sleeps; 0: it has not woken yet */
	u32 piece_us;		/* of the work of one of several TSGs, beside no other slot; 0: unknown */
	u64 tsg_left_ns;	/* when that of one was over last, beside no other slot since; 0: not so */
};

/* Three groups take turns, each on its own clock that runs while it is in force. */
enum cgpu_rr_nr {
	CGPU_RR_NORMAL		= 0,	/* the containers without highprio */
	CGPU_RR_PRIO		= 1,	/* the high-priority ones among themselves */
	CGPU_RR_BACKGROUND	= 2,	/* those without, while a high-priority one may run */
	CGPU_RR_COUNT		= 3,
};

struct cgpu_rr {
	u32 members;		/* slots that take turns */
	u32 asleep;		/* slots that have a turn due when they wake or have budget again */
	u32 woken;		/* of @members, those that woke with credit: their turns come first */
	u32 resume;		/* slot whose turn goes on after those that woke, or CGPU_NO_SLOT */
	u32 curr;		/* slot whose turn it is, or CGPU_NO_SLOT (an empty slice) */
	u32 cursor;		/* last slot that had its turn; fixed rounds: next slice */
	u8 fixed;		/* a round of max_inst slices, empty ones pass */
	u8 running;		/* CGPU_RR_*: in force, its clock runs */
	u8 contended;		/* another slot waits: turns are charged */
	u8 late;		/* fixed rounds: no empty slice made room for the gaps so far */
	u32 ahead;		/* slots that were last granted at their time, not at their place */
	u64 clock_ns;
	u64 slot_start_ns;	/* fixed rounds: clock at which slice @cursor begins */
	u64 deadline_ns;	/* clock at which the turn ends whatever its entity got */
	u64 round;
};

struct cgpu_sched {
	u32 policy;
	u32 max_inst;
	u32 prio_ratio;
	u32 controls;
	u64 slice_ns;
	u32 run_mask;		/* slots that may run now, as acknowledged */
	u32 timesliced;		/* slots whose TSGs carry a timeslice of ours */
	u32 planned_mask;	/* slots that may run by the last plan */
	u32 freeze_unknown_mask;	/* their last call failed: repeat it */
	u32 new_mask;		/* came since the last plan: its ack is not about them */
	u32 touched_mask;	/* TSGs came or went since the last plan */
	u32 ts_dirty_mask;	/* TSGs that may lack the timeslice */
	u32 ts_failed_mask;	/* the last attempt to set their timeslice failed */
	u32 inflight;		/* a plan with calls in it is not acknowledged yet */
	u32 prio_throttled;	/* the quota is used up until the 100 ms end */
	u32 slow_thaws;		/* points for thaws that took too long: the driver's tail */
	u64 prio_period_ns;	/* start of the current 100 ms of prio_ratio, 0: none */
	u64 prio_runtime_ns;
	u64 last_ns;		/* everything up to here is accounted */
	struct cgpu_rr rr[CGPU_RR_COUNT];
	struct cgpu_sched_entity slot[CGPU_SLOTS];
	u32 switch_ns;		/* what a turn loses to the context switch it begins with */
	u32 ineffective;	/* CGPU_CTRL_* that are answered and move nothing */
	u32 no_effect_count[2];	/* by control: uses in a row after which nothing moved */
	u32 live_mask;		/* slots that hold a container; these four follow from slot[] */
	u32 opened_mask;	/* those with channels */
	u32 weighted_mask[2];	/* those with weight that are not held; [1]: and highprio */
	u32 held_mask;		/* frozen out of turn, to look whether that moves the share */
	u32 known_mask;		/* slots whose run state was read */
	u32 busy_mask;		/* of these, those with work; a subset of known_mask */
	u32 asleep_mask;	/* of known_mask, those so long without work that their time is lent */
	s64 prio_budget_ns;	/* what high priority may still run without a break */
	u64 prio_stopped_ns;	/* when a plan found none last; 0: never */
	u32 prio_budgeted;	/* 1: the quota is a budget, the 100 ms periods are not used */
	u32 least_weight[2];	/* of the slots with weight that have opened the GPU; [1]: and highprio */
	u32 opened_weight[2];	/* the sum of theirs */
	u32 wait_mask;		/* slots with a wait under way */
	u32 ceiling_mask;	/* slots with a ceiling that is in force */
	u32 capped_mask;	/* of these, those that have used it up: frozen */
	u32 on_mask;		/* one of these has the GPU; 0: it is not known */
	u8 pad[4];
	u64 on_ns;		/* since when, or when its timeslice began */
	u64 unread_since_ns;	/* a plan with calls was made, until the next plan */
	u32 paused;		/* 1: the system falls asleep, sleeps or wakes; all may run */
	u32 dense_after_work;	/* 1: the reading before found work in it */
	u32 dense_mask;		/* of high priority: others are frozen, since its gaps are too short */
	u32 timeslice_default_us;	/* the driver's own, of a TSG of which none was set */
	u64 recent_all_ns[CGPU_RECENT_COUNT];	/* the time by the same decays */
	u64 recent_step_ns;	/* what of it has not decayed yet */
	u64 high_awake_ns;	/* when high priority whose run state is known was last awake */
	u64 dense_ns;		/* high priority of dense_mask ran; halved each time it is a second */
	u64 dense_busy_ns;	/* the part of it in which it had work */
	u64 use_ns;		/* of the last utilisation sample that counts */
	u32 use_credit;		/* what high priority left by them, in per cent of one, to CGPU_USE_MOST */
	u32 use_little;		/* 1: it has left so much, and not used it up since */
	u32 use_spread;		/* 1: the periods are such that they fall evenly into them */
	u32 use_trusted;	/* 1: a sample came since high priority opened the GPU */
	u32 hold_mask;		/* slots that are in held_mask around samples only */
	u64 hold_at_ns;		/* a sample is due */
	u64 hold_every_ns;	/* and so long after it the next one; more than 0 with hold_mask */
	u64 restarted_ns;	/* when the runlist was last restarted */
	u64 read_ns;		/* when the run state was last read */
	u32 unrestarted_mask;	/* slots whose timeslices were set since */
	u32 part_thawed_mask;	/* their last call, a thaw, failed for some channels: the others run */
	u64 high_gap_ns;	/* since when all high priority is without work; 0: it has some, or is unknown */
	u64 high_long_gap_ns;	/* when such a gap ended last that calls could lend; 0: never */
	u32 quick_points;	/* for gaps that are over before calls could lend them, to 64 */
	u32 quick;		/* 1: most are */
};

#endif
