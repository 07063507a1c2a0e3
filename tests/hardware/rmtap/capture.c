// SPDX-License-Identifier: MIT
/* Which of the caller's memory belongs to a call, by the numbers of the public driver: structs by the ioctl's size,
 * parameters by RM_CONTROL and RM_ALLOC, structs of uvm and parameters of classes by the module's call table.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "nv_call.h"
#include "rmtap.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Pointers in parameters: where, where their count is, and the bytes of one. A test compares them
 * with POINTERS in tests/abi/replay/layouts.py.
 */
static const struct {
	uint32_t cmd, at, count_at, each;
} pointers[] = {
	{ 0x101, 8, 0, 1 },
	{ 0x101, 16, 0, 1 },
	{ 0x101, 24, 0, 1 },
	{ 0x410110, 8, 0, 8 },
	{ 0x800201, 8, 0, 4 },
	{ 0x80170d, 8, 0, 4 },
	{ 0x80170d, 16, 0, 4 },
	{ 0x20800123, 8, 0, 4 },
	{ 0x20801201, 8, 0, 8 },
	{ 0x20801301, 8, 0, 8 },
	{ 0x20801802, 8, 0, 8 },
};

enum { RM_CONTROL = 0x2a, RM_ALLOC = 0x2b, GET_EVENT_DATA = 0x52, XFER = 211 };

/* The caller's pointers may be wrong: then the call fails, not the caller. */
static bool fetch(uint64_t address, unsigned char *into, uint32_t size)
{
	struct iovec local = { into, size }, remote = { (void *)(uintptr_t)address, size };

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size;
}

bool rmtap_readable(void)
{
	unsigned char probe = 1, got = 0;

	return fetch((uintptr_t)&probe, &got, 1) && got;
}

static uint32_t get32(const struct block *b, uint32_t at)
{
	uint32_t value = 0;

	if (b && at + sizeof(value) <= b->size)
		memcpy(&value, b->before + at, sizeof(value));
	return value;
}

static uint64_t get64(const struct block *b, uint32_t at)
{
	return get32(b, at) | (uint64_t)get32(b, at + 4) << 32;
}

static struct block *add(struct call *call, int parent, uint32_t at, uint64_t address, uint64_t size)
{
	struct block *b = &call->block[call->count];

	if (!address || !size || size > RMTAP_BLOCK_MAX || call->count == RMTAP_BLOCKS)
		return NULL;
	*b = (struct block) { .parent = parent, .at = at, .size = size, .address = address };
	b->before = malloc(2 * size);
	if (!b->before || !fetch(address, b->before, size)) {
		free(b->before);
		return NULL;
	}
	b->after = b->before + size;
	call->count++;
	return b;
}

static void add_control(struct call *call, int top, const struct block *b)
{
	const struct block *params = add(call, top, 16, get64(b, 16), get32(b, 24));
	int parent = call->count - 1;
	struct block *list;
	size_t i;

	for (i = 0; params && i < COUNT(pointers); i++) {
		if (pointers[i].cmd != get32(b, 8))
			continue;
		list = add(call, parent, pointers[i].at, get64(params, pointers[i].at),
			   (uint64_t)get32(params, pointers[i].count_at) * pointers[i].each);
		if (list)
			list->payload = true;
	}
}

static void add_alloc(struct call *call, int top, const struct block *b, uint32_t branch)
{
	uint32_t size = get32(b, b->size == 48 ? 32 : 24);
	const struct cgpu_class *row = cgpu_call_class(branch, get32(b, 12));

	if (!size && row)
		size = row->params_size;
	add(call, top, 16, get64(b, 16), size);
	if (b->size == 48)
		add(call, top, 24, get64(b, 24), 4);
}

static void add_nested(struct call *call, int top, uint32_t number, uint32_t branch)
{
	const struct block *b = &call->block[top];

	if (number == RM_CONTROL && b->size == 32)
		add_control(call, top, b);
	else if (number == RM_ALLOC && (b->size == 48 || b->size == 32))
		add_alloc(call, top, b, branch);
	else if (number == GET_EVENT_DATA && b->size == 16)
		add(call, top, 0, get64(b, 0), 16);
}

void rmtap_before(struct call *call, const char *node, unsigned long request, void *arg,
		  uint32_t branch)
{
	uint32_t number = _IOC_NR(request), size = _IOC_SIZE(request);
	const struct cgpu_uvm_call *row;
	const struct block *top;

	call->count = 0;
	if (strcmp(node, "nvidia-uvm") == 0) {
		row = cgpu_call_uvm(branch, request);
		add(call, -1, 0, (uintptr_t)arg, row ? row->size : 0);
		return;
	}
	top = add(call, -1, 0, (uintptr_t)arg, size);
	if (!top)
		return;
	if (number == XFER && size == 16) {
		number = get32(top, 0);
		if (get32(top, 4) <= RMTAP_TOP_MAX && add(call, 0, 8, get64(top, 8), get32(top, 4)))
			add_nested(call, 1, number, branch);
	} else {
		add_nested(call, 0, number, branch);
	}
}

/* Read again what was read before: a pointer that the driver wrote itself is not followed. */
void rmtap_after(struct call *call)
{
	int i;

	for (i = 0; i < call->count; i++) {
		struct block *b = &call->block[i];

		if (!fetch(b->address, b->after, b->size))
			memcpy(b->after, b->before, b->size);
	}
}

void rmtap_done(struct call *call)
{
	while (call->count)
		free(call->block[--call->count].before);
}
