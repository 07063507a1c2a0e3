// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A word of state for each channel, which the driver's modules read from the GPU's registers: channel RAM (Ampere and
 * later), PCCSR (Turing). Here it is memory, written whenever the engine has been played.
 */
#include "engine.h"

/* dev_runlist.ref (GA100): NV_CHRAM_CHANNEL_* */
#define ENABLE		(1u << 1)
#define NEXT		(1u << 2)
#define BUSY		(1u << 3)
#define ON_PBDMA	(1u << 6)
#define ON_ENG		(1u << 7)
#define PENDING		(1u << 8)
#define ACQUIRE_FAIL	(1u << 12)

/* dev_fifo.ref (TU104): NV_PCCSR_CHANNEL_* */
#define PCCSR_ENABLE	(1u << 0)
#define PCCSR_NEXT	(1u << 1)
#define PCCSR_BUSY	(1u << 28)
#define PCCSR_STATUS(n)	((u32)(n) << 24)
enum { STATUS_IDLE, STATUS_PENDING, STATUS_PENDING_ACQUIRE = 3, STATUS_ON_PBDMA_AND_ENG = 6 };

#define REFUSED		0xbadf5040u	/* value of a read of a protected register */

/*
 * Assumed, because the manual does not define it: work of a disabled channel stays NEXT and
 * PENDING, a faulted channel shows none, and a channel with a loaded, idle context is not ON_ENG.
 */
static u32 state_of(struct engine *e, struct engine_chan *c)
{
	bool on = e->phase == ENGINE_RUN && e->chan == c;
	bool waits = !on && (c->blocked || engine_chan_has_work(c));
	u32 word = engine_chan_usable(c) ? ENABLE : 0;

	if (c->dead || !c->enabled)
		return word;
	if (on)
		word |= NEXT | BUSY | ON_PBDMA | ON_ENG;
	if (waits)
		word |= NEXT | BUSY | PENDING;
	if (c->blocked)
		word |= ACQUIRE_FAIL;
	return word;
}

/* The same state in Turing's bits. */
static u32 as_pccsr(u32 word)
{
	u32 status = STATUS_IDLE;

	if (word & ON_ENG)
		status = STATUS_ON_PBDMA_AND_ENG;
	else if (word & ACQUIRE_FAIL)
		status = STATUS_PENDING_ACQUIRE;
	else if (word & PENDING)
		status = STATUS_PENDING;
	return (word & ENABLE ? PCCSR_ENABLE : 0) | (word & NEXT ? PCCSR_NEXT : 0) | (word & BUSY ? PCCSR_BUSY : 0) |
	       PCCSR_STATUS(status);
}

static u32 shown(struct engine *e, u32 word)
{
	return e->card->pccsr ? as_pccsr(word) : word;
}

static u32 word_of(struct engine *e, struct engine_chan *c)
{
	switch (e->chram_fault) {
	case ENGINE_CHRAM_ONES:
		return ~0u;
	case ENGINE_CHRAM_REFUSED:
		return REFUSED;
	case ENGINE_CHRAM_STUCK:
		return shown(e, ENABLE | NEXT | BUSY | ON_PBDMA | ON_ENG | PENDING);
	case ENGINE_CHRAM_ZERO:
		return 0;
	default:
		return shown(e, state_of(e, c));
	}
}

/* Whether the words are those of another personality. */
bool engine_chram_stale(const struct engine *e)
{
	return e->has_chram && e->chram_fault != READ_ONCE(e->card->rules->chram_fault);
}

/* @c has the word @word from now on, if it had none: its number was given out, by which its word is found. */
void engine_give_word(struct engine_chan *c, u32 *word)
{
	struct engine *e = c->tsg->eng;
	unsigned long flags;

	raw_spin_lock_irqsave(&e->lock, flags);
	if (!c->chram) {
		c->chram = word;
		e->has_chram = true;
		engine_kick(e);
	}
	raw_spin_unlock_irqrestore(&e->lock, flags);
}

/* Writes the words of all channels of @e. Caller holds e->lock. */
void engine_chram_show(struct engine *e)
{
	struct engine_tsg *tsg;
	struct engine_chan *c;

	lockdep_assert_held(&e->lock);
	if (!e->has_chram)
		return;
	e->chram_fault = READ_ONCE(e->card->rules->chram_fault);
	list_for_each_entry(tsg, &e->tsgs, link)
		list_for_each_entry(c, &tsg->chans, link)
			if (c->chram)
				WRITE_ONCE(*c->chram, word_of(e, c));
}
