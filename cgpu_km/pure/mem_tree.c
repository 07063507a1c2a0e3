// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The tree of RM objects of a container, as the driver keeps it. */
#include "mem_tree.h"
#include "../core/nv_call.h"

static bool is_memory(const struct cgpu_obj *obj)
{
	return obj->kind == CGPU_KIND_VIDMEM || obj->kind == CGPU_KIND_SYSMEM;
}

/* What @obj depends on by its dependency @n; NULL: nothing. */
static struct cgpu_obj *dep_of(const struct cgpu_obj *obj, u32 n)
{
	return obj->deps ? CGPU_READ_ONCE(obj->deps[n].on) : NULL;
}

/* Add @pins to @obj and to what it goes with: its ancestors, and those of what it depends on.
 * Memory and subdevices depend on nothing, a notifier on memory, and all lie below a device: it calls itself
 * twice deep at most. Where the paths meet an object counts a pin more than once, which does not matter.
 */
static void count_pins(struct cgpu_obj *obj, u32 pins)
{
	u32 n;

	for (; obj; obj = obj->parent) {
		obj->pins_within += pins;
		for (n = 0; n < CGPU_DEPS; n++)
			count_pins(dep_of(obj, n), pins);
	}
}

static bool path_is_live(const struct cgpu_obj *obj)
{
	u32 n;

	for (; obj; obj = CGPU_READ_ONCE(obj->parent)) {
		if (CGPU_READ_ONCE(obj->state) != CGPU_OBJ_LIVE)
			return false;
		for (n = 0; n < CGPU_DEPS; n++)
			if (!path_is_live(dep_of(obj, n)))
				return false;
	}
	return true;
}

bool cgpu_tree_is_live(const struct cgpu_obj *obj)
{
	return path_is_live(obj);
}

static void link_dependants(struct cgpu_obj *obj)
{
	struct cgpu_dep *dep;

	for (dep = obj->deps; dep && dep < obj->deps + CGPU_DEPS; dep++) {
		if (!dep->on)
			continue;
		dep->of = obj;
		dep->prev = NULL;
		dep->next = dep->on->dependant;
		if (dep->next)
			dep->next->prev = dep;
		dep->on->dependant = dep;
	}
}

static void unlink_dependants(struct cgpu_obj *obj)
{
	struct cgpu_dep *dep;

	for (dep = obj->deps; dep && dep < obj->deps + CGPU_DEPS; dep++) {
		if (!dep->on)
			continue;
		if (dep->prev)
			dep->prev->next = dep->next;
		else
			dep->on->dependant = dep->next;
		if (dep->next)
			dep->next->prev = dep->prev;
		dep->on = NULL;
	}
}

/* Of what anything may depend on. */
static bool is_ground(const struct cgpu_obj *obj)
{
	return is_memory(obj) || (obj->kind == CGPU_KIND_SUBDEVICE && obj->parent &&
				  obj->parent->kind == CGPU_KIND_DEVICE);
}

static bool may_depend(const struct cgpu_obj *obj)
{
	const struct cgpu_obj *on;
	u32 n;

	for (n = 0; n < CGPU_DEPS; n++) {
		on = dep_of(obj, n);
		if (on && on->state == CGPU_OBJ_DETACHED)
			return false;
		/* A channel on a notifier goes with the notifier's memory, too. */
		if (on && !is_ground(on) && (on->kind != CGPU_KIND_NOTIFIER || obj->kind != CGPU_KIND_CHANNEL))
			return false;
	}
	return !obj->deps || (!is_memory(obj) && obj->kind != CGPU_KIND_SUBDEVICE);
}

static void link_child(struct cgpu_obj *obj, struct cgpu_obj *parent)
{
	obj->parent = parent;
	obj->prev = NULL;
	obj->next = parent->child;
	if (parent->child)
		parent->child->prev = obj;
	parent->child = obj;
}

static void unlink_child(struct cgpu_obj *obj)
{
	if (obj->prev)
		obj->prev->next = obj->next;
	else
		obj->parent->child = obj->next;
	if (obj->next)
		obj->next->prev = obj->prev;
	obj->next = NULL;
	obj->prev = NULL;
	obj->parent = NULL;
}

int cgpu_tree_add(struct cgpu_tree *tree, struct cgpu_obj *obj, struct cgpu_obj *parent)
{
	/* Memory below a channel could depend on that channel and it on the memory. */
	if (is_memory(obj) && (!parent || (parent->kind != CGPU_KIND_DEVICE &&
					   parent->kind != CGPU_KIND_SUBDEVICE)))
		return -EINVAL;
	if (!may_depend(obj))
		return -EINVAL;
	if (parent && parent->depth + 1 >= CGPU_TREE_DEPTH)
		return -EINVAL;
	if (parent) {
		obj->depth = parent->depth + 1;
		obj->owner = parent->owner;
		if (obj->gpu == CGPU_NO_GPU)
			obj->gpu = parent->gpu;
		link_child(obj, parent);
	}
	link_dependants(obj);
	tree->objects++;
	return 0;
}

void cgpu_tree_pin(struct cgpu_obj *obj)
{
	obj->pin_count++;
	count_pins(obj, 1);
}

bool cgpu_tree_unpin(struct cgpu_obj *obj)
{
	obj->pin_count--;
	count_pins(obj, -1u);
	return !obj->pin_count && obj->state == CGPU_OBJ_DETACHED;
}

int cgpu_tree_free_begin(struct cgpu_obj *obj)
{
	if (obj->pins_within || !cgpu_tree_is_live(obj))
		return -EBUSY;
	obj->state = CGPU_OBJ_FREEING;
	cgpu_tree_pin(obj);
	return 0;
}

void cgpu_tree_free_cancel(struct cgpu_obj *obj)
{
	/* DETACHED: its client's file was closed meanwhile. */
	if (obj->state == CGPU_OBJ_FREEING)
		obj->state = CGPU_OBJ_LIVE;
}

struct cgpu_obj *cgpu_tree_leaf(struct cgpu_obj *root)
{
	struct cgpu_obj *obj = root;

	while (obj->child || obj->dependant)
		obj = obj->child ? obj->child : obj->dependant->of;
	return obj;
}

void cgpu_tree_detach(struct cgpu_tree *tree, struct cgpu_obj *leaf)
{
	u32 pins = leaf->pin_count;

	leaf->state = CGPU_OBJ_DETACHED;
	count_pins(leaf, -pins);
	leaf->pins_within += pins;
	unlink_dependants(leaf);
	if (leaf->parent)
		unlink_child(leaf);
	tree->objects--;
}

void cgpu_mem_get(struct cgpu_mem *mem)
{
	mem->refs++;
}

bool cgpu_mem_put(struct cgpu_mem *mem)
{
	return --mem->refs == 0;
}
