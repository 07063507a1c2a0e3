// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The driver's resources for a channel group and a channel: an id of the runlist, and memory that
 * no client owns.
 */
#include <linux/idr.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

#define CHANNEL_BYTES SZ_64K		/* instance block; seen of RM on GA100, GA102, AD102 and GH100 */

/* ctrl2080fifo.h: NV2080_CTRL_FIFO_INFO_INDEX_* */
#define MAX_CHANNEL_GROUPS 1
#define PER_RUNLIST 7
#define GROUPS_OF_ENGINE 8
#define FIFO_INFO_MAX 256

/* On Turing context buffers come from memory that the driver reserved when it started, and all engines share ids
 * (gpuIsCtxBufAllocInPmaSupported, kfifoIsPerRunlistChramEnabled).
 */
bool nvctx_is_turing(void)
{
	return !strcmp(nvsim.arch, "turing");
}

/* Channel RAM, which the driver's modules read by a pointer, is of Ampere and later. */
bool nvctx_has_chram(void)
{
	return nvsim_chip->chip.arch >= CHIP_AMPERE;
}

/* The pointer that RM returns as pChramChannelRegister. */
u32 *nvctx_chram(struct nvctx *channel)
{
	return nvctx_has_chram() && nvsim.rules.chram_fault != ENGINE_CHRAM_NULL ? &channel->chram : NULL;
}

static void ctx_release(struct kref *ref)
{
	struct nvctx *ctx = container_of(ref, struct nvctx, ref);

	if (ctx->bytes)
		nvsim_fb_give(ctx->gpu, ctx->bytes);
	ida_free(ctx->ids, ctx->id);
	kfree(ctx);
}

void nvctx_put(struct nvctx *ctx)
{
	kref_put(&ctx->ref, ctx_release);
}

static NV_STATUS create(struct nvgpu *gpu, struct ida *ids, u64 bytes, struct nvctx **out)
{
	struct nvctx *ctx = kzalloc(sizeof(*ctx), GFP_KERNEL);
	u64 addr;
	int id;

	if (!ctx)
		return NV_ERR_NO_MEMORY;
	kref_init(&ctx->ref);
	ctx->gpu = gpu;
	ctx->ids = ids;
	ctx->bytes = nvctx_is_turing() ? 0 : bytes;
	id = nvsim.channel_ids > 0 ? ida_alloc_max(ids, nvsim.channel_ids - 1, GFP_KERNEL) : -ENOSPC;
	if (id < 0) {
		kfree(ctx);
		return id == -ENOSPC ? NV_ERR_NO_FREE_FIFOS : NV_ERR_NO_MEMORY;
	}
	ctx->id = id;
	if (ctx->bytes && !nvsim_fb_take(gpu, ctx->bytes, &addr)) {
		ctx->bytes = 0;
		nvctx_put(ctx);
		return NV_ERR_NO_MEMORY;
	}
	*out = ctx;
	return NV_OK;
}

/* A group's: the context buffers of a graphics or a video engine, all of them at once (kernel_channel_group_api.c). */
NV_STATUS nvctx_of_group(struct engine *e, struct nvctx **out)
{
	u64 bytes = e->type == NV2080_ENGINE_TYPE_GRAPHICS ? (u64)nvsim.ctx_mib * SZ_1M :
		    nvsim_has_video(e->type) ? (u64)nvsim.video_ctx_kib * SZ_1K : 0;

	return create(nvsim_gpu_of(e), &nvsim_gpu_of(e)->groups[nvctx_is_turing() ? 0 : e->index], bytes, out);
}

NV_STATUS nvctx_of_channel(struct engine *e, struct nvctx **out)
{
	return create(nvsim_gpu_of(e), &nvsim_gpu_of(e)->channels[nvctx_is_turing() ? 0 : e->index], CHANNEL_BYTES, out);
}

NV_STATUS nvsim_ctl_fifo_info(struct nvctl *c)
{
	u32 *p = c->params, i;

	if (p[0] > FIFO_INFO_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < p[0]; i++) {
		u32 *data = &p[2 + 2 * i];

		switch (p[1 + 2 * i]) {
		case MAX_CHANNEL_GROUPS:
			*data = nvsim.channel_ids * (nvctx_is_turing() ? 1 : NVSIM_ENGINES);
			break;
		case PER_RUNLIST:
			*data = !nvctx_is_turing();
			break;
		case GROUPS_OF_ENGINE:
			*data = nvsim.channel_ids;
			break;
		default:
			return NV_ERR_INVALID_ARGUMENT;
		}
	}
	return NV_OK;
}
