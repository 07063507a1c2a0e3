// SPDX-License-Identifier: MIT
/* Files, mappings through them, objects exported on them. */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fuzz.h"

/* Often the thread's own; sometimes that of another thread, which may be closing it. */
int file_pick(struct thread *t, enum file_kind kind)
{
	const struct thread *from = t;
	int start, files;

	if (!t->calm && t->home && rng_percent(&t->rng, 4))
		from = t->home->thread[rng_below(&t->rng, opt.threads)];
	files = from ? from->files : 0;
	if (!files)
		return -1;
	start = rng_below(&t->rng, files);
	for (int i = 0; i < files; i++) {
		const struct file *f = &from->file[(start + i) % files];

		if (f->kind == kind)
			return f->fd;
	}
	return -1;
}

int file_open(struct thread *t, enum file_kind kind)
{
	char path[160], gpu[24];
	int fd;

	snprintf(gpu, sizeof(gpu), "nvidia%u", card.minor);
	snprintf(path, sizeof(path), "%s/%s", opt.dir,
		 kind == FILE_CTL ? "nvidiactl" : kind == FILE_GPU ? gpu : "nvidia-uvm");
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	count_one(COUNT_FILES);
	if (t->files == MAX_FILES)
		file_close(t, t->file[rng_below(&t->rng, MAX_FILES)].fd);
	t->file[t->files++] = (struct file) { kind, fd };
	return fd;
}

void file_close(struct thread *t, int fd)
{
	for (int i = 0; i < t->files; i++)
		if (t->file[i].fd == fd) {
			t->file[i] = t->file[--t->files];
			break;
		}
	if (fd >= 0 && fd < FIRST_KEPT_FD)
		close(fd);
	count_one(COUNT_CLOSED);
}

int register_fd(struct thread *t, int gpu, int ctl)
{
	struct call *c = call_begin(t, gpu, ROW_ESCAPE, NV_ESC_REGISTER_FD, 4);

	set32(c, 0, ctl);
	return call_issue(t, c);
}

/* Memory that a ring of the model writes must stay. */
static bool in_use(const struct thread *t, const struct mapping *m)
{
	if (m->at == t->building)
		return true;
	for (int i = 0; i < t->rings; i++)
		if ((char *)m->at == t->ring[i].cpu ||
		    (char *)m->at == (char *)t->ring[i].doorbell - NVC361_NOTIFY_CHANNEL_PENDING)
			return true;
	return false;
}

void mapping_add(struct thread *t, void *at, size_t length)
{
	int i = t->mappings;

	if (i == MAX_MAPPINGS) {
		for (i = rng_below(&t->rng, MAX_MAPPINGS); in_use(t, &t->mapping[i]);)
			i = (i + 1) % MAX_MAPPINGS;
		munmap(t->mapping[i].at, t->mapping[i].length);
	} else {
		t->mappings++;
	}
	t->mapping[i] = (struct mapping) { at, length };
}

/* Whether it may be written, as the kernel sees it: a wrong flag, or one that was
 * rewritten on its way, makes a mapping that may only be read.
 */
static bool writable(void *at)
{
	return !syscall(SYS_getcpu, at, NULL, NULL);
}

/* Through a fresh file, which stays open as often as not. */
void *map_cpu(struct thread *t, const struct object *memory, uint32_t device, uint64_t length, bool system)
{
	struct object m = *memory;
	int fd = file_open(t, system ? FILE_CTL : FILE_GPU);
	int at[] = { 0, 4, 8 };
	struct call *c;
	void *cpu = NULL;

	if (fd < 0)
		return NULL;
	if (!system)
		register_fd(t, fd, m.ctl);
	c = call_begin(t, m.ctl, ROW_ESCAPE, NV_ESC_RM_MAP_MEMORY, 56);
	memcpy(c->handle_at, at, sizeof(at));
	set32(c, 0, m.client);
	set32(c, 4, device);
	set32(c, 8, m.handle);
	set64(c, 24, length);
	set32(c, 48, fd);
	if (!call_issue(t, c)) {
		size_t size = t->calm || rng_percent(&t->rng, 90) ? length : length + 4096;

		cpu = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (cpu == MAP_FAILED)
			cpu = NULL;
		else
			mapping_add(t, cpu, size);
		/* Not of the requested size: it must not be accessed. */
		if (cpu && (size != length || !writable(cpu)))
			cpu = NULL;
	}
	if (cpu)
		count_one(COUNT_MAPS);
	if (rng_percent(&t->rng, 70))
		file_close(t, fd);
	return cpu;
}

static void op_map(struct thread *t)
{
	struct object *o = object_pick(t, OBJ_VIDMEM);
	uint64_t length;

	if (!o)
		return;
	length = o->size && o->size < 1u << 20 && rng_percent(&t->rng, 60) ? o->size : 4096;
	map_cpu(t, o, o->parent, length, false);
}

static void op_mmap_any(struct thread *t)
{
	int fd = file_pick(t, rng_below(&t->rng, 3));
	size_t length = 4096ull << rng_below(&t->rng, 10);
	void *at = mmap(NULL, length, rng_below(&t->rng, 8),
			rng_percent(&t->rng, 80) ? MAP_SHARED : MAP_PRIVATE, fd,
			rng_percent(&t->rng, 70) ? 0 : 4096ull * rng_below(&t->rng, 1u << 20));

	if (at != MAP_FAILED)
		mapping_add(t, at, length);
}

static void op_munmap(struct thread *t)
{
	struct mapping *m;

	if (!t->mappings)
		return;
	m = &t->mapping[rng_below(&t->rng, t->mappings)];
	if (in_use(t, m))
		return;
	switch (rng_below(&t->rng, 4)) {
	case 0:
		mprotect(m->at, m->length, PROT_READ);
		return;
	case 1:
		if (m->length > 4096) {	/* a part of it */
			munmap((char *)m->at + m->length - 4096, 4096);
			m->length -= 4096;
			return;
		}
	}
	munmap(m->at, m->length);
	*m = t->mapping[--t->mappings];
}

static void op_close(struct thread *t)
{
	int fd = t->files > 4 ? t->file[rng_below(&t->rng, t->files)].fd : -1;

	if (fd >= 0 && rng_percent(&t->rng, 60))
		file_close(t, fd);
}

/* A number that others are using becomes another file, of this container's. */
static void op_dup2(struct thread *t)
{
	int from = file_pick(t, rng_below(&t->rng, 3)), to = file_pick(t, rng_below(&t->rng, 3));

	if (from >= 0 && to >= 0 && to < FIRST_KEPT_FD)
		dup3(from, to, O_CLOEXEC);
}

static void op_poll(struct thread *t)
{
	struct pollfd p = { file_pick(t, rng_below(&t->rng, 3)), POLLIN, 0 };
	int flags = fcntl(p.fd, F_GETFL);

	if (flags >= 0)
		fcntl(p.fd, F_SETFL, flags ^ O_NONBLOCK);
	poll(&p, 1, 0);
	if (rng_percent(&t->rng, 20)) {
		char path[40];
		int fd;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", p.fd);
		fd = open(path, O_RDWR | O_CLOEXEC);	/* ours once more: a file of its own */
		if (fd >= 0)
			close(fd);
	}
}

/* ---- memory on control files ---- */

static void op_export(struct thread *t)
{
	struct object *memory = object_pick(t, OBJ_VIDMEM), client;
	uint32_t p[2128 / 4] = { 0 };
	int carrier = rng_percent(&t->rng, 60) ? file_open(t, FILE_CTL) : file_pick(t, FILE_CTL);

	if (!memory)
		return;
	client = *memory;
	client.handle = client.client;
	if (rng_percent(&t->rng, 50)) {
		p[0] = 1;
		p[1] = p[2] = memory->parent;
		p[3] = memory->handle;
		p[4] = carrier;
		if (!control(t, &client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, p,
			     sizeof(struct nv_export_to_fd)))
			count_one(COUNT_EXPORTS);
		return;
	}
	p[0] = carrier;
	p[1] = memory->parent;
	p[2] = 16;
	p[AT(nv_exports_to_fd, objects) / 4] = memory->handle;
	p[AT(nv_exports_to_fd, objects) / 4 + 1 + rng_below(&t->rng, 3)] = memory->handle;
	p[AT(nv_exports_to_fd, numObjects) / 4] = 4 | rng_below(&t->rng, 14) << 16;
	if (!control(t, &client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, p, sizeof(struct nv_exports_to_fd)))
		count_one(COUNT_EXPORTS);
}

static void import_one(struct thread *t, struct object client, const struct object *device, int carrier)
{
	uint32_t p[sizeof(struct nv_import_from_fd) / 4] = { carrier, 1, device->handle, device->handle, 0 };
	struct object made = *device;

	if (rng_percent(&t->rng, 50))
		p[4] = ++t->next_handle;
	if (control(t, &client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, p, sizeof(struct nv_import_from_fd)))
		return;
	count_one(COUNT_IMPORTS);
	made.kind = OBJ_VIDMEM;
	made.parent = device->handle;
	made.handle = p[4];
	made.size = 65536;
	object_add(t, &made);
}

static void op_import(struct thread *t)
{
	struct object *device = object_pick(t, OBJ_DEVICE), d, client;
	uint32_t p[sizeof(struct nv_imports_from_fd) / 4] = { 0 };
	int carrier = file_pick(t, FILE_CTL);

	if (!device)
		return;
	d = client = *device;
	client.handle = client.client;
	if (rng_percent(&t->rng, 50)) {
		import_one(t, client, &d, carrier);
		return;
	}
	p[0] = carrier;
	p[1] = d.handle;
	p[2] = ++t->next_handle;
	p[4] = rng_percent(&t->rng, 50) ? ++t->next_handle : 0;
	p[AT(nv_imports_from_fd, numObjects) / 4] = 4 | rng_below(&t->rng, 14) << 16;
	if (control(t, &client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, p, sizeof(struct nv_imports_from_fd)))
		return;
	count_one(COUNT_IMPORTS);
	for (int i = 0; i < 4; i++)
		if (p[2 + i]) {
			struct object made = { OBJ_VIDMEM, d.ctl, d.client, d.handle, p[2 + i], 65536, 0 };

			object_add(t, &made);
		}
}

void drop_all(struct thread *t)
{
	child_end(t);
	while (t->mappings) {
		struct mapping *m = &t->mapping[--t->mappings];

		munmap(m->at, m->length);
	}
	while (t->files)
		file_close(t, t->file[0].fd);
	t->objects = t->ranges = t->rings = 0;
}

const struct op ops_file[] = {
	{ "map", 10, op_map },
	{ "mmap_any", 3, op_mmap_any },
	{ "munmap", 5, op_munmap },
	{ "close", 3, op_close },
	{ "dup2", 1, op_dup2 },
	{ "poll", 3, op_poll },
	{ "export", 6, op_export },
	{ "import", 8, op_import },
	{ "fork", 1, op_fork },
	{ 0 },
};
