// SPDX-License-Identifier: MIT OR GPL-2.0
#include <net/genetlink.h>

#include "compat.h"
#include "container.h"
#include "core_link.h"
#include "gpu.h"
#include "netlink.h"

static struct genl_family family;

static const struct nla_policy policy[CGPU_A_GPU + 1] = {
	[CGPU_A_ID]	= { .type = NLA_NUL_STRING, .len = CGPU_ID_MAX },
	[CGPU_A_COOKIE]	= { .type = NLA_U64 },
	[CGPU_A_SLOTS]	= { .type = NLA_NESTED },
};

static const struct nla_policy slot_policy[CGPU_S_HIGHPRIO + 1] = {
	[CGPU_S_GPU]		= { .type = NLA_U32 },
	[CGPU_S_LIMIT]		= { .type = NLA_U64 },
	[CGPU_S_WEIGHT]		= { .type = NLA_U32 },
	[CGPU_S_HIGHPRIO]	= { .type = NLA_U8 },
};

static int put_slot(struct sk_buff *skb, struct ckm_slot *slot)
{
	const struct cgpu_core_ops *core;
	struct nlattr *nest = nla_nest_start(skb, CGPU_A_SLOT);
	u32 weight = 0, highprio = 0;
	u64 limit, used;

	if (!nest)
		return -EMSGSIZE;
	ckm_slot_limits(slot, &limit, &used);
	mutex_lock(&slot->gpu->lock);
	core = ckm_core_enter();
	if (core) {
		weight = slot->gpu->turn->slot[slot->turn_slot].weight;
		highprio = slot->gpu->turn->slot[slot->turn_slot].highprio;
		ckm_core_leave();
	}
	mutex_unlock(&slot->gpu->lock);
	if (nla_put_u32(skb, CGPU_S_GPU, slot->gpu->index) ||
	    nla_put_u32(skb, CGPU_S_MINOR, slot->minor) ||
	    nla_put_u32(skb, CGPU_S_NV_MINOR, slot->gpu->desc.nv_minor) ||
	    nla_put_u64_64bit(skb, CGPU_S_LIMIT, limit, CGPU_S_PAD) ||
	    nla_put_u64_64bit(skb, CGPU_S_USED, used, CGPU_S_PAD) ||
	    nla_put_u32(skb, CGPU_S_WEIGHT, weight) ||
	    nla_put_u8(skb, CGPU_S_HIGHPRIO, highprio))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

static int put_container(struct sk_buff *skb, struct ckm_container *ct)
{
	struct nlattr *nest;
	u32 i;

	if (nla_put_string(skb, CGPU_A_ID, ct->id) ||
	    nla_put_u64_64bit(skb, CGPU_A_COOKIE, ct->cookie, CGPU_A_PAD) ||
	    nla_put_string(skb, CGPU_A_DIR, ct->dir) ||
	    nla_put_u32(skb, CGPU_A_MAJOR, ckm_major()) ||
	    nla_put_u32(skb, CGPU_A_CTL_MINOR, ct->ctl_minor) ||
	    nla_put_u32(skb, CGPU_A_UVM_MINOR, ct->uvm_minor) ||
	    nla_put_u8(skb, CGPU_A_STATE, ct->dying))
		return -EMSGSIZE;
	nest = nla_nest_start(skb, CGPU_A_SLOTS);
	if (!nest)
		return -EMSGSIZE;
	for (i = 0; i < ct->slot_count; i++)
		if (put_slot(skb, &ct->slot[i]))
			return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

void ckm_netlink_event(struct ckm_container *ct, u32 event)
{
	struct sk_buff *skb = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	void *head;

	if (!skb)
		return;
	head = genlmsg_put(skb, 0, 0, &family, 0, CGPU_CMD_EVENT);
	if (!head || nla_put_u32(skb, CGPU_A_EVENT, event) || put_container(skb, ct)) {
		nlmsg_free(skb);
		return;
	}
	genlmsg_end(skb, head);
	genlmsg_multicast(&family, skb, 0, 0, GFP_KERNEL);
}

/* ---- commands ---- */

static const char *get_id(struct genl_info *info)
{
	struct nlattr *attr = info->attrs[CGPU_A_ID];

	if (!attr || !nla_len(attr)) {
		GENL_SET_ERR_MSG(info, "an id is needed");
		return NULL;
	}
	return nla_data(attr);
}

static u64 get_cookie(struct genl_info *info)
{
	return info->attrs[CGPU_A_COOKIE] ? nla_get_u64(info->attrs[CGPU_A_COOKIE]) : 0;
}

static int parse_slot(struct nlattr *attr, struct nlattr **tb, struct genl_info *info)
{
	int ret;

	if (nla_type(attr) != CGPU_A_SLOT) {
		GENL_SET_ERR_MSG(info, "SLOTS holds SLOT nests only");
		return -EINVAL;
	}
	ret = nla_parse_nested(tb, CGPU_S_HIGHPRIO, attr, slot_policy, info->extack);
	if (!ret && !tb[CGPU_S_GPU]) {
		GENL_SET_ERR_MSG(info, "a slot needs its GPU");
		ret = -EINVAL;
	}
	return ret;
}

static int parse_create(struct genl_info *info, struct ckm_create *req)
{
	struct nlattr *tb[CGPU_S_HIGHPRIO + 1], *attr;
	struct ckm_slot_request *slot;
	int rem, ret;

	req->id = get_id(info);
	if (!req->id)
		return -EINVAL;
	req->cookie = get_cookie(info);
	if (!info->attrs[CGPU_A_SLOTS]) {
		GENL_SET_ERR_MSG(info, "slots are needed");
		return -EINVAL;
	}
	nla_for_each_nested(attr, info->attrs[CGPU_A_SLOTS], rem) {
		ret = parse_slot(attr, tb, info);
		if (ret)
			return ret;
		if (req->slots == CGPU_MAX_GPUS)
			return -EINVAL;
		slot = &req->slot[req->slots++];
		slot->gpu = nla_get_u32(tb[CGPU_S_GPU]);
		slot->limit_bytes = tb[CGPU_S_LIMIT] ? nla_get_u64(tb[CGPU_S_LIMIT]) : 0;
		slot->weight = tb[CGPU_S_WEIGHT] ? nla_get_u32(tb[CGPU_S_WEIGHT]) : 1;
		slot->highprio = tb[CGPU_S_HIGHPRIO] ? nla_get_u8(tb[CGPU_S_HIGHPRIO]) : 0;
	}
	return 0;
}

static int reply_container(struct genl_info *info, struct ckm_container *ct)
{
	struct sk_buff *skb = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	void *head;

	if (!skb)
		return -ENOMEM;
	head = genlmsg_put_reply(skb, info, &family, 0, CGPU_CMD_CREATE);
	if (!head || put_container(skb, ct)) {
		nlmsg_free(skb);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, head);
	return genlmsg_reply(skb, info);
}

static int cmd_create(struct sk_buff *skb, struct genl_info *info)
{
	struct ckm_create *req = kzalloc(sizeof(*req), GFP_KERNEL);
	struct ckm_container *ct;
	const char *why = NULL;
	int ret;

	if (!req)
		return -ENOMEM;
	ret = parse_create(info, req);
	if (ret)
		goto out;
	mutex_lock(&ckm_lock);
	ct = ckm_container_create(req, &why);
	if (IS_ERR(ct)) {
		ret = PTR_ERR(ct);
		if (info->extack && why)
			info->extack->_msg = why;
	} else {
		ret = reply_container(info, ct);
		if (ret)	/* the asker would not know its minors */
			ckm_container_destroy(req->id, ct->cookie);
	}
	mutex_unlock(&ckm_lock);
out:
	kfree(req);
	return ret;
}

static int cmd_destroy(struct sk_buff *skb, struct genl_info *info)
{
	const char *id = get_id(info);
	int ret;

	if (!id)
		return -EINVAL;
	mutex_lock(&ckm_lock);
	ret = ckm_container_destroy(id, get_cookie(info));
	mutex_unlock(&ckm_lock);
	return ret;
}

/* One value of one slot; all of them are tried on the live state in order, and
 * the first that does not fit ends the command with the earlier ones in force.
 */
static int set_slot(struct ckm_slot *slot, struct nlattr **tb)
{
	struct ckm_gpu *gpu = slot->gpu;
	const struct cgpu_core_ops *core;
	u64 now = ktime_get_ns();
	int ret = 0;

	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	if (!core)
		ret = -ENODEV;
	if (!ret && tb[CGPU_S_WEIGHT])
		ret = core->turn_set_weight(gpu->turn, slot->turn_slot,
					    nla_get_u32(tb[CGPU_S_WEIGHT]), now);
	if (!ret && tb[CGPU_S_HIGHPRIO])
		ret = core->turn_set_highprio(gpu->turn, slot->turn_slot,
					      nla_get_u8(tb[CGPU_S_HIGHPRIO]), now);
	if (core)
		ckm_core_leave();
	mutex_unlock(&gpu->lock);
	if (!ret && tb[CGPU_S_LIMIT])
		ret = ckm_slot_set_limit(slot, nla_get_u64(tb[CGPU_S_LIMIT]));
	ckm_gpu_kick(gpu);
	return ret;
}

static int cmd_set(struct sk_buff *skb, struct genl_info *info)
{
	struct nlattr *tb[CGPU_S_HIGHPRIO + 1], *attr;
	const char *id = get_id(info);
	struct ckm_container *ct;
	struct ckm_slot *slot;
	struct ckm_gpu *gpu;
	int rem, ret = -EINVAL;

	if (!id || !info->attrs[CGPU_A_SLOTS])
		return -EINVAL;
	mutex_lock(&ckm_lock);
	ct = ckm_container_find(id);
	if (!ct || (get_cookie(info) && get_cookie(info) != ct->cookie)) {
		ret = -ENOENT;
		goto out;
	}
	nla_for_each_nested(attr, info->attrs[CGPU_A_SLOTS], rem) {
		ret = parse_slot(attr, tb, info);
		if (ret)
			goto out;
		gpu = ckm_gpu_by_index(nla_get_u32(tb[CGPU_S_GPU]));
		slot = gpu ? ckm_container_slot(ct, gpu) : NULL;
		ret = slot ? set_slot(slot, tb) : -ENODEV;
		if (ret)
			goto out;
	}
	ckm_netlink_event(ct, CGPU_EVENT_CHANGED);
out:
	mutex_unlock(&ckm_lock);
	return ret;
}

static int dump_containers(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct ckm_container *ct;
	long i = 0;
	void *head;

	mutex_lock(&ckm_lock);
	list_for_each_entry(ct, &ckm_containers, node) {
		if (i++ < cb->args[0])
			continue;
		head = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
				   &family, NLM_F_MULTI, CGPU_CMD_LIST);
		if (!head || put_container(skb, ct)) {
			if (head)
				genlmsg_cancel(skb, head);
			break;
		}
		genlmsg_end(skb, head);
		cb->args[0] = i;
	}
	mutex_unlock(&ckm_lock);
	return skb->len;
}

static int put_gpu(struct sk_buff *skb, struct ckm_gpu *gpu)
{
	struct nlattr *nest = nla_nest_start(skb, CGPU_A_GPU);
	const struct cgpu_core_ops *core;
	u32 policy = 0, max_inst = 0, free_weight = 0, prio = 0, slice_us = 0, instances = 0;

	if (!nest)
		return -EMSGSIZE;
	mutex_lock(&gpu->lock);
	core = ckm_core_enter();
	if (core) {
		policy = gpu->turn->policy;
		max_inst = gpu->turn->max_inst;
		prio = gpu->turn->prio_ratio;
		slice_us = div_u64(gpu->turn->slice_ns, 1000);
		free_weight = core->turn_free_weight(gpu->turn);
		instances = core->turn_instances(gpu->turn);
		ckm_core_leave();
	}
	mutex_unlock(&gpu->lock);
	if (nla_put_u32(skb, CGPU_G_INDEX, gpu->index) ||
	    nla_put_string(skb, CGPU_G_UUID, gpu->desc.uuid) ||
	    nla_put_string(skb, CGPU_G_PCI, gpu->desc.pci) ||
	    nla_put_u32(skb, CGPU_G_NV_MINOR, gpu->desc.nv_minor) ||
	    nla_put_u64_64bit(skb, CGPU_G_TOTAL, gpu->total_bytes, CGPU_G_PAD) ||
	    nla_put_u32(skb, CGPU_G_POLICY, policy) ||
	    nla_put_u32(skb, CGPU_G_MAX_INST, max_inst) ||
	    nla_put_u32(skb, CGPU_G_FREE_WEIGHT, free_weight) ||
	    nla_put_u32(skb, CGPU_G_PRIO_RATIO, prio) ||
	    nla_put_u32(skb, CGPU_G_SLICE_US, slice_us) ||
	    nla_put_u32(skb, CGPU_G_INSTANCES, instances))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

static int dump_gpus(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct ckm_gpu *gpu;
	void *head;

	mutex_lock(&ckm_lock);
	list_for_each_entry(gpu, &ckm_gpus, node) {
		if (gpu->index < cb->args[0])
			continue;
		head = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
				   &family, NLM_F_MULTI, CGPU_CMD_GPUS);
		if (!head || put_gpu(skb, gpu)) {
			if (head)
				genlmsg_cancel(skb, head);
			break;
		}
		genlmsg_end(skb, head);
		cb->args[0] = gpu->index + 1;
	}
	mutex_unlock(&ckm_lock);
	return skb->len;
}

static const struct genl_small_ops ops[] = {
	{ .cmd = CGPU_CMD_CREATE, .flags = GENL_ADMIN_PERM, .doit = cmd_create },
	{ .cmd = CGPU_CMD_DESTROY, .flags = GENL_ADMIN_PERM, .doit = cmd_destroy },
	{ .cmd = CGPU_CMD_LIST, .flags = GENL_ADMIN_PERM, .dumpit = dump_containers },
	{ .cmd = CGPU_CMD_SET, .flags = GENL_ADMIN_PERM, .doit = cmd_set },
	{ .cmd = CGPU_CMD_GPUS, .flags = GENL_ADMIN_PERM, .dumpit = dump_gpus },
};

static const struct genl_multicast_group groups[] = {
	{ .name = CGPU_GENL_MCGRP_EVENTS, .flags = CKM_MCAST_ADMIN },
};

static struct genl_family family = {
	.name		= CGPU_GENL_NAME,
	.version	= CGPU_GENL_VERSION,
	.maxattr	= CGPU_A_GPU,
	.policy		= policy,
	.module		= THIS_MODULE,
	.small_ops	= ops,
	.n_small_ops	= ARRAY_SIZE(ops),
	.mcgrps		= groups,
	.n_mcgrps	= ARRAY_SIZE(groups),
	.resv_start_op	= CGPU_CMD_EVENT + 1,
};

int ckm_netlink_init(void)
{
	return genl_register_family(&family);
}

void ckm_netlink_exit(void)
{
	genl_unregister_family(&family);
}
