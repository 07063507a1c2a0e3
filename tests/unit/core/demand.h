/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A GPU whose containers are not always busy, and the shell's thread that reads their run state:
 * demandgpu.py says what is simulated. In C, since a simulated second has thousands of readings.
 */
#ifndef CGPU_DEMAND_H
#define CGPU_DEMAND_H

/* Work of one container: always some; or pieces that arrive at given times; or pieces one after the
 * other, each a gap after the end of the one before.
 */
struct demand_load {
	u32 slot;
	u32 always;
	u32 at_once;		/* TSGs that have work when it has; 0: all, and readings do not count them */
	const u64 *arrivals;	/* time from the begin, and length; NULL: one after the other */
	u32 count;		/* of the arrivals */
	u32 arrived, done;	/* pieces; those between are waiting, or under way */
	u32 pieces;		/* of a request, one after the other */
	u64 piece_ns, gap_ns, idle_ns;	/* of the others; idle_ns: the gap after a request */
	const u64 *gaps_ns;	/* after each piece, in turn, instead of these; NULL: none */
	u32 gaps;
	u64 due_ns;		/* when the next one arrives; CGPU_NEVER_NS: not before work ends */
	u64 at_ns;		/* when the request under way came, one after the other */
	u64 left_ns;		/* of the piece under way */
	u64 got_ns;
	u64 *latency_ns;	/* of each request */
	u32 latencies, room;
};

struct demand_gpu {
	struct cgpu_sched *turn;
	struct cgpu_step step;
	struct demand_load *load[32];
	u32 loads;
	u32 known;		/* slots whose run state can be read */
	u64 hides_ns;		/* for so long in each two the state of slot 0 is unknown */
	u64 kernel_ns;		/* of slot 0, which run to their end; 0: they leave when they have to */
	u32 frozen_shows;	/* the word of a frozen channel shows work that it got */
	u32 real;		/* slots that may run */
	u64 began_ns, now_ns, read_ns;
	u64 call_ns, timeslice_us;
	int on;			/* the slot on the engine; -1: none */
	s64 slice_left_ns;
	u32 set_us[32];
	u64 idle_ns;		/* nothing ran although something had work */
	u64 polls, calls;
	const u32 *word;	/* random ones, used in turn */
	u32 words, next_word;
};

/* Until @end_ns. Returns 0; 1: a plan was over at once; 2: no memory. */
int demand_run(struct demand_gpu *d, u64 end_ns);

void demand_free(struct demand_load *load);

#endif
