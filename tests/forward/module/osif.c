// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The functions of nvidia.ko that cgpu_km takes by name: its exports, and global functions between its Linux layer and
 * the resource manager. In a file of their own, so that the compiler inlines or clones none.
 */
#include <linux/fdtable.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "core/nv_call.h"
#include "forward.h"

noinline u32 os_memcpy_from_user(void *to, const void __user *from, u32 n)
{
	return copy_from_user(to, from, n) ? NV_ERR_INVALID_ADDRESS : NV_OK;
}

noinline u32 os_memcpy_to_user(void __user *to, const void *from, u32 n)
{
	return copy_to_user(to, from, n) ? NV_ERR_INVALID_ADDRESS : NV_OK;
}

noinline u32 os_lock_user_pages(void *address, u64 count, void **pages, u32 flags)
{
	struct page **list = kvmalloc_array(count, sizeof(*list), GFP_KERNEL);
	long pinned;

	if (!list)
		return NV_ERR_NO_MEMORY;
	pinned = pin_user_pages_fast((unsigned long)address, count,
				     FOLL_LONGTERM | (flags & NV_LOCK_USER_PAGES_FLAGS_WRITE_YES ? FOLL_WRITE : 0), list);
	if (pinned == count) {
		*pages = list;
		return NV_OK;
	}
	if (pinned > 0)
		unpin_user_pages(list, pinned);
	kvfree(list);
	return NV_ERR_INVALID_ADDRESS;
}

noinline u32 os_unlock_user_pages(u64 count, void *pages)
{
	unpin_user_pages_dirty_lock(pages, count, true);
	kvfree(pages);
	return NV_OK;
}

noinline struct fwd_file *nv_get_file_private(s32 fd, u8 ctl, void **priv)
{
	struct file *file = fget(fd);
	dev_t rdev;

	if (!file)
		return NULL;
	rdev = file_inode(file)->i_rdev;
	if (MAJOR(rdev) != NV_MAJOR_DEVICE_NUMBER || (MINOR(rdev) == NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE) != !!ctl) {
		fput(file);
		return NULL;
	}
	*priv = file;
	return file->private_data;
}

noinline void nv_put_file_private(void *priv)
{
	fput(priv);
}

/* As the driver's: no reference, and no lock when it returns. */
noinline struct fwd_state *nv_get_adapter_state(u32 domain, u8 bus, u8 slot)
{
	u32 i;

	for (i = 0; i < fwd_gpu_count; i++)
		if (fwd_gpus[i].domain == domain && fwd_gpus[i].bus == bus && fwd_gpus[i].slot == slot)
			return &fwd_states[i];
	return NULL;
}

noinline u32 nv_get_dev_minor(struct fwd_state *nv)
{
	return nv->gpu ? nv->gpu->minor : NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE;
}

static int match_state(const void *nv, struct file *file, unsigned int fd)
{
	const struct fwd_file *f = file->private_data;

	return file->f_op->owner == THIS_MODULE && f && f->nv == nv;
}

noinline u32 nv_is_gpu_accessible(struct fwd_state *nv)
{
	return current->files && iterate_fd(current->files, 0, match_state, nv) != 0;
}

/* A dma-buf of the host is no file of the guest. */
noinline u32 nv_dma_buf_export(struct fwd_state *nv, void *params)
{
	fwd_not_forwarded("escape", NV_ESC_EXPORT_TO_DMABUF_FD);
	return NV_ERR_NOT_SUPPORTED;
}

/* ---- the interface for kernel clients: nv-modeset-interface.h ---- */

static int alloc_stack(struct nvidia_stack_s **sp)
{
	*sp = NULL;
	return 0;
}

static void free_stack(struct nvidia_stack_s *sp)
{
}

static u32 enumerate_gpus(struct nv_gpu_info *info)
{
	u32 i;

	for (i = 0; i < fwd_gpu_count; i++)
		info[i] = (struct nv_gpu_info){
			.gpu_id = fwd_gpus[i].gpu_id,
			.pci_info = { fwd_gpus[i].domain, fwd_gpus[i].bus, fwd_gpus[i].slot, fwd_gpus[i].function },
		};
	return fwd_gpu_count;
}

/* nvforwardd's process for the kernel has every GPU open already. Before 595 the last argument is not there. */
static int open_gpu(u32 gpu_id, struct nvidia_stack_s *sp, u8 reset_aware)
{
	u32 i;

	for (i = 0; i < fwd_gpu_count; i++)
		if (fwd_gpus[i].gpu_id == gpu_id)
			return 0;
	return -ENODEV;
}

static void close_gpu(u32 gpu_id, struct nvidia_stack_s *sp, u8 reset_aware)
{
}

static int set_callbacks(const void *callbacks)
{
	return 0;
}

noinline u32 nvidia_get_rm_ops(struct nv_rm_ops *ops)
{
	if (strcmp(ops->version_string, fwd_version)) {
		ops->version_string = fwd_version;
		return NV_ERR_GENERIC;
	}
	*ops = (struct nv_rm_ops){
		.version_string = fwd_version,
		.alloc_stack = alloc_stack,
		.free_stack = free_stack,
		.enumerate_gpus = enumerate_gpus,
		.open_gpu_595 = open_gpu,
		.close_gpu_595 = close_gpu,
		.op = rm_kernel_rmapi_op,
		.set_callbacks = set_callbacks,
	};
	return NV_OK;
}
EXPORT_SYMBOL(nvidia_get_rm_ops);

/* Modules hold nvidia.ko by it. */
int nvidia_p2p_put_pages(u64 token, u32 space, u64 address, void *table)
{
	return -EINVAL;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages);
