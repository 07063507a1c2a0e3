/* SPDX-License-Identifier: MIT */
/*
 * Chance, and how what was reached guides it. A step is a function of the words that it draws.
 * The words of each step are written to a tape. The tapes of steps that reached something new are the
 * corpus; later steps play a tape of it with a few words changed, instead of drawing all words anew.
 *
 * No I/O but of the corpus's file, no clock, no thread: test_guide.py runs it alone.
 */
#ifndef GUIDE_H
#define GUIDE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TAPE_WORDS	96	/* of a longer step the first ones */
#define CHAIN		4	/* steps: what one reaches depends on those before it */
#define CORPUS_MAX	2048	/* chains */

/* The words that a step drew, and its thread's share of wrong calls. */
struct tape {
	uint32_t percent, words;
	uint64_t word[TAPE_WORDS];
};

/* Every step of every thread has a stream of its own. */
struct rng {
	uint64_t state;
	const struct tape *play;	/* drawn first, before words of the stream; or NULL */
	uint32_t played;
	struct tape *record;		/* or NULL */
};

uint64_t rng_next(struct rng *r);
struct rng rng_for(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
	return n ? rng_next(r) % n : 0;
}
static inline bool rng_percent(struct rng *r, uint32_t percent)
{
	return rng_below(r, 100) < percent;
}

/* The last step is the one that reached something. */
struct chain {
	uint32_t steps;
	struct tape step[CHAIN];
};

struct corpus_slot {
	atomic_uint ready, picks;	/* how often it was picked */
	struct chain chain;
};

/*
 * Shared by processes that are killed at any point, so without locks: a slot that is written is not
 * ready, and remains so if its writer is killed.
 */
struct corpus {
	atomic_uint taken;	/* slots, and CORPUS_MAX at most */
	atomic_uint loaded, tried;	/* of a file; played once, unchanged */
	struct corpus_slot slot[CORPUS_MAX];
};

void corpus_add(struct corpus *c, struct rng *r, const struct chain *chain);
unsigned int corpus_chains(const struct corpus *c);
/* 0, or -1 with errno. Of a file that is none of ours, EINVAL, nothing is taken. */
int corpus_load(struct corpus *c, const char *path);
int corpus_save(const struct corpus *c, const char *path);

/* What a thread plays and has played. */
struct guide {
	struct chain playing, last;
	uint32_t at;		/* the next step of @playing */
	bool unchanged;		/* as it is in the file that it came from */
};

void guide_forget(struct guide *g);
/* Before a step: @r plays a tape of the corpus, or draws anew. It records in any case. */
void guide_step(struct guide *g, struct corpus *c, struct rng *r, struct rng *chance, uint32_t percent);
/* The step's share of wrong calls. */
uint32_t guide_percent(const struct guide *g);
/* After a step that reached something new. */
void guide_keep(struct guide *g, struct corpus *c, struct rng *chance);

#endif
