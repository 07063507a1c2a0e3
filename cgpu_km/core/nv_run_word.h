/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A channel's word of state in the GPU's registers. */
#ifndef CGPU_CORE_NV_RUN_WORD_H
#define CGPU_CORE_NV_RUN_WORD_H

#include "env.h"

/* Where the words are read. */
enum cgpu_run_source {
	CGPU_RUN_NONE,
	CGPU_RUN_CHRAM,		/* Ampere and later: channel RAM, the driver returns its address */
	CGPU_RUN_PCCSR,		/* Turing: registers in BAR0, by the channel's id */
};

/* What a word shows. Of ABSENT and REFUSED only that bit is set. */
#define CGPU_WORD_ENABLED	0x01	/* the channel may be scheduled */
#define CGPU_WORD_BUSY		0x02	/* it has work, queued or on the engine */
#define CGPU_WORD_ON_ENGINE	0x04	/* its context is on the engine */
#define CGPU_WORD_ABSENT	0x08	/* all ones: the GPU is asleep or off the bus */
#define CGPU_WORD_REFUSED	0x10	/* the GPU refused the read, or the word is no state */

/* CGPU_WORD_* of a word of @source. A channel that waits for a semaphore has work. */
u32 cgpu_run_word(u32 source, u32 word);

/* True for a GPU whose words are in PCCSR: both @arch and @boot_0 are Turing's. */
bool cgpu_run_has_pccsr(u32 arch, u32 boot_0);

#endif
