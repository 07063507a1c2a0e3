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

void uvm_do_create_group(struct uvm_vas *v, void *arg)
{
	struct range_group *group = kzalloc(sizeof(*group), GFP_KERNEL);
	struct uvm_group *p = arg;

	p->status = NV_ERR_NO_MEMORY;
	if (!group)
		return;
	mutex_lock(&v->lock);
	group->id = ++v->last_group;
	list_add(&group->link, &v->groups);
	p->id = group->id;
	mutex_unlock(&v->lock);
	p->status = NV_OK;
}

void uvm_do_destroy_group(struct uvm_vas *v, void *arg)
{
	struct range_group *group;
	struct uvm_group *p = arg;

	mutex_lock(&v->lock);
	group = group_find(v, p->id);
	p->status = group ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
	if (group)
		list_del(&group->link);
	mutex_unlock(&v->lock);
	kfree(group);
}

/* Number 0 takes a range out of its group. */
void uvm_do_set_group(struct uvm_vas *v, void *arg)
{
	struct uvm_set_group *p = arg;
	struct uvm_ext *x;

	p->status = NV_ERR_INVALID_ADDRESS;
	if (uvm_bad_range(p->base, p->length))
		return;
	mutex_lock(&v->lock);
	x = uvm_range_find(v, p->base, p->length);
	if (p->id && !group_find(v, p->id))
		p->status = NV_ERR_OBJECT_NOT_FOUND;
	else if (x && x->managed)
		p->status = NV_OK;
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
