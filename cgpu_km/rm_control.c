// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "backfs.h"
#include "calls.h"
#include "container.h"
#include "core/nv_abi.h"
#include "core_link.h"
#include "driver.h"
#include "gpu.h"
#include "interpose.h"
#include "rm_calls.h"
#include "rm_control.h"
#include "rm_export.h"
#include "seal.h"
#include "turn_thread.h"

/* A control on its way: its object is held until the end. */
struct control {
	struct ckm_rm_call *rc;
	struct cgpu_control row;	/* a copy: the core may be replaced meanwhile */
	struct ckm_container *ct;
	struct cgpu_obj *obj;
	struct ckm_slot *slot;		/* of the object's GPU; NULL above the device */
	u64 user;			/* params in the tenant's memory */
	u32 size;
	u32 changes;			/* of what it enables, when it began */
	bool enables;
};

static u8 *params_of(struct control *c)
{
	return c->rc->call->nested.copy;
}

/* Our answer in the parameters, then the struct. */
static long answer_params(struct control *c, u32 status)
{
	if (status == NV_OK && c->size &&
	    copy_to_user((void __user *)c->user, params_of(c), c->size))
		status = NV_ERR_ADDRESS;
	return ckm_rm_answer(c->rc, status);
}

/* What is free of BAR1 says what the neighbours have mapped: all of it is. */
static u32 fb_index_asked(u32 index)
{
	return index == NV_FB_BAR1_AVAIL || index == NV_FB_BAR1_LARGEST_AVAIL ? NV_FB_BAR1_SIZE
									     : index;
}

/* Ask the driver for the real figures with kernel memory, then show the
 * slice's: a tenant never sees the card's, not even for a moment.
 */
static u32 slice_fb_info(struct control *c, u32 count, u8 *pairs)
{
	struct {
		u32 count;
		struct { u32 index, data; } list[NV_FB_INFO_MAX];
	} *fb;
	const struct cgpu_core_ops *core;
	u32 i, status, size = ckm_driver_fb_info_size();
	u64 limit, used;

	if (!c->slot || !size || size > sizeof(*fb))
		return NV_ERR_NOT_SUPPORTED;
	if (count > (size - NV_FB_INFO_LIST) / sizeof(fb->list[0]))
		return NV_ERR_ARGUMENT;
	fb = kzalloc(sizeof(*fb), GFP_KERNEL);
	if (!fb)
		return NV_ERR_RESOURCES;
	fb->count = count;
	for (i = 0; i < count; i++) {
		fb->list[i].index = fb_index_asked(get32(pairs, i * 8));
		fb->list[i].data = get32(pairs, i * 8 + 4);
	}
	status = ckm_rm_control(c->obj->hclient, c->obj->hobject,
				NV2080_CTRL_FB_GET_INFO_V2, fb, size);
	ckm_slot_limits(c->slot, &limit, &used);
	core = ckm_core_enter();
	for (i = 0; status == NV_OK && i < count; i++)
		put32(pairs, i * 8 + 4, core->call_fb_info(fb->list[i].index, fb->list[i].data,
							   limit, used));
	ckm_core_leave();
	kfree(fb);
	return status;
}

static long fb_info_v2(struct control *c)
{
	u8 *p = params_of(c);

	return answer_params(c, slice_fb_info(c, get32(p, 0), p + NV_FB_INFO_LIST));
}

/* The old form: a count and a pointer to the list. */
static long fb_info(struct control *c)
{
	u8 *p = params_of(c);
	u32 count = get32(p, 0), status;
	void __user *list = (void __user *)(uintptr_t)get64(p, 8);
	u8 *pairs;

	if (!count || count > NV_FB_INFO_MAX)
		return ckm_rm_answer(c->rc, NV_ERR_ARGUMENT);
	pairs = memdup_user(list, count * 8);
	if (IS_ERR(pairs))
		return ckm_rm_answer(c->rc, NV_ERR_ADDRESS);
	status = slice_fb_info(c, count, pairs);
	if (status == NV_OK && copy_to_user(list, pairs, count * 8))
		status = NV_ERR_ADDRESS;
	kfree(pairs);
	return ckm_rm_answer(c->rc, status);
}

/* Processes of a card are nobody's business: as documented, none is listed. */
static long no_pids(struct control *c)
{
	u8 *p = params_of(c);
	u32 i, count;

	if (c->row.cmd == NV2080_CTRL_GPU_GET_PIDS) {
		memset(p + 8, 0, c->size - 8);		/* after idType and id */
	} else {
		count = min_t(u32, get32(p, 0), 200);	/* list of 72-byte entries at 8 */
		for (i = 0; i < count; i++)
			memset(p + 8 + i * 72 + 16, 0, 56);	/* after pid, index, result */
	}
	return answer_params(c, NV_OK);
}

/* Whose channels the driver enables together: the TSG, or a channel that has none. */
static struct ckm_obj *group_locked(struct control *c)
{
	struct ckm_obj *obj = container_of(c->obj, struct ckm_obj, core);
	const struct cgpu_core_ops *core;
	struct cgpu_obj *tsg = NULL;

	lockdep_assert_held(&c->ct->rm_lock);
	core = ckm_core_enter();
	if (obj->htsg)
		tsg = core->tree_live(&c->ct->tree, c->obj->hclient, obj->htsg);
	ckm_core_leave();
	return tsg ? container_of(tsg, struct ckm_obj, core) : obj;
}

static void mark_scheduled(struct control *c)
{
	struct ckm_obj *obj = container_of(c->obj, struct ckm_obj, core);
	struct ckm_obj *group;

	mutex_lock(&c->ct->rm_lock);
	group = group_locked(c);
	c->obj->scheduled = true;
	group->core.scheduled = true;
	/* A channel that was made meanwhile the driver may not have seen. */
	if (c->enables && group->changes == c->changes)
		obj->enabled_at = group->changes + 1;
	mutex_unlock(&c->ct->rm_lock);
}

static void freeze_group(struct control *c)
{
	const struct ckm_obj *obj = container_of(c->obj, struct ckm_obj, core);

	ckm_turn_catch_up(c->slot, c->obj->hclient, obj->htsg ?: c->obj->hobject);
}

/* Where the driver has enabled the channel and its owner does not know yet. */
static void post_schedule(struct ckm_call *call, u8 *arg)
{
	struct control *c = call->post_data;

	if (get32(arg, NVOS54_STATUS) != NV_OK || !c->obj->gr || !c->slot)
		return;
	mark_scheduled(c);
	freeze_group(c);
	ckm_gpu_kick(c->slot->gpu);
}

/* Out of turn nothing may run between the driver's enabling it and our freezing it, and
 * nobody would be charged for what did: it is frozen before. Every freeze and thaw names
 * channels that are not enabled yet as well. That one which is disabled stays so when it
 * is enabled is how the simulator has it, and not verified on hardware: hence frozen
 * again afterwards. What is enabled already needs neither, nor the driver, and no call
 * of the levers: they would keep the next turn waiting as often as its owner likes.
 */
static long enable(struct control *c)
{
	const struct ckm_obj *obj = container_of(c->obj, struct ckm_obj, core);
	struct ckm_obj *group;
	bool is_enabled;

	c->rc->call->post = post_schedule;
	c->rc->call->post_data = c;
	if (!c->obj->gr || !c->slot)
		return ckm_rm_forward(c->rc);
	c->enables = params_of(c)[0];
	mutex_lock(&c->ct->rm_lock);
	group = group_locked(c);
	if (!c->enables)
		group->changes++;
	c->changes = group->changes;
	is_enabled = c->enables && obj->enabled_at == c->changes + 1;
	mutex_unlock(&c->ct->rm_lock);
	if (ckm_turn_is_frozen(c->slot)) {
		if (is_enabled)
			return answer_params(c, NV_OK);
		freeze_group(c);
	}
	return ckm_rm_forward(c->rc);
}

static long set_timeslice(struct control *c)
{
	if (c->obj->kind != CGPU_KIND_TSG)
		return ckm_rm_answer(c->rc, NV_ERR_ARGUMENT);
	mutex_lock(&c->ct->rm_lock);
	c->obj->timeslice_us = get64(params_of(c), 0);
	mutex_unlock(&c->ct->rm_lock);
	return ckm_rm_answer(c->rc, NV_OK);
}

static long get_timeslice(struct control *c)
{
	u64 us;

	mutex_lock(&c->ct->rm_lock);
	us = c->obj->timeslice_us;
	mutex_unlock(&c->ct->rm_lock);
	if (!us)	/* never set: the driver's own default */
		us = 1024;
	put64(params_of(c), 0, us);
	return answer_params(c, NV_OK);
}

/* Only the caller's own channels may be named, and then nothing happens:
 * who runs is not the tenant's to say.
 */
static long own_channels(struct control *c)
{
	const u8 *p = params_of(c);
	u32 count = get32(p, 4), i, client;
	struct cgpu_obj *obj;
	bool own;

	if (count > NV2080_DISABLE_CHANNELS_MAX || get64(p, 16))
		return ckm_rm_answer(c->rc, NV_ERR_ARGUMENT);
	for (i = 0; i < count; i++) {
		client = get32(p, 24 + i * 4);
		obj = ckm_tenant_hold(c->ct, client, get32(p, 280 + i * 4));
		own = obj && obj->kind == CGPU_KIND_CHANNEL &&
		      obj->owner == c->rc->call->back->id;
		ckm_tenant_unhold(c->ct, obj);
		if (!own) {
			ckm_refused(c->rc->call, "DISABLE_CHANNELS of a foreign client", client);
			return ckm_rm_answer(c->rc, NV_ERR_PERMISSIONS);
		}
	}
	return ckm_rm_answer(c->rc, NV_OK);
}

static long run(struct control *c)
{
	switch (c->row.verdict) {
	case CGPU_PASS:
		return ckm_rm_forward(c->rc);
	case CGPU_ANSWER_OK:
		return ckm_rm_answer(c->rc, NV_OK);
	case CGPU_FB_INFO:
		return fb_info(c);
	case CGPU_FB_INFO_V2:
		return fb_info_v2(c);
	case CGPU_NO_PIDS:
		return no_pids(c);
	case CGPU_SCHEDULE:
		return enable(c);
	case CGPU_SET_TIMESLICE:
		return set_timeslice(c);
	case CGPU_GET_TIMESLICE:
		return get_timeslice(c);
	case CGPU_OWN_CHANNELS:
		return own_channels(c);
	case CGPU_EXPORT:
		return ckm_rm_export(c->rc, c->row.cmd, c->obj->hclient);
	case CGPU_IMPORT:
		return ckm_rm_import(c->rc, c->row.cmd, c->obj->hclient);
	}
	return ckm_rm_answer(c->rc, NV_ERR_NOT_SUPPORTED);
}

static u32 find_object(struct control *c, u32 client, u32 object)
{
	struct ckm_back *back = c->rc->call->back;

	c->obj = ckm_tenant_hold(c->ct, client, object);
	if (!c->obj)
		return NV_ERR_NOT_FOUND;
	/* As the driver has it: a client is the file's that made it. */
	if (c->obj->owner != back->id)
		return NV_ERR_CLIENT;
	if (c->obj->gpu != CGPU_NO_GPU)
		c->slot = ckm_container_slot_of(c->ct, c->obj->gpu);
	return NV_OK;
}

long ckm_rm_run_control(struct ckm_rm_call *rc)
{
	const u8 *top = rc->call->top;
	struct control c = {
		.rc = rc,
		.ct = rc->call->back->ct,
		.user = get64(top, NVOS54_PARAMS),
	};
	const struct cgpu_core_ops *core = ckm_core_enter();
	const struct cgpu_control *row;
	u32 cmd = get32(top, NVOS54_CMD), status;
	long ret;

	row = core->call_control(ckm_driver_branch(), cmd);
	if (row)
		c.row = *row;
	ckm_core_leave();
	if (c.row.verdict == CGPU_REFUSE) {
		ckm_refused(rc->call, "control", cmd);
		return ckm_rm_answer(rc, NV_ERR_NOT_SUPPORTED);
	}
	/* What imports, and what asks about it first. */
	rc->call->shares = c.row.verdict == CGPU_IMPORT ||
			   cmd == NV0000_CTRL_GET_EXPORT_OBJECT_INFO;
	/* Nothing of ours hangs on what only passes: it need not hold its object. */
	if (c.row.verdict == CGPU_PASS && !c.row.sealed &&
	    ckm_tenant_owns(rc->call->back, get32(top, NVOS_H_ROOT), get32(top, NVOS54_H_OBJECT)))
		return ckm_rm_forward(rc);
	status = find_object(&c, get32(top, NVOS_H_ROOT), get32(top, NVOS54_H_OBJECT));
	if (status == NV_OK && c.row.sealed) {
		c.size = get32(top, NVOS54_PARAMS_SIZE);
		status = c.size == c.row.params_size ? ckm_seal_params(rc->call, c.user, c.size)
						      : NV_ERR_ARGUMENT;
	}
	ret = status == NV_OK ? run(&c) : ckm_rm_answer(rc, status);
	ckm_tenant_unhold(c.ct, c.obj);
	return ret;
}
