/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The simulated engine's inside, shared by its files. */
#ifndef CGPU_SIM_ENGINE_H
#define CGPU_SIM_ENGINE_H

#include "figures.h"
#include "timeline.h"

enum phase { IDLE, SWITCH, RUN };

struct tsg {
	u32 client;
	u32 frozen;
	u32 started;		/* a kernel is under way, on the engine or preempted */
	u64 remaining_ns;
	u64 length_ns;
	u64 ready_ns;		/* when it could have begun */
	u64 slice_ns, wanted_slice_ns;
	u64 arrival_ns;		/* next submission of a periodic load */
	u64 last_submit_ns;
	u64 last_end_ns;
	u64 gate_ns;		/* the gate was closed: next check */
	u64 *submit_ns;		/* ring of @depth, nondecreasing from @head on */
	u32 head, admitted;
	/* Of a client with requests. */
	u64 rng;
	u64 request_ns;		/* arrival of the one it works on or waits for */
	u32 request;		/* number of it */
	u32 process;		/* number of this TSG among its client's */
	u32 launched, done;	/* of its kernels */
};

/* The part of a client that is internal to the engine. */
struct state {
	struct cgpu_sim_load load;
	u64 enabled_ns;		/* since when */
	u64 last_end_ns;
	u64 left_ns;		/* when it ran out of work, until another client runs */
	u64 *bucket;
	struct cgpu_sim_request *request;	/* those that ended */
	u32 requests, room;
};

struct cgpu_sim {
	struct cgpu_sim_machine machine;
	u64 now_ns, rng;
	u64 held_until_ns;	/* no client's process runs before */
	enum phase phase;
	u64 phase_end_ns, slice_end_ns;
	struct tsg *tsg;
	u32 tsgs, clients;
	u32 cur, resident, last;	/* TSGs; last: round robin goes on behind it */
	u32 own_switch;		/* the switch under way is between TSGs of one client */
	u32 stopped_client;	/* owner of the TSG last taken off the engine, and when */
	u64 stopped_ns;
	u32 buckets;
	u64 mark_ns;
	u64 idle_loss_ns, switching_ns;
	u32 overlap_pct;	/* > 0: kernels run at once */
	u32 others_run;		/* kernels of clients that are not first were on the engine */
	u64 turnaround_ns, leave_ns;
	u32 *run;		/* room for the numbers of all TSGs */
	struct cgpu_sim_trace_log trace;
	struct cgpu_sim_client client[CGPU_SIM_CLIENTS];
	struct state state[CGPU_SIM_CLIENTS];
};

/* A time around @middle_ns, even. */
u64 cgpu_sim_around(u64 *rng, u64 middle_ns, u64 spread_ns);
/* When the kernel that follows one that ended at @end_ns is submitted. */
u64 cgpu_sim_next_submission(struct cgpu_sim *s, struct tsg *tsg, u64 end_ns);
/* Move kernels submitted by now into the queue, as many as the gate passes. */
void cgpu_sim_admit(struct cgpu_sim *s, struct tsg *tsg);

/* The engine's steps that timeslices and overlap share. A kernel of the TSG can run, or is made
 * to; false: it has none, or is frozen.
 */
bool cgpu_sim_runnable(struct cgpu_sim *s, u32 tsg);
bool cgpu_sim_fetch(struct cgpu_sim *s, u32 tsg);
void cgpu_sim_complete(struct cgpu_sim *s, struct tsg *tsg);
/* @client has the engine until @to_ns. */
void cgpu_sim_hold(struct cgpu_sim *s, u32 client, u64 to_ns);
/* Nothing runs until @to_ns: a loss from when on a client has work. */
void cgpu_sim_stay_idle(struct cgpu_sim *s, u64 to_ns);
/* Up to the next event of kernels that run at once; false: none before @to_ns. */
bool cgpu_sim_overlap_step(struct cgpu_sim *s, u64 to_ns);

/* A kernel of a request: its length; that it ended, now. */
u64 cgpu_sim_request_length(struct cgpu_sim *s, struct tsg *tsg);
void cgpu_sim_request_kernel_done(struct cgpu_sim *s, struct tsg *tsg);
/* The first request of a TSG that was made; false: no memory, or no sense. */
bool cgpu_sim_request_start(struct cgpu_sim *s, struct tsg *tsg);
/* Its channel is gone: count what is open, as cgpu_sim_request_close(), and forget it. */
void cgpu_sim_request_drop(struct cgpu_sim *s, struct tsg *tsg);
/* Count requests that have not ended with their latency so far, if they had the time to end. */
void cgpu_sim_request_close(struct cgpu_sim *s, const struct tsg *tsg);

#endif
