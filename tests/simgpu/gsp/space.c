// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* From a channel to the root of its page tables, by RM's own objects. */
#include "card.h"

static int channel_space(struct gsp_card *card, gsp_u32 client, gsp_u32 channel, void **space)
{
	struct KernelChannel *found;
	struct RsClient *owner;

	(void)card;
	if (serverGetClientUnderLock(&g_resServ, client, &owner) != NV_OK ||
	    CliGetKernelChannel(owner, channel, &found) != NV_OK || !found->pVAS)
		return 0;
	*space = found->pVAS;
	return 1;
}

static int page_directory(struct gsp_card *card, void *space, struct gsp_phys *root)
{
	struct OBJVASPACE *vas = space;
	MEMORY_DESCRIPTOR *memory = vas->__vaspaceGetPageDirBase__(vas, card->gpu);

	if (!memory)
		return 0;
	root->space = memdescGetAddressSpace(memory) == ADDR_FBMEM ? GSP_FB : GSP_SYSMEM;
	root->address = memdescGetPhysAddr(memory, 0, 0);
	return 1;
}

const struct gsp_calls gsp_calls = { channel_space, page_directory };
