// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Range groups define which ranges migrate together (uvm_range_group.c). Nothing migrates here:
 * only the number is kept.
 */
#include <linux/slab.h>

#include "nvsim.h"

struct range_group {
	struct list_head link;		/* uvm_vas.groups: uvm_vas.lock */
	u64 id;
};

static struct range_group *group_find(struct uvm_vas *v, u64 id)
{
	struct range_group *group;

	list_for_each_entry(group, &v->groups, link)
		if (group->id == id)
			return group;
	return NULL;
}

/* This one and the next have nvidia-uvm's names and arguments. */
noinline NV_STATUS uvm_api_create_range_group(struct uvm_group *p, struct file *file)
{
	struct range_group *group = kzalloc(sizeof(*group), GFP_KERNEL);
	struct uvm_vas *v = file->private_data;

	if (!group)
		return NV_ERR_NO_MEMORY;
	mutex_lock(&v->lock);
	group->id = ++v->last_group;
	list_add(&group->link, &v->groups);
	p->rangeGroupId = group->id;
	mutex_unlock(&v->lock);
	return NV_OK;
}

noinline NV_STATUS uvm_api_destroy_range_group(struct uvm_group *p, struct file *file)
{
	struct uvm_vas *v = file->private_data;
	struct range_group *group;

	mutex_lock(&v->lock);
	group = group_find(v, p->rangeGroupId);
	if (group)
		list_del(&group->link);
	mutex_unlock(&v->lock);
	kfree(group);
	return group ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}

/* Number 0 takes a range out of its group. */
void uvm_do_set_group(struct uvm_vas *v, void *arg)
{
	struct uvm_set_group *p = arg;
	struct uvm_ext *x;

	p->rmStatus = NV_ERR_INVALID_ADDRESS;
	if (uvm_bad_range(p->requestedBase, p->length))
		return;
	mutex_lock(&v->lock);
	x = uvm_range_find(v, p->requestedBase, p->length);
	if (p->rangeGroupId && !group_find(v, p->rangeGroupId))
		p->rmStatus = NV_ERR_OBJECT_NOT_FOUND;
	else if (x && x->managed)
		p->rmStatus = NV_OK;
	mutex_unlock(&v->lock);
}

/* With the space. */
void uvm_groups_drop(struct uvm_vas *v)
{
	struct range_group *group, *next;

	list_for_each_entry_safe(group, next, &v->groups, link) {
		list_del(&group->link);
		kfree(group);
	}
}
