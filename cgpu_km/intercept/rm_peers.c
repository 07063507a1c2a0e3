// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Checks which GPUs a container makes peers, and answers which can be. Takes rm_lock. */
#include <linux/string.h>

#include "call.h"
#include "core/nv_struct.h"
#include "core_ref.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_alloc_check.h"
#include "intercept/rm_call.h"
#include "intercept/rm_peers.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/rm_object.h"

static void say_mixed(struct ckm_container *ct)
{
	ckm_say(ct, "GPUs of different architectures are no peers: copies between them go through host memory\n");
}

u32 ckm_peers_answer(struct ckm_container *ct, u32 cmd, const u8 *params, u32 size)
{
	struct cgpu_peer_gpu own[CGPU_MAX_GPUS];
	u32 i, answer;

	for (i = 0; i < ct->slot_count; i++) {
		own[i].gpu_id = ct->slot[i].gpu->desc.gpu_id;
		own[i].arch = ct->slot[i].gpu->arch;
	}
	answer = ckm_core_call(nv.peers(cmd, params, size, own, ct->slot_count));
	if (answer == CGPU_PEERS_MIXED)
		say_mixed(ct);
	return answer;
}

static u32 hold_subdevice(struct ckm_alloc *a, u32 n, u32 handle)
{
	struct cgpu_obj *obj = ckm_obj_pin(a->rc->call->backing->ct, a->obj->core.hclient, handle);

	a->held[n] = obj;
	if (!obj || obj->kind != CGPU_KIND_SUBDEVICE) {
		ckm_call_denied(a->rc->call, "peer that is no subdevice of its client, handle", handle);
		return NV_ERR_INVALID_ARGUMENT;
	}
	a->obj->core.deps[n].on = obj;
	return NV_OK;
}

static u32 check_pair(struct ckm_alloc *a)
{
	struct ckm_container *ct = a->rc->call->backing->ct;
	const struct ckm_slot *one = ckm_container_slot_of(ct, a->held[0]->gpu);
	const struct ckm_slot *other = ckm_container_slot_of(ct, a->held[1]->gpu);

	if (!one || !other || one == other) {
		ckm_call_denied(a->rc->call, "a GPU as its own peer, handle", a->held[0]->hobject);
		return NV_ERR_NOT_SUPPORTED;
	}
	if (one->gpu->arch && one->gpu->arch == other->gpu->arch)
		return NV_OK;
	say_mixed(ct);
	return NV_ERR_NOT_SUPPORTED;
}

/* Numbers of peers are a few for each card, one for each other card: a tenant's choice could take another
 * pair's. Mailboxes have physical addresses; RM allocates them itself, and takes a client's only if the
 * node's administrator set it so (RmP2PMailboxClientAllocated), for which 0 is no address. Peers by system
 * addresses (NV503B_FLAGS_P2P_TYPE_SPA) are those of Grace, whose memory is refused.
 */
u32 ckm_peers_check(struct ckm_alloc *a)
{
	u8 *p = a->rc->call->nested.copy;
	u32 status;

	if (!p || a->parent->kind != CGPU_KIND_CLIENT)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (get32(p, AT(nv_peers_params, flags))) {
		ckm_call_denied(a->rc->call, "peers with flags", get32(p, AT(nv_peers_params, flags)));
		return NV_ERR_NOT_SUPPORTED;
	}
	if (!ckm_obj_alloc_deps(a->obj))
		return NV_ERR_INSUFFICIENT_RESOURCES;
	status = hold_subdevice(a, 0, get32(p, AT(nv_peers_params, hSubDevice)));
	if (status == NV_OK)
		status = hold_subdevice(a, 1, get32(p, AT(nv_peers_params, hPeerSubDevice)));
	if (status == NV_OK)
		status = check_pair(a);
	memset(p + AT(nv_peers_params, subDevicePeerIdMask), 0,
	       AT(nv_peers_params, l2pBar1P2PDmaInfo) - AT(nv_peers_params, subDevicePeerIdMask));
	return status;
}
