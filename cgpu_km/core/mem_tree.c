// SPDX-License-Identifier: MIT OR GPL-2.0
/* The tree of RM objects of a container, as the driver keeps it. */
#include "mem_tree.h"
#include "nv_call.h"

static u32 bucket_of(u32 hclient, u32 hobject)
{
	u32 x = hclient * 0x9e3779b1u ^ hobject * 0x85ebca6bu;

	return (x ^ x >> 15) % CGPU_TREE_BUCKETS;
}

struct cgpu_obj *cgpu_tree_find(const struct cgpu_tree *tree, u32 hclient, u32 hobject)
{
	struct cgpu_obj *obj = CGPU_READ_ONCE(tree->bucket[bucket_of(hclient, hobject)]);

	while (obj && (obj->hclient != hclient || obj->hobject != hobject))
		obj = CGPU_READ_ONCE(obj->hash_next);
	return obj;
}

struct cgpu_obj *cgpu_tree_live(const struct cgpu_tree *tree, u32 hclient, u32 hobject)
{
	struct cgpu_obj *obj = cgpu_tree_find(tree, hclient, hobject);

	return obj && CGPU_READ_ONCE(obj->state) == CGPU_OBJ_LIVE ? obj : NULL;
}

int cgpu_tree_add(struct cgpu_tree *tree, struct cgpu_obj *obj, struct cgpu_obj *parent)
{
	struct cgpu_obj **head = &tree->bucket[bucket_of(obj->hclient, obj->hobject)];

	if (cgpu_tree_find(tree, obj->hclient, obj->hobject))
		return -EEXIST;
	/* Memory below a channel could depend on that channel and it on the memory. */
	if ((obj->kind == CGPU_KIND_VIDMEM || obj->kind == CGPU_KIND_SYSMEM) &&
	    (!parent || (parent->kind != CGPU_KIND_DEVICE &&
			 parent->kind != CGPU_KIND_SUBDEVICE)))
		return -EINVAL;
	obj->parent = parent;
	obj->child = NULL;
	obj->prev = NULL;
	obj->next = NULL;
	if (parent) {
		obj->next = parent->child;
		if (parent->child)
			parent->child->prev = obj;
		parent->child = obj;
		obj->owner = parent->owner;
		if (obj->gpu == CGPU_NO_GPU)
			obj->gpu = parent->gpu;
	}
	if (obj->hdep) {
		obj->dep_next = tree->deps;
		tree->deps = obj;
	}
	tree->objects++;
	obj->hash_next = *head;
	CGPU_PUBLISH(*head, obj);
	return 0;
}

/* The next object of the subtree of @root after @obj, parents first. */
static struct cgpu_obj *walk_next(const struct cgpu_obj *root, struct cgpu_obj *obj)
{
	if (obj->child)
		return obj->child;
	while (obj != root && !obj->next)
		obj = obj->parent;
	return obj == root ? NULL : obj->next;
}

/* The next object from @dep on that dies with @obj; NULL if there is none. */
static struct cgpu_obj *next_dependant(struct cgpu_obj *dep, const struct cgpu_obj *obj)
{
	while (dep && (dep->hdep != obj->hobject || dep->hclient != obj->hclient))
		dep = dep->dep_next;
	return dep;
}

static bool objects_are_quiet(struct cgpu_obj *root)
{
	for (struct cgpu_obj *o = root; o; o = walk_next(root, o))
		if (o->pin_count || o->state != CGPU_OBJ_LIVE)
			return false;
	return true;
}

static bool subtree_is_quiet(const struct cgpu_tree *tree, struct cgpu_obj *root)
{
	struct cgpu_obj *dep;

	if (!objects_are_quiet(root))
		return false;
	for (struct cgpu_obj *o = root; o && tree->deps; o = walk_next(root, o))
		for (dep = next_dependant(tree->deps, o); dep;
		     dep = next_dependant(dep->dep_next, o))
			if (!objects_are_quiet(dep))
				return false;
	return true;
}

static void mark_subtree(struct cgpu_obj *root, u8 from, u8 to)
{
	for (struct cgpu_obj *o = root; o; o = walk_next(root, o))
		if (o->state == from)
			o->state = to;
}

static void mark(struct cgpu_tree *tree, struct cgpu_obj *root, u8 from, u8 to)
{
	struct cgpu_obj *dep;

	mark_subtree(root, from, to);
	for (struct cgpu_obj *o = root; o && tree->deps; o = walk_next(root, o))
		for (dep = next_dependant(tree->deps, o); dep;
		     dep = next_dependant(dep->dep_next, o))
			mark_subtree(dep, from, to);
}

int cgpu_tree_free_begin(struct cgpu_tree *tree, struct cgpu_obj *obj)
{
	if (!subtree_is_quiet(tree, obj))
		return -EBUSY;
	mark(tree, obj, CGPU_OBJ_LIVE, CGPU_OBJ_FREEING);
	return 0;
}

void cgpu_tree_free_cancel(struct cgpu_tree *tree, struct cgpu_obj *obj)
{
	mark(tree, obj, CGPU_OBJ_FREEING, CGPU_OBJ_LIVE);
}

/* Unlink one leaf. */
static void detach(struct cgpu_tree *tree, struct cgpu_obj *obj)
{
	struct cgpu_obj **at = &tree->bucket[bucket_of(obj->hclient, obj->hobject)];

	while (*at != obj)
		at = &(*at)->hash_next;
	*at = obj->hash_next;
	for (at = &tree->deps; obj->hdep && *at; at = &(*at)->dep_next)
		if (*at == obj) {
			*at = obj->dep_next;
			break;
		}
	if (obj->prev)
		obj->prev->next = obj->next;
	else if (obj->parent)
		obj->parent->child = obj->next;
	if (obj->next)
		obj->next->prev = obj->prev;
	obj->hash_next = NULL;
	obj->next = NULL;
	obj->prev = NULL;
	obj->parent = NULL;
	obj->state = CGPU_OBJ_DETACHED;
	tree->objects--;
}

struct cgpu_obj *cgpu_tree_remove(struct cgpu_tree *tree, struct cgpu_obj *root)
{
	struct cgpu_obj *first = NULL, **last = &first;
	struct cgpu_obj *obj = root, *dep;

	for (;;) {
		while (obj->child)
			obj = obj->child;
		/* Depth is bounded by the classes; a dependant (a channel) has
		 * no dependants of its own below the memory it depends on.
		 */
		dep = next_dependant(tree->deps, obj);
		if (dep && dep != obj && dep != root) {
			*last = cgpu_tree_remove(tree, dep);
			while (*last)
				last = &(*last)->hash_next;
			continue;
		}
		dep = obj == root ? NULL : obj->parent;
		detach(tree, obj);
		*last = obj;
		last = &obj->hash_next;
		if (!dep)
			return first;
		obj = dep;
	}
}

void cgpu_mem_get(struct cgpu_mem *mem)
{
	mem->refs++;
}

bool cgpu_mem_put(struct cgpu_mem *mem)
{
	return --mem->refs == 0;
}
