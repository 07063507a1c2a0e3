// SPDX-License-Identifier: MIT
/*
 * A maze for guide.c, in place of a driver: `maze SEED STEPS guided|unguided [FILE]`. One step
 * opens the door, the next goes in, and each of its words has to be the right one for the next
 * room. The output is the deepest room, the step that came there first, and the corpus's chains.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guide.h"

#define ROOMS	8
#define KEYS	32

static struct corpus corpus;

static int step(struct rng *r, bool *open)
{
	uint32_t what = rng_below(r, 8);
	int room = 0;

	if (what == 3 && *open)
		for (room = 1; room <= ROOMS && rng_below(r, KEYS) == room * 7u % KEYS; room++)
			;
	*open = what == 5;
	return room;
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 3 ? strtoull(argv[1], NULL, 0) : 0;
	uint64_t steps = argc > 3 ? strtoull(argv[2], NULL, 0) : 0;
	bool guided = argc > 3 && !strcmp(argv[3], "guided"), open = false;
	struct guide guide = { 0 };
	uint64_t deepest_at = 0;
	int deepest = 0;

	if (!steps) {	/* the first words of a stream */
		struct rng r = rng_for(seed, 1, 2, 3);

		for (int i = 0; i < 4; i++)
			printf("%" PRIu64 "\n", rng_next(&r));
		return 0;
	}
	if (argc > 4 && corpus_load(&corpus, argv[4]) && errno != ENOENT) {
		printf("%s, %u chains\n", strerror(errno), corpus_chains(&corpus));
		return 1;
	}
	for (uint64_t n = 0; n < steps; n++) {
		struct rng r = rng_for(seed, 0, 0, n), chance = rng_for(~seed, 0, 0, n);
		int room;

		if (guided)
			guide_step(&guide, &corpus, &r, &chance, 0);
		room = step(&r, &open);
		if (room <= deepest)
			continue;
		deepest = room;
		deepest_at = n;
		if (guided)
			guide_keep(&guide, &corpus, &chance);
	}
	printf("%d %" PRIu64 " %u\n", deepest, deepest_at, corpus_chains(&corpus));
	return argc > 4 ? corpus_save(&corpus, argv[4]) != 0 : 0;
}
