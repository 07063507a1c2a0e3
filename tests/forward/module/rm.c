// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Calls of the resource manager: the struct, what it points to by the call table's rows, and what that points to. */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "core/nv_call.h"
#include "forward.h"


/* ---- lists behind a pointer in a control's parameters ---- */

/* ctrl/ctrl*.h; the driver has the same list in embedded_param_copy.c. @count_at: offset of the number of elements. */
static const struct embedded {
	u32 cmd, count_at, pointer_at, element;	/* bytes */
} embedded[] = {
	{ 0x00000101, 0, 8, 1 },	/* SYSTEM_GET_BUILD_VERSION: three strings */
	{ 0x00000101, 0, 16, 1 },
	{ 0x00000101, 0, 24, 1 },
	{ 0x00410110, 0, 8, 8 },	/* GET_SURFACE_INFO */
	{ 0x00800201, 0, 8, 4 },	/* GPU_GET_CLASSLIST */
	{ 0x00801102, 0, 8, 1 },	/* GR_GET_CAPS */
	{ 0x00801104, 0, 8, 8 },	/* GR_GET_INFO */
	{ 0x00801301, 0, 8, 1 },	/* FB_GET_CAPS */
	{ 0x00801701, 0, 8, 1 },	/* FIFO_GET_CAPS */
	{ 0x0080170d, 0, 8, 4 },	/* FIFO_GET_CHANNELLIST: handles, numbers */
	{ 0x0080170d, 0, 16, 4 },
	{ 0x00801b01, 0, 8, 1 },	/* MSENC_GET_CAPS */
	{ 0x20800123, 0, 8, 4 },	/* GPU_GET_ENGINES */
	{ 0x20800802, 0, 8, 8 },	/* BIOS_GET_INFO */
	{ 0x20801201, 0, 8, 8 },	/* GR_GET_INFO */
	{ 0x20801301, 0, 8, 8 },	/* FB_GET_INFO */
	{ 0x20801802, 0, 8, 8 },	/* BUS_GET_INFO */
};

#define GPU_GET_ID_INFO		0x00000202u	/* a string of fixed size */
#define ID_INFO_NAME_AT		16u
#define ID_INFO_NAME_BYTES	128u

/* ---- the two kinds of memory ---- */

static u32 read_user(void *to, u64 from, u32 n)
{
	return os_memcpy_from_user(to, u64_to_user_ptr(from), n);
}

static u32 write_user(u64 to, const void *from, u32 n)
{
	return os_memcpy_to_user(u64_to_user_ptr(to), from, n);
}

static u32 read_kernel(void *to, u64 from, u32 n)
{
	memcpy(to, (const void *)(uintptr_t)from, n);
	return NV_OK;
}

static u32 write_kernel(u64 to, const void *from, u32 n)
{
	memcpy((void *)(uintptr_t)to, from, n);
	return NV_OK;
}

const struct fwd_memory fwd_of_user = { read_user, write_user };
const struct fwd_memory fwd_of_kernel = { read_kernel, write_kernel };

/* ---- one call ---- */

struct rm_call {
	struct fwd_process *p;
	struct fwd_file *f;		/* NULL: the kernel's */
	struct fwd_call *call;
	const struct fwd_memory *memory;
	u8 *top;
	u32 nr, size, node;
	u64 address[FWD_BUFS_MAX];	/* the caller's, of each buffer behind a pointer */
	u32 out[FWD_BUFS_MAX];		/* bytes of each to copy out */
	void *file[FWD_FDS_MAX];	/* references, of files named by a number */
	u32 number[FWD_FDS_MAX];	/* what the caller wrote there */
	bool pinned;			/* pages of an OS descriptor */
};

/* What the driver would read or write at @address. Its number, or 0 with @status. */
static u32 add_behind(struct rm_call *c, u64 address, u32 bytes, u32 parent, u32 at, u32 *status)
{
	int n;

	if (!address || !bytes)
		return 0;
	n = fwd_add(c->call, bytes, parent, at);
	if (n < 0) {
		*status = NV_ERR_NO_MEMORY;
		return 0;
	}
	c->address[n] = address;
	c->out[n] = bytes;
	*status = c->memory->read(fwd_buf(c->call, n), address, bytes);
	return n;
}

static u32 add_embedded(struct rm_call *c, u32 cmd, u32 params)
{
	const u32 size = c->call->request.buf[params].size;
	u32 status = NV_OK, i;
	u64 bytes;

	for (i = 0; i < ARRAY_SIZE(embedded) && status == NV_OK; i++) {
		if (embedded[i].cmd != cmd || embedded[i].pointer_at + 8 > size)
			continue;
		bytes = (u64)get32(fwd_buf(c->call, params), embedded[i].count_at) * embedded[i].element;
		if (bytes > FWD_DATA_MAX)
			return NV_ERR_NO_MEMORY;
		add_behind(c, get64(fwd_buf(c->call, params), embedded[i].pointer_at), bytes, params,
			   embedded[i].pointer_at, &status);
	}
	if (cmd == GPU_GET_ID_INFO && size >= ID_INFO_NAME_AT + 8)
		add_behind(c, get64(fwd_buf(c->call, params), ID_INFO_NAME_AT), ID_INFO_NAME_BYTES, params,
			   ID_INFO_NAME_AT, &status);
	return status;
}

/* The number at @at of @buf is a file's: the host's goes there. */
static u32 add_file(struct rm_call *c, u32 buf, u32 at, u32 kind)
{
	u32 number = get32(fwd_buf(c->call, buf), at);
	struct fwd_file *named = NULL;
	void *priv = NULL;
	int n;

	if (kind != CGPU_FD_CTL && kind != CGPU_FD_GPU && kind != CGPU_FD_RM)
		return NV_OK;
	if (kind != CGPU_FD_GPU)
		named = nv_get_file_private(number, true, &priv);
	if (!named && kind != CGPU_FD_CTL)
		named = nv_get_file_private(number, false, &priv);
	if (!named)
		return NV_ERR_INVALID_ARGUMENT;
	n = fwd_add_fd(c->call, named->host_fd, buf, at);
	if (n < 0) {
		nv_put_file_private(priv);
		return NV_ERR_NO_MEMORY;
	}
	c->file[n] = priv;
	c->number[n] = number;
	return NV_OK;
}

static u32 add_control(struct rm_call *c)
{
	u32 cmd = get32(c->top, AT(nvos54, cmd)), status = NV_OK, params;
	const struct cgpu_control *row = cgpu_call_control(fwd_branch, cmd);

	params = add_behind(c, get64(c->top, AT(nvos54, params)), get32(c->top, AT(nvos54, paramsSize)), 0, AT(nvos54, params),
			    &status);
	if (!params || status != NV_OK)
		return status;
	status = add_embedded(c, cmd, params);
	if (status == NV_OK && row && row->fd_kind && row->fd_at + 4 <= get32(c->top, AT(nvos54, paramsSize)))
		status = add_file(c, params, row->fd_at, row->fd_kind);
	return status;
}

/* libcuda leaves the size 0: the class has it. */
static u32 add_alloc(struct rm_call *c)
{
	bool rights = c->size > 32;	/* NVOS64, not NVOS21 */
	u32 cls = get32(c->top, NVOS_H_CLASS), status = NV_OK, bytes, params;
	const struct cgpu_class *row = cgpu_call_class(fwd_branch, cls);

	bytes = get32(c->top, rights ? 32 : 24) ?: row ? row->params_size : 0;
	if (get64(c->top, AT(nvos64, pAllocParms)) && !bytes) {
		fwd_not_forwarded("parameters of class", cls);
		put64(fwd_buf(c->call, 0), AT(nvos64, pAllocParms), 0);
	}
	params = add_behind(c, get64(c->top, AT(nvos64, pAllocParms)), bytes, 0, AT(nvos64, pAllocParms), &status);
	if (status == NV_OK && rights)
		add_behind(c, get64(c->top, 24), 4, 0, 24, &status);
	/* The driver looks for a file of the GPU in the caller's table, and nvforwardd has them all. */
	if (status == NV_OK && c->f && cls == NV01_DEVICE_0 && params) {
		u32 device = get32(fwd_buf(c->call, params), 0);

		if (device < fwd_gpu_count && !nv_is_gpu_accessible(&fwd_states[device]))
			status = NV_ERR_INSUFFICIENT_PERMISSIONS;
	}
	return status;
}

/* The pages of @current behind an OS descriptor; of another class there is nothing behind the pointer. */
static u32 add_alloc_memory(struct rm_call *c)
{
	u64 address = get64(c->top, AT(nvos02, pMemory)), bytes = get64(c->top, AT(nvos02, limit)) + 1;

	if (get32(c->top, NVOS_H_CLASS) != NV01_MEMORY_SYSTEM_OS_DESCRIPTOR)
		return NV_OK;
	if (!c->f || fwd_pin(c->f, c->call, address, bytes, 0, AT(nvos02, pMemory)))
		return NV_ERR_INVALID_ADDRESS;
	c->pinned = true;
	return NV_OK;
}

/* A struct that is looked into here has the size of a row: of another size the driver makes nothing either. */
static bool is_of_its_size(u32 nr, u32 size)
{
	switch (nr) {
	case NV_ESC_RM_ALLOC_MEMORY:
	case NV_ESC_RM_FREE:
	case NV_ESC_RM_CONTROL:
	case NV_ESC_RM_ALLOC:
	case NV_ESC_RM_VID_HEAP_CONTROL:
	case NV_ESC_RM_GET_EVENT_DATA:
		return cgpu_call_escape(fwd_branch, nr, size, CGPU_NODE_CTL | CGPU_NODE_GPU);
	}
	return true;
}

static u32 add_all(struct rm_call *c)
{
	const struct cgpu_escape *row = cgpu_call_escape(fwd_branch, c->nr, c->size, c->node);
	u32 status = NV_OK;

	switch (c->nr) {
	case NV_ESC_RM_CONTROL:
		return add_control(c);
	case NV_ESC_RM_ALLOC:
		return add_alloc(c);
	case NV_ESC_RM_ALLOC_MEMORY:
		status = add_alloc_memory(c);
		if (get32(c->top, NVOS_H_CLASS) != NV01_MEMORY_SYSTEM)
			return status;
		break;
	case NV_ESC_RM_GET_EVENT_DATA:
		add_behind(c, get64(c->top, 0), 16, 0, 0, &status);
		return status;
	case NV_ESC_RM_VID_HEAP_CONTROL:
		if (get32(c->top, AT(nvos32, function)) != NVOS32_FUNCTION_ALLOC_OS_DESCRIPTOR)
			return NV_OK;
		fallthrough;
	case NV_ESC_RM_IDLE_CHANNELS:
	case NV_ESC_RM_ACCESS_REGISTRY:
		fwd_not_forwarded("escape", c->nr);
		return NV_ERR_NOT_SUPPORTED;
	}
	/* A file that the driver does not look for, as in a mapping without one, is -1. */
	if (status == NV_OK && row && row->fd_kind && (s32)get32(c->top, row->fd_at) >= 0)
		status = add_file(c, 0, row->fd_at, row->fd_kind);
	return status;
}

/* Results, with the caller's addresses and numbers in them again. */
static u32 copy_out(struct rm_call *c)
{
	const struct fwd_request *r = &c->call->request;
	u32 status = NV_OK, i;

	for (i = 1; i < r->bufs; i++)
		if (c->address[i])
			put64(fwd_buf(c->call, r->buf[i].parent), r->buf[i].at, c->address[i]);
	for (i = 1; i < r->fds; i++)
		if (c->file[i])
			put32(fwd_buf(c->call, r->fd[i].buf), r->fd[i].at, c->number[i]);
	for (i = 1; i < r->bufs && status == NV_OK; i++)
		if (c->address[i])
			status = c->memory->write(c->address[i], fwd_buf(c->call, i), c->out[i]);
	return status;
}

/* The pages belong to the object that was made, or to none. The caller's address goes back into the struct. */
static void keep_pages(struct rm_call *c, bool returned)
{
	u8 *top = fwd_buf(c->call, 0);
	bool made = returned && get32(top, AT(nvos02, status)) == NV_OK;

	put64(top, AT(nvos02, pMemory), get64(c->top, AT(nvos02, pMemory)));
	fwd_pin_keep(c->f, made ? get32(top, NVOS_H_ROOT) : 0, made ? get32(top, NVOS_H_NEW) : 0);
}

/* Records that follow a call that succeeded. */
static void note(struct rm_call *c, const struct cgpu_escape *row)
{
	u8 *top = fwd_buf(c->call, 0);

	if (!c->f || !row || (row->status_at && get32(top, row->status_at) != NV_OK))
		return;
	if (c->nr == NV_ESC_RM_ALLOC) {
		const struct cgpu_class *cls = cgpu_call_class(fwd_branch, get32(top, NVOS_H_CLASS));

		if (cls && cls->kind == CGPU_KIND_CLIENT)
			fwd_client_add(get32(top, NVOS_H_NEW), c->f);
	} else if (c->nr == NV_ESC_RM_FREE) {
		if (get32(top, 8) == get32(top, NVOS_H_ROOT))
			fwd_client_remove(get32(top, NVOS_H_ROOT));
		fwd_pin_drop(c->f, get32(top, NVOS_H_ROOT), get32(top, 8));
	}
}

u32 fwd_escape(struct fwd_process *p, struct fwd_file *f, int host_fd, u32 nr, u8 *top, u32 size,
	       const struct fwd_memory *memory)
{
	u32 node = f && f->nv && f->nv->gpu ? CGPU_NODE_GPU : CGPU_NODE_CTL, status = NV_ERR_NO_MEMORY, i;
	struct rm_call *c = kzalloc(sizeof(*c), GFP_KERNEL);
	s64 ret = -1;

	if (!c)
		return status;
	*c = (struct rm_call){
		.p = p, .f = f, .memory = memory, .top = top, .nr = nr, .size = size, .node = node,
		.call = fwd_call_new(FWD_IOCTL, _IOC(_IOC_READ | _IOC_WRITE, NV_IOCTL_MAGIC, nr, size)),
	};
	if (!c->call || fwd_add(c->call, size, 0, 0))
		goto out;
	fwd_add_fd(c->call, host_fd, 0, 0);
	memcpy(fwd_buf(c->call, 0), top, size);
	status = add_all(c);
	if (status != NV_OK)
		goto out;
	ret = fwd_run(p, c->call);
	status = ret ? NV_ERR_GENERIC : NV_OK;
	if (ret == -EFAULT)
		status = NV_ERR_INVALID_ADDRESS;
	if (c->pinned)
		keep_pages(c, !ret);
	if (!ret) {
		status = copy_out(c);
		note(c, cgpu_call_escape(fwd_branch, nr, size, node));
	}
	if (ret != -EIO)
		memcpy(top, fwd_buf(c->call, 0), size);
out:
	for (i = 1; i < FWD_FDS_MAX; i++)
		if (c->file[i])
			nv_put_file_private(c->file[i]);
	fwd_call_free(c->call);
	kfree(c);
	return status;
}

noinline u32 rm_ioctl(void *sp, struct fwd_state *nv, struct fwd_file *f, u32 cmd, void *arg, u32 size)
{
	const struct cgpu_escape *row;
	struct fwd_process *p;
	u32 status;

	if (!is_of_its_size(cmd, size))
		return NV_ERR_INVALID_ARGUMENT;
	p = fwd_file_user(f);
	if (!p)
		return NV_ERR_NO_MEMORY;
	status = fwd_escape(p, f, f->host_fd, cmd, arg, size, &fwd_of_user);
	fwd_process_put(p);
	/* What fails before the driver is its answer in the struct, where there is room for it. */
	row = cgpu_call_escape(fwd_branch, cmd, size, nv->gpu ? CGPU_NODE_GPU : CGPU_NODE_CTL);
	if (status == NV_OK || status == NV_ERR_GENERIC || !row || !row->status_at)
		return status;
	put32(arg, row->status_at, status);
	return NV_OK;
}
