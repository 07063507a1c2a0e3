// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* /dev/nvidia-uvm: GPU address spaces, as in kernel-open/nvidia-uvm/uvm.c. */
#include <linux/cdev.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvsim.h"

static dev_t uvm_dev;
static struct cdev uvm_cdev;
static struct class *uvm_class;
static const struct file_operations uvm_fops;

static bool uvm_file_is_ours(struct file *f)
{
	return f && f->f_op == &uvm_fops;
}

struct uvm_gpu *uvm_gpu_find(struct uvm_vas *v, const u8 *uuid)
{
	struct uvm_gpu *g;

	list_for_each_entry(g, &v->gpus, link)
		if (!memcmp(g->gpu->uuid, uuid, 16))
			return g;
	return NULL;
}

static int uvm_open(struct inode *inode, struct file *file)
{
	struct uvm_vas *v;

	if (MINOR(inode->i_rdev) != MINOR(uvm_dev))
		return -EPERM;		/* nvidia-uvm-tools */
	v = kzalloc(sizeof(*v), GFP_KERNEL);
	if (!v)
		return -ENOMEM;
	mutex_init(&v->lock);
	INIT_LIST_HEAD(&v->gpus);
	INIT_LIST_HEAD(&v->ranges);
	INIT_LIST_HEAD(&v->groups);
	address_space_init_once(&v->mapping);
	v->mapping.host = inode;
	v->mapping.a_ops = inode->i_mapping->a_ops;
	file->f_mapping = &v->mapping;
	file->private_data = v;
	v->file = file;
	return 0;
}

static void gpu_drop(struct uvm_vas *v, struct uvm_gpu *g)
{
	uvm_peers_drop(v, g);
	uvm_gpu_drop_as(v, g);
	list_del(&g->link);
	kfree(g);
}

/* The space dies with the file of its mm, as far as new GPUs are concerned. */
static void mm_release(struct uvm_vas *v)
{
	struct uvm_vas *space = v->mm_of;

	if (!space)
		return;
	mutex_lock(&space->lock);
	space->mm_state = UVM_MM_RELEASED;
	mutex_unlock(&space->lock);
	fput(space->file);
}

static int uvm_release(struct inode *inode, struct file *file)
{
	struct uvm_vas *v = file->private_data;
	struct uvm_gpu *g, *next;

	mutex_lock(&v->lock);
	list_for_each_entry(g, &v->gpus, link)
		uvm_chans_stop(g);
	uvm_ranges_drop(v);
	uvm_groups_drop(v);
	list_for_each_entry_safe(g, next, &v->gpus, link)
		gpu_drop(v, g);
	mutex_unlock(&v->lock);
	mm_release(v);
	file->private_data = NULL;
	file->f_mapping = NULL;
	kfree(v);
	return 0;
}

/* nvidia-uvm's name for it and its arguments; the file is the space here, from its opening on. */
noinline NV_STATUS uvm_va_space_create(struct address_space *mapping, struct uvm_vas **space, u64 flags)
{
	struct uvm_vas *v = *space;

	v->mm = current->mm;
	v->flags = flags;
	v->initialized = true;
	return NV_OK;
}

static void do_init(struct uvm_vas *v, void *arg)
{
	struct uvm_init *p = arg;

	p->rmStatus = NV_ERR_INVALID_ARGUMENT;
	if (p->flags & ~3ull || v->mm_of)
		return;
	mutex_lock(&v->lock);
	if (!v->initialized)
		p->rmStatus = uvm_va_space_create(&v->mapping, &v, p->flags);
	else if (v->flags == p->flags)
		p->rmStatus = NV_OK;
	mutex_unlock(&v->lock);
}

/* uvm_api_mm_initialize(): @v becomes the file that keeps the mm of @space, and keeps its file. */
static NV_STATUS mm_initialize(struct uvm_vas *v, struct uvm_vas *space)
{
	lockdep_assert_held(&space->lock);
	if (space->flags & UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE)
		return NV_WARN_NOTHING_TO_DO;
	if (space->mm_state != UVM_MM_NONE)
		return space->mm_state == UVM_MM_ALIVE ? NV_ERR_INVALID_STATE : NV_ERR_PAGE_TABLE_NOT_AVAIL;
	if (v == space || v->initialized || cmpxchg(&v->mm_of, NULL, space))
		return NV_ERR_INVALID_STATE;
	space->mm_state = UVM_MM_ALIVE;
	return NV_OK;
}

static void do_mm_init(struct uvm_vas *v, void *arg)
{
	struct uvm_mm_init *p = arg;
	struct file *f = fget(p->uvmFd);
	struct uvm_vas *other;

	p->rmStatus = NV_ERR_INVALID_ARGUMENT;
	if (uvm_file_is_ours(f)) {
		other = f->private_data;
		mutex_lock(&other->lock);
		if (other->initialized)
			p->rmStatus = mm_initialize(v, other);
		mutex_unlock(&other->lock);
	}
	if (f && p->rmStatus != NV_OK)
		fput(f);
}

/* A space in multi-process sharing mode belongs to no process. */
static bool has_mm(const struct uvm_vas *v)
{
	return v->flags & UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE || v->mm_state == UVM_MM_ALIVE;
}

/*
 * nvidia-uvm's name for it and its arguments. It calls RM, which checks whether the process has the
 * GPU open.
 */
noinline NV_STATUS uvm_va_space_register_gpu(struct uvm_vas *v, const u8 *uuid, const void *rm_device, NvBool *numa, s32 *node,
					     u8 *uuid_out)
{
	struct nvgpu *gpu = nvsim_gpu_by_uuid(uuid);
	NV_STATUS st = NV_OK;
	struct uvm_gpu *g;

	*numa = 0;
	*node = -1;
	if (!gpu)
		return NV_ERR_GPU_UUID_NOT_FOUND;
	if (!nv_is_gpu_accessible(&gpu->nv))
		return NV_ERR_INSUFFICIENT_PERMISSIONS;
	mutex_lock(&v->lock);
	g = uvm_gpu_find(v, uuid) ? NULL : kzalloc(sizeof(*g), GFP_KERNEL);
	if (g) {
		g->gpu = gpu;
		INIT_LIST_HEAD(&g->chans);
		list_add_tail(&g->link, &v->gpus);
	} else {
		st = uvm_gpu_find(v, uuid) ? NV_ERR_INVALID_DEVICE : NV_ERR_NO_MEMORY;
	}
	mutex_unlock(&v->lock);
	memcpy(uuid_out, gpu->uuid, 16);
	return st;
}

static void do_register_gpu(struct uvm_vas *v, void *arg)
{
	struct uvm_reg_gpu *p = arg;

	p->rmStatus = uvm_va_space_register_gpu(v, p->gpu_uuid, &p->hClient, &p->numaEnabled, &p->numaNodeId, p->gpu_uuid);
}

static void do_unregister_gpu(struct uvm_vas *v, void *arg)
{
	struct uvm_uuid *p = arg;
	struct uvm_gpu *g;

	mutex_lock(&v->lock);
	g = uvm_gpu_find(v, p->gpuUuid);
	p->rmStatus = g ? NV_OK : NV_ERR_INVALID_DEVICE;
	if (g)
		gpu_drop(v, g);
	mutex_unlock(&v->lock);
}

static void do_register_vas(struct uvm_vas *v, void *arg)
{
	struct uvm_gpu_vas *p = arg;
	struct nvas *as = NULL;
	struct uvm_ext *x;
	struct uvm_gpu *g;

	mutex_lock(&v->lock);
	g = uvm_gpu_find(v, p->gpuUuid);
	p->rmStatus = g ? nvUvmInterfaceDupAddressSpace(g->gpu, p->hClient, p->hVaSpace, &as, NULL) : NV_ERR_INVALID_DEVICE;
	if (p->rmStatus != NV_OK) {
		mutex_unlock(&v->lock);
		return;
	}
	if (as->gpu != g->gpu) {
		p->rmStatus = NV_ERR_INVALID_DEVICE;
	} else if (!has_mm(v)) {
		p->rmStatus = NV_ERR_PAGE_TABLE_NOT_AVAIL;
	} else if (g->as) {
		p->rmStatus = NV_ERR_INVALID_STATE;
	} else {
		p->rmStatus = NV_OK;
		g->as = as;
		as = NULL;
		list_for_each_entry(x, &v->ranges, link)
			if (uvm_range_backing(x))
				nvas_map(g->as, x->base, x->len, uvm_range_backing(x), x->off, NULL);
	}
	mutex_unlock(&v->lock);
	if (as)
		nvas_put(as);
}

static void do_unregister_vas(struct uvm_vas *v, void *arg)
{
	struct uvm_uuid *p = arg;
	struct uvm_gpu *g;

	mutex_lock(&v->lock);
	g = uvm_gpu_find(v, p->gpuUuid);
	p->rmStatus = g && g->as ? NV_OK : NV_ERR_INVALID_DEVICE;
	if (g)
		uvm_gpu_drop_as(v, g);
	mutex_unlock(&v->lock);
}

/* The channel has to run in the VA space registered for its GPU. */
static void do_register_channel(struct uvm_vas *v, void *arg)
{
	struct uvm_reg_chan *p = arg;
	struct uvm_gpu *g;

	mutex_lock(&v->lock);
	g = uvm_gpu_find(v, p->gpuUuid);
	p->rmStatus = g ? uvm_chan_register(v, g, p->hClient, p->hChannel) : NV_ERR_INVALID_DEVICE;
	mutex_unlock(&v->lock);
}

static void do_unregister_channel_v2(struct uvm_vas *v, void *arg)
{
	struct uvm_unreg_chan_v2 *p = arg;

	mutex_lock(&v->lock);
	p->rmStatus = uvm_chan_unregister(v, p->hClient, p->hChannel);
	mutex_unlock(&v->lock);
}

/* The driver does not read the UUID, and libcuda passes none. */
static void do_unregister_channel(struct uvm_vas *v, void *arg)
{
	struct uvm_unreg_chan *p = arg;

	mutex_lock(&v->lock);
	p->rmStatus = uvm_chan_unregister(v, p->hClient, p->hChannel);
	mutex_unlock(&v->lock);
}

static void do_create_range(struct uvm_vas *v, void *arg)
{
	struct uvm_range *p = arg;

	p->rmStatus = uvm_api_create_external_range(p, v->file);
}

static void do_free(struct uvm_vas *v, void *arg)
{
	struct uvm_range *p = arg;

	p->rmStatus = uvm_api_free(p, v->file);
}

/* Whatever range is there, as a whole. */
static void do_free_v2(struct uvm_vas *v, void *arg)
{
	struct uvm_free_v2 *p = arg;
	struct uvm_range range = { .base = p->base };
	struct uvm_ext *x;

	mutex_lock(&v->lock);
	x = uvm_range_find(v, p->base, 1);
	range.length = x ? x->len : 1;
	mutex_unlock(&v->lock);
	p->rmStatus = uvm_api_free(&range, v->file);
}

static void do_pool(struct uvm_vas *v, void *arg)
{
	struct uvm_pool *p = arg;

	p->rmStatus = uvm_api_alloc_semaphore_pool(p, v->file);
}

static void do_pool_v1(struct uvm_vas *v, void *arg)
{
	struct uvm_pool_v1 *p = arg;

	p->rmStatus = uvm_api_alloc_semaphore_pool(p, v->file);
}

static void do_map_external(struct uvm_vas *v, void *arg)
{
	struct uvm_map_ext *p = arg;

	p->rmStatus = uvm_range_map(v, p);
}

static void do_unmap_external(struct uvm_vas *v, void *arg)
{
	struct uvm_unmap_ext *p = arg;

	p->rmStatus = uvm_range_unmap(v, p);
}

static void do_validate(struct uvm_vas *v, void *arg)
{
	struct uvm_range *p = arg;
	struct uvm_ext *x;

	mutex_lock(&v->lock);
	x = uvm_range_find(v, p->base, p->length);
	p->rmStatus = x && x->base == p->base && x->len == p->length ? NV_OK : NV_ERR_INVALID_ADDRESS;
	mutex_unlock(&v->lock);
}

static void do_pageable(struct uvm_vas *v, void *arg)
{
	struct uvm_pageable *p = arg;

	p->pageableMemAccess = nvsim.hmm && !(v->flags & UVM_INIT_FLAGS_DISABLE_HMM);
	p->rmStatus = NV_OK;
}

static void do_pageable_gpu(struct uvm_vas *v, void *arg)
{
	struct uvm_pageable_gpu *p = arg;

	p->pageableMemAccess = nvsim.hmm && !(v->flags & UVM_INIT_FLAGS_DISABLE_HMM);
	p->rmStatus = NV_OK;
}

static void do_create_group(struct uvm_vas *v, void *arg)
{
	struct uvm_group *p = arg;

	p->rmStatus = uvm_api_create_range_group(p, v->file);
}

static void do_destroy_group(struct uvm_vas *v, void *arg)
{
	struct uvm_group *p = arg;

	p->rmStatus = uvm_api_destroy_range_group(p, v->file);
}

static void do_map_dyn(struct uvm_vas *v, void *arg)
{
	struct uvm_map_dyn *p = arg;

	p->rmStatus = uvm_range_reflect(v, p);
}

/* Preferred location and migration of a managed range's pages: they do not move here. */
static NV_STATUS hint(struct uvm_vas *v, const struct uvm_range *p)
{
	struct uvm_ext *x;
	bool managed;

	mutex_lock(&v->lock);
	x = uvm_range_find(v, p->base, p->length);
	managed = x && x->managed;	/* @x may go with the lock */
	mutex_unlock(&v->lock);
	return managed ? NV_OK : NV_ERR_INVALID_ADDRESS;
}

static void do_preferred(struct uvm_vas *v, void *arg)
{
	((struct uvm_pref *)arg)->rmStatus = hint(v, arg);
}

static void do_hint(struct uvm_vas *v, void *arg)
{
	((struct uvm_range *)arg)->rmStatus = hint(v, arg);
}

static void do_accessed_by(struct uvm_vas *v, void *arg)
{
	((struct uvm_accessed_by *)arg)->rmStatus = hint(v, arg);
}

/* Nothing moves: an asynchronous one is done at once, too, and its semaphore is written (uvm_migrate.c). */
static void do_migrate(struct uvm_vas *v, void *arg)
{
	struct uvm_migrate *p = arg;
	bool async = p->flags & UVM_MIGRATE_FLAG_ASYNC;

	if (p->flags & ~UVM_MIGRATE_FLAG_ASYNC || (!async && p->semaphoreAddress) ||
	    (async && !p->semaphoreAddress && p->semaphorePayload)) {
		p->rmStatus = NV_ERR_INVALID_ARGUMENT;
		return;
	}
	/* without a range it is the semaphore only */
	p->rmStatus = p->length || !p->semaphoreAddress ? hint(v, arg) : NV_OK;
	if (p->rmStatus == NV_OK && p->semaphoreAddress)
		p->rmStatus = uvm_pool_release(v, p->semaphoreAddress, p->semaphorePayload);
}

static const struct uvm_call {
	u32 cmd, size;
	bool any_state;
	void (*fn)(struct uvm_vas *v, void *arg);
	u16 since, before;	/* branches of the driver, see nvsim_in_branch() */
} calls[] = {
	{ UVM_INITIALIZE, sizeof(struct uvm_init), true, do_init },
	{ UVM_MM_INITIALIZE, sizeof(struct uvm_mm_init), true, do_mm_init },
	{ UVM_REGISTER_GPU, sizeof(struct uvm_reg_gpu), false, do_register_gpu },
	{ UVM_UNREGISTER_GPU, sizeof(struct uvm_uuid), false, do_unregister_gpu },
	{ UVM_REGISTER_GPU_VASPACE, sizeof(struct uvm_gpu_vas), false, do_register_vas },
	{ UVM_UNREGISTER_GPU_VASPACE, sizeof(struct uvm_uuid), false, do_unregister_vas },
	{ UVM_REGISTER_CHANNEL, sizeof(struct uvm_reg_chan), false, do_register_channel },
	{ UVM_UNREGISTER_CHANNEL, sizeof(struct uvm_unreg_chan), false, do_unregister_channel, .before = 590 },
	{ UVM_UNREGISTER_CHANNEL, sizeof(struct uvm_unreg_chan_v2), false, do_unregister_channel_v2, .since = 590 },
	{ UVM_ENABLE_PEER_ACCESS, sizeof(struct uvm_peer), false, uvm_do_enable_peers },
	{ UVM_DISABLE_PEER_ACCESS, sizeof(struct uvm_peer), false, uvm_do_disable_peers },
	{ UVM_CREATE_EXTERNAL_RANGE, sizeof(struct uvm_range), false, do_create_range },
	{ UVM_MAP_EXTERNAL_ALLOCATION, sizeof(struct uvm_map_ext_v1), false, uvm_do_map_external_v1, .before = 550 },
	{ UVM_MAP_EXTERNAL_ALLOCATION, sizeof(struct uvm_map_ext), false, do_map_external, .since = 550 },
	{ UVM_ALLOC_SEMAPHORE_POOL, sizeof(struct uvm_pool_v1), false, do_pool_v1, .before = 550 },
	{ UVM_ALLOC_SEMAPHORE_POOL, sizeof(struct uvm_pool), false, do_pool, .since = 550 },
	{ UVM_CREATE_RANGE_GROUP, sizeof(struct uvm_group), false, do_create_group, .before = 610 },
	{ UVM_DESTROY_RANGE_GROUP, sizeof(struct uvm_group), false, do_destroy_group, .before = 610 },
	{ UVM_SET_RANGE_GROUP, sizeof(struct uvm_set_group), false, uvm_do_set_group, .before = 610 },
	{ UVM_UNMAP_EXTERNAL, sizeof(struct uvm_unmap_ext), false, do_unmap_external },
	{ UVM_MAP_DYNAMIC_PARALLELISM_REGION, sizeof(struct uvm_map_dyn), false, do_map_dyn },
	{ UVM_FREE, sizeof(struct uvm_range), false, do_free, .before = 590 },
	{ UVM_FREE, sizeof(struct uvm_free_v2), false, do_free_v2, .since = 590 },
	{ UVM_VALIDATE_VA_RANGE, sizeof(struct uvm_range), false, do_validate },
	{ UVM_PAGEABLE_MEM_ACCESS, sizeof(struct uvm_pageable), false, do_pageable },
	{ UVM_PAGEABLE_MEM_ACCESS_ON_GPU, sizeof(struct uvm_pageable_gpu), false, do_pageable_gpu },
	{ UVM_SET_PREFERRED_LOCATION, sizeof(struct uvm_pref), false, do_preferred },
	{ UVM_UNSET_PREFERRED_LOCATION, sizeof(struct uvm_range), false, do_hint },
	{ UVM_ENABLE_READ_DUPLICATION, sizeof(struct uvm_range), false, do_hint },
	{ UVM_DISABLE_READ_DUPLICATION, sizeof(struct uvm_range), false, do_hint },
	{ UVM_SET_ACCESSED_BY, sizeof(struct uvm_accessed_by), false, do_accessed_by },
	{ UVM_UNSET_ACCESSED_BY, sizeof(struct uvm_accessed_by), false, do_accessed_by },
	{ UVM_MIGRATE, sizeof(struct uvm_migrate), false, do_migrate },
};

/* Every parameter struct ends with its status, some with padding behind it. */
static u32 *status_of(const struct uvm_call *k, void *arg)
{
	switch (k->cmd) {
	case UVM_MAP_EXTERNAL_ALLOCATION:
	case UVM_REGISTER_GPU:
	case UVM_REGISTER_GPU_VASPACE:
	case UVM_UNREGISTER_GPU:
	case UVM_UNREGISTER_GPU_VASPACE:
	case UVM_UNREGISTER_CHANNEL:
	case UVM_ENABLE_PEER_ACCESS:
	case UVM_DISABLE_PEER_ACCESS:
	case UVM_PAGEABLE_MEM_ACCESS:
	case UVM_PAGEABLE_MEM_ACCESS_ON_GPU:
	case UVM_SET_PREFERRED_LOCATION:
	case UVM_MM_INITIALIZE:
		return arg + k->size - 4;
	}
	return arg + k->size - 8;
}

static long uvm_call(const struct uvm_call *k, struct uvm_vas *v, void __user *uarg)
{
	void *arg = kvmalloc(k->size, GFP_KERNEL);
	long ret = 0;

	if (!arg)
		return -ENOMEM;
	if (copy_from_user(arg, uarg, k->size)) {
		kvfree(arg);
		return -EFAULT;
	}
	if (k->any_state || smp_load_acquire(&v->initialized))
		k->fn(v, arg);
	else
		*status_of(k, arg) = NV_ERR_ILLEGAL_ACTION;
	if (nvsim.trace && *status_of(k, arg) != NV_OK)
		pr_info("uvm call %u: status %#x\n", k->cmd, *status_of(k, arg));
	if (copy_to_user(uarg, arg, k->size))
		ret = -EFAULT;
	kvfree(arg);
	return ret;
}

static long uvm_ioctl(struct file *file, unsigned int cmd, unsigned long uarg)
{
	size_t i;

	if (cmd == UVM_DEINITIALIZE)
		return 0;
	for (i = 0; i < ARRAY_SIZE(calls); i++)
		if (calls[i].cmd == cmd && nvsim_in_branch(calls[i].since, calls[i].before))
			return uvm_call(&calls[i], file->private_data, (void __user *)uarg);
	pr_info_ratelimited("uvm call %u is unknown\n", cmd);
	return -EINVAL;
}

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.open = uvm_open,
	.release = uvm_release,
	.mmap = nvsim_uvm_mmap,
	.unlocked_ioctl = uvm_ioctl,
	.compat_ioctl = uvm_ioctl,
};

static char *uvm_devnode(NVSIM_DEVNODE_ARG *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static int make_nodes(void)
{
	struct device *dev;

	uvm_class = nvsim_class_create("nvsim-uvm");
	if (IS_ERR(uvm_class))
		return PTR_ERR(uvm_class);
	uvm_class->devnode = uvm_devnode;
	dev = device_create(uvm_class, NULL, uvm_dev, NULL, "nvidia-uvm");
	if (IS_ERR(dev))
		goto err;
	dev = device_create(uvm_class, NULL, uvm_dev + 1, NULL, "nvidia-uvm-tools");
	if (IS_ERR(dev))
		goto err_node;
	return 0;

err_node:
	device_destroy(uvm_class, uvm_dev);
err:
	class_destroy(uvm_class);
	return PTR_ERR(dev);
}

int nvsim_uvm_init(void)
{
	int err;

	err = alloc_chrdev_region(&uvm_dev, 0, 2, "nvidia-uvm");
	if (err)
		return err;
	cdev_init(&uvm_cdev, &uvm_fops);
	uvm_cdev.owner = THIS_MODULE;
	err = cdev_add(&uvm_cdev, uvm_dev, 2);
	if (err)
		goto err_region;
	err = make_nodes();
	if (err)
		goto err_cdev;
	return 0;

err_cdev:
	cdev_del(&uvm_cdev);
err_region:
	unregister_chrdev_region(uvm_dev, 2);
	return err;
}

void nvsim_uvm_exit(void)
{
	device_destroy(uvm_class, uvm_dev + 1);
	device_destroy(uvm_class, uvm_dev);
	class_destroy(uvm_class);
	cdev_del(&uvm_cdev);
	unregister_chrdev_region(uvm_dev, 2);
}
