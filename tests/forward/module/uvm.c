// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* /dev/nvidia-uvm, as in kernel-open/nvidia-uvm/uvm.c: its calls in the driver's order, each made by the host's. */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "core/nv_call.h"
#include "forward.h"

/* Layouts that change with a branch: uvm_ioctl.h. */
#define PER_GPU_AT	24u
#define PER_GPU_BYTES	36u
#define OLD_GPUS_MAX	32u
#define GPUS_MAX	256u

struct fwd_range {
	struct list_head node;	/* v->lock */
	u64 base, bytes;
	bool pool;
};

static dev_t uvm_dev;
static struct cdev uvm_cdev;
static struct class *uvm_class;

/* ---- forwarding ---- */

static s64 forward(struct fwd_uvm *v, u32 nr, void *params, u32 size)
{
	struct fwd_process *p = fwd_file_user(v->f);
	struct fwd_call *call = fwd_call_new(FWD_IOCTL, nr);
	s64 ret = -ENOMEM;

	if (!p || !call)
		goto out;
	fwd_add_fd(call, v->f->host_fd, 0, 0);
	if (size && fwd_add(call, size, 0, 0))
		goto out;
	if (size)
		memcpy(fwd_buf(call, 0), params, size);
	ret = fwd_run(p, call);
	if (size)
		memcpy(params, fwd_buf(call, 0), size);
out:
	fwd_call_free(call);
	fwd_process_put(p);
	return ret;
}

/* The same, for functions that return an RM status. */
static u32 forward_status(struct fwd_uvm *v, u32 nr, void *params)
{
	const struct cgpu_uvm_call *row = cgpu_call_uvm(fwd_branch, nr);

	if (!row || forward(v, nr, params, row->size))
		return NV_ERR_GENERIC;
	return get32(params, row->status_at);
}

/* ---- ranges ---- */

static struct fwd_range *range_at_locked(struct fwd_uvm *v, u64 base)
{
	struct fwd_range *r;

	lockdep_assert_held(&v->lock);
	list_for_each_entry(r, &v->ranges, node)
		if (r->base == base)
			return r;
	return NULL;
}

static void note_range(struct fwd_uvm *v, u64 base, u64 bytes, bool pool)
{
	struct fwd_range *r = kzalloc(sizeof(*r), GFP_KERNEL | __GFP_NOFAIL);

	r->base = base;
	r->bytes = bytes;
	r->pool = pool;
	mutex_lock(&v->lock);
	list_add(&r->node, &v->ranges);
	mutex_unlock(&v->lock);
}

/* Its size, or 0. */
static u64 drop_range(struct fwd_uvm *v, u64 base)
{
	struct fwd_range *r;
	u64 bytes = 0;

	mutex_lock(&v->lock);
	r = range_at_locked(v, base);
	if (r) {
		bytes = r->bytes;
		list_del(&r->node);
		kfree(r);
	}
	mutex_unlock(&v->lock);
	return bytes;
}

static bool is_pool(struct fwd_uvm *v, u64 base, u64 bytes)
{
	struct fwd_range *r;
	bool found;

	mutex_lock(&v->lock);
	r = range_at_locked(v, base);
	found = r && r->pool && r->bytes == bytes;
	mutex_unlock(&v->lock);
	return found;
}

/* ---- functions of nvidia-uvm that cgpu_km redirects, with its names and arguments ---- */

/* The process that maps the file is not the one that makes the calls: the space belongs to none. */
noinline u32 uvm_va_space_create(void *mapping, struct fwd_uvm *v, u64 flags)
{
	struct uvm_init params = { .flags = flags | UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE };
	u32 status = forward_status(v, UVM_INITIALIZE, &params);

	if (status == NV_OK)
		WRITE_ONCE(v->initialized, true);
	return status;
}

/* @params is the call's struct, in the place of the driver's RM device. */
noinline u32 uvm_va_space_register_gpu(struct fwd_uvm *v, const u8 *uuid, void *params, void *numa, void *node,
				       void *uuid_out)
{
	return forward_status(v, UVM_REGISTER_GPU, params);
}

noinline u32 uvm_api_alloc_semaphore_pool(u64 *params, struct file *file)
{
	struct fwd_file *f = file->private_data;
	u32 status = forward_status(f->uvm, UVM_ALLOC_SEMAPHORE_POOL, params);

	if (status == NV_OK)
		note_range(f->uvm, params[0], params[1], true);
	return status;
}

noinline u32 uvm_api_create_external_range(u64 *params, struct file *file)
{
	struct fwd_file *f = file->private_data;
	u32 status = forward_status(f->uvm, UVM_CREATE_EXTERNAL_RANGE, params);

	if (status == NV_OK)
		note_range(f->uvm, params[0], params[1], false);
	return status;
}

noinline u32 uvm_api_create_range_group(u64 *params, struct file *file)
{
	struct fwd_file *f = file->private_data;

	return forward_status(f->uvm, UVM_CREATE_RANGE_GROUP, params);
}

noinline u32 uvm_api_destroy_range_group(u64 *params, struct file *file)
{
	struct fwd_file *f = file->private_data;

	return forward_status(f->uvm, UVM_DESTROY_RANGE_GROUP, params);
}

noinline u32 uvm_api_free(u64 *params, struct file *file)
{
	struct fwd_file *f = file->private_data;
	u64 base = params[0], bytes;
	u32 status = forward_status(f->uvm, UVM_FREE, params);

	if (status == NV_OK) {
		bytes = drop_range(f->uvm, base);
		fwd_hold_drop_range(f->uvm, NULL, base, bytes);
	}
	return status;
}

/* Whether a managed range may be made: the host's nvidia-uvm makes it when the mapping reaches it. */
noinline u32 uvm_va_range_create_mmap(struct fwd_uvm *v, struct mm_struct *mm, struct vm_area_struct *vma, void **range)
{
	return is_pool(v, vma->vm_start, vma->vm_end - vma->vm_start) ? NV_ERR_UVM_ADDRESS_IN_USE : NV_OK;
}

/* ---- calls ---- */

struct uvm_call {
	struct fwd_uvm *v;
	struct file *file;
	u32 nr, size;
	u32 status_at;
	u8 *params;
};

static s64 pass(struct uvm_call *c)
{
	return forward(c->v, c->nr, c->params, c->size);
}

static bool is_ok(const struct uvm_call *c, s64 ret)
{
	return !ret && get32(c->params, c->status_at) == NV_OK;
}

static s64 answer(struct uvm_call *c, u32 status)
{
	put32(c->params, c->status_at, status);
	return 0;
}

static s64 initialize(struct uvm_call *c)
{
	return answer(c, uvm_va_space_create(NULL, c->v, get64(c->params, 0)));
}

static s64 register_gpu(struct uvm_call *c)
{
	u8 uuid[16];

	memcpy(uuid, c->params, sizeof(uuid));
	return answer(c, uvm_va_space_register_gpu(c->v, uuid, c->params, NULL, NULL, NULL));
}

static s64 register_space(struct uvm_call *c)
{
	void *dup;
	u32 status = nvUvmInterfaceDupAddressSpace(NULL, get32(c->params, 20), get32(c->params, 24), &dup, NULL);

	return status == NV_OK ? pass(c) : answer(c, status);
}

/* Runs after what is held was taken. */
static s64 finish(struct uvm_call *c, u32 status, struct list_head *taken)
{
	s64 ret = status == NV_OK ? pass(c) : answer(c, status);

	if (is_ok(c, ret))
		fwd_hold_keep(c->v, taken);
	else
		fwd_hold_cancel(taken);
	return ret;
}

static s64 register_channel(struct uvm_call *c)
{
	LIST_HEAD(taken);
	u32 status = fwd_hold_channel(get32(c->params, 20), get32(c->params, 24), c->params, &taken);

	return finish(c, status, &taken);
}

static s64 unregister_channel(struct uvm_call *c)
{
	u32 at = c->size == 28 ? 16 : 0;
	s64 ret = pass(c);

	if (is_ok(c, ret))
		fwd_hold_drop_channel(c->v, get32(c->params, at), get32(c->params, at + 4));
	return ret;
}

/* A reference for each GPU that the mapping is made on. It replaces what was mapped there. */
static s64 map_external(struct uvm_call *c)
{
	u32 gpus_max = c->size < 9000 ? OLD_GPUS_MAX : GPUS_MAX, count_at = PER_GPU_AT + gpus_max * PER_GPU_BYTES;
	u64 base = get64(c->params, 0), bytes = get64(c->params, 8), count = get64(c->params, count_at), i;
	u32 client = get32(c->params, count_at + 12), memory = get32(c->params, count_at + 16), status = NV_OK;
	LIST_HEAD(taken);
	s64 ret;

	if (count > gpus_max)
		return answer(c, NV_ERR_INVALID_ARGUMENT);
	for (i = 0; i < count && status == NV_OK; i++)
		status = fwd_hold_memory(client, memory, c->params + PER_GPU_AT + i * PER_GPU_BYTES, base, bytes,
					 &taken);
	ret = status == NV_OK ? pass(c) : answer(c, status);
	if (!is_ok(c, ret)) {
		fwd_hold_cancel(&taken);
		return ret;
	}
	for (i = 0; i < count; i++)
		fwd_hold_drop_range(c->v, c->params + PER_GPU_AT + i * PER_GPU_BYTES, base, bytes);
	fwd_hold_keep(c->v, &taken);
	return ret;
}

static s64 unmap_external(struct uvm_call *c)
{
	s64 ret = pass(c);

	if (is_ok(c, ret))
		fwd_hold_drop_range(c->v, c->params + 16, get64(c->params, 0), get64(c->params, 8));
	return ret;
}

static s64 unregister_gpu(struct uvm_call *c)
{
	s64 ret = pass(c);

	if (is_ok(c, ret))
		fwd_hold_drop_gpu(c->v, c->params, true);
	return ret;
}

static s64 create_range(struct uvm_call *c)
{
	return answer(c, uvm_api_create_external_range((u64 *)c->params, c->file));
}

static s64 create_group(struct uvm_call *c)
{
	return answer(c, uvm_api_create_range_group((u64 *)c->params, c->file));
}

static s64 destroy_group(struct uvm_call *c)
{
	return answer(c, uvm_api_destroy_range_group((u64 *)c->params, c->file));
}

static s64 alloc_pool(struct uvm_call *c)
{
	return answer(c, uvm_api_alloc_semaphore_pool((u64 *)c->params, c->file));
}

static s64 free_range(struct uvm_call *c)
{
	return answer(c, uvm_api_free((u64 *)c->params, c->file));
}

/* As the driver answers for a space that belongs to no process. */
static s64 mm_initialize(struct uvm_call *c)
{
	return answer(c, NV_WARN_NOTHING_TO_DO);
}

/* Its descriptor is of the guest. */
static s64 not_there(struct uvm_call *c)
{
	fwd_not_forwarded("uvm call", c->nr);
	return answer(c, NV_ERR_NOT_SUPPORTED);
}

static const struct {
	u32 nr;
	s64 (*run)(struct uvm_call *c);
} handlers[] = {
	{ UVM_INITIALIZE, initialize },
	{ UVM_MM_INITIALIZE, mm_initialize },
	{ UVM_REGISTER_GPU, register_gpu },
	{ UVM_UNREGISTER_GPU, unregister_gpu },
	{ UVM_REGISTER_GPU_VASPACE, register_space },
	{ UVM_UNREGISTER_GPU_VASPACE, unregister_gpu },
	{ UVM_REGISTER_CHANNEL, register_channel },
	{ UVM_UNREGISTER_CHANNEL, unregister_channel },
	{ UVM_CREATE_EXTERNAL_RANGE, create_range },
	{ UVM_CREATE_RANGE_GROUP, create_group },
	{ UVM_DESTROY_RANGE_GROUP, destroy_group },
	{ UVM_MAP_EXTERNAL_ALLOCATION, map_external },
	{ UVM_UNMAP_EXTERNAL, unmap_external },
	{ UVM_ALLOC_SEMAPHORE_POOL, alloc_pool },
	{ UVM_FREE, free_range },
};

static s64 dispatch(struct uvm_call *c, u32 fd_kind)
{
	u32 i;

	for (i = 0; i < ARRAY_SIZE(handlers); i++)
		if (handlers[i].nr == c->nr)
			return handlers[i].run(c);
	return fd_kind == CGPU_FD_UVM || fd_kind == CGPU_FD_OTHER ? not_there(c) : pass(c);
}

static long uvm_ioctl(struct file *file, unsigned int nr, unsigned long user)
{
	const struct cgpu_uvm_call *row = cgpu_call_uvm(fwd_branch, nr);
	struct fwd_file *f = file->private_data;
	struct uvm_call c = { .v = f->uvm, .file = file, .nr = nr };
	long ret;

	if (nr == UVM_DEINITIALIZE)
		return forward(f->uvm, nr, NULL, 0);
	if (!row) {
		fwd_not_forwarded("uvm call", nr);
		return -EINVAL;
	}
	c.size = row->size;
	c.status_at = row->status_at;
	c.params = memdup_user((void __user *)user, c.size);
	if (IS_ERR(c.params))
		return PTR_ERR(c.params);
	ret = dispatch(&c, row->fd_kind);
	if (copy_to_user((void __user *)user, c.params, c.size))
		ret = -EFAULT;
	kfree(c.params);
	return ret;
}

/* ---- files ---- */

static int uvm_open(struct inode *inode, struct file *file)
{
	struct fwd_uvm *v;
	struct fwd_file *f;

	if (MINOR(inode->i_rdev) != MINOR(uvm_dev))
		return -EPERM;		/* nvidia-uvm-tools */
	v = kzalloc(sizeof(*v), GFP_KERNEL);
	if (!v)
		return -ENOMEM;
	f = fwd_file_open("nvidia-uvm");
	if (IS_ERR(f)) {
		kfree(v);
		return PTR_ERR(f);
	}
	mutex_init(&v->lock);
	INIT_LIST_HEAD(&v->held);
	INIT_LIST_HEAD(&v->ranges);
	v->f = f;
	f->uvm = v;
	file->private_data = f;
	return 0;
}

/* The host's driver drops what it holds first. */
static int uvm_release(struct inode *inode, struct file *file)
{
	struct fwd_file *f = file->private_data;
	struct fwd_uvm *v = f->uvm;
	struct fwd_range *r, *next;

	fwd_file_close(f);
	fwd_hold_drop_all(v);
	list_for_each_entry_safe(r, next, &v->ranges, node)
		kfree(r);
	kfree(v);
	return 0;
}

static int uvm_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct fwd_file *f = file->private_data;
	struct fwd_uvm *v = f->uvm;
	u32 status;

	if (!READ_ONCE(v->initialized))
		return -EBADFD;
	if (vma->vm_start != (u64)vma->vm_pgoff << PAGE_SHIFT || !(vma->vm_flags & VM_SHARED) ||
	    (vma->vm_flags & (VM_READ | VM_WRITE)) != (VM_READ | VM_WRITE))
		return -EINVAL;
	status = uvm_va_range_create_mmap(v, current->mm, vma, NULL);
	if (status == NV_ERR_UVM_ADDRESS_IN_USE && !is_pool(v, vma->vm_start, vma->vm_end - vma->vm_start))
		return -EINVAL;
	if (status != NV_OK && status != NV_ERR_UVM_ADDRESS_IN_USE)
		return -ENOMEM;
	return fwd_map(vma, f->host_fd, vma->vm_start);
}

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.open = uvm_open,
	.release = uvm_release,
	.mmap = uvm_mmap,
	.unlocked_ioctl = uvm_ioctl,
};

static char *uvm_devnode(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

int fwd_uvm_init(void)
{
	struct device *dev;
	int ret = alloc_chrdev_region(&uvm_dev, 0, 1, "nvidia-uvm");

	if (ret)
		return ret;
	cdev_init(&uvm_cdev, &uvm_fops);
	uvm_cdev.owner = THIS_MODULE;
	ret = cdev_add(&uvm_cdev, uvm_dev, 1);
	if (ret)
		goto err_region;
	uvm_class = class_create("nvforward-uvm");
	ret = PTR_ERR_OR_ZERO(uvm_class);
	if (ret)
		goto err_cdev;
	uvm_class->devnode = uvm_devnode;
	dev = device_create(uvm_class, NULL, uvm_dev, NULL, "nvidia-uvm");
	if (!IS_ERR(dev))
		return 0;
	ret = PTR_ERR(dev);

	class_destroy(uvm_class);
err_cdev:
	cdev_del(&uvm_cdev);
err_region:
	unregister_chrdev_region(uvm_dev, 1);
	return ret;
}

void fwd_uvm_exit(void)
{
	device_destroy(uvm_class, uvm_dev);
	class_destroy(uvm_class);
	cdev_del(&uvm_cdev);
	unregister_chrdev_region(uvm_dev, 1);
}
