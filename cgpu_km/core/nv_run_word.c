// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* What the word of a channel shows, by the public manuals of the registers (open-gpu-doc). */
#include "nv_run_word.h"

#include "nv_abi.h"

static u32 of_chram(u32 word)
{
	u32 shows = 0;

	if (word & NV_CHRAM_ENABLE)
		shows |= CGPU_WORD_ENABLED;
	if (word & (NV_CHRAM_NEXT | NV_CHRAM_BUSY | NV_CHRAM_ON_PBDMA | NV_CHRAM_ON_ENG |
		    NV_CHRAM_PENDING))
		shows |= CGPU_WORD_BUSY;
	if (word & NV_CHRAM_ON_ENG)
		shows |= CGPU_WORD_ON_ENGINE;
	return shows;
}

static u32 of_pccsr(u32 word)
{
	u32 status = (word >> NV_PCCSR_STATUS_SHIFT) & 0xf;
	u32 shows = 0;

	if (status > NV_PCCSR_STATUS_LAST)
		return CGPU_WORD_REFUSED;
	if (word & NV_PCCSR_ENABLE)
		shows |= CGPU_WORD_ENABLED;
	if (status || (word & (NV_PCCSR_NEXT | NV_PCCSR_BUSY)))
		shows |= CGPU_WORD_BUSY;
	if (NV_PCCSR_STATUS_ON_ENG & (1u << status))
		shows |= CGPU_WORD_ON_ENGINE;
	return shows;
}

/**
 * cgpu_run_word() - what a channel's word shows
 * @source: CGPU_RUN_CHRAM or CGPU_RUN_PCCSR
 * @word: as it was read
 *
 * Return: CGPU_WORD_*.
 */
u32 cgpu_run_word(u32 source, u32 word)
{
	if (word == 0xffffffffu)
		return CGPU_WORD_ABSENT;
	if ((word & 0xffff0000u) == NV_REGISTER_REFUSED)
		return CGPU_WORD_REFUSED;
	return source == CGPU_RUN_PCCSR ? of_pccsr(word) : of_chram(word);
}

/**
 * cgpu_run_has_pccsr() - whether a GPU's words are in PCCSR
 * @arch: architecture as MC_GET_ARCH_INFO returns it; 0: unknown
 * @boot_0: the GPU's register NV_PMC_BOOT_0
 *
 * Return: true if both are Turing's.
 */
bool cgpu_run_has_pccsr(u32 arch, u32 boot_0)
{
	return arch == NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_TU100 &&
	       ((boot_0 >> NV_PMC_BOOT_0_ARCH_SHIFT) & 0x1f) == NV_PMC_BOOT_0_ARCH_TU100;
}
