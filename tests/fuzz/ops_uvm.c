// SPDX-License-Identifier: MIT
/* Address spaces, ranges and mappings of nvidia-uvm. */
#include <string.h>

#include "fuzz.h"

static struct call *uvm_begin(struct thread *t, int uvm, uint32_t number)
{
	int row = row_find(ROW_UVM, number, 0);

	return call_begin(t, uvm, ROW_UVM, number, rows[row].size);
}

static void set_uuid(struct call *c, int at)
{
	memcpy((char *)c->top + at, card.uuid, sizeof(card.uuid));
}

static int initialize(struct thread *t, int uvm)
{
	int ret;
	struct call *c = uvm_begin(t, uvm, UVM_INITIALIZE);

	ret = call_issue(t, c);
	c = uvm_begin(t, uvm, UVM_REGISTER_GPU);
	set_uuid(c, 0);
	set32(c, 24, -1);
	return ret | call_issue(t, c);
}

static void register_space(struct thread *t, int uvm, const struct object *space)
{
	struct call *c = uvm_begin(t, uvm, UVM_REGISTER_GPU_VASPACE);
	int at[] = { 20, 24 };

	memcpy(c->handle_at, at, sizeof(at));
	set_uuid(c, 0);
	set32(c, 16, space->ctl);
	set32(c, 20, space->client);
	set32(c, 24, space->handle);
	call_issue(t, c);
}

static void op_space(struct thread *t)
{
	struct nv_vaspace_params p = {
		.flags = VASPACE_FLAGS,
	};
	struct object *device = object_pick(t, OBJ_DEVICE), client, *space;
	int uvm = file_open(t, FILE_UVM);

	if (!device || uvm < 0)
		return;
	client = *device;
	space = alloc_object(t, &client, client.handle, FERMI_VASPACE_A, OBJ_VASPACE, &p, sizeof(p));
	if (!initialize(t, uvm) && space)
		register_space(t, uvm, space);
}

/* The GPU address, 0 if it was not to be. */
uint64_t map_gpu(struct thread *t, const struct object *memory, uint64_t length)
{
	struct object m = *memory;
	uint64_t base = t->next_va, rounded = (length + 0xffff) & ~0xffffull;
	int uvm = file_pick(t, FILE_UVM);
	int at[] = { 9252, 9256 };
	struct call *c;

	if (!length || length > 1ull << 32 || uvm < 0)
		return 0;
	t->next_va += (rounded + VA_ALIGN - 1) & ~(VA_ALIGN - 1);
	c = uvm_begin(t, uvm, UVM_CREATE_EXTERNAL_RANGE);
	set64(c, 0, base);
	set64(c, 8, rounded);
	if (call_issue(t, c))
		return 0;
	if (t->ranges < MAX_RANGES) {
		t->range[t->ranges].uvm = uvm;
		t->range[t->ranges].base = base;
		t->range[t->ranges++].length = rounded;
	}
	c = uvm_begin(t, uvm, UVM_MAP_EXTERNAL_ALLOCATION);
	memcpy(c->handle_at, at, sizeof(at));
	set64(c, 0, base);
	set64(c, 8, length);
	set_uuid(c, 24);
	set64(c, 9240, 1);
	set32(c, 9248, m.ctl);
	set32(c, 9252, m.client);
	set32(c, 9256, m.handle);
	if (call_issue(t, c))
		return 0;
	count_one(COUNT_GPU_MAPS);
	return base;
}

static void op_map_gpu(struct thread *t)
{
	struct object *o = object_pick(t, rng_percent(&t->rng, 80) ? OBJ_VIDMEM : OBJ_SYSMEM);

	if (o)
		map_gpu(t, o, rng_percent(&t->rng, 80) ? o->size : 4096);
}

/* A piece of a mapping, its end, or all of a range. */
static void op_unmap(struct thread *t)
{
	struct call *c;
	uint64_t base, length;
	int i;

	if (!t->ranges)
		return;
	i = rng_below(&t->rng, t->ranges);
	base = t->range[i].base;
	length = t->range[i].length;
	if (rng_percent(&t->rng, 50)) {
		uint64_t piece = length > 0x20000 && rng_percent(&t->rng, 60) ? 0x10000 : length;

		c = uvm_begin(t, t->range[i].uvm, UVM_UNMAP_EXTERNAL);
		set64(c, 0, piece < length ? base + 0x10000 * rng_below(&t->rng, length >> 16) : base);
		set64(c, 8, piece);
		set_uuid(c, 16);
		call_issue(t, c);
		return;
	}
	c = uvm_begin(t, t->range[i].uvm, UVM_FREE);
	set64(c, 0, base);
	set64(c, 8, length);
	call_issue(t, c);
	t->range[i] = t->range[--t->ranges];
}

static void op_channel_of_uvm(struct thread *t)
{
	struct object *channel = object_pick(t, OBJ_CHANNEL);
	bool undo = rng_percent(&t->rng, 40);
	int register_at[] = { 20, 24 }, unregister_at[] = { 16, 20 };
	struct call *c;

	if (!channel)
		return;
	c = uvm_begin(t, file_pick(t, FILE_UVM), undo ? UVM_UNREGISTER_CHANNEL : UVM_REGISTER_CHANNEL);
	memcpy(c->handle_at, undo ? unregister_at : register_at, sizeof(register_at));
	set_uuid(c, 0);
	set32(c, 16, undo ? channel->client : (uint32_t)channel->ctl);
	set32(c, 20, undo ? channel->handle : channel->client);
	set32(c, 24, undo ? 0 : channel->handle);
	call_issue(t, c);
}

void uvm_row(struct thread *t, const struct row *row)
{
	struct call *c = call_begin(t, file_pick(t, FILE_UVM), ROW_UVM, row->number, row->size);

	for (uint32_t i = 0; i + 8 <= row->size && i < 64; i += 8)
		set64(c, i, t->ranges && rng_percent(&t->rng, 50)
			    ? t->range[rng_below(&t->rng, t->ranges)].base : rng_below(&t->rng, 3));
	if (row->size >= 32 && rng_percent(&t->rng, 70))
		set_uuid(c, rng_below(&t->rng, 2) * 16);
	if (row->size == 20)
		set_uuid(c, 0);
	if (c->fd_at >= 0)
		set32(c, c->fd_at, file_pick(t, FILE_UVM));
	call_issue(t, c);
}

static void op_any(struct thread *t)
{
	uvm_row(t, &rows[row_pick(&t->rng, ROW_UVM, rng_percent(&t->rng, 30))]);
}

const struct op ops_uvm[] = {
	{ "space", 3, op_space },
	{ "map_gpu", 14, op_map_gpu },
	{ "unmap", 8, op_unmap },
	{ "channel_of_uvm", 4, op_channel_of_uvm },
	{ "uvm", 6, op_any },
	{ 0 },
};
