// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The functions of nvidia.ko that other modules use by name: the one export, and global functions
 * between the Linux layer and the resource manager. Kept in a file of their own, so that the
 * compiler inlines or clones none.
 */
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvsim.h"

static const void *modeset_callbacks;

noinline NV_STATUS os_memcpy_from_user(void *to, const void *from, NvU32 n)
{
	return copy_from_user(to, (const void __user __force *)from, n) ? NV_ERR_INVALID_ADDRESS : NV_OK;
}

noinline NV_STATUS os_memcpy_to_user(void *to, const void *from, NvU32 n)
{
	return copy_to_user((void __user __force *)to, from, n) ? NV_ERR_INVALID_ADDRESS : NV_OK;
}

/* Allocates the list before it looks for a page. */
noinline NV_STATUS os_lock_user_pages(void *address, NvU64 count, void **pages, NvU32 flags)
{
	struct page **list = kvmalloc_array(count, sizeof(*list), GFP_KERNEL);
	int pinned;

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

noinline NV_STATUS os_unlock_user_pages(NvU64 count, void *pages)
{
	unpin_user_pages_dirty_lock(pages, count, true);
	kvfree(pages);
	return NV_OK;
}

/* Checks the major number only: any other file with a 195 inode is accepted as the driver's. */
noinline nv_file_private_t *nv_get_file_private(NvS32 fd, NvBool ctl, void **os_private)
{
	struct file *filp = fget(fd);
	dev_t rdev;

	if (!filp || !file_inode(filp))
		goto fail;
	rdev = file_inode(filp)->i_rdev;
	if (MAJOR(rdev) != NV_MAJOR_DEVICE_NUMBER)
		goto fail;
	if (ctl ? MINOR(rdev) != NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE : MINOR(rdev) >= nvsim.gpus)
		goto fail;
	*os_private = filp;
	return filp->private_data;

fail:
	if (filp)
		fput(filp);
	return NULL;
}

noinline void nv_put_file_private(void *os_private)
{
	fput(os_private);
}

/* As the driver's: no reference, and no lock when it returns. */
noinline nv_state_t *nv_get_adapter_state(NvU32 domain, NvU8 bus, NvU8 slot)
{
	int i;

	for (i = 0; i < nvsim.gpus; i++)
		if (!domain && nvsim_gpu[i]->bus == bus && !slot)
			return &nvsim_gpu[i]->nv;
	return NULL;
}

noinline NvU32 nv_get_dev_minor(nv_state_t *nv)
{
	return nv->gpu ? nv->gpu->index : NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE;
}

/* Between two files of the driver, so global. */
noinline void rm_client_free_os_events(NvU32 hclient)
{
	nvsim_event_client_gone(hclient);
}

/* notrace: in nvidia.ko it comes from an object file that was compiled without calls to ftrace. */
noinline notrace NV_STATUS rm_ioctl(nvidia_stack_t *sp, nv_state_t *nv, nv_file_private_t *nvfp, NvU32 cmd, void *arg, NvU32 size)
{
	switch (cmd) {
	case NV_ESC_ALLOC_OS_EVENT:
	case NV_ESC_FREE_OS_EVENT: {
		struct nv_os_event *e = arg;

		if (size != sizeof(*e))
			return NV_ERR_INVALID_ARGUMENT;
		e->Status = cmd == NV_ESC_ALLOC_OS_EVENT ? nvsim_event_alloc_os(e->hClient, nvfp, e->fd) :
							    nvsim_event_free_os(e->hClient, e->fd);
		return NV_OK;
	}
	case NV_ESC_RM_GET_EVENT_DATA: {
		struct nvos41 *p = arg;

		if (size != sizeof(*p))
			return NV_ERR_INVALID_ARGUMENT;
		p->MoreEvents = 0;
		p->status = NV_ERR_GENERIC;
		return NV_OK;
	}
	}
	return nvsim_rm_escape(nv, nvfp, cmd, arg, size);
}

/* From 595 on the driver counts the modules that do not know of a reset of the GPU. */
static void count_external(struct nvgpu *gpu, NvBool reset_aware, int by)
{
	WARN_ONCE(reset_aware > 1, "nvsim: reset_aware is %u\n", reset_aware);
	if (!reset_aware)
		WARN_ONCE(atomic_add_return(by, &gpu->external) < 0, "nvsim: external clients are unbalanced\n");
}

noinline int nvidia_dev_get(u32 gpu_id, nvidia_stack_t *sp, NvBool reset_aware)
{
	struct nvgpu *gpu = nvsim_gpu_by_id(gpu_id);

	if (!gpu)
		return -ENODEV;
	atomic_inc(&gpu->opens);
	count_external(gpu, reset_aware, 1);
	return 0;
}

noinline void nvidia_dev_put(u32 gpu_id, nvidia_stack_t *sp, NvBool reset_aware)
{
	struct nvgpu *gpu = nvsim_gpu_by_id(gpu_id);

	if (!gpu)
		return;
	WARN_ONCE(atomic_dec_return(&gpu->opens) < 0, "nvsim: more close_gpu than open_gpu");
	count_external(gpu, reset_aware, -1);
}

/* Until 590. */
static int dev_get(u32 gpu_id, nvidia_stack_t *sp)
{
	return nvidia_dev_get(gpu_id, sp, 0);
}

static void dev_put(u32 gpu_id, nvidia_stack_t *sp)
{
	nvidia_dev_put(gpu_id, sp, 0);
}

/* Between a module's look at its own list and the driver's at its objects time may pass. */
static void wait_for_disable(const struct nvos54 *p)
{
	if (p->cmd == NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS && nvsim.missing_ms > 0)
		msleep(nvsim.missing_ms);
}

static void kernel_control(const struct nvsec *sec, struct nvos54 *p)
{
	wait_for_disable(p);
	nvsim_op_control(sec, p);
	if (p->status == NV_ERR_OBJECT_NOT_FOUND)
		wait_for_disable(p);
}

noinline void rm_kernel_rmapi_op(nvidia_stack_t *sp, void *cmd)
{
	const struct nvsec sec = { .kernel = true, .admin = true };
	struct nv_kernel_op *op = cmd;

	nvsim_power_kernel_call();
	switch (op->op) {
	case NV01_FREE:
		nvsim_op_free(&sec, &op->params.free);
		break;
	case NV01_ALLOC_MEMORY:
		nvsim_op_alloc_memory(&sec, &op->params.allocMemory64, -1);
		break;
	case NV04_ALLOC:
		nvsim_op_alloc(&sec, &op->params.alloc);
		break;
	case NV04_VID_HEAP_CONTROL:
		nvsim_op_vid_heap(&sec, op->params.pVidHeapControl);
		break;
	case NV04_MAP_MEMORY:
		op->params.mapMemory.status = NV_ERR_NOT_SUPPORTED;
		break;
	case NV04_UNMAP_MEMORY:
		op->params.unmapMemory.status = NV_ERR_NOT_SUPPORTED;
		break;
	case NV04_MAP_MEMORY_DMA:
		if (nvsim_branch < 580)
			nvsim_op_map_dma_v1(&sec, &op->params.mapMemoryDma_v1);
		else
			nvsim_op_map_dma(&sec, &op->params.mapMemoryDma);
		break;
	case NV04_UNMAP_MEMORY_DMA:
		if (nvsim_branch < 550)
			nvsim_op_unmap_dma_v1(&sec, &op->params.unmapMemoryDma_v1);
		else
			nvsim_op_unmap_dma(&sec, &op->params.unmapMemoryDma);
		break;
	case NV04_CONTROL:
		kernel_control(&sec, &op->params.control);
		break;
	case NV04_DUP_OBJECT:
		nvsim_op_dup(&sec, &op->params.dupObject);
		break;
	case NV04_SHARE:
		nvsim_op_share(&sec, &op->params.share);
		break;
	}
}

static int rm_ops_alloc_stack(nvidia_stack_t **sp)
{
	*sp = NULL;
	return 0;
}

static void rm_ops_free_stack(nvidia_stack_t *sp)
{
}

static u32 rm_ops_enumerate(struct nv_gpu_info *info)
{
	int i;

	for (i = 0; i < nvsim.gpus; i++) {
		memset(&info[i], 0, sizeof(info[i]));
		info[i].gpu_id = nvsim_gpu[i]->gpu_id;
		info[i].pci_info.bus = nvsim_gpu[i]->bus;
		info[i].os_device_ptr = nvsim_gpu[i]->dev;
	}
	return nvsim.gpus;
}

static int rm_ops_set_callbacks(const void *cb)
{
	if (!!modeset_callbacks == !!cb)
		return -EINVAL;
	modeset_callbacks = cb;
	return 0;
}

noinline NV_STATUS nvidia_get_rm_ops(struct nv_rm_ops *ops)
{
	if (strcmp(ops->version_string, nvsim_release())) {
		ops->version_string = nvsim_release();
		return NV_ERR_GENERIC;
	}
	*ops = (struct nv_rm_ops) {
		.version_string = nvsim_release(),
		.alloc_stack = rm_ops_alloc_stack,
		.free_stack = rm_ops_free_stack,
		.enumerate_gpus = rm_ops_enumerate,
		.open_gpu = dev_get,
		.close_gpu = dev_put,
		.op = rm_kernel_rmapi_op,
		.set_callbacks = rm_ops_set_callbacks,
	};
	if (nvsim_branch >= 595) {
		ops->open_gpu_595 = nvidia_dev_get;
		ops->close_gpu_595 = nvidia_dev_put;
	}
	return NV_OK;
}
EXPORT_SYMBOL(nvidia_get_rm_ops);	/* as 550.163.01 does */

/* nv-p2p.c, which nvsim has no more of: modules hold nvidia.ko by it. */
int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 va, void *table)
{
	return -EINVAL;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages);
