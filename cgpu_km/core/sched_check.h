/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Effect check: does the share move when a control is used? Decided from the driver's
 * utilisation samples (the process on the engine, six times a second) and the freezes
 * and timeslices in force then: docs/reference/policies.md, section 6.
 *
 * Kept by the shell beside each struct cgpu_sched; part of its records' ABI.
 * Caller serialises both (the GPU's mutex).
 */
#ifndef CGPU_CORE_SCHED_CHECK_H
#define CGPU_CORE_SCHED_CHECK_H

#include "env.h"
#include "sched_gpu.h"

#define CGPU_CHECK_MARKS	2048	/* two per hand-over: 2 s of slices of 2 ms. Shorter ones show nothing */
#define CGPU_CHECK_BLIND	15u	/* so many samples in a row that show nothing: 3 s */
#define CGPU_CHECK_IDLE		0xffffffffu	/* the engine was idle */
#define CGPU_CHECK_FOREIGN	0xfffffffeu	/* a process of none, or of several of which one has high priority */
#define CGPU_CHECK_LOW		0xfffffffdu	/* a process of several containers without high priority */
#define CGPU_CHECK_UNIT		1024u	/* of a sample */
#define CGPU_CHECK_WAIT_NS	60000000000ull	/* after a suspicion without a result; doubles */
#define CGPU_CHECK_POLL_MS	1000u
#define CGPU_CHECK_HOLD_MS	1200u

/* Known freeze state from @at_ns on, as of successful driver calls. Slots in neither mask
 * are in an unknown state.
 */
struct cgpu_check_mark {
	u64 at_ns;
	u32 frozen;
	u32 thawed;
};

/* Samples, by container. */
struct cgpu_check_slot {
	u32 on_engine;		/* it was on the engine */
	u32 frozen;		/* it was frozen */
	u32 hits;		/* both */
	u32 long_frozen;	/* it had been frozen for long */
	u32 long_on_engine;	/* and was on the engine all the same */
	u32 long_returned;	/* having been off it while frozen */
	u32 alone;		/* no other slot could run */
	u32 alone_on_engine;
	u32 corun;		/* others could run too, at timeslices in force: */
	u32 corun_on_engine;
	u32 expected_by_ts;	/* what it should have had of those by timeslices, 1/1024 samples */
	u32 expected_by_tsgs;	/* and by number of TSGs */
	u32 reserved[4];
};

struct cgpu_check {
	struct cgpu_check_mark mark[CGPU_CHECK_MARKS];
	u32 marks;		/* ever made */
	u32 fresh;		/* channels came: frozen again only by the next call for it */
	u32 uncommitted;	/* the runlist was not restarted after the last call for it */
	u32 left_engine;	/* off the engine at the last sample, in the freeze that lasts */
	u64 seen_ns;		/* the newest sample that was taken in */
	u64 timed_ns;		/* no timeslice changed since */
	u32 samples;		/* in slot[].on_engine, frozen, hits */
	u32 corun;		/* in slot[].corun and what follows it */
	u32 corun_idle;
	u32 suspect;		/* the control that is being looked at by holding */
	u32 held;		/* slots that are frozen for it */
	u32 tries;		/* holds for this suspicion */
	u64 next_ns;		/* no hold before */
	u64 wait_ns;		/* after a suspicion that came to nothing: doubles */
	u32 seen;		/* CGPU_CTRL_* that were seen to move the share */
	u32 blind;		/* samples in a row that show nothing of any container, to CGPU_CHECK_BLIND */
	u64 period_ns;		/* of the samples, a running mean; 0: not known */
	u64 reserved[5];
	struct cgpu_check_slot slot[CGPU_SLOTS];
};

/* What follows from the samples so far. */
struct cgpu_check_finding {
	u32 control;		/* one of CGPU_CTRL_*, 0: nothing new */
	u32 moved;		/* of it; for cgpu_sched_control_moved() */
	u32 loose;		/* slots that ran while frozen although the control moves others */
	u32 hold;		/* slots to hold from now on, for CGPU_CHECK_HOLD_MS */
};

void cgpu_check_init(struct cgpu_check *l, u64 now_ns);

/* The calls of @plan were made and acknowledged to @t. @committed: what needs a
 * restart of the runlist has had it.
 */
void cgpu_check_acted(struct cgpu_check *l, const struct cgpu_sched *t,
		      const struct cgpu_sched_plan *plan, const struct cgpu_sched_ack *ack,
		      bool committed, u64 now_ns);
/* Channels of @slot, or the container itself, came or went. */
void cgpu_check_touched(struct cgpu_check *l, const struct cgpu_sched *t, u32 slot, u64 now_ns);

void cgpu_check_forget_timed(struct cgpu_check *l, u64 now_ns);

/* Up to when samples can be judged at @now_ns: later ones wait. */
u64 cgpu_check_until_ns(const struct cgpu_sched *t, u64 now_ns);
/* Add a sample, in order of time. @slot: on the engine, or CGPU_CHECK_*. */
void cgpu_check_sample(struct cgpu_check *l, struct cgpu_sched *t, u64 at_ns, u32 slot);
/* The samples show nothing: the slices are shorter than what a sample needs around it. */
bool cgpu_check_is_blind(const struct cgpu_check *l);
/* If @find->hold is not 0, call cgpu_check_hold(). */
void cgpu_check_evaluate(struct cgpu_check *l, const struct cgpu_sched *t, u64 now_ns,
			 struct cgpu_check_finding *find);

/* Hold @mask (0: let go): frozen out of turn, as with weight 0. */
void cgpu_check_hold(struct cgpu_check *l, struct cgpu_sched *t, u32 mask, u64 now_ns);

#endif
