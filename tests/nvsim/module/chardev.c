// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * /dev/nvidia<M> and /dev/nvidiactl: the driver's character devices, as in kernel-open/nvidia/nv.c.
 */
#include <linux/cdev.h>
#include <linux/fdtable.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvsim.h"

static struct cdev gpu_cdev, ctl_cdev;
static struct class *nv_class;

static bool is_ctl(struct inode *inode)
{
	return MINOR(inode->i_rdev) == NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE;
}

static void file_private_free(struct nv_file_private *fp)
{
	u32 i;

	nvsim_bar1_hide(fp);
	for (i = 0; i < fp->nr_attached; i++)
		if (fp->attached[i])
			nvidia_dev_put(fp->attached[i], NULL, 0);
	kfree(fp->attached);
	nvsim_mmap_file_ends(fp);
	fp->magic = 0;
	kfree(fp);
}

static int nv_open(struct inode *inode, struct file *file)
{
	u32 minor = MINOR(inode->i_rdev);
	struct nv_file_private *fp;

	if (!is_ctl(inode) && minor >= nvsim.gpus)
		return -ENODEV;
	fp = kzalloc(sizeof(*fp), GFP_KERNEL);
	if (!fp)
		return -ENOMEM;
	fp->magic = NVFP_MAGIC;
	spin_lock_init(&fp->lock);
	INIT_LIST_HEAD(&fp->bar1_file);
	init_waitqueue_head(&fp->wait);
	if (is_ctl(inode)) {
		fp->nv = &nvsim_ctl;
	} else {
		fp->nv = &nvsim_gpu[minor]->nv;
		atomic_inc(&nvsim_gpu[minor]->opens);
		/* an address space of its own, so that mappings can be revoked file by file */
		address_space_init_once(&fp->mapping);
		fp->mapping.host = inode;
		fp->mapping.a_ops = inode->i_mapping->a_ops;
		file->f_mapping = &fp->mapping;
	}
	file->private_data = fp;
	return 0;
}

static int nv_release(struct inode *inode, struct file *file)
{
	struct nv_file_private *fp = file->private_data;

	nvsim_rm_cleanup_file(fp);
	nvsim_event_file_gone(fp);
	if (fp->nv->gpu)
		atomic_dec(&fp->nv->gpu->opens);
	file_private_free(fp);
	file->private_data = NULL;
	return 0;
}

static __poll_t nv_poll(struct file *file, poll_table *wait)
{
	struct nv_file_private *fp = file->private_data;
	__poll_t mask = 0;
	unsigned long flags;

	if (!(file->f_flags & O_NONBLOCK))
		poll_wait(file, &fp->wait, wait);
	spin_lock_irqsave(&fp->lock, flags);
	if (fp->event_pending) {
		mask = EPOLLPRI | EPOLLIN;
		fp->event_pending = false;
	}
	spin_unlock_irqrestore(&fp->lock, flags);
	return mask;
}

static int card_info(void *arg, size_t size)
{
	struct nv_card_info *ci = arg;
	size_t n = size / sizeof(*ci), i;

	if (n < nvsim.gpus)
		return -EINVAL;
	memset(arg, 0, size);
	for (i = 0; i < nvsim.gpus; i++) {
		struct nvgpu *gpu = nvsim_gpu[i];

		ci[i].valid = 1;
		ci[i].pci_info.bus = gpu->bus;
		ci[i].pci_info.vendor_id = 0x10de;
		ci[i].pci_info.device_id = nvsim_chip->device_id;
		ci[i].gpu_id = gpu->gpu_id;
		ci[i].interrupt_line = 16 + i;
		ci[i].reg_address = nvsim_gpu_bar(gpu, 0);
		ci[i].reg_size = 16 << 20;
		ci[i].fb_address = nvsim_gpu_bar(gpu, 1);
		ci[i].fb_size = (u64)nvsim_chip->bar1_mib << 20;
		ci[i].minor_number = i;
	}
	return 0;
}

static int attach_gpus(struct nv_file_private *fp, const u32 *ids, size_t size)
{
	u32 n = size / 4, i;
	u32 *copy;

	if (!n || size % 4)
		return -EINVAL;
	copy = kmemdup(ids, size, GFP_KERNEL);
	if (!copy)
		return -ENOMEM;
	down_write(&nvsim_api_lock);
	if (fp->nr_attached)
		goto err;
	for (i = 0; i < n; i++)
		if (copy[i] && nvidia_dev_get(copy[i], NULL, 0))
			goto err_put;
	fp->attached = copy;
	fp->nr_attached = n;
	up_write(&nvsim_api_lock);
	return 0;

err_put:
	while (i--)
		if (copy[i])
			nvidia_dev_put(copy[i], NULL, 0);
err:
	up_write(&nvsim_api_lock);
	kfree(copy);
	return -EINVAL;
}

/* The first value is the host's for good. */
static int sys_params(u64 memblock_size)
{
	static u64 memblock;

	return cmpxchg64(&memblock, 0, memblock_size) && memblock != memblock_size ? -EBUSY : 0;
}

static int version_check(struct nv_api_version *v, size_t size)
{
	bool relaxed;
	u32 i;

	if (size != sizeof(*v))
		return -EINVAL;
	v->reply = 1;
	relaxed = v->cmd == '1';
	if (v->cmd != '2') {
		for (i = 0; i < sizeof(v->versionString); i++) {
			char c = nvsim_release()[i];

			if (v->versionString[i] != c)
				break;
			if (!c || (relaxed && c == '.'))
				return 0;
		}
	}
	strscpy(v->versionString, nvsim_release(), sizeof(v->versionString));
	return v->cmd == '2' ? 0 : -EINVAL;
}

static int export_dmabuf_v1(struct nv_file_private *fp, struct nv_export_dmabuf_v1 *p)
{
	struct nv_export_dmabuf *q = kzalloc(sizeof(*q), GFP_KERNEL);

	if (!q)
		return -ENOMEM;
	q->fd = p->fd;
	q->hClient = p->hClient;
	q->totalObjects = p->totalObjects;
	q->numObjects = p->numObjects;
	q->index = p->index;
	q->totalSize = p->totalSize;
	memcpy(q->handles, p->handles, sizeof(q->handles));
	memcpy(q->offsets, p->offsets, sizeof(q->offsets));
	memcpy(q->sizes, p->sizes, sizeof(q->sizes));
	p->status = nv_dma_buf_export(fp->nv, q);
	p->fd = q->fd;
	kfree(q);
	return 0;
}

/* The escapes that the driver answers before rm_ioctl(). Returns false where it is rm_ioctl()'s. */
static bool early_escape(struct nv_file_private *fp, u32 cmd, void *arg, size_t size, int *ret)
{
	bool ctl = !fp->nv->gpu;

	*ret = -EINVAL;
	switch (cmd) {
	case NV_ESC_QUERY_DEVICE_INTR:
		if (!ctl && size >= 8) {
			memset(arg, 0, 8);
			*ret = 0;
		}
		return true;
	case NV_ESC_CARD_INFO:
		if (ctl)
			*ret = card_info(arg, size);
		return true;
	case NV_ESC_ATTACH_GPUS_TO_FD:
		if (ctl)
			*ret = attach_gpus(fp, arg, size);
		return true;
	case NV_ESC_CHECK_VERSION_STR:
		if (ctl)
			*ret = version_check(arg, size);
		return true;
	case NV_ESC_SYS_PARAMS:
		if (ctl && size == 8)
			*ret = sys_params(*(const u64 *)arg);
		return true;
	case NV_ESC_SET_NUMA_STATUS:
	case NV_ESC_NUMA_INFO:
		return true;
	case NV_ESC_EXPORT_TO_DMABUF_FD:
		if (!ctl && nvsim_branch < 580 && size == sizeof(struct nv_export_dmabuf_v1))
			*ret = export_dmabuf_v1(fp, arg);
		if (!ctl && nvsim_branch >= 580 && size == sizeof(struct nv_export_dmabuf)) {
			((struct nv_export_dmabuf *)arg)->status = nv_dma_buf_export(fp->nv, arg);
			*ret = 0;
		}
		return true;
	}
	return false;
}

static long escape(struct nv_file_private *fp, u32 cmd, void *arg, size_t size)
{
	int ret;

	if (cmd == NV_ESC_WAIT_OPEN_COMPLETE && nvsim_branch >= 550) {
		if (size != sizeof(struct nv_wait_open))
			return -EINVAL;
		memset(arg, 0, size);
		return 0;
	}
	if (early_escape(fp, cmd, arg, size, &ret))
		return ret;
	return rm_ioctl(NULL, fp->nv, fp, cmd, arg, size) == NV_OK ? 0 : -EINVAL;
}

static long nv_ioctl(struct file *file, unsigned int cmd, unsigned long i_arg)
{
	struct nv_file_private *fp = file->private_data;
	void __user *uarg = (void __user *)i_arg;
	size_t size = _IOC_SIZE(cmd);
	u32 nr = _IOC_NR(cmd);
	struct nv_xfer x;
	void *arg;
	long ret = nvsim_power_wait();

	if (ret)
		return ret;
	if (nr == NV_ESC_IOCTL_XFER_CMD) {
		if (size != sizeof(x))
			return -EINVAL;
		if (copy_from_user(&x, uarg, sizeof(x)))
			return -EFAULT;
		nr = x.cmd;
		size = x.size;
		uarg = u64_to_user_ptr(x.ptr);
		if (size > NV_MAX_IOCTL_SIZE)
			return -EINVAL;
	}
	arg = kmalloc(max_t(size_t, size, 8), GFP_KERNEL);
	if (!arg)
		return -ENOMEM;
	if (copy_from_user(arg, uarg, size)) {
		kfree(arg);
		return -EFAULT;
	}
	ret = escape(fp, nr, arg, size);
	if (ret != -EFAULT && copy_to_user(uarg, arg, size))
		ret = -EFAULT;
	kfree(arg);
	return ret;
}

static const struct file_operations nvidia_fops = {
	.owner = THIS_MODULE,
	.poll = nv_poll,
	.unlocked_ioctl = nv_ioctl,
	.compat_ioctl = nv_ioctl,
	.mmap = nvsim_mmap,
	.open = nv_open,
	.release = nv_release,
};

static int match_state(const void *nv, struct file *file, unsigned int fd)
{
	const struct nv_file_private *fp = file->private_data;

	return file->f_op == &nvidia_fops && fp && fp->nv == nv;
}

/*
 * Whether the calling process has an open file of this GPU. From 550 on a file with its inode but
 * other file operations does not count.
 */
noinline NvBool nv_is_gpu_accessible(nv_state_t *nv)
{
	return iterate_fd(current->files, 0, match_state, nv) != 0;
}

static char *nv_devnode(NVSIM_DEVNODE_ARG *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static int make_nodes(void)
{
	struct device *dev;
	int i;

	for (i = 0; i <= nvsim.gpus; i++) {
		bool ctl = i == nvsim.gpus;

		dev = device_create(nv_class, NULL,
				    MKDEV(NV_MAJOR_DEVICE_NUMBER, ctl ? NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE : i), NULL,
				    ctl ? "nvidiactl" : "nvidia%d", i);
		if (IS_ERR(dev)) {
			while (i--)
				device_destroy(nv_class, MKDEV(NV_MAJOR_DEVICE_NUMBER, i));
			return PTR_ERR(dev);
		}
		if (!ctl)
			nvsim_gpu[i]->dev = dev;
	}
	return 0;
}

static int add_cdevs(void)
{
	int err;

	cdev_init(&gpu_cdev, &nvidia_fops);
	gpu_cdev.owner = THIS_MODULE;
	err = cdev_add(&gpu_cdev, MKDEV(NV_MAJOR_DEVICE_NUMBER, 0), NV_MINOR_DEVICE_NUMBER_REGULAR_MAX + 1);
	if (err)
		return err;
	cdev_init(&ctl_cdev, &nvidia_fops);
	ctl_cdev.owner = THIS_MODULE;
	err = cdev_add(&ctl_cdev, MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE), 1);
	if (err)
		cdev_del(&gpu_cdev);
	return err;
}

int nvsim_chardev_init(void)
{
	int err;

	err = register_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, 0), NV_MINOR_DEVICE_NUMBER_REGULAR_MAX + 1, "nvidia");
	if (err)
		return err;
	err = register_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE), 1, "nvidiactl");
	if (err)
		goto err_region;
	nv_class = nvsim_class_create("nvsim");
	if (IS_ERR(nv_class)) {
		err = PTR_ERR(nv_class);
		goto err_ctl_region;
	}
	nv_class->devnode = nv_devnode;
	err = add_cdevs();
	if (err)
		goto err_class;
	err = make_nodes();
	if (err)
		goto err_cdev;
	return 0;

err_cdev:
	cdev_del(&ctl_cdev);
	cdev_del(&gpu_cdev);
err_class:
	class_destroy(nv_class);
err_ctl_region:
	unregister_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE), 1);
err_region:
	unregister_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, 0), NV_MINOR_DEVICE_NUMBER_REGULAR_MAX + 1);
	return err;
}

void nvsim_chardev_exit(void)
{
	int i;

	for (i = 0; i < nvsim.gpus; i++)
		device_destroy(nv_class, MKDEV(NV_MAJOR_DEVICE_NUMBER, i));
	device_destroy(nv_class, MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE));
	cdev_del(&ctl_cdev);
	cdev_del(&gpu_cdev);
	class_destroy(nv_class);
	unregister_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE), 1);
	unregister_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, 0), NV_MINOR_DEVICE_NUMBER_REGULAR_MAX + 1);
}
