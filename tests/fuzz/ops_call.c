// SPDX-License-Identifier: MIT
/* Controls, objects of any class, and the other calls of the control file: by the rows of the table. */
#include <string.h>

#include "fuzz.h"

/* ---- controls ---- */

static int control_at(struct thread *t, const struct object *o, int row, const void *params,
		      uint32_t size, const int *lists)
{
	struct call *c = call_begin(t, o->ctl, ROW_ESCAPE, NV_ESC_RM_CONTROL, 32);
	int at[] = { 0, 4 };
	int ret;

	c->inner = row;
	memcpy(c->handle_at, at, sizeof(at));
	set32(c, 0, o->client);
	set32(c, 4, o->handle);
	set32(c, 8, rows[row].number);
	set32(c, 24, size);
	c->pointer_at = 16;
	c->size_at = 24;
	c->nested_size = size;
	if (rows[row].fd_kind) {
		c->fd_at = rows[row].fd_at;
		c->fd_nested = true;
	}
	memcpy(c->nested, params, size);
	if (lists)
		memcpy(c->list_at, lists, sizeof(c->list_at));
	ret = call_issue(t, c);
	memcpy((void *)params, c->nested, size);
	return ret;
}

int control(struct thread *t, const struct object *o, uint32_t cmd, void *params, uint32_t size)
{
	int row = row_find(ROW_CONTROL, cmd, 0);

	return row < 0 ? -1 : control_at(t, o, row, params, size, NULL);
}

/* The object for a control of this number. */
static struct object *object_for(struct thread *t, uint32_t cmd)
{
	switch (cmd >> 16) {
	case 0x0000:
		return object_pick(t, OBJ_CLIENT);
	case 0x0080:
		return object_pick(t, OBJ_DEVICE);
	case 0x2080:
		return object_pick(t, OBJ_SUBDEVICE);
	case 0x0041:
		return object_pick(t, rng_percent(&t->rng, 70) ? OBJ_VIDMEM : OBJ_SYSMEM);
	case 0x90f1:
		return object_pick(t, OBJ_VASPACE);
	case 0xa06c:
		return object_pick(t, OBJ_TSG);
	case 0xa06f: case 0x906f: case 0xc36f: case 0xc56f:
		return object_pick(t, OBJ_CHANNEL);
	default:
		return object_any(t);
	}
}

/* Values that make an answer likely. */
static const int *fill_control(struct thread *t, uint32_t cmd, uint32_t *p, uint32_t size)
{
	static const int one[] = { 8, -1 }, two[] = { 8, 16 };
	struct object *channel = object_pick(t, OBJ_CHANNEL);

	memset(p, 0, size);
	if (rng_percent(&t->rng, 30))
		for (uint32_t i = 0; i < size / 4 && i < 8; i++)
			p[i] = rng_below(&t->rng, 40);
	switch (cmd) {
	case 0x800201: case 0x20800123: case 0x20801301: case 0x410110:
		p[0] = 1 + rng_below(&t->rng, 8);
		return one;
	case 0x80170d:
		p[0] = rng_below(&t->rng, 3);
		return two;
	case 0x20801303:
		p[0] = rng_below(&t->rng, 130);
		for (int i = 1; i < 257; i += 2)
			p[i] = rng_below(&t->rng, 64);
		break;
	case 0x2080110b:
		p[0] = 1;
		p[1] = 1;
		p[4] = p[5] = 0;
		p[6] = channel ? channel->client : 0;
		p[70] = channel ? channel->handle : 0;
		break;
	case 0xa06c0101: case 0xa06f0103:
		p[0] = 1;
		break;
	case 0xa06c0103:
		p[0] = 1 + rng_below(&t->rng, 100000);
		break;
	case 0x2080014a:
		p[1] = 2;
		break;
	}
	return NULL;
}

static void op_control(struct thread *t)
{
	static __thread uint32_t params[NESTED_MAX / 4];
	int row = row_pick(&t->rng, ROW_CONTROL, rng_percent(&t->rng, 15));
	struct object *o = object_for(t, rows[row].number), copy;
	uint32_t size = rows[row].size ? rows[row].size : 64;

	if (!o || size > 0x10000)
		return;
	copy = *o;
	control_at(t, &copy, row, params, size, fill_control(t, rows[row].number, params, (size + 3) & ~3u));
}

/* ---- objects of any class ---- */

static struct object *parent_for(struct thread *t, const struct row *row)
{
	switch (row->verdict) {
	case CGPU_KIND_CLIENT:
	case CGPU_KIND_DEVICE:
		return object_pick(t, OBJ_CLIENT);
	case CGPU_KIND_CHANNEL:
		return object_pick(t, OBJ_TSG);
	case CGPU_KIND_COMPUTE:
	case CGPU_KIND_COPY:
		return object_pick(t, OBJ_CHANNEL);
	}
	if (row->number == 0x9067)
		return object_pick(t, OBJ_TSG);
	if (row->number == 0x00de || row->number == NV2081_BINAPI || (row->number & 0xff) == 0x61)
		return object_pick(t, OBJ_SUBDEVICE);
	if (row->number == NV01_EVENT || row->number == NV01_EVENT_OS_EVENT)
		return object_any(t);
	return object_pick(t, OBJ_DEVICE);
}

static void op_class(struct thread *t)
{
	static __thread uint32_t params[1024];
	const struct row *row = &rows[row_pick(&t->rng, ROW_CLASS, rng_percent(&t->rng, 15))];
	struct object *parent = parent_for(t, row), client, *space = object_pick(t, OBJ_VASPACE);
	struct object *engine = object_pick(t, OBJ_ENGINE);
	enum object_kind kind = row->verdict == CGPU_KIND_COMPUTE ? OBJ_ENGINE : OBJ_OTHER;

	if (!parent || row->size > sizeof(params) ||
	    (!opt.contexts && (row->verdict == CGPU_KIND_TSG || row->verdict == CGPU_KIND_CHANNEL)))
		return;
	client = *parent;
	memset(params, 0, sizeof(params));
	if (rng_percent(&t->rng, 40))
		for (int i = 0; i < 16; i++)
			params[i] = rng_below(&t->rng, 24);
	if (row->number == NV01_EVENT || row->number == NV01_EVENT_OS_EVENT) {
		params[0] = client.client;
		params[1] = client.handle;
		params[2] = NV01_EVENT_OS_EVENT;
		params[4] = rng_below(&t->rng, 64);
	} else if (row->number == KEPLER_CHANNEL_GROUP_A && space) {
		params[2] = space->handle;
		params[3] = rng_percent(&t->rng, 60) ? NV2080_ENGINE_TYPE_COPY0 : rng_below(&t->rng, 12);
		kind = OBJ_TSG;
	} else if (row->number == 0x9067 && space) {
		params[0] = space->handle;
	} else if (row->number == GT200_DEBUGGER && engine) {
		params[0] = 0;
		params[1] = rng_percent(&t->rng, 50) ? 0 : engine->client;
		params[2] = engine->handle;
	}
	alloc_object(t, &client, client.handle, row->number, kind, params, row->size);
}

/* ---- escapes ---- */

static void op_vid_heap(struct thread *t)
{
	struct object *o = object_pick(t, OBJ_DEVICE), made;
	struct object *memory = object_pick(t, OBJ_VIDMEM);
	static const uint32_t functions[] = { 2, 2, 2, 2, 3, 5, 5, 0, 1, 4, 27 };
	struct call *c;
	int at[] = { 0, 4, 44 };

	if (!o)
		return;
	made = (struct object) { OBJ_VIDMEM, o->ctl, o->client, o->handle, 0, 0, 0 };
	c = call_begin(t, o->ctl, ROW_ESCAPE, NV_ESC_RM_VID_HEAP_CONTROL, 184);
	memcpy(c->handle_at, at, sizeof(at));
	set32(c, 0, o->client);
	set32(c, 4, o->handle);
	set32(c, 8, functions[rng_below(&t->rng, 11)]);
	set32(c, 44, top32(c, 8) == 3 && memory ? memory->handle : new_handle(t));
	set32(c, 52, rng_percent(&t->rng, 50) ? 0x4000 : 0);
	set32(c, 56, rng_percent(&t->rng, 20) ? 1u << 25 : 0);
	set64(c, 88, some_size(t));
	if (call_issue(t, c) || top32(c, 8) != 2)
		return;
	made.handle = top32(c, 44);
	made.kind = top32(c, 56) >> 25 & 3 ? OBJ_SYSMEM : OBJ_VIDMEM;
	memcpy(&made.size, (char *)c->top + 88, 8);
	count_one(COUNT_ALLOCS);
	object_add(t, &made);
}

static void op_alloc_memory(struct thread *t)
{
	struct object *o = object_pick(t, OBJ_DEVICE), made;
	bool pin = rng_percent(&t->rng, 40);
	struct call *c;
	int at[] = { 0, 4, 8 };

	if (!o)
		return;
	made = (struct object) { OBJ_SYSMEM, o->ctl, o->client, o->handle, 0, 4096, 0 };
	c = call_begin(t, file_pick(t, FILE_GPU), ROW_ESCAPE, NV_ESC_RM_ALLOC_MEMORY, 56);
	memcpy(c->handle_at, at, sizeof(at));
	set32(c, 0, o->client);
	set32(c, 4, o->handle);
	set32(c, 8, new_handle(t));
	set32(c, 12, pin ? NV01_MEMORY_SYSTEM_OS_DESCRIPTOR : NV01_MEMORY_SYSTEM);
	set64(c, 24, pin ? (uintptr_t)t->arena.given + 0x2000 : 0);
	set64(c, 32, 4095);
	set32(c, 48, -1);
	if (call_issue(t, c))
		return;
	made.handle = top32(c, 8);
	object_add(t, &made);
}

static void op_map_dma(struct thread *t)
{
	struct object *space = object_pick(t, OBJ_VASPACE), *memory = object_pick(t, OBJ_VIDMEM);
	struct call *c;
	int at[] = { 0, 4, 8, 12 };

	if (!space || !memory)
		return;
	c = call_begin(t, space->ctl, ROW_ESCAPE, NV_ESC_RM_MAP_MEMORY_DMA, 64);
	memcpy(c->handle_at, at, sizeof(at));
	set32(c, 0, space->client);
	set32(c, 4, space->parent);
	set32(c, 8, space->handle);
	set32(c, 12, memory->handle);
	set64(c, 24, memory->size ? memory->size : 4096);
	if (!call_issue(t, c))
		count_one(COUNT_GPU_MAPS);
}

/* Any row, filled with values that may have a meaning. */
void escape_row(struct thread *t, const struct row *row)
{
	struct object *o = object_any(t);
	enum file_kind on = row->nodes & CGPU_NODE_CTL ? FILE_CTL : FILE_GPU;
	uint32_t some = opt.rewrite ? 128 : 4u << rng_below(&t->rng, 9), size = row->size ? row->size : some, i;
	struct call *c = call_begin(t, o && on == FILE_CTL ? o->ctl : file_pick(t, on), ROW_ESCAPE,
				    row->number, size);

	for (i = 0; i + 4 <= size && i < 64; i += 4) {
		struct object *word = object_any(t);

		set32(c, i, rng_percent(&t->rng, 50) || !word ? rng_below(&t->rng, 4) : word->handle);
	}
	if (o && rng_percent(&t->rng, 80))
		set32(c, 0, o->client);
	if (row->number == NV_ESC_CHECK_VERSION_STR) {
		memset(c->top, 0, size);
		set32(c, 0, "12x"[rng_below(&t->rng, 3)]);
	}
	if (c->fd_at >= 0)
		set32(c, c->fd_at, file_pick(t, FILE_CTL));
	call_issue(t, c);
}

static void op_escape(struct thread *t)
{
	escape_row(t, &rows[row_pick(&t->rng, ROW_ESCAPE, rng_percent(&t->rng, 30))]);
}

const struct op ops_call[] = {
	{ "control", 24, op_control },
	{ "class", 10, op_class },
	{ "vid_heap", 6, op_vid_heap },
	{ "alloc_memory", 3, op_alloc_memory },
	{ "map_dma", 4, op_map_dma },
	{ "escape", 8, op_escape },
	{ 0 },
};
