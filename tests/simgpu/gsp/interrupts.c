// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The interrupt tree (dev_vm.h): a leaf has 32 vectors, a subtree two leaves, the top a bit for each subtree. A leaf's
 * bits are cleared by writing ones. The words lie in the registers' RAM; several processors change them at once.
 * Only vectors of the first leaf are ever raised: nvidia-uvm writes to the others' words past these functions.
 */
#include "engine.h"

enum {
	LEAF = 0xb81000, LEAF_EN_SET = 0xb81200, LEAF_EN_CLEAR = 0xb81400, TOP = 0xb81600, TOP_EN_SET = 0xb81608,
	TOP_EN_CLEAR = 0xb81610,
};

#define LEAVES 16

static volatile gsp_u32 *word(struct gsp_card *card, gsp_u32 reg)
{
	return card->regs + reg / 4;
}

static gsp_u32 get(struct gsp_card *card, gsp_u32 reg)
{
	return __atomic_load_n(word(card, reg), __ATOMIC_ACQUIRE);
}

static void set(struct gsp_card *card, gsp_u32 reg, gsp_u32 bits)
{
	__atomic_fetch_or(word(card, reg), bits, __ATOMIC_ACQ_REL);
}

static void clear(struct gsp_card *card, gsp_u32 reg, gsp_u32 bits)
{
	__atomic_fetch_and(word(card, reg), ~bits, __ATOMIC_ACQ_REL);
}

static gsp_u32 top(struct gsp_card *card)
{
	return !!(get(card, LEAF) & get(card, LEAF_EN_SET));
}

static void raise_if_enabled(struct gsp_card *card)
{
	if (top(card) & get(card, TOP_EN_SET))
		gsp_host_interrupt(card);
}

static int is_leaf(gsp_u32 reg, gsp_u32 first)
{
	return reg >= first && reg < first + 4 * LEAVES;
}

void gsp_interrupt(struct gsp_card *card, gsp_u32 vector)
{
	set(card, LEAF, 1u << vector);
	raise_if_enabled(card);
}

int gsp_interrupt_load(struct gsp_card *card, gsp_u32 reg, gsp_u32 *value)
{
	if (reg == TOP)
		*value = top(card);
	else if (is_leaf(reg, LEAF))
		*value = reg == LEAF ? get(card, reg) : 0;
	else if (is_leaf(reg, LEAF_EN_SET))
		*value = get(card, reg);
	else if (is_leaf(reg, LEAF_EN_CLEAR))
		*value = get(card, reg - LEAF_EN_CLEAR + LEAF_EN_SET);
	else if (reg == TOP_EN_SET || reg == TOP_EN_CLEAR)
		*value = get(card, TOP_EN_SET);
	else
		return 0;
	return 1;
}

int gsp_interrupt_store(struct gsp_card *card, gsp_u32 reg, gsp_u32 value)
{
	if (is_leaf(reg, LEAF))
		clear(card, reg, value);
	else if (is_leaf(reg, LEAF_EN_CLEAR))
		clear(card, reg - LEAF_EN_CLEAR + LEAF_EN_SET, value);
	else if (reg == TOP_EN_CLEAR)
		clear(card, TOP_EN_SET, value);
	else if (reg == TOP_EN_SET || is_leaf(reg, LEAF_EN_SET)) {
		set(card, reg, value);
		raise_if_enabled(card);
	} else
		return 0;
	return 1;
}
