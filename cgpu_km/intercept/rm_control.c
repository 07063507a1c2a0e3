// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Calls the handler of an RM control's verdict. Takes rm_lock. */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "call.h"
#include "core/nv_struct.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_control.h"
#include "intercept/rm_export.h"
#include "intercept/rm_peers.h"
#include "intercept/rm_shared.h"
#include "sched/sched_thread.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/quota.h"
#include "state/rm_object.h"
#include "state/slot.h"

/* One control; its object is pinned until the end. */
struct control {
	struct ckm_rm_call *rc;
	struct cgpu_control row;	/* a copy: the core may be replaced meanwhile */
	struct ckm_container *ct;
	struct cgpu_obj *obj;
	struct ckm_slot *slot;		/* of the object's GPU; NULL above the device */
	u64 user;			/* user address of the parameters */
	u32 size;
	u32 changes;			/* of the object's group, at the start */
};

static u8 *params_of(struct control *c)
{
	return c->rc->call->nested.copy;
}

/* Copy our answer out: the parameters, then the struct. */
static long answer_params(struct control *c, u32 status)
{
	if (status == NV_OK && c->size &&
	    copy_to_user((void __user *)c->user, params_of(c), c->size))
		status = NV_ERR_INVALID_ADDRESS;
	return ckm_rm_answer(c->rc, status);
}

/* Read the real figures with kernel memory and copy the slice's figures out: the card's
 * must not reach user memory even for a moment.
 */
static u32 slice_fb_info(struct control *c, u32 count, u8 *pairs)
{
	struct nv_fb_info_v2 *fb;
	const struct cgpu_core_ops *core;
	u32 i, status, size = ckm_driver_fb_info_size();
	struct cgpu_quota_view bar1;
	u64 limit, used, mapped, free;

	if (!c->slot || !size || size > sizeof(*fb))
		return NV_ERR_NOT_SUPPORTED;
	if (count > (size - AT(nv_fb_info_v2, fbInfoList)) / sizeof(fb->fbInfoList[0]))
		return NV_ERR_INVALID_ARGUMENT;
	fb = kzalloc(sizeof(*fb), GFP_KERNEL);
	if (!fb)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	fb->fbInfoListSize = count;
	for (i = 0; i < count; i++) {
		fb->fbInfoList[i].index = get32(pairs, i * 8);
		fb->fbInfoList[i].data = get32(pairs, i * 8 + 4);
	}
	status = ckm_drv_control(c->obj->hclient, c->obj->hobject,
				 NV2080_CTRL_CMD_FB_GET_INFO_V2, fb, size);
	ckm_slot_limits(c->slot, &limit, &used);
	mapped = ckm_quota_view(c->slot, CGPU_QUOTA_BAR1, &bar1);
	/* Only the container's own mappings count as used: a lower value would show
	 * what the other containers map.
	 */
	free = bar1.total > mapped ? bar1.total - mapped : 0;
	core = ckm_core_enter();
	for (i = 0; status == NV_OK && i < count; i++)
		put32(pairs, i * 8 + 4, core->nv.fb_info(fb->fbInfoList[i].index, fb->fbInfoList[i].data,
							 limit, used, mapped, free));
	ckm_core_leave();
	kfree(fb);
	return status;
}

static long fb_info_v2(struct control *c)
{
	u8 *p = params_of(c);

	return answer_params(c, slice_fb_info(c, get32(p, 0), p + AT(nv_fb_info_v2, fbInfoList)));
}

/* The older form: a count and a pointer to the list. */
static long fb_info(struct control *c)
{
	u8 *p = params_of(c);
	u32 count = get32(p, 0), status;
	void __user *list = (void __user *)(uintptr_t)get64(p, AT(nv_fb_info, fbInfoList));
	u8 *pairs;

	if (!count || count > NV_FB_INFO_MAX)
		return ckm_rm_answer(c->rc, NV_ERR_INVALID_ARGUMENT);
	pairs = memdup_user(list, count * 8);
	if (IS_ERR(pairs))
		return ckm_rm_answer(c->rc, PTR_ERR(pairs) == -ENOMEM ? NV_ERR_INSUFFICIENT_RESOURCES
								      : NV_ERR_INVALID_ADDRESS);
	status = slice_fb_info(c, count, pairs);
	if (status == NV_OK && copy_to_user(list, pairs, count * 8))
		status = NV_ERR_INVALID_ADDRESS;
	kfree(pairs);
	return ckm_rm_answer(c->rc, status);
}

/* Processes of other containers must not be visible: as documented, none is listed. */
static long no_pids(struct control *c)
{
	u8 *p = params_of(c);
	u32 i, count;

	if (c->row.cmd == NV2080_CTRL_CMD_GPU_GET_PIDS) {
		memset(p + AT(nv_pids, pidTblCount), 0, c->size - AT(nv_pids, pidTblCount));
	} else {
		count = min_t(u32, get32(p, 0), NV2080_CTRL_GPU_GET_PID_INFO_MAX_COUNT);
		for (i = 0; i < count; i++)
			memset(p + AT(nv_pids_info, pidInfoList[i].data), 0,
			       sizeof(struct nv_pid_info) - AT(nv_pid_info, data));
	}
	return answer_params(c, NV_OK);
}

static struct ckm_group *group_of(const struct control *c)
{
	return container_of(c->obj, struct ckm_obj, core)->group;
}

static void mark_scheduled(struct control *c)
{
	struct ckm_group *group = group_of(c);

	mutex_lock(&c->ct->rm_lock);
	WRITE_ONCE(group->scheduled, true);
	/* A channel that was made meanwhile changes the count: the driver may not have
	 * seen it.
	 */
	if (group->changes == c->changes)
		container_of(c->obj, struct ckm_obj, core)->enabled_at = group->changes + 1;
	mutex_unlock(&c->ct->rm_lock);
}

/* Runs after the driver enabled the channels and before the tenant sees the result. */
static void post_schedule(struct ckm_call *call, u8 *arg)
{
	struct control *c = call->post_data;

	if (get32(arg, AT(nvos54, status)) != NV_OK || !c->obj->engine || !c->slot)
		return;
	mark_scheduled(c);
	ckm_sched_freeze_group(c->slot, group_of(c));
	ckm_gpu_kick(c->slot->gpu);
}

/* If the container is not scheduled, freeze the channel before forwarding, otherwise it
 * could run unaccounted between the driver's enable and our freeze. Each freeze and
 * thaw also names channels that are not enabled yet. That a disabled channel stays
 * disabled when it is enabled is the simulator's behaviour, not verified on hardware:
 * freeze it again afterwards. A channel that is enabled already needs neither. Answer
 * that call without the driver and without a freeze, which would delay the next slice
 * as often as the tenant repeats the call. A disable is answered: after it an enable would
 * have to reach the driver, out of turn too, and as often as the tenant repeats both. The
 * call is made whole, since half an enable would be taken for one.
 */
static long enable(struct control *c)
{
	const struct ckm_obj *obj = container_of(c->obj, struct ckm_obj, core);
	struct ckm_group *group = obj->group;
	bool is_enabled;

	c->rc->call->post = post_schedule;
	c->rc->call->post_data = c;
	if (!c->obj->engine || !c->slot)
		return ckm_rm_forward(c->rc);
	if (!params_of(c)[0])
		return answer_params(c, NV_OK);
	memset(params_of(c) + AT(nv_schedule, bSkipSubmit), 0, c->size - AT(nv_schedule, bSkipSubmit));
	mutex_lock(&c->ct->rm_lock);
	c->changes = group->changes;
	is_enabled = obj->enabled_at == c->changes + 1;
	mutex_unlock(&c->ct->rm_lock);
	if (ckm_sched_is_frozen(c->slot)) {
		if (is_enabled)
			return answer_params(c, NV_OK);
		ckm_sched_freeze_group(c->slot, group);
	}
	return ckm_rm_forward(c->rc);
}

static long set_timeslice(struct control *c)
{
	if (c->obj->kind != CGPU_KIND_TSG)
		return ckm_rm_answer(c->rc, NV_ERR_INVALID_ARGUMENT);
	mutex_lock(&c->ct->rm_lock);
	group_of(c)->timeslice_us = get64(params_of(c), 0);
	mutex_unlock(&c->ct->rm_lock);
	return ckm_rm_answer(c->rc, NV_OK);
}

static long get_timeslice(struct control *c)
{
	u64 us;

	if (c->obj->kind != CGPU_KIND_TSG)
		return ckm_rm_answer(c->rc, NV_ERR_INVALID_ARGUMENT);
	mutex_lock(&c->ct->rm_lock);
	us = group_of(c)->timeslice_us;
	mutex_unlock(&c->ct->rm_lock);
	if (!us)	/* never set: the driver's own default */
		us = 1024;
	put64(params_of(c), 0, us);
	return answer_params(c, NV_OK);
}

/* The caller may name its own channels only, and the control has no effect: the
 * scheduler alone decides what runs.
 */
static long own_channels(struct control *c)
{
	const u8 *p = params_of(c);
	u32 count = get32(p, AT(nv_disable_channels, numChannels)), i, client;
	struct cgpu_obj *obj;
	bool own;

	if (count > NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES ||
	    get64(p, AT(nv_disable_channels, pRunlistPreemptEvent)))
		return ckm_rm_answer(c->rc, NV_ERR_INVALID_ARGUMENT);
	for (i = 0; i < count; i++) {
		client = get32(p, AT(nv_disable_channels, hClientList) + i * 4);
		obj = ckm_obj_pin(c->ct, client, get32(p, AT(nv_disable_channels, hChannelList) + i * 4));
		own = obj && obj->kind == CGPU_KIND_CHANNEL &&
		      obj->owner == c->rc->call->backing->id;
		ckm_obj_unpin(c->ct, obj);
		if (!own) {
			ckm_call_denied(c->rc->call, "DISABLE_CHANNELS of a foreign client",
					client);
			return ckm_rm_answer(c->rc, NV_ERR_INSUFFICIENT_PERMISSIONS);
		}
	}
	return ckm_rm_answer(c->rc, NV_OK);
}

/* Report no peer, no NVLink and no fabric: the object that a program would make next is refused. */
static long not_there(struct control *c)
{
	bool known = ckm_core_call(nv.not_there(c->row.cmd, params_of(c), c->size));

	return answer_params(c, known ? NV_OK : NV_ERR_NOT_SUPPORTED);
}

static long peers(struct control *c)
{
	switch (ckm_peers_answer(c->ct, c->row.cmd, params_of(c), c->size)) {
	case CGPU_PEERS_DRIVER:
		return ckm_rm_forward(c->rc);
	case CGPU_PEERS_OK:
		return answer_params(c, NV_OK);
	case CGPU_PEERS_FOREIGN:
		ckm_call_denied(c->rc->call, "GPU of another container as a peer, control", c->row.cmd);
		return ckm_rm_answer(c->rc, NV_ERR_INVALID_ARGUMENT);
	default:
		return not_there(c);
	}
}

static long share_policy(struct control *c)
{
	bool stays = ckm_core_call(nv.share_stays(get32(params_of(c), AT(nv_share_policy, type)) & 0xffff));

	return stays ? ckm_rm_forward(c->rc) : ckm_rm_answer(c->rc, NV_OK);
}

static long read_thermal(struct control *c)
{
	if (ckm_core_call(nv.thermal_reads(params_of(c), c->size)))
		return ckm_rm_forward(c->rc);
	ckm_call_denied(c->rc->call, "thermal instruction in control", c->row.cmd);
	return ckm_rm_answer(c->rc, NV_ERR_NOT_SUPPORTED);
}

/* Only for a channel or TSG of the caller: the driver looks the handle up in the same
 * client.
 */
static long force_cilp(struct control *c)
{
	struct cgpu_obj *obj = ckm_obj_pin(c->ct, c->obj->hclient,
					   get32(params_of(c), AT(nv_ctxsw_mode, hChannel)));
	long ret;

	if (obj && (obj->kind == CGPU_KIND_TSG || obj->kind == CGPU_KIND_CHANNEL)) {
		ckm_core_call(nv.force_cilp(params_of(c)));
		ret = ckm_rm_forward(c->rc);
	} else {
		ret = ckm_rm_answer(c->rc, NV_ERR_OBJECT_NOT_FOUND);
	}
	ckm_obj_unpin(c->ct, obj);
	return ret;
}

static long addr_space(struct control *c)
{
	u8 *p = params_of(c);

	if (!ckm_shared_is(c->ct, c->obj->hclient, get32(p, AT(nv_addr_space, hObject))))
		return ckm_rm_forward(c->rc);
	put32(p, AT(nv_addr_space, addrSpaceType), NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE_SYSMEM);
	return answer_params(c, NV_OK);
}

static long gpu_id(struct control *c)
{
	if (ckm_container_has_gpu_id(c->ct, get32(params_of(c), 0)))
		return ckm_rm_forward(c->rc);
	ckm_call_denied(c->rc->call, "another container's GPU, control", c->row.cmd);
	return ckm_rm_answer(c->rc, NV_ERR_INVALID_ARGUMENT);
}

/* Turing's driver puts a channel on the runlist of the first engine that it is bound to, and from Ampere on it
 * writes that of the call into the TSG before it fails: the engine must be of the runlist that the object is
 * scheduled by.
 */
static long bind(struct control *c)
{
	const struct ckm_group *group = container_of(c->obj, struct ckm_obj, core)->group;
	u64 copies = c->slot ? c->slot->gpu->async_copies : 0;
	const struct cgpu_core_ops *core = ckm_core_enter();
	u32 type = get32(params_of(c), 0), branch = ckm_driver_branch();
	bool same = group ? type == group->type ||
			    (group->on_graphics && core->nv.on_graphics(branch, type, copies)) :
		    core->nv.engine(branch, type, copies) == CGPU_ENGINE_OTHER;

	ckm_core_leave();
	if (c->slot && same)
		return ckm_rm_forward(c->rc);
	ckm_call_denied(c->rc->call, "channel bound to another runlist, engine", type);
	return ckm_rm_answer(c->rc, NV_ERR_INVALID_STATE);
}

static long forward(struct control *c)
{
	return ckm_rm_forward(c->rc);
}

static long answer_ok(struct control *c)
{
	return ckm_rm_answer(c->rc, NV_OK);
}

static long export(struct control *c)
{
	return ckm_rm_export(c->rc, c->row.cmd, c->obj->hclient);
}

static long import(struct control *c)
{
	return ckm_rm_import(c->rc, c->row.cmd, c->obj->hclient);
}

static long (*const handlers[])(struct control *c) = {
	[CGPU_PASS]		= forward,
	[CGPU_ANSWER_OK]	= answer_ok,
	[CGPU_FB_INFO]		= fb_info,
	[CGPU_FB_INFO_V2]	= fb_info_v2,
	[CGPU_NO_PIDS]		= no_pids,
	[CGPU_SCHEDULE]		= enable,
	[CGPU_SET_TIMESLICE]	= set_timeslice,
	[CGPU_GET_TIMESLICE]	= get_timeslice,
	[CGPU_OWN_CHANNELS]	= own_channels,
	[CGPU_EXPORT]		= export,
	[CGPU_IMPORT]		= import,
	[CGPU_NOT_THERE]	= not_there,
	[CGPU_SHARE_POLICY]	= share_policy,
	[CGPU_READ_THERMAL]	= read_thermal,
	[CGPU_FORCE_CILP]	= force_cilp,
	[CGPU_ADDR_SPACE]	= addr_space,
	[CGPU_GPU_ID]		= gpu_id,
	[CGPU_PEERS]		= peers,
	[CGPU_BIND]		= bind,
};

static long run(struct control *c)
{
	u32 verdict = c->row.verdict;

	if (verdict < ARRAY_SIZE(handlers) && handlers[verdict])
		return handlers[verdict](c);
	return ckm_rm_answer(c->rc, NV_ERR_NOT_SUPPORTED);
}

static u32 find_object(struct control *c, u32 client, u32 object)
{
	struct ckm_backing *backing = c->rc->call->backing;

	c->obj = ckm_obj_pin(c->ct, client, object);
	if (!c->obj)
		return NV_ERR_OBJECT_NOT_FOUND;
	/* As in the driver: a client belongs to the file on which it was made. */
	if (c->obj->owner != backing->id)
		return NV_ERR_INVALID_CLIENT;
	if (c->obj->gpu != CGPU_NO_GPU)
		c->slot = ckm_container_slot_of(c->ct, c->obj->gpu);
	return NV_OK;
}

long ckm_rm_run_control(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;
	struct control c = {
		.rc = rc,
		.ct = rc->call->backing->ct,
		.user = get64(top, AT(nvos54, params)),
	};
	const struct cgpu_core_ops *core = ckm_core_enter();
	const struct cgpu_control *row;
	u32 cmd = get32(top, AT(nvos54, cmd)), status;
	long ret;

	row = core->nv.control(ckm_driver_branch(), cmd);
	if (row)
		c.row = *row;
	ckm_core_leave();
	if (c.row.verdict == CGPU_REFUSE) {
		ckm_call_denied(rc->call, "control", cmd);
		return ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
	}
	/* With FINN_SERIALIZED the parameters are in another form than that of the row; the others are the kernel's. */
	if (get32(top, AT(nvos54, flags))) {
		ckm_call_denied(rc->call, "flags of a control", get32(top, AT(nvos54, flags)));
		return ckm_rm_answer(rc, NV_ERR_INVALID_ARGUMENT);
	}
	/* Imports, and the query before an import, may name a file of a container with
	 * the same IPC name.
	 */
	rc->call->shares = c.row.verdict == CGPU_IMPORT ||
			   cmd == NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO;
	/* Nothing of ours depends on a control that only passes: check its owner
	 * without pinning the object.
	 */
	if (c.row.verdict == CGPU_PASS && !c.row.copied_in &&
	    ckm_obj_is_owned(rc->call->backing->ct, rc->call->backing->id, get32(top, NVOS_H_ROOT),
			     get32(top, AT(nvos54, hObject))))
		return ckm_rm_forward(rc);
	status = find_object(&c, get32(top, NVOS_H_ROOT), get32(top, AT(nvos54, hObject)));
	if (status == NV_OK && c.row.copied_in) {
		c.size = get32(top, AT(nvos54, paramsSize));
		status = c.size == c.row.params_size ? ckm_copy_in_params(rc->call, c.user, c.size)
						      : NV_ERR_INVALID_ARGUMENT;
	}
	ret = status == NV_OK ? run(&c) : ckm_rm_answer(rc, status);
	ckm_obj_unpin(c.ct, c.obj);
	return ret;
}
