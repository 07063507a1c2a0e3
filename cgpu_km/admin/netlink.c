// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The commands and dumps of the netlink family. Takes ckm_lock. */
#include <net/genetlink.h>

#include "admin/attach.h"
#include "admin/instance.h"
#include "admin/netlink.h"
#include "admin/settings.h"
#include "compat.h"
#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/netlink_send.h"
#include "state/notify.h"
#include "state/slot.h"

static struct genl_family family;

static const struct nla_policy policy[CGPU_A_GPU + 1] = {
	[CGPU_A_ID]	= { .type = NLA_NUL_STRING, .len = CGPU_ID_MAX },
	[CGPU_A_COOKIE]	= { .type = NLA_U64 },
	[CGPU_A_SLOTS]	= { .type = NLA_NESTED },
	[CGPU_A_GPU]	= { .type = NLA_NESTED },
};

static const struct nla_policy slot_policy[CGPU_S_COUNT] = {
	[CGPU_S_GPU]		= { .type = NLA_U32 },
	[CGPU_S_LIMIT]		= { .type = NLA_U64 },
	[CGPU_S_WEIGHT]		= { .type = NLA_U32 },
	[CGPU_S_HIGHPRIO]	= { .type = NLA_U8 },
	[CGPU_S_CEILING]	= { .type = NLA_U32 },
	[CGPU_S_HOST_LIMIT]	= { .type = NLA_U64 },
};

/* Attributes of SET_GPU: CKM_GPU_SETTABLE and the index. */
static const struct nla_policy gpu_policy[CGPU_G_COUNT] = {
	[CGPU_G_INDEX]			= { .type = NLA_U32 },
	[CGPU_G_POLICY]			= { .type = NLA_U32 },
	[CGPU_G_MAX_INST]		= { .type = NLA_U32 },
	[CGPU_G_PRIO_RATIO]		= { .type = NLA_U32 },
	[CGPU_G_SLICE_US]		= { .type = NLA_U32 },
	[CGPU_G_UVM]			= { .type = NLA_U32 },
	[CGPU_G_DEFAULT_MEMSIZE]	= { .type = NLA_U64 },
	[CGPU_G_OVERCOMMIT]		= { .type = NLA_U32 },
};

static const char *get_id(struct genl_info *info)
{
	struct nlattr *attr = info->attrs[CGPU_A_ID];

	if (!attr || !nla_len(attr)) {
		GENL_SET_ERR_MSG(info, "an id is needed");
		return NULL;
	}
	return nla_data(attr);
}

static void say_why(struct genl_info *info, const char *why)
{
	if (info->extack && why)
		info->extack->_msg = why;
}

static u64 get_cookie(struct genl_info *info)
{
	return info->attrs[CGPU_A_COOKIE] ? nla_get_u64(info->attrs[CGPU_A_COOKIE]) : 0;
}

/* Numbers of the attributes of @settable that are in @tb. Returns which ones are. */
static u32 take_values(u64 *value, struct nlattr **tb, const struct nla_policy *types, unsigned long settable)
{
	u32 attr, given = 0;

	for_each_set_bit(attr, &settable, BITS_PER_LONG) {
		if (!tb[attr])
			continue;
		given |= BIT(attr);
		value[attr] = types[attr].type == NLA_U64 ? nla_get_u64(tb[attr]) :
			      types[attr].type == NLA_U32 ? nla_get_u32(tb[attr]) : nla_get_u8(tb[attr]);
	}
	return given;
}

static int parse_slot(struct nlattr *attr, struct nlattr **tb, struct genl_info *info)
{
	int ret;

	if (nla_type(attr) != CGPU_A_SLOT) {
		GENL_SET_ERR_MSG(info, "SLOTS holds SLOT nests only");
		return -EINVAL;
	}
	ret = nla_parse_nested(tb, CGPU_S_COUNT - 1, attr, slot_policy, info->extack);
	if (!ret && !tb[CGPU_S_GPU]) {
		GENL_SET_ERR_MSG(info, "a slot needs its GPU");
		ret = -EINVAL;
	}
	return ret;
}

static int parse_create(struct genl_info *info, struct ckm_create *req)
{
	struct nlattr *tb[CGPU_S_COUNT], *attr;
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
		if (tb[CGPU_S_HOST_LIMIT]) {
			GENL_SET_ERR_MSG(info, "host_memsize can be set once the container is there");
			return -EINVAL;
		}
		slot = &req->slot[req->slots++];
		slot->gpu = nla_get_u32(tb[CGPU_S_GPU]);
		slot->limit_bytes = tb[CGPU_S_LIMIT] ? nla_get_u64(tb[CGPU_S_LIMIT]) : 0;
		slot->weight = tb[CGPU_S_WEIGHT] ? nla_get_u32(tb[CGPU_S_WEIGHT]) : 1;
		slot->highprio = tb[CGPU_S_HIGHPRIO] ? nla_get_u8(tb[CGPU_S_HIGHPRIO]) : 0;
		slot->ceiling = tb[CGPU_S_CEILING] ? nla_get_u32(tb[CGPU_S_CEILING]) : 0;
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
	if (!head || ckm_netlink_put_container(skb, ct)) {
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
		say_why(info, why);
	} else {
		ret = reply_container(info, ct);
		if (ret)	/* the sender would not get its minors */
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

static int parse_set_slot(struct nlattr *attr, struct genl_info *info, struct ckm_container *ct,
			  struct ckm_slot_values *v)
{
	struct nlattr *tb[CGPU_S_COUNT];
	int ret = parse_slot(attr, tb, info);

	if (ret)
		return ret;
	v->slot = ckm_container_slot_of(ct, nla_get_u32(tb[CGPU_S_GPU]));
	if (!v->slot) {
		GENL_SET_ERR_MSG(info, "the container has no slot on this GPU");
		return -ENODEV;
	}
	v->given = take_values(v->value, tb, slot_policy, CKM_SLOT_SETTABLE);
	return 0;
}

/* Parse each slot of the message, a GPU once only. Returns their number, or -errno. */
static int parse_set(struct genl_info *info, struct ckm_container *ct,
		     struct ckm_slot_values *values)
{
	struct nlattr *attr;
	u32 i, count = 0;
	int rem, ret;

	nla_for_each_nested(attr, info->attrs[CGPU_A_SLOTS], rem) {
		if (count == ct->slot_count) {
			GENL_SET_ERR_MSG(info, "more slots than the container has");
			return -EINVAL;
		}
		ret = parse_set_slot(attr, info, ct, &values[count]);
		if (ret)
			return ret;
		for (i = 0; i < count; i++)
			if (values[i].slot == values[count].slot) {
				GENL_SET_ERR_MSG(info, "a GPU is named twice");
				return -EINVAL;
			}
		count++;
	}
	return count;
}

static int set_locked(struct genl_info *info, struct ckm_container *ct)
{
	struct ckm_slot_values *values = kcalloc(ct->slot_count, sizeof(*values), GFP_KERNEL);
	const char *why = NULL;
	int ret;

	lockdep_assert_held(&ckm_lock);
	if (!values)
		return -ENOMEM;
	ret = parse_set(info, ct, values);
	if (ret > 0) {
		ret = ckm_slots_set(values, ret, &why);
		say_why(info, ret ? why : NULL);
	}
	kfree(values);
	return ret;
}

static int cmd_set(struct sk_buff *skb, struct genl_info *info)
{
	const char *id = get_id(info);
	struct ckm_container *ct;
	int ret = -ENOENT;

	if (!id)
		return -EINVAL;
	if (!info->attrs[CGPU_A_SLOTS]) {
		GENL_SET_ERR_MSG(info, "slots are needed");
		return -EINVAL;
	}
	mutex_lock(&ckm_lock);
	ct = ckm_container_find(id);
	if (ct && (!get_cookie(info) || get_cookie(info) == ct->cookie))
		ret = set_locked(info, ct);
	mutex_unlock(&ckm_lock);
	return ret;
}

static int parse_set_gpu(struct genl_info *info, u32 *index, struct ckm_gpu_values *values)
{
	struct nlattr *tb[CGPU_G_COUNT];
	int ret;

	if (!info->attrs[CGPU_A_GPU]) {
		GENL_SET_ERR_MSG(info, "a GPU is needed");
		return -EINVAL;
	}
	ret = nla_parse_nested(tb, CGPU_G_COUNT - 1, info->attrs[CGPU_A_GPU], gpu_policy, info->extack);
	if (ret)
		return ret;
	if (!tb[CGPU_G_INDEX]) {
		GENL_SET_ERR_MSG(info, "the GPU's index is needed");
		return -EINVAL;
	}
	*index = nla_get_u32(tb[CGPU_G_INDEX]);
	values->given = take_values(values->value, tb, gpu_policy, CKM_GPU_SETTABLE);
	return 0;
}

static int cmd_set_gpu(struct sk_buff *skb, struct genl_info *info)
{
	struct ckm_gpu_values values = {};
	const char *why = NULL;
	struct ckm_gpu *gpu;
	u32 index;
	int ret = parse_set_gpu(info, &index, &values);

	if (ret)
		return ret;
	mutex_lock(&ckm_lock);
	gpu = ckm_gpu_by_index(index);
	if (gpu) {
		ret = ckm_gpu_set(gpu, &values, &why);
		say_why(info, ret ? why : NULL);
	} else {
		GENL_SET_ERR_MSG(info, "no such GPU");
		ret = -ENODEV;
	}
	mutex_unlock(&ckm_lock);
	return ret;
}

static int dump_containers(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct ckm_container *ct;
	void *head;

	if (ckm_from_outside())
		return -EPERM;
	mutex_lock(&ckm_lock);
	list_for_each_entry(ct, &ckm_containers, node) {
		if (ct->serial <= (u64)cb->args[0])
			continue;
		head = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
				   &family, NLM_F_MULTI, CGPU_CMD_LIST);
		if (!head || ckm_netlink_put_container(skb, ct)) {
			if (head)
				genlmsg_cancel(skb, head);
			break;
		}
		genlmsg_end(skb, head);
		cb->args[0] = ct->serial;
	}
	mutex_unlock(&ckm_lock);
	return skb->len;
}

static int put_gpu(struct sk_buff *skb, struct ckm_gpu *gpu)
{
	struct nlattr *nest = nla_nest_start(skb, CGPU_A_GPU);
	struct cgpu_sched_view view;
	u32 uvm, overcommit, slice_is_set;
	u64 default_memsize, limits, used, driver_used, driver_free;
	bool open = ckm_gpu_heap_if_open(gpu, &driver_used, &driver_free);

	if (!nest)
		return -EMSGSIZE;
	spin_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	used = ckm_slots_used_locked(gpu);
	limits = gpu->limits_bytes;
	default_memsize = ckm_gpu_default_memsize_locked(gpu);
	overcommit = gpu->overcommit_pct;
	slice_is_set = gpu->slice_is_set;
	uvm = gpu->uvm_account;
	spin_unlock(&gpu->lock);
	if (ckm_netlink_put_gpu_names(skb, gpu) ||
	    nla_put_u32(skb, CGPU_G_POLICY, view.policy) ||
	    nla_put_u32(skb, CGPU_G_MAX_INST, view.max_inst) ||
	    nla_put_u32(skb, CGPU_G_FREE_WEIGHT, view.free_weight) ||
	    nla_put_u32(skb, CGPU_G_PRIO_RATIO, view.prio_ratio) ||
	    nla_put_u32(skb, CGPU_G_SLICE_US, div_u64(view.slice_ns, 1000)) ||
	    nla_put_u32(skb, CGPU_G_INSTANCES, view.instances) ||
	    nla_put_u32(skb, CGPU_G_UVM, uvm) ||
	    nla_put_u64_64bit(skb, CGPU_G_DEFAULT_MEMSIZE, default_memsize, CGPU_G_PAD) ||
	    nla_put_u32(skb, CGPU_G_OVERCOMMIT, overcommit) ||
	    nla_put_u32(skb, CGPU_G_SLICE_IS_SET, slice_is_set) ||
	    nla_put_u64_64bit(skb, CGPU_G_USED, used, CGPU_G_PAD) ||
	    nla_put_u64_64bit(skb, CGPU_G_BORN, gpu->born_ns, CGPU_G_PAD) ||
	    nla_put_u64_64bit(skb, CGPU_G_LIMITS, limits, CGPU_G_PAD))
		return -EMSGSIZE;
	if (open && nla_put_u64_64bit(skb, CGPU_G_DRIVER_FREE, driver_free, CGPU_G_PAD))
		return -EMSGSIZE;
	nla_nest_end(skb, nest);
	return 0;
}

static int dump_gpus(struct sk_buff *skb, struct netlink_callback *cb)
{
	struct ckm_gpu *gpu;
	void *head;

	if (ckm_from_outside())
		return -EPERM;
	mutex_lock(&ckm_lock);
	if (!cb->args[0])
		ckm_gpus_ask_again();
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

/* For the commands that are not dumps; those check for themselves. */
static int pre_doit(CKM_GENL_OP *op, struct sk_buff *skb, struct genl_info *info)
{
	if (!ckm_from_outside())
		return 0;
	GENL_SET_ERR_MSG(info, "asked from inside a container");
	return -EPERM;
}

static const struct genl_small_ops ops[] = {
	{ .cmd = CGPU_CMD_CREATE, .flags = GENL_ADMIN_PERM, .doit = cmd_create },
	{ .cmd = CGPU_CMD_DESTROY, .flags = GENL_ADMIN_PERM, .doit = cmd_destroy },
	{ .cmd = CGPU_CMD_LIST, .flags = GENL_ADMIN_PERM, .dumpit = dump_containers },
	{ .cmd = CGPU_CMD_SET, .flags = GENL_ADMIN_PERM, .doit = cmd_set },
	{ .cmd = CGPU_CMD_GPUS, .flags = GENL_ADMIN_PERM, .dumpit = dump_gpus },
	{ .cmd = CGPU_CMD_SET_GPU, .flags = GENL_ADMIN_PERM, .doit = cmd_set_gpu },
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
	.pre_doit	= pre_doit,
	.mcgrps		= groups,
	.n_mcgrps	= ARRAY_SIZE(groups),
	CKM_GENL_STRICT_FROM(CGPU_CMD_SET_GPU)
};

int ckm_netlink_init(void)
{
	int ret = genl_register_family(&family);

	if (!ret)
		ckm_netlink_set_family(&family);
	return ret;
}

void ckm_netlink_exit(void)
{
	genl_unregister_family(&family);
}
