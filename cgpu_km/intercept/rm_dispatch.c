// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Calls the handler of an RM call's verdict. Takes no lock. */
#include "call.h"
#include "core/nv_abi.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc.h"
#include "intercept/rm_alloc_memory.h"
#include "intercept/rm_call.h"
#include "intercept/rm_control.h"
#include "intercept/rm_dispatch.h"
#include "intercept/rm_dup.h"
#include "intercept/rm_free.h"
#include "intercept/rm_map.h"
#include "intercept/rm_map_dma.h"
#include "intercept/rm_os_event.h"
#include "intercept/rm_vid_heap.h"
#include "state/container.h"

/* The driver binds a client that is made on a registered file to the control file, and
 * keeps it as long as that. We track a client under the file on which it was made, so a
 * registered file may have no clients. Set the mark before forwarding, and keep it
 * whatever the driver returns: the registration may have taken effect.
 */
static long pass(struct ckm_rm_call *rc)
{
	if (rc->row.nr == NV_ESC_REGISTER_FD)
		WRITE_ONCE(rc->call->backing->registered, true);
	return ckm_rm_forward(rc);
}

/* The driver keeps the GPUs initialised as long as the file is open, by ids that it reads from the
 * tenant's memory. The module keeps those of its containers itself.
 */
static long keep_gpus(struct ckm_rm_call *rc)
{
	struct ckm_backing *backing = rc->call->backing;
	u32 size = rc->call->size, at, id;

	if (!size || size % sizeof(id))
		return -EINVAL;
	for (at = 0; at < size; at += sizeof(id)) {
		id = get32(rc->call->top, at);
		if (id && !ckm_container_has_gpu_id(backing->ct, id)) {
			ckm_call_denied(rc->call, "another container's GPU, id", id);
			return -EINVAL;
		}
	}
	return xchg(&backing->keeps_gpus, true) ? -EINVAL : 0;	/* once, as in the driver */
}

static long answer_ok(struct ckm_rm_call *rc)
{
	return ckm_rm_answer(rc, NV_OK);
}

static long (*const handlers[])(struct ckm_rm_call *rc) = {
	[CGPU_PASS]		= pass,
	[CGPU_ANSWER_OK]	= answer_ok,
	[CGPU_KEEP_GPUS]	= keep_gpus,
	[CGPU_ALLOC]		= ckm_rm_run_alloc,
	[CGPU_ALLOC_MEMORY]	= ckm_rm_run_alloc_memory,
	[CGPU_FREE]		= ckm_rm_run_free,
	[CGPU_CONTROL]		= ckm_rm_run_control,
	[CGPU_DUP]		= ckm_rm_run_dup,
	[CGPU_MAP]		= ckm_rm_map_memory,
	[CGPU_UNMAP]		= ckm_rm_unmap_memory,
	[CGPU_RENAME_MAP]	= ckm_rm_rename_map,
	[CGPU_SHARE]		= ckm_rm_run_share,
	[CGPU_MAP_DMA]		= ckm_rm_run_map_dma,
	[CGPU_UNMAP_DMA]	= ckm_rm_run_unmap_dma,
	[CGPU_VID_HEAP]		= ckm_rm_run_vid_heap,
	[CGPU_OS_EVENT]		= ckm_rm_run_os_event,
	[CGPU_DMABUF]		= ckm_rm_forward,	/* checked and charged in dmabuf.c */
};

long ckm_rm_dispatch(struct ckm_rm_call *rc)
{
	u32 verdict = rc->row.verdict;

	if (verdict < ARRAY_SIZE(handlers) && handlers[verdict])
		return handlers[verdict](rc);
	ckm_call_denied(rc->call, "escape", rc->row.nr);
	return ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
}
