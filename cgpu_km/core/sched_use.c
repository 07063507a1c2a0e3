// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What high priority uses, by the driver's utilisation samples.
 *
 * Without a run state nothing else shows whether high priority works. Five samples a second are too few
 * to decide who runs next. They show within seconds whether high priority leaves the others what its quota
 * leaves them, and then it need not be frozen for the rest of each 100 ms.
 *
 * Each sample adds what high priority may use, and one of high priority takes a whole sample. So the credit
 * is what high priority left lately, as of a token bucket: it cannot be earned by always working,
 * and all of it is used up by as much work as was left before.
 */
#include "sched_use.h"

#define PERCENT		100u
#define UNSPREAD	160u		/* no more by samples that may all fall at one place of the periods */
#define MARGIN_PERCENT	10u		/* a quota so much lower until it is certain */
#define LEAST_RATIO	75u		/* with less, one that stops for the samples would gain too much */
#define FRESH_NS	5000000000ull	/* they come once a second, the newest a second old */
#define LOOK_NS		250000000ull	/* another thread takes them */

/**
 * cgpu_use_begin() - the credit is full, and counts once a sample leaves it full
 * @t: the scheduler, of which none has opened the GPU
 *
 * Until then periods hold high priority: taken to use little it would have more than its quota for seconds, if it
 * always works.
 */
void cgpu_use_begin(struct cgpu_sched *t)
{
	t->use_credit = CGPU_USE_MOST;
	t->use_little = 0;
}

/* Nothing is known of what it used meanwhile. */
static void forget(struct cgpu_sched *t)
{
	t->use_credit = 0;
	t->use_little = 0;
}

/**
 * cgpu_use_opened() - high priority opens the GPU
 * @t: the scheduler
 * @now_ns: monotonic
 *
 * Samples are read only while the GPU is open, so the last one may be old. Once for each sample: where none comes
 * any more, opening and closing gains nothing. The credit stays what it was.
 */
void cgpu_use_opened(struct cgpu_sched *t, u64 now_ns)
{
	if (t->use_trusted)
		t->use_ns = now_ns;
	t->use_trusted = 0;
}

/**
 * cgpu_use_note() - a utilisation sample
 * @t: the scheduler
 * @thawed: slots that could run from a moment before it to a moment after
 * @on: on the engine, as a mask; 0: idle; all: work of no container
 * @at_ns: when; monotonic, rising
 *
 * Only of a time in which high priority and one of the others could run, and of high priority whose run
 * state is unknown: frozen it uses nothing, and alone it takes nothing from the others. One that has closed the
 * GPU since the sample was taken pays for it and gains nothing.
 */
void cgpu_use_note(struct cgpu_sched *t, u32 thawed, u32 on, u64 at_ns)
{
	u32 low = t->weighted_mask[0] & t->opened_mask, high = t->weighted_mask[1] & t->opened_mask;
	u32 used = on & (high ? high & thawed : ~low);
	u32 may = t->prio_ratio - (t->use_little ? 0 : MARGIN_PERCENT);
	u32 most = t->use_spread || t->use_little || t->use_credit > UNSPREAD ? CGPU_USE_MOST : UNSPREAD;

	if (t->prio_budgeted)
		return;
	if (t->use_ns && !cgpu_use_is_sampled(t, at_ns))
		forget(t);
	t->use_ns = at_ns > t->use_ns ? at_ns : t->use_ns;
	t->use_trusted = 1;
	if (!(low & thawed) || !(high ? high & thawed : used))
		return;
	t->use_credit += may;
	if (used)
		t->use_credit = t->use_credit > PERCENT ? t->use_credit - PERCENT : 0;
	t->use_credit = t->use_credit < most ? t->use_credit : most;
	if (t->use_credit == CGPU_USE_MOST)
		t->use_little = 1;
	else if (!t->use_credit)
		t->use_little = 0;
}

/**
 * cgpu_use_is_sampled() - do samples come
 * @t: the scheduler
 * @now_ns: monotonic
 */
bool cgpu_use_is_sampled(const struct cgpu_sched *t, u64 now_ns)
{
	return t->use_ns && now_ns <= t->use_ns + FRESH_NS;
}

/**
 * cgpu_use_is_little() - does high priority use less than its quota
 * @t: the scheduler, accounted up to now
 * @left_ns: lowered to when to look again, if it does
 *
 * A tenant that knows when the samples are taken, and does not work then, is not seen. So a low quota
 * does not depend on them.
 *
 * Return: by the samples of the last seconds; false: it does not, or nothing shows it.
 */
bool cgpu_use_is_little(const struct cgpu_sched *t, u64 *left_ns)
{
	if (!t->use_little || t->prio_ratio < LEAST_RATIO || !cgpu_use_is_sampled(t, t->last_ns))
		return false;
	if (*left_ns > LOOK_NS)
		*left_ns = LOOK_NS;
	return true;
}
