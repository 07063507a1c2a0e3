/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The compute engine of a simulated GPU on a timeline of whole nanoseconds:
 * one runlist, TSGs round robin, each for its timeslice; the rules of
 * docs/develop/nvsim.md section 3 without a machine around them. One TSG per process,
 * one channel per TSG.
 *
 * The engine has no code for cgpu's policies. Time only moves in
 * cgpu_sim_advance() and cgpu_sim_drain().
 */
#ifndef CGPU_SIM_TIMELINE_H
#define CGPU_SIM_TIMELINE_H

#include "env.h"

#define CGPU_SIM_CLIENTS	32u
#define CGPU_SIM_NOBODY		0xffffffffu
#define CGPU_SIM_NEVER_NS	0xffffffffffffffffull
#define CGPU_SIM_BUCKET_NS	100000000ull	/* held_ns is kept per 100 ms too */
#define CGPU_SIM_OCTAVES	42u		/* of a histogram: up to an hour */
#define CGPU_SIM_STEPS		64u		/* per octave: 1.6 % */
#define CGPU_SIM_WAKE_NS	2000000ull	/* work after so long without any is a waking */

struct cgpu_sim_machine {
	u64 ctxsw_ns;		/* cost of a switch between TSGs */
	u64 timeslice_ns;	/* default of a TSG */
	u64 stubborn_ns;	/* how long a stubborn kernel resists */
	u32 no_preempt;		/* kernels run to their end */
	u32 commit_required;	/* a timeslice waits for cgpu_sim_commit() */
	u64 seed;
};

/* Requests of several kernels each. A process takes one after the other, in the order of
 * their arrival; those of a client are dealt to its processes in turn. The arrays stay the
 * caller's and are read as long as the engine lives.
 */
struct cgpu_sim_requests {
	const u64 *kernel_ns;	/* lengths, of all requests */
	const u64 *arrival_ns;	/* nondecreasing */
	const u32 *first;	/* of each arrival's kernels in kernel_ns; closed loop: one entry */
	const u32 *count;	/* how many those are, at least one */
	u64 think_ns;		/* closed loop: from an end to the next arrival */
	u64 think_spread_ns;
	u64 cpu_ns;		/* nor sooner than so long after the last arrival */
	u64 seed;		/* of this client's own random numbers: the same alone and beside others */
	u32 arrivals;		/* 0: closed loop */
	u32 pad;
};

/* A request that ended, or with @open one that had not when cgpu_sim_close() was called. */
struct cgpu_sim_request {
	u64 arrival_ns, end_ns;
	u64 open;
};

/* The load of each process of a client. */
struct cgpu_sim_load {
	u64 kernel_ns;
	u64 spread_ns;		/* lengths are even in kernel_ns -/+ this */
	u64 gap_ns;		/* CPU time from an end to the next submission */
	u64 gap_spread_ns;
	u64 period_ns;		/* > 0: submissions are so far apart, queue permitting */
	u64 on_ns, off_ns;	/* off_ns > 0: submits in turns of these */
	u64 start_ns, stop_ns;	/* first submission; none from stop_ns on */
	u32 depth;		/* kernels in the queue at most, the running one included */
	u32 processes;
	u32 stubborn;		/* ignores preemption */
	u32 pad;
	/* Not NULL: kernels come in requests, and kernel_ns and period_ns mean nothing. */
	const struct cgpu_sim_requests *requests;
};

struct cgpu_sim_hist {
	u64 count, sum_ns, max_ns;
	u32 n[CGPU_SIM_OCTAVES * CGPU_SIM_STEPS];
};

/* An interval in which @client ran for @ran_ns: all of it, or less where gaps were merged. */
struct cgpu_sim_stretch {
	u64 begin_ns, end_ns, ran_ns;
	u64 client;
};

struct cgpu_sim_client {
	u64 busy_ns;		/* its kernels were on the engine */
	u64 held_ns;		/* that, and switches from one of its TSGs to another */
	u64 done_ns;		/* of kernels that ended: their lengths */
	u64 works;
	u64 switches;
	s64 tokens;		/* gated: may launch while >= 0 */
	u64 token_cost;		/* per kernel */
	u64 gate_poll_ns;	/* > 0: gated, period of the checks */
	u32 enabled;		/* some of its TSGs may run */
	u32 first;		/* in overlap: while it has work the others have not the engine */
	/* How long others held a kernel up: its end, less the time at which it
	 * could have begun, less its length.
	 */
	struct cgpu_sim_hist wait;
	struct cgpu_sim_hist wake;	/* submission to begin, after idling, thawed all the time */
	struct cgpu_sim_hist wake_frozen;	/* the same where it was frozen meanwhile */
	struct cgpu_sim_hist reclaim;	/* from its last end before idling to another's run */
};

struct cgpu_check;
struct cgpu_sched;
struct cgpu_step;
struct cgpu_step_event;

/* How the scheduler thread reads the run state, and what that took. */
struct cgpu_sim_poll {
	u64 word_ns;		/* a channel's word */
	u64 wake_ns;		/* processor time of a sleep and a waking */
	u64 late_ns;		/* how late a waking is, on average */
	u64 began_ns;		/* the core's clock when the engine's is 0 */
	u64 read_ns;		/* the last reading, by the engine's clock */
	u64 polls, spent_ns;
	u64 rng;
	u32 words;		/* of a process */
	u32 slot[CGPU_SIM_CLIENTS];	/* the core's, of each client */
	void (*step)(struct cgpu_sched *t, struct cgpu_check *l, struct cgpu_step *step,
		     const struct cgpu_step_event *event);
};

struct cgpu_sim;

struct cgpu_sim *cgpu_sim_new(const struct cgpu_sim_machine *machine, u64 length_ns);
void cgpu_sim_free(struct cgpu_sim *s);
/* Where its time stands, as long as it lives. */
const u64 *cgpu_sim_clock(const struct cgpu_sim *s);

/* Its number, or CGPU_SIM_NOBODY: too many, or a load that makes no sense. */
u32 cgpu_sim_add(struct cgpu_sim *s, const struct cgpu_sim_load *load);
struct cgpu_sim_client *cgpu_sim_client(struct cgpu_sim *s, u32 client);

void cgpu_sim_advance(struct cgpu_sim *s, u64 to_ns);
/* Until nothing of @client that is frozen is on the engine, or @to_ns. */
void cgpu_sim_drain(struct cgpu_sim *s, u32 client, u64 to_ns);

/* The driver's controls, with their effect on the engine now. @count TSGs of a client from
 * its @first on may run, or may not.
 */
void cgpu_sim_enable(struct cgpu_sim *s, u32 client, u32 first, u32 count, u32 enabled);
/* Its channels are gone, and with them the kernels in their queues. */
void cgpu_sim_end(struct cgpu_sim *s, u32 client);
/* It is there again, as a new program: its queues fill from now on. Not with requests. */
void cgpu_sim_reopen(struct cgpu_sim *s, u32 client);
void cgpu_sim_timeslice(struct cgpu_sim *s, u32 client, u64 timeslice_ns);
void cgpu_sim_commit(struct cgpu_sim *s);

/* How many processes of @client have a kernel in their queue or on the engine. The words of their
 * channels show that, frozen or not. Clients that ended or have not opened yet have none.
 */
u32 cgpu_sim_working(const struct cgpu_sim *s, u32 client);

/* The client on the engine, or CGPU_SIM_NOBODY. */
u32 cgpu_sim_on_engine(const struct cgpu_sim *s);

/* Read the clients that have channels in @t, and step. */
void cgpu_sim_read(struct cgpu_sim *s, struct cgpu_sim_poll *p, struct cgpu_sched *t,
		   struct cgpu_step *step);
/* Advance to @to_ns and read the run state as @step->poll_ns has it; stops where the step needs a plan. */
void cgpu_sim_sleep(struct cgpu_sim *s, struct cgpu_sim_poll *p, struct cgpu_sched *t,
		    struct cgpu_step *step, u64 to_ns);

/* From now on no timeslices: all kernels run at once, two or more together at @overlap_pct of
 * the speed of one, in equal parts. Where clients are first, theirs alone, @turnaround_ns after
 * they have work while the others run.
 */
void cgpu_sim_overlap(struct cgpu_sim *s, u32 overlap_pct, u64 turnaround_ns);

/* The clients' processes do not run until @to_ns: they submit then what was due before. */
void cgpu_sim_hold_clients(struct cgpu_sim *s, u64 to_ns);

/* Figures count from now on. */
void cgpu_sim_mark(struct cgpu_sim *s);
/* Count waits that have not ended with their length so far. */
void cgpu_sim_close(struct cgpu_sim *s);
/* The requests of @client that ended since cgpu_sim_mark(); returns how many. */
u32 cgpu_sim_requests_done(const struct cgpu_sim *s, u32 client,
			   const struct cgpu_sim_request **out);
/* Since cgpu_sim_mark(): no kernel ran and none was switched to, and a client had work in its
 * queue; and the engine switched.
 */
u64 cgpu_sim_idle_loss_ns(const struct cgpu_sim *s);
u64 cgpu_sim_switching_ns(const struct cgpu_sim *s);
/* held_ns in the @n buckets from cgpu_sim_mark() on. */
void cgpu_sim_buckets(const struct cgpu_sim *s, u32 client, u64 *out, u32 n);
void cgpu_sim_hist_add(struct cgpu_sim_hist *h, u64 ns);
/* The value that @permille of all are not above, 0 if there are none. */
u64 cgpu_sim_quantile(const struct cgpu_sim_hist *h, u32 permille);

/* Record the intervals from @from_ns to @to_ns, up to one more than @most; one's own gaps up to
 * @merge_ns become a part of an interval.
 */
void cgpu_sim_trace(struct cgpu_sim *s, u64 from_ns, u64 to_ns, u64 merge_ns, u32 most);
u32 cgpu_sim_traced(const struct cgpu_sim *s, const struct cgpu_sim_stretch **out);

#endif
