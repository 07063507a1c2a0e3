// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Channel RAM: a word of state for each channel, which the driver's modules read from the GPU's registers (Ampere and
 * later). Here it is ordinary memory, written whenever the engine has been played.
 */
#include "nvsim.h"

/* dev_runlist.ref (GA100): NV_CHRAM_CHANNEL_* */
#define ENABLE		(1u << 1)
#define NEXT		(1u << 2)
#define BUSY		(1u << 3)
#define ON_PBDMA	(1u << 6)
#define ON_ENG		(1u << 7)
#define PENDING		(1u << 8)
#define ACQUIRE_FAIL	(1u << 12)

#define CHIP_AMPERE	0x170		/* nvchip.chip.arch */
#define REFUSED		0xbadf5040u	/* value of a read of a protected register */

bool nvchram_has(void)
{
	return nvsim_chip->chip.arch >= CHIP_AMPERE;
}

/* The pointer that RM returns as pChramChannelRegister. */
u32 *nvchram_word(struct nvctx *channel)
{
	return nvchram_has() && nvsim.chram_fault != NVCHRAM_NULL ? &channel->chram : NULL;
}

/*
 * Assumed, because the manual does not define it: work of a disabled channel stays NEXT and
 * PENDING, a faulted channel shows none, and a channel with a loaded, idle context is not ON_ENG.
 */
static u32 state_of(struct nvengine *e, struct nvchan *c)
{
	bool on = e->phase == NVPH_RUN && e->chan == c;
	bool waits = !on && (c->blocked || nvchan_has_work(c));
	u32 word = nvchan_usable(c) ? ENABLE : 0;

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

static u32 word_of(struct nvengine *e, struct nvchan *c)
{
	switch (e->chram_fault) {
	case NVCHRAM_ONES:
		return ~0u;
	case NVCHRAM_REFUSED:
		return REFUSED;
	case NVCHRAM_STUCK:
		return ENABLE | NEXT | BUSY | ON_PBDMA | ON_ENG | PENDING;
	case NVCHRAM_ZERO:
		return 0;
	default:
		return state_of(e, c);
	}
}

/* Whether the words are those of another personality. */
bool nvchram_stale(const struct nvengine *e)
{
	return nvchram_has() && e->chram_fault != READ_ONCE(nvsim.chram_fault);
}

/* Writes the words of all channels of @e. Caller holds e->lock. */
void nvchram_show(struct nvengine *e)
{
	struct nvtsg *tsg;
	struct nvchan *c;

	lockdep_assert_held(&e->lock);
	if (!nvchram_has())
		return;
	e->chram_fault = READ_ONCE(nvsim.chram_fault);
	list_for_each_entry(tsg, &e->tsgs, link)
		list_for_each_entry(c, &tsg->chans, link)
			WRITE_ONCE(c->ctx->chram, word_of(e, c));
}
