// SPDX-License-Identifier: MIT
/* Mutations of a well-formed call. */
#include <sys/ioctl.h>
#include <unistd.h>

#include "fuzz.h"

static const uint64_t odd_sizes[] = {
	0, 1, 3, 4095, 4096, 65535, 65536, 1ull << 20, 1ull << 31, (1ull << 32) - 1, 1ull << 32,
	(1ull << 32) + 4096, 1ull << 46, 1ull << 63, ~0ull - 65535, ~0ull,
};

static uint32_t wrong_handle(struct thread *t)
{
	struct object *o = object_any(t);
	uint64_t name = atomic_load(&shared->names[rng_below(&t->rng, 256)]);

	switch (rng_below(&t->rng, 8)) {
	case 0:
		return 0;
	case 1:
		return t->stales ? t->stale[rng_below(&t->rng, t->stales)].handle : 0;
	case 2:
		return name;		/* of another thread, process or container */
	case 3:
		return name >> 32;	/* and its client */
	case 4:
		return o ? o->handle : 1;	/* ours, of any kind */
	case 5:
		return 0xcaf00000 + rng_below(&t->rng, 64);	/* where the driver begins */
	case 6:
		return 0xc1d00000 + rng_below(&t->rng, 64);	/* and its clients */
	default:
		return rng_next(&t->rng);
	}
}

static const char *mutate_handle(struct thread *t, struct call *c)
{
	int n = 0;

	while (n < 5 && c->handle_at[n] >= 0)
		n++;
	if (!n)
		return NULL;
	set32(c, c->handle_at[rng_below(&t->rng, n)], wrong_handle(t));
	return "handle";
}

static const char *mutate_size(struct thread *t, struct call *c)
{
	static const int by[] = { -8, -4, -1, 1, 4, 8, 4096, -4096 };
	int n = by[rng_below(&t->rng, 8)];

	if (c->size_at >= 0 && rng_percent(&t->rng, 60)) {
		set32(c, c->size_at, rng_percent(&t->rng, 30) ? odd_sizes[rng_below(&t->rng, 16)]
							      : c->nested_size + n);
		return "params size";
	}
	if (c->row >= 0 && rows[c->row].kind == ROW_UVM)
		return NULL;
	c->request = _IOC(_IOC_READ | _IOC_WRITE, 'F', _IOC_NR(c->request), (c->top_size + n) & 0x3fff);
	return "size";
}

static const char *mutate_pointer(struct thread *t, struct call *c)
{
	uintptr_t given = (uintptr_t)t->arena.given;
	const struct thread *other = t->home ? t->home->thread[rng_below(&t->rng, opt.threads)] : NULL;
	const uint64_t to[] = {
		0, 1, 0xffff888000000000ull, 0xffffffff81000000ull, 0x00007ffffffff000ull,
		0x8000000000000000ull, ~0ull, 0x1000,
		given + ARENA_TOP, given + ARENA_TOP + 8, given + ARENA_TOP + c->pointer_at,
		given + ARENA_NESTED + 1, given + ARENA_NESTED + 4095, given + ARENA_SIZE - 8,
		(uintptr_t)t->arena.frozen + ARENA_TOP,
		other ? (uintptr_t)other->arena.given + ARENA_NESTED : 0,
	};

	if (c->pointer_at < 0)
		return NULL;
	c->pointer = to[rng_below(&t->rng, 16)];
	c->pointer_set = true;
	return "pointer";
}

static const char *mutate_word(struct thread *t, struct call *c)
{
	uint8_t *at = (uint8_t *)c->top;
	uint32_t size = c->top_size, word;

	if (c->pointer_at >= 0 && c->nested_size >= 4 && rng_percent(&t->rng, 60)) {
		at = c->nested;
		size = c->nested_size;
	}
	if (size < 4)
		return NULL;
	/* In long arguments the fields that matter are at the beginning. */
	word = rng_below(&t->rng, rng_percent(&t->rng, 70) && size > 256 ? 64 : size / 4);
	switch (rng_below(&t->rng, 4)) {
	case 0:
		at[word * 4] ^= 1u << rng_below(&t->rng, 8);
		break;
	case 1:
		memcpy(at + word * 4, &(uint32_t) { wrong_handle(t) }, 4);
		break;
	default:
		memcpy(at + word * 4, &odd_sizes[rng_below(&t->rng, 16)], word * 4 + 8 <= size ? 8 : 4);
	}
	return "word";
}

static int wrong_file(struct thread *t)
{
	switch (rng_below(&t->rng, 6)) {
	case 0:
		return -1;
	case 1:
		return 500 + rng_below(&t->rng, 300);
	case 2:
		return rng_below(&t->rng, 64);
	case 3:
		return file_pick(t, rng_below(&t->rng, 3));
	default:
		return wrong_fds ? wrong_fd[rng_below(&t->rng, wrong_fds)] : -1;
	}
}

static const char *mutate_fd(struct thread *t, struct call *c)
{
	int fd = wrong_file(t);

	if (c->fd_at < 0)
		return NULL;
	if (c->fd_nested)
		memcpy(c->nested + c->fd_at, &fd, 4);
	else
		set32(c, c->fd_at, fd);
	return "fd";
}

/* The call on another node, or on another of the same kind. Never on one that is not this container's. */
static const char *mutate_node(struct thread *t, struct call *c)
{
	c->fd = file_pick(t, rng_below(&t->rng, 3));
	return "node";
}

static const char *mutate_xfer(struct thread *t, struct call *c)
{
	(void)t;
	c->xfer = true;
	return "xfer";
}

static const char *mutate_frozen(struct thread *t, struct call *c)
{
	if (c->pointer_at >= 0 && rng_percent(&t->rng, 80))
		c->nested_frozen = true;
	else
		c->top_frozen = true;
	return "frozen";
}

void call_mutate(struct thread *t, struct call *c)
{
	static const char *(*const kinds[])(struct thread *, struct call *) = {
		mutate_handle, mutate_handle, mutate_size, mutate_pointer, mutate_word, mutate_word,
		mutate_fd, mutate_node, mutate_xfer, mutate_frozen,
	};
	int n = 1 + rng_below(&t->rng, 3) / 2;

	while (n--) {
		const char *what = kinds[rng_below(&t->rng, 10)](t, c);

		if (what)
			c->wrong[c->wrongs++] = what;
	}
}
