// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* RM operations of kernel clients: made by a process of nvforwardd that keeps its rights, on a control file of its
 * own, or on the file to which the driver has bound the client. Pages that the driver has pinned. What was not
 * forwarded.
 */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/xarray.h>
#include <as-layout.h>

#include "core/nv_call.h"
#include "forward.h"

/* ---- clients ---- */

static DEFINE_MUTEX(clients_lock);
static DEFINE_XARRAY(clients);		/* clients_lock; struct fwd_file by handle */
static struct fwd_file *own;		/* the kernel's control file: from fwd_kernel_open() on */

void fwd_client_add(u32 client, struct fwd_file *f)
{
	mutex_lock(&clients_lock);
	xa_store(&clients, client, f, GFP_KERNEL);
	mutex_unlock(&clients_lock);
}

void fwd_client_remove(u32 client)
{
	mutex_lock(&clients_lock);
	xa_erase(&clients, client);
	mutex_unlock(&clients_lock);
}

void fwd_clients_drop(struct fwd_file *f)
{
	unsigned long client;
	void *file;

	mutex_lock(&clients_lock);
	xa_for_each(&clients, client, file)
		if (file == f)
			xa_erase(&clients, client);
	mutex_unlock(&clients_lock);
}

int fwd_client_fd(u32 client)
{
	struct fwd_file *f;
	int fd = -ENOENT;

	mutex_lock(&clients_lock);
	f = xa_load(&clients, client);
	if (f)
		fd = fwd_host_dup(f->host_fd);
	mutex_unlock(&clients_lock);
	return fd;
}

int fwd_kernel_open(void)
{
	own = fwd_file_open("nvidiactl");
	if (IS_ERR(own))
		return PTR_ERR(own);
	own->nv = &fwd_ctl;
	return 0;
}

void fwd_kernel_close(void)
{
	fwd_file_close(own);
}

/* The client's file, or the kernel's own. */
static int file_of(u32 client)
{
	int fd = fwd_client_fd(client);

	return fd == -ENOENT ? fwd_host_dup(own->host_fd) : fd;
}

/* ---- operations: nv-kernel-rmapi-ops.h ---- */

static u32 run(u32 client, u32 nr, u8 *top, u32 size)
{
	struct fwd_process *p = fwd_process_kernel();
	int fd = file_of(client);
	u32 status = NV_ERR_GENERIC;

	if (fd >= 0) {
		status = fwd_escape(p, NULL, fd, nr, top, size, &fwd_of_kernel);
		fwd_host_close(fd);
	}
	fwd_process_put(p);
	return status;
}

/* A struct of the same layout as the ioctl's. */
static void run_same(u8 *u, u32 nr, u32 size, u32 status_at)
{
	u32 status = run(get32(u, 0), nr, u, size);

	if (status != NV_OK)
		put32(u, status_at, status);
}

static void run_alloc(u8 *u)
{
	const struct cgpu_abi *abi = cgpu_call_abi(fwd_branch);
	u8 top[sizeof(struct nvos64)] = {};
	u32 status;

	memcpy(top, u, AT(nvos64, pRightsRequested));
	put32(top, AT(nvos64, paramsSize), get32(u, abi->op_alloc_params_size));
	status = run(get32(u, 0), NV_ESC_RM_ALLOC, top, sizeof(top));
	put32(u, NVOS_H_NEW, get32(top, NVOS_H_NEW));
	put32(u, abi->op_alloc_status, status == NV_OK ? get32(top, AT(nvos64, status)) : status);
}

/* Utilisation samples name processes of the host: the guest's names go there. */
static void rename_samples(u8 *params, u32 size)
{
	const struct cgpu_abi *abi = cgpu_call_abi(fwd_branch);
	u32 at, tgid;

	for (at = AT(nv_util_samples, samples) + abi->util_pid; at + 4 <= size; at += abi->util_stride) {
		tgid = fwd_process_tgid(get32(params, at));
		if (tgid)
			put32(params, at, tgid);
	}
}

noinline void rm_kernel_rmapi_op(struct nvidia_stack_s *sp, void *op)
{
	u8 *u = op + AT(nv_kernel_op, params);

	switch (get32(op, 0)) {
	case NV01_FREE:
		run_same(u, NV_ESC_RM_FREE, sizeof(struct nvos00), AT(nvos00, status));
		break;
	case NV04_ALLOC:
		run_alloc(u);
		break;
	case NV04_CONTROL:
		run_same(u, NV_ESC_RM_CONTROL, sizeof(struct nvos54), AT(nvos54, status));
		if (get32(u, AT(nvos54, cmd)) == NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2 &&
		    get32(u, AT(nvos54, status)) == NV_OK)
			rename_samples((u8 *)(uintptr_t)get64(u, AT(nvos54, params)), get32(u, AT(nvos54, paramsSize)));
		break;
	case NV04_SHARE:
		run_same(u, NV_ESC_RM_SHARE, sizeof(struct nvos57), AT(nvos57, status));
		break;
	default:
		fwd_not_forwarded("operation of a kernel client", get32(op, 0));
	}
}

/* ---- pages ---- */

struct fwd_pins {
	struct list_head node;		/* file->lock */
	u32 client, memory;		/* 0: of the call under way */
	u32 count;
	struct task_struct *task;
	struct page **pages;
};

static void unpin(struct fwd_pins *pins)
{
	os_unlock_user_pages(pins->count, pins->pages);
	kfree(pins);
}

/* Segments of the memory of User-Mode Linux, which is one file of the host. */
static int describe(struct fwd_pins *pins, struct fwd_segment *s, u32 room, u32 *used, int *fd)
{
	unsigned long long offset;
	u32 i;

	for (i = 0, *used = 1; i < pins->count; i++) {
		*fd = phys_mapping(page_to_phys(pins->pages[i]), &offset);
		if (*fd < 0)
			return -EFAULT;
		if (*used > 1 && s[*used - 1].offset + s[*used - 1].bytes == offset) {
			s[*used - 1].bytes += PAGE_SIZE;
			continue;
		}
		if (*used == room)
			return -E2BIG;
		s[(*used)++] = (struct fwd_segment){ offset, PAGE_SIZE };
	}
	return 0;
}

int fwd_pin(struct fwd_file *f, struct fwd_call *call, u64 address, u64 bytes, u32 parent, u32 at)
{
	u64 first = address & PAGE_MASK, count = (PAGE_ALIGN(address + bytes) - first) >> PAGE_SHIFT;
	const u32 room = (FWD_DATA_MAX - 1024) / sizeof(struct fwd_segment);
	struct fwd_pins *pins;
	struct fwd_segment *s;
	void *pages = NULL;
	u32 used = 0;
	int ret, fd = -1, n;

	if (!bytes || count > INT_MAX / sizeof(*pins->pages))
		return -EINVAL;
	pins = kzalloc(sizeof(*pins), GFP_KERNEL);
	s = kvzalloc(room * sizeof(*s), GFP_KERNEL);
	if (!pins || !s) {
		kfree(pins);
		kvfree(s);
		return -ENOMEM;
	}
	ret = os_lock_user_pages((void *)first, count, &pages, NV_LOCK_USER_PAGES_FLAGS_WRITE_YES) == NV_OK ? 0 : -EFAULT;
	pins->pages = pages;
	pins->count = count;
	pins->task = current;
	ret = ret ?: describe(pins, s, room, &used, &fd);
	s[0] = (struct fwd_segment){ offset_in_page(address), 0 };
	n = ret ? ret : fwd_add(call, used * sizeof(*s), parent, at);
	if (n > 0) {
		memcpy(fwd_buf(call, n), s, used * sizeof(*s));
		ret = fwd_add_fd(call, fd, 0, 0);
		call->request.fd[max(ret, 0)].used = 0;
		call->request.buf[n].pages_of = max(ret, 0);
	}
	kvfree(s);
	if (n <= 0 || ret < 0) {
		if (pins->pages)
			unpin(pins);
		else
			kfree(pins);
		return -EFAULT;
	}
	mutex_lock(&f->lock);
	list_add(&pins->node, &f->pins);
	mutex_unlock(&f->lock);
	return 0;
}

/* The pages of this task's call belong to an object now; without one (0, 0) they are given back. */
void fwd_pin_keep(struct fwd_file *f, u32 client, u32 memory)
{
	struct fwd_pins *pins, *found = NULL;

	mutex_lock(&f->lock);
	list_for_each_entry(pins, &f->pins, node)
		if (!pins->memory && pins->task == current)
			found = pins;
	if (found) {
		found->client = client;
		found->memory = memory;
		found->task = NULL;
		if (!memory)
			list_del(&found->node);
	}
	mutex_unlock(&f->lock);
	if (found && !memory)
		unpin(found);
}

/* All of the file's with (0, 0), all of a client's with the client's own handle. Pages of objects that go with another
 * ancestor stay until the client does.
 */
void fwd_pin_drop(struct fwd_file *f, u32 client, u32 memory)
{
	struct fwd_pins *pins, *next;
	LIST_HEAD(dropped);

	mutex_lock(&f->lock);
	list_for_each_entry_safe(pins, next, &f->pins, node)
		if (!memory || (pins->client == client && (pins->memory == memory || memory == client)))
			list_move(&pins->node, &dropped);
	mutex_unlock(&f->lock);
	list_for_each_entry_safe(pins, next, &dropped, node)
		unpin(pins);
}

/* ---- what was not forwarded ---- */

#define LISTED_MAX	64

static struct {
	const char *kind;
	u32 number, count;
} listed[LISTED_MAX];
static DEFINE_MUTEX(listed_lock);

void fwd_not_forwarded(const char *kind, u32 number)
{
	u32 i;

	mutex_lock(&listed_lock);
	for (i = 0; i < LISTED_MAX && listed[i].kind; i++)
		if (listed[i].kind == kind && listed[i].number == number)
			break;
	if (i < LISTED_MAX) {
		listed[i].kind = kind;
		listed[i].number = number;
		listed[i].count++;
	}
	mutex_unlock(&listed_lock);
}

void fwd_show_not_forwarded(struct seq_file *m)
{
	u32 i;

	mutex_lock(&listed_lock);
	for (i = 0; i < LISTED_MAX && listed[i].kind; i++)
		seq_printf(m, "%s 0x%x: %u\n", listed[i].kind, listed[i].number, listed[i].count);
	mutex_unlock(&listed_lock);
}
