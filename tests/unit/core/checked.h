/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A GPU whose controls may be ineffective, sampled as the driver does: checkgpu.py. */
#ifndef CGPU_CHECKED_H
#define CGPU_CHECKED_H

/* Work of one container. */
struct checked_tenant {
	u32 slot, tsgs;
	double work;		/* which part of the time it has work, in bursts of 40 ms */
	u64 resists_ns;		/* for so long it ignores a freeze */
	u64 loose_ns;		/* from then on no freeze reaches its channels; CGPU_NEVER_NS: all do */
	u32 kernel_us;		/* one at a time, and 20 us between them; 0: its queue is never empty */
	u32 slice_us, commit_us;	/* its timeslice; the one that a restart puts in force; 0: none */
	u64 on_until_ns;
	double held_ns;
};

struct checked_sample {
	u64 at_ns;
	u32 slot;
};

struct checked_gpu {
	struct cgpu_sched *turn;
	struct cgpu_check *check;
	struct cgpu_step step;
	struct checked_tenant *tenant[32];
	u32 tenants;
	u32 ineffective;	/* CGPU_CTRL_* that move nothing */
	double wrong;		/* share of samples with a random name */
	double uncommitted;	/* restarts that fail; then freezes and thaws need one */
	double jitter;		/* of the sampler; without, rounds can be in step with it */
	double switching;	/* share of samples that fall on a context switch */
	u64 now_ns, poll_ns;	/* of the shell, which reads samples */
	double sample_ns;	/* when the next one is taken */
	u32 in_force;		/* slots that ran at the last restart that took effect */
	u32 was, committed;	/* at the last restart: on the engine; whether it took effect */
	struct checked_sample sample[256];
	u32 samples;		/* not read yet */
	const u32 *word;	/* random ones */
	u32 words, next_word;
};

/* To @end_ns, or until the shell polls. Returns 0; 1: too few random words or too many samples. */
int checked_run(struct checked_gpu *g, u64 end_ns);

#endif
