// SPDX-License-Identifier: MIT
/* One call: laid out in the arena, issued, counted. */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

bool arena_make(struct arena *a)
{
	a->memfd = memfd_create("arena", MFD_CLOEXEC);
	if (a->memfd < 0 || ftruncate(a->memfd, ARENA_SIZE))
		return false;
	a->ours = mmap(NULL, ARENA_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, a->memfd, 0);
	a->given = mmap(NULL, ARENA_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, a->memfd, 0);
	a->frozen = mmap(NULL, ARENA_SIZE, PROT_READ, MAP_SHARED, a->memfd, 0);
	return a->ours != MAP_FAILED && a->given != MAP_FAILED && a->frozen != MAP_FAILED;
}

/* The thread's only one: a call ends before the next begins. */
static __thread struct call the_call;
static __thread uint8_t nested_bytes[NESTED_MAX];

struct call *call_begin(struct thread *t, int fd, enum row_kind kind, uint32_t number, uint32_t size)
{
	struct call *c = &the_call;

	(void)t;
	memset(c, 0, sizeof(*c));
	c->nested = nested_bytes;
	c->fd = fd;
	c->row = row_find(kind, number, size);
	c->inner = c->status_at = c->pointer_at = c->size_at = c->fd_at = -1;
	c->list_at[0] = c->list_at[1] = -1;
	memset(c->handle_at, 0xff, sizeof(c->handle_at));
	c->top_size = size;
	c->request = kind == ROW_UVM ? number : _IOC(_IOC_READ | _IOC_WRITE, 'F', number, size);
	if (c->row >= 0) {
		if (rows[c->row].status_at)
			c->status_at = rows[c->row].status_at;
		if (rows[c->row].fd_kind)
			c->fd_at = rows[c->row].fd_at;
	}
	return c;
}

static void lay_out(struct thread *t, struct call *c)
{
	char *base = c->nested_frozen ? t->arena.frozen : t->arena.given;
	uint64_t pointer = (uintptr_t)base + ARENA_NESTED;

	if (c->pointer_at >= 0) {
		for (int i = 0; i < 2; i++)
			if (c->list_at[i] >= 0) {
				uint64_t list = pointer + 0x1000;

				memcpy(c->nested + c->list_at[i], &list, 8);
			}
		if (c->nested_size || c->pointer_set)
			set64(c, c->pointer_at, c->pointer_set ? c->pointer : pointer);
		memcpy(t->arena.ours + ARENA_NESTED, c->nested, c->nested_size);
	}
	memcpy(t->arena.ours + ARENA_TOP, c->top, c->top_size);
}

static unsigned long wrap(struct thread *t, struct call *c, unsigned long where, unsigned long *request)
{
	struct { uint32_t nr, size; uint64_t at; } xfer = { _IOC_NR(*request), _IOC_SIZE(*request), where };

	if (!c->xfer)
		return where;
	memcpy(t->arena.ours + ARENA_XFER, &xfer, sizeof(xfer));
	*request = _IOC(_IOC_READ | _IOC_WRITE, 'F', NV_ESC_IOCTL_XFER_CMD, sizeof(xfer));
	return (uintptr_t)t->arena.given + ARENA_XFER;
}

static void count_hit(int row, int outcome)
{
	if (row >= 0)
		atomic_fetch_add_explicit(&shared->hit[row][outcome], 1, memory_order_relaxed);
}

int call_issue(struct thread *t, struct call *c)
{
	unsigned long where, request;
	int ret, err;
	uint32_t status;

	if (!t->calm && rng_percent(&t->rng, t->mutate_percent))
		call_mutate(t, c);
	lay_out(t, c);
	request = c->request;
	where = (uintptr_t)(c->top_frozen ? t->arena.frozen : t->arena.given) + ARENA_TOP;
	where = wrap(t, c, where, &request);
	if (t->seat)
		atomic_store(&t->seat->row, c->inner >= 0 ? c->inner : c->row);
	thread_log(t, "%s%s%s fd %d request %#lx %s %s %s", c->row < 0 ? "?" : rows[c->row].name,
		   c->inner < 0 ? "" : " ", c->inner < 0 ? "" : rows[c->inner].name, c->fd, request,
		   c->wrongs > 0 ? c->wrong[0] : "", c->wrongs > 1 ? c->wrong[1] : "",
		   c->wrongs > 2 ? c->wrong[2] : "");
	ret = opt.rewrite ? rewrite_ioctl(c, &t->arena) : ioctl(c->fd, request, where);
	err = ret < 0 ? errno : 0;
	if (t->seat)
		atomic_store(&t->seat->row, -1);
	memcpy(c->top, t->arena.ours + ARENA_TOP, c->top_size);
	if (c->pointer_at >= 0)
		memcpy(c->nested, t->arena.ours + ARENA_NESTED, c->nested_size);
	status = c->status_at >= 0 && !err ? top32(c, c->status_at) : 0;
	thread_log(t, "  = %d errno %d status %#x", ret, err, status);
	count_one(COUNT_CALLS);
	if (c->wrongs)
		count_one(COUNT_MUTATED);
	count_hit(c->row, err ? 2 : !!status);
	count_hit(c->inner, err ? 2 : !!status);
	return err || status;
}
