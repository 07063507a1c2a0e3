// SPDX-License-Identifier: MIT
/* Clients and objects: made, named twice, freed. */
#include <string.h>

#include "fuzz.h"

#define MIB	1048576ull

/* ---- the model's objects ---- */

struct object *object_pick(struct thread *t, enum object_kind kind)
{
	int start = rng_below(&t->rng, t->objects);

	for (int i = 0; i < t->objects; i++) {
		struct object *o = &t->object[(start + i) % t->objects];

		if (o->kind == kind)
			return o;
	}
	return NULL;
}

struct object *object_any(struct thread *t)
{
	return t->objects ? &t->object[rng_below(&t->rng, t->objects)] : NULL;
}

struct object *object_add(struct thread *t, const struct object *o)
{
	int at = t->objects < MAX_OBJECTS ? t->objects++ : (int)rng_below(&t->rng, MAX_OBJECTS);

	t->object[at] = *o;
	atomic_store(&shared->names[atomic_fetch_add(&shared->next_name, 1) % 256],
		     (uint64_t)o->client << 32 | o->handle);
	return &t->object[at];
}

/* @o is dead afterwards: another object may be in its place. */
void object_forget(struct thread *t, struct object *o)
{
	int at = t->stales < 16 ? t->stales++ : (int)rng_below(&t->rng, 16);

	t->stale[at].client = o->client;
	t->stale[at].handle = o->handle;
	*o = t->object[--t->objects];
}

uint32_t new_handle(struct thread *t)
{
	struct object *o = object_any(t);

	if (!t->calm && rng_percent(&t->rng, 30))
		return 0;
	if (!t->calm && o && rng_percent(&t->rng, 3))
		return o->handle;
	return ++t->next_handle;
}

/* ---- allocating ---- */

struct object *alloc_object(struct thread *t, const struct object *client, uint32_t parent,
			    uint32_t class_id, enum object_kind kind, const void *params,
			    uint32_t size)
{
	bool old = !t->calm && rng_percent(&t->rng, 10);
	int ctl = kind == OBJ_OTHER && rng_percent(&t->rng, 5) ? file_pick(t, FILE_GPU) : client->ctl;
	struct call *c = call_begin(t, ctl, ROW_ESCAPE, NV_ESC_RM_ALLOC, old ? 32 : 48);
	uint32_t handle = new_handle(t);
	struct object made = { kind, client->ctl, client->client, parent, handle, 0, 0 };
	int at[] = { 0, 4, 8 };

	c->inner = row_find(ROW_CLASS, class_id, 0);
	memcpy(c->handle_at, at, sizeof(at));
	set32(c, 0, client->client);
	set32(c, 4, parent);
	set32(c, 8, handle);
	set32(c, 12, class_id);
	c->pointer_at = 16;
	c->size_at = old ? 24 : 32;
	c->nested_size = size;
	set32(c, c->size_at, size);
	if (size)
		memcpy(c->nested, params, size);
	if (call_issue(t, c))
		return NULL;
	made.client = top32(c, 0);
	made.parent = top32(c, 4);
	made.handle = top32(c, 8);
	if (kind == OBJ_VIDMEM || kind == OBJ_SYSMEM) {
		memcpy(&made.size, c->nested + 64, 8);
		count_one(COUNT_ALLOCS);
	}
	return object_add(t, &made);
}

static struct object *new_client(struct thread *t)
{
	struct object boot = { OBJ_CLIENT, file_open(t, FILE_CTL), 0, 0, 0, 0, 0 };
	struct call *c = call_begin(t, boot.ctl, ROW_ESCAPE, NV_ESC_RM_ALLOC, 48);

	c->inner = row_find(ROW_CLASS, NV01_ROOT_CLIENT, 0);
	set32(c, 12, rng_percent(&t->rng, 80) ? NV01_ROOT_CLIENT : rng_below(&t->rng, 2));
	if (call_issue(t, c))
		return NULL;
	boot.client = boot.handle = top32(c, 8);
	return object_add(t, &boot);
}

static struct object *new_device(struct thread *t, const struct object *client)
{
	struct nv_device_params p = { .deviceId = card.device_instance };

	if (!t->calm && rng_percent(&t->rng, 10))
		p.deviceId = rng_below(&t->rng, 3);
	return alloc_object(t, client, client->client, NV01_DEVICE_0, OBJ_DEVICE, &p, sizeof(p));
}

struct object *alloc_vidmem(struct thread *t, uint64_t size)
{
	struct object *parent = object_pick(t, rng_percent(&t->rng, 90) ? OBJ_DEVICE : OBJ_SUBDEVICE);
	struct nv_mem_params p = { .attr = ATTR_NONCONTIG_ALLOWED, .size = size };
	struct object client;

	if (!parent)
		return NULL;
	client = *parent;
	p.owner = parent->client;
	if (rng_percent(&t->rng, 50)) {
		p.attr |= ATTR_PAGE_HUGE;
		p.attr2 |= (rng_percent(&t->rng, 97) ? rng_below(&t->rng, 2) : 2) << 20;	/* 2: 512 MiB */
	}
	return alloc_object(t, &client, client.handle, NV01_MEMORY_LOCAL_USER, OBJ_VIDMEM, &p, sizeof(p));
}

struct object *alloc_sysmem(struct thread *t, uint64_t size)
{
	struct object *parent = object_pick(t, OBJ_DEVICE), client;
	struct nv_mem_params p = {
		.attr = ATTR_NONCONTIG_ALLOWED | ATTR_LOCATION_PCI, .size = size,
	};

	if (!parent)
		return NULL;
	client = *parent;
	p.owner = parent->client;
	return alloc_object(t, &client, client.handle, NV01_MEMORY_SYSTEM, OBJ_SYSMEM, &p, sizeof(p));
}

uint64_t some_size(struct thread *t)
{
	static const uint64_t sizes[] = {
		1, 4096, 65536, 65537, MIB, 2 * MIB, 2 * MIB + 1, 4 * MIB, 8 * MIB, 50 * MIB,
	};

	return sizes[rng_below(&t->rng, 10)];
}

static void op_vidmem(struct thread *t)
{
	alloc_vidmem(t, some_size(t));
}

static void op_sysmem(struct thread *t)
{
	alloc_sysmem(t, 4096ull << rng_below(&t->rng, 8));
}

void free_object(struct thread *t, struct object *o)
{
	struct call *c = call_begin(t, o->ctl, ROW_ESCAPE, NV_ESC_RM_FREE, 16);
	int at[] = { 0, 4, 8 };

	memcpy(c->handle_at, at, sizeof(at));
	set32(c, 0, o->client);
	set32(c, 4, o->parent);
	set32(c, 8, o->handle);
	if (!call_issue(t, c)) {
		count_one(COUNT_FREES);
		object_forget(t, o);
	}
}

/* Mostly memory: freeing an object above it frees much else. */
static void op_free(struct thread *t)
{
	static const enum object_kind kinds[] = {
		OBJ_VIDMEM, OBJ_VIDMEM, OBJ_VIDMEM, OBJ_SYSMEM, OBJ_OTHER, OBJ_ENGINE, OBJ_CHANNEL, OBJ_TSG,
	};
	struct object *o = rng_percent(&t->rng, 97) ? object_pick(t, kinds[rng_below(&t->rng, 8)])
						    : object_any(t);

	if (o)
		free_object(t, o);
}

static void op_dup(struct thread *t)
{
	struct object *o = object_pick(t, rng_percent(&t->rng, 80) ? OBJ_VIDMEM : OBJ_SYSMEM);
	struct object *to = object_pick(t, OBJ_DEVICE), made;
	struct call *c;
	int at[] = { 0, 4, 8, 12, 16 };

	if (!o || !to)
		return;
	if (rng_percent(&t->rng, 15))
		o = object_any(t);
	made = *o;
	c = call_begin(t, to->ctl, ROW_ESCAPE, NV_ESC_RM_DUP_OBJECT, 28);
	memcpy(c->handle_at, at, sizeof(at));
	set32(c, 0, to->client);
	set32(c, 4, to->handle);
	set32(c, 8, new_handle(t));
	set32(c, 12, o->client);
	set32(c, 16, o->handle);
	made.ctl = to->ctl;
	if (call_issue(t, c))
		return;
	count_one(COUNT_DUPS);
	made.client = top32(c, 0);
	made.parent = top32(c, 4);
	made.handle = top32(c, 8);
	object_add(t, &made);
}

/* ---- the base of an epoch ---- */

void make_base(struct thread *t)
{
	struct nv_subdevice_params sub = { .subDeviceId = card.sub_device_instance };
	struct object *made, client, device;
	int gpu;

	t->calm = true;
	made = new_client(t);
	gpu = file_open(t, FILE_GPU);
	if (made && gpu >= 0) {
		client = *made;
		register_fd(t, gpu, client.ctl);
		made = new_device(t, &client);
		if (made) {
			device = *made;
			alloc_object(t, &device, device.handle, NV20_SUBDEVICE_0, OBJ_SUBDEVICE, &sub,
				     sizeof(sub));
		}
	}
	t->calm = false;
}

static void op_client(struct thread *t)
{
	struct object *made = new_client(t), client;

	if (!made)
		return;
	client = *made;
	new_device(t, &client);
}

const struct op ops_rm[] = {
	{ "client", 2, op_client },
	{ "vidmem", 16, op_vidmem },
	{ "sysmem", 6, op_sysmem },
	{ "free", 16, op_free },
	{ "dup", 8, op_dup },
	{ 0 },
};
