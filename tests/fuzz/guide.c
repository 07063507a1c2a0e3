// SPDX-License-Identifier: MIT
/* Chance, recorded and played; the corpus of what reached something new. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guide.h"

#define GUIDED_PERCENT	70	/* the other steps are new */

static const char magic[8] = "abifuzz1";	/* and the layout of the file */

/* ---- chance (splitmix64) ---- */

uint64_t rng_next(struct rng *r)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	z ^= z >> 31;
	if (r->play && r->played < r->play->words)
		z = r->play->word[r->played++];
	if (r->record && r->record->words < TAPE_WORDS)
		r->record->word[r->record->words++] = z;
	return z;
}

struct rng rng_for(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
	struct rng r = { .state = seed };

	r.state = rng_next(&r) ^ a;
	r.state = rng_next(&r) ^ b;
	r.state = rng_next(&r) ^ c;
	return r;
}

/* ---- the corpus ---- */

/*
 * A copy may be torn, as its slot is written meanwhile. Its words are chance anyway, its lengths
 * are not.
 */
static bool plausible(const struct chain *chain)
{
	if (!chain->steps || chain->steps > CHAIN)
		return false;
	for (uint32_t i = 0; i < chain->steps; i++)
		if (chain->step[i].words > TAPE_WORDS || chain->step[i].percent > 100)
			return false;
	return true;
}

static void copy_tape(struct tape *to, const struct tape *from)
{
	uint32_t words = from->words;

	to->percent = from->percent;
	to->words = words;
	memmove(to->word, from->word, (words <= TAPE_WORDS ? words : 0) * sizeof(*from->word));
}

static void copy_chain(struct chain *to, const struct chain *from)
{
	to->steps = from->steps;
	for (uint32_t i = 0; i < to->steps && i < CHAIN; i++)
		copy_tape(&to->step[i], &from->step[i]);
}

static bool copy_slot(struct corpus *c, unsigned int at, struct chain *chain)
{
	if (!atomic_load(&c->slot[at].ready))
		return false;
	copy_chain(chain, &c->slot[at].chain);
	return plausible(chain);
}

unsigned int corpus_chains(const struct corpus *c)
{
	unsigned int taken = atomic_load(&c->taken);

	return taken < CORPUS_MAX ? taken : CORPUS_MAX;
}

/* Into a free slot, or over any other. */
void corpus_add(struct corpus *c, struct rng *r, const struct chain *chain)
{
	unsigned int at = atomic_load(&c->taken);
	struct corpus_slot *slot;

	while (at < CORPUS_MAX && !atomic_compare_exchange_weak(&c->taken, &at, at + 1))
		;
	slot = &c->slot[at < CORPUS_MAX ? at : rng_below(r, CORPUS_MAX)];
	atomic_store(&slot->ready, 0);
	copy_chain(&slot->chain, chain);
	atomic_store(&slot->picks, 0);
	atomic_store(&slot->ready, 1);
}

static bool read_words(FILE *file, void *to, size_t size, size_t count)
{
	return fread(to, size, count, file) == count;
}

static bool read_chain(FILE *file, struct chain *chain)
{
	memset(chain, 0, sizeof(*chain));
	if (!read_words(file, &chain->steps, 4, 1) || !chain->steps || chain->steps > CHAIN)
		return false;
	for (uint32_t i = 0; i < chain->steps; i++) {
		struct tape *tape = &chain->step[i];

		if (!read_words(file, &tape->percent, 4, 1) || !read_words(file, &tape->words, 4, 1) ||
		    tape->words > TAPE_WORDS || !read_words(file, tape->word, 8, tape->words))
			return false;
	}
	return plausible(chain);
}

int corpus_load(struct corpus *c, const char *path)
{
	struct chain *chains = calloc(CORPUS_MAX, sizeof(*chains));
	FILE *file = fopen(path, "rb");
	struct rng none = { 0 };
	char found[sizeof(magic)];
	uint32_t n = 0;
	int err = 0;

	if (!file || !chains) {
		err = errno;
	} else if (!read_words(file, found, sizeof(found), 1) || memcmp(found, magic, sizeof(magic)) ||
		   !read_words(file, &n, 4, 1) || n > CORPUS_MAX) {
		err = EINVAL;
	} else {
		for (uint32_t i = 0; i < n && !err; i++)
			err = read_chain(file, &chains[i]) ? 0 : EINVAL;
		if (!err && fgetc(file) != EOF)
			err = EINVAL;
	}
	for (uint32_t i = 0; i < n && !err; i++)
		corpus_add(c, &none, &chains[i]);
	if (!err)
		atomic_store(&c->loaded, corpus_chains(c));
	if (file)
		fclose(file);
	free(chains);
	errno = err;
	return err ? -1 : 0;
}

static void write_chain(FILE *file, const struct chain *chain)
{
	fwrite(&chain->steps, 4, 1, file);
	for (uint32_t i = 0; i < chain->steps; i++) {
		fwrite(&chain->step[i].percent, 4, 1, file);
		fwrite(&chain->step[i].words, 4, 1, file);
		fwrite(chain->step[i].word, 8, chain->step[i].words, file);
	}
}

static bool writable(const struct corpus *c, unsigned int at)
{
	return atomic_load(&c->slot[at].ready) && plausible(&c->slot[at].chain);
}

/* A file beside it, renamed: a run that is killed meanwhile leaves the corpus of the one before. */
int corpus_save(const struct corpus *c, const char *path)
{
	uint32_t n = 0;
	char next[320];
	FILE *file;
	bool bad;

	if (snprintf(next, sizeof(next), "%s.new", path) >= (int)sizeof(next)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	file = fopen(next, "wb");
	if (!file)
		return -1;
	for (unsigned int i = 0; i < corpus_chains(c); i++)
		n += writable(c, i);
	fwrite(magic, sizeof(magic), 1, file);
	fwrite(&n, 4, 1, file);
	for (unsigned int i = 0; i < corpus_chains(c); i++)
		if (writable(c, i))
			write_chain(file, &c->slot[i].chain);
	bad = ferror(file);
	return fclose(file) || bad || rename(next, path) ? -1 : 0;
}

/* ---- changes ---- */

static void change_word(struct rng *r, uint64_t *word)
{
	switch (rng_below(r, 4)) {
	case 0:
		*word += 1;
		break;
	case 1:
		*word -= 1;
		break;
	default:
		*word = rng_next(r);
	}
}

static void change_tape(struct rng *r, struct tape *tape)
{
	if (!tape->words)
		return;
	if (rng_percent(r, 15)) {	/* the words behind it are drawn anew */
		tape->words = rng_below(r, tape->words);
		return;
	}
	do {
		change_word(r, &tape->word[rng_below(r, tape->words)]);
	} while (rng_percent(r, 40));
}

static void change(struct rng *r, struct corpus *c, struct chain *chain)
{
	unsigned int last = chain->steps - 1;
	unsigned int at = rng_percent(r, 60) ? last : rng_below(r, chain->steps);
	struct chain other;

	switch (rng_below(r, 10)) {
	case 0:		/* as it was: the thread's objects are others now */
		break;
	case 1:		/* a step of another chain */
		if (copy_slot(c, rng_below(r, corpus_chains(c)), &other))
			copy_tape(&chain->step[at], &other.step[rng_below(r, other.steps)]);
		break;
	case 2:		/* a step twice */
		copy_tape(&chain->step[rng_below(r, chain->steps)], &chain->step[at]);
		break;
	case 3:
	case 4:		/* the last one alone */
		copy_tape(&chain->step[0], &chain->step[last]);
		chain->steps = 1;
		change_tape(r, &chain->step[0]);
		break;
	default:
		change_tape(r, &chain->step[at]);
	}
}

/* ---- a thread ---- */

/* The one of three with the fewest picks: a new one is soon played as often as the others. */
static int pick(struct corpus *c, struct rng *r)
{
	unsigned int chains = corpus_chains(c);
	int best = -1;

	for (int i = 0; chains && i < 3; i++) {
		unsigned int at = rng_below(r, chains);

		if (best < 0 || atomic_load(&c->slot[at].picks) < atomic_load(&c->slot[best].picks))
			best = at;
	}
	return best;
}

static bool next_loaded(struct guide *g, struct corpus *c)
{
	unsigned int at = atomic_load(&c->tried);

	while (at < atomic_load(&c->loaded))
		if (atomic_compare_exchange_weak(&c->tried, &at, at + 1))
			return copy_slot(c, at, &g->playing);
	return false;
}

static void next_chain(struct guide *g, struct corpus *c, struct rng *r)
{
	int from;

	g->at = 0;
	g->unchanged = next_loaded(g, c);
	if (g->unchanged)
		return;
	from = rng_percent(r, GUIDED_PERCENT) ? pick(c, r) : -1;
	if (from < 0 || !copy_slot(c, from, &g->playing)) {
		g->playing.steps = 0;
		return;
	}
	atomic_fetch_add(&c->slot[from].picks, 1);
	change(r, c, &g->playing);
}

void guide_forget(struct guide *g)
{
	g->playing.steps = g->last.steps = g->at = 0;
}

void guide_step(struct guide *g, struct corpus *c, struct rng *r, struct rng *chance, uint32_t percent)
{
	struct tape *record;

	if (g->at >= g->playing.steps)
		next_chain(g, c, chance);
	for (int i = 1; g->last.steps == CHAIN && i < CHAIN; i++)
		copy_tape(&g->last.step[i - 1], &g->last.step[i]);
	g->last.steps += g->last.steps < CHAIN;
	record = &g->last.step[g->last.steps - 1];
	record->percent = percent;
	record->words = 0;
	r->record = record;
	r->play = NULL;
	r->played = 0;
	if (g->at < g->playing.steps) {
		r->play = &g->playing.step[g->at++];
		record->percent = r->play->percent;
	}
}

uint32_t guide_percent(const struct guide *g)
{
	return g->last.step[g->last.steps - 1].percent;
}

/* What a chain of a file reaches is new to this run alone: the chain is kept already. */
void guide_keep(struct guide *g, struct corpus *c, struct rng *chance)
{
	if (!g->playing.steps || !g->unchanged)
		corpus_add(c, chance, &g->last);
}
