// SPDX-License-Identifier: MIT
/*
 * rm CHIP... : NVIDIA's resource manager with a card for each chip, driven over stdin and stdout.
 * A request is {u32 operation, u32 bytes} and so many bytes, an answer {u32 bytes} and so many;
 * integers are little endian. tests/rm/rm.py is the other side. RM's messages and the card's go to
 * stderr.
 */
#include "home.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../simgpu/gsp/engine.h"

enum {
	DO_OPEN, DO_CLOSE, DO_IOCTL, DO_READ, DO_WRITE, DO_KERNEL, DO_CONTROL_INFO, DO_CLASS_INFO, DO_SEEN,
	DO_POLL, DO_MEMORY, DO_STUBS, DO_STOP, DO_START,
};

/* rmapi_utils.c and rs_resource.c: RM's own tables */
NV_STATUS rmapiutilGetControlInfo(NvU32 cmd, NvU32 *flags, NvU32 *rights, NvU32 *bytes);

struct resource {			/* the start of RS_RESOURCE_DESC */
	NvU32 external, internal;
	const void *class_info;
	NvU32 params_bytes;
	NvBool params_required, many, any_parent;
	NvU32 *parents;
	NvU32 free_priority, flags;
};

struct resource *RsResInfoByExternalClassId(NvU32 class);

/* ---- requests and answers ---- */

static unsigned char *in, *out;
static size_t in_bytes, in_at, in_room, out_bytes, out_room;

static void read_all(void *to, size_t bytes)
{
	unsigned char *p = to;

	while (bytes) {
		ssize_t n = read(0, p, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			_exit(0);	/* the client is gone */
		p += n;
		bytes -= (size_t)n;
	}
}

static void write_all(const void *from, size_t bytes)
{
	const unsigned char *p = from;

	while (bytes) {
		ssize_t n = write(1, p, bytes);

		if (n <= 0)
			_exit(0);
		p += n;
		bytes -= (size_t)n;
	}
}

static const void *take(size_t bytes)
{
	const void *p = in + in_at;

	if (bytes > in_bytes - in_at)
		home_die("a request is too short");
	in_at += bytes;
	return p;
}

static uint32_t take32(void)
{
	uint32_t v;

	memcpy(&v, take(4), 4);
	return v;
}

static uint64_t take64(void)
{
	uint64_t v;

	memcpy(&v, take(8), 8);
	return v;
}

static void *put_room(size_t bytes)
{
	if (out_bytes + bytes > out_room) {
		out_room = (out_bytes + bytes) * 2;
		out = realloc(out, out_room);
		if (!out)
			home_die("no memory for an answer");
	}
	out_bytes += bytes;
	return out + out_bytes - bytes;
}

static void put(const void *from, size_t bytes)
{
	if (bytes)
		memcpy(put_room(bytes), from, bytes);
}

static void put32(uint32_t v)
{
	put(&v, 4);
}

static void put64(uint64_t v)
{
	put(&v, 8);
}

/* ---- operations ---- */

static struct home_file *take_file(void)
{
	uint32_t fd = take32();

	if (!fd || fd >= FILES || !files[fd].open)
		home_die("file %u is not open", fd);
	return &files[fd];
}

static struct home_card *take_card(void)
{
	uint32_t n = take32();

	if (n >= cards_nr)
		home_die("there is no card %u", n);
	return cards[n];
}

/*
 * A struct and the buffers that it points to, each with the offset of its pointer: the pointers
 * are filled in here. A buffer may be pointed to from another: its offset then has the number of
 * that one, from 1 on, in the upper half.
 */
struct arguments {
	unsigned char *base, *buffer[16];
	uint32_t bytes, buffer_bytes[16], nr;
};

static void *copy_of(const void *from, size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);

	if (!p)
		home_die("no memory for a call");
	memcpy(p, from, bytes);
	return p;
}

static void take_arguments(struct arguments *a)
{
	uint32_t i, offset[16];

	a->bytes = take32();
	a->nr = take32();
	if (a->nr > 16)
		home_die("a call has %u buffers", a->nr);
	a->base = copy_of(take(a->bytes), a->bytes);
	for (i = 0; i < a->nr; i++) {
		offset[i] = take32();
		a->buffer_bytes[i] = take32();
		a->buffer[i] = copy_of(take(a->buffer_bytes[i]), a->buffer_bytes[i]);
	}
	for (i = 0; i < a->nr; i++) {
		uint32_t in_buffer = offset[i] >> 16;
		unsigned char *to = in_buffer ? a->buffer[in_buffer - 1] : a->base;

		memcpy(to + (offset[i] & 0xffff), &a->buffer[i], sizeof(void *));
	}
}

static void put_arguments(struct arguments *a)
{
	uint32_t i;

	put(a->base, a->bytes);
	free(a->base);
	for (i = 0; i < a->nr; i++) {
		put(a->buffer[i], a->buffer_bytes[i]);
		free(a->buffer[i]);
	}
}

static void do_ioctl(void)
{
	struct home_file *f = take_file();
	uint32_t nr = take32();
	struct arguments a;

	take_arguments(&a);
	put32(rm_ioctl(NULL, f->card ? &f->card->nv : &control_nv, &f->rm, nr, a.base, a.bytes));
	home_run_work();
	put_arguments(&a);
}

/* A call as another kernel module makes it (nvidia_get_rm_ops(), op). */
static void do_kernel(void)
{
	struct arguments a;

	take_arguments(&a);
	rm_kernel_rmapi_op(NULL, a.base);
	home_run_work();
	put_arguments(&a);
}

static unsigned char *mapped(uint64_t *bytes)
{
	struct home_file *f = take_file();
	uint64_t offset = take64();

	*bytes = take32();
	if (!f->map || offset > f->map_bytes || *bytes > f->map_bytes - offset)
		home_die("an access of %llu bytes at %llu to a mapping of %llu", (unsigned long long)*bytes,
			 (unsigned long long)offset, (unsigned long long)(f->map ? f->map_bytes : 0));
	return f->map + offset;
}

static void do_read(void)
{
	uint64_t bytes;
	unsigned char *p = mapped(&bytes);

	put(p, bytes);
}

static void do_write(void)
{
	uint64_t bytes;
	unsigned char *p = mapped(&bytes);

	memcpy(p, take(bytes), bytes);
}

static void do_control_info(void)
{
	NvU32 flags = 0, rights = 0, bytes = 0;

	put32(rmapiutilGetControlInfo(take32(), &flags, &rights, &bytes));
	put32(flags);
	put32(rights);
	put32(bytes);
}

static void do_class_info(void)
{
	struct resource *r = RsResInfoByExternalClassId(take32());

	put32(r != NULL);
	put32(r ? r->params_bytes : 0);
	put32(r ? r->params_required : 0);
	put32(r ? r->flags : 0);
}

static void do_seen(void)
{
	size_t bytes, n = home_seen_nr();
	const unsigned char *params = home_seen_params(&bytes);

	put32((uint32_t)n);
	put(home_seen(), n * sizeof(struct home_seen));
	put(params, bytes);
	home_seen_clear();
}

static void do_stubs(void)
{
	unsigned int i, nr;
	const char *const *names = home_stubs_called(&nr);

	for (i = 0; i < nr; i++)
		put(names[i], strlen(names[i]) + 1);
}

static void poll_all(void)
{
	unsigned int i;

	for (i = 0; i < cards_nr; i++)
		if (cards[i]->ready)
			gsp_engine_poll(&cards[i]->card);
}

static void serve(uint32_t operation)
{
	uint32_t n;

	switch (operation) {
	case DO_OPEN:
		n = take32();
		if (n > cards_nr)
			home_die("there is no card %u", n - 1);
		put32((uint32_t)home_open(n ? cards[n - 1] : NULL));
		break;
	case DO_CLOSE:
		home_close((int)(take_file() - files));
		break;
	case DO_IOCTL:
		do_ioctl();
		break;
	case DO_READ:
		do_read();
		break;
	case DO_WRITE:
		do_write();
		break;
	case DO_KERNEL:
		do_kernel();
		break;
	case DO_CONTROL_INFO:
		do_control_info();
		break;
	case DO_CLASS_INFO:
		do_class_info();
		break;
	case DO_SEEN:
		do_seen();
		break;
	case DO_POLL:
		poll_all();
		break;
	case DO_MEMORY:
		put64(home_memory.blocks);
		put64(home_memory.bytes);
		put64(home_memory.pages);
		break;
	case DO_STUBS:
		do_stubs();
		break;
	case DO_STOP:
		home_card_stop(take_card());
		break;
	case DO_START:
		put32(home_card_start(take_card()));
		break;
	default:
		home_die("there is no operation %u", operation);
	}
}

static void start(char **chips, int nr)
{
	int i;

	control_nv.os_state = &control_nv;
	control_nv.flags |= NV_FLAG_CONTROL;
	for (i = 0; i < nr; i++)
		home_card_new(chips[i]);
	if (!rm_init_rm(NULL) || !rm_init_event_locks(NULL, &control_nv))
		home_die("RM does not start");
	/* Scrubbing freed memory would write all of it. */
	rm_write_registry_dword(NULL, NULL, "RMDisableScrubOnFree", 1);
}

static void fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	home_die("signal %d at address %p", signal, info->si_addr);
}

int main(int argc, char **argv)
{
	struct sigaction on_fault = { .sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_RESETHAND };
	uint32_t head[2];

	sigaction(SIGSEGV, &on_fault, NULL);
	sigaction(SIGBUS, &on_fault, NULL);

	start(argv + 1, argc - 1);
	for (;;) {
		read_all(head, sizeof(head));
		if (head[1] > in_room) {
			in_room = head[1] * 2;
			free(in);
			in = malloc(in_room);
			if (!in)
				home_die("no memory for a request");
		}
		read_all(in, head[1]);
		in_bytes = head[1];
		in_at = 0;
		out_bytes = 0;
		serve(head[0]);
		head[0] = (uint32_t)out_bytes;
		write_all(head, 4);
		write_all(out, out_bytes);
	}
}
