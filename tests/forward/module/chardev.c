// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* /dev/nvidia<M> and /dev/nvidiactl, as in kernel-open/nvidia/nv.c; the files behind them are the host's. */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "forward.h"

#define NV_CTL		NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE
#define NV_GPU_MAX	NV_MINOR_DEVICE_NUMBER_REGULAR_MAX

#define ARGUMENT_MAX			16384u

static struct cdev gpu_cdev, ctl_cdev;
static struct class *nv_class;

/* ---- files ---- */

/* Opened by the host process of @current. */
struct fwd_file *fwd_file_open(const char *name)
{
	struct fwd_call *call = fwd_call_new(FWD_OPEN, 0);
	struct fwd_file *f = kzalloc(sizeof(*f), GFP_KERNEL);
	s64 ret = -ENOMEM;

	if (!call || !f)
		goto out;
	f->opener = current->mm ? fwd_process_get() : fwd_process_kernel();
	if (!f->opener || fwd_add(call, strlen(name) + 1, 0, 0))
		goto out;
	strcpy(fwd_buf(call, 0), name);
	ret = fwd_run(f->opener, call);
	if (!ret && call->fd < 0)
		ret = -EMFILE;	/* User-Mode Linux, a process of the host, has no number left for it */
	if (ret)
		goto out;
	f->host_fd = call->fd;
	call->fd = -1;
	mutex_init(&f->lock);
	INIT_LIST_HEAD(&f->pins);
	init_waitqueue_head(&f->wait);
	spin_lock_init(&f->poll_lock);
out:
	fwd_call_free(call);
	if (!ret)
		return f;
	if (f)
		fwd_process_put(f->opener);
	kfree(f);
	return ERR_PTR(ret);
}

/* The last reference to the host's file is dropped there: the driver's release may take long. */
void fwd_file_close(struct fwd_file *f)
{
	struct fwd_call *call = fwd_call_new(FWD_CLOSE, 0);
	u32 i;

	fwd_poll_cancel(f->poll_lane);
	if (call) {
		fwd_add_fd(call, f->host_fd, 0, 0);
		fwd_close_over(f->opener, call);
	} else {
		fwd_host_close(f->host_fd);
	}
	fwd_call_free(call);
	fwd_pin_drop(f, 0, 0);
	for (i = 0; i < FWD_USERS_MAX; i++)
		fwd_process_put(f->users[i]);
	fwd_process_put(f->opener);
	kfree(f);
}

/* A child may use its parent's file: its own process on the host makes the calls then. */
struct fwd_process *fwd_file_user(struct fwd_file *f)
{
	struct fwd_process *p = fwd_process_get();
	u32 i;

	if (!p || p == f->opener)
		return p;
	mutex_lock(&f->lock);
	for (i = 0; i < FWD_USERS_MAX && f->users[i] && f->users[i] != p; i++)
		;
	if (i < FWD_USERS_MAX && !f->users[i])
		f->users[i] = fwd_process_ref(p);
	mutex_unlock(&f->lock);
	return p;
}

static bool is_ctl(const struct inode *inode)
{
	return MINOR(inode->i_rdev) == NV_CTL;
}

static struct fwd_state *state_of(const struct inode *inode)
{
	u32 i;

	if (is_ctl(inode))
		return &fwd_ctl;
	for (i = 0; i < fwd_gpu_count; i++)
		if (fwd_gpus[i].minor == MINOR(inode->i_rdev))
			return &fwd_states[i];
	return NULL;
}

/* um gives addresses from 1 GiB upwards, where CUDA wants its own, from 8 GiB on. What a process maps from its first
 * open on lies where x86-64 has it.
 */
#define MAPPINGS_FROM	0x700000000000ul

static void map_high(struct mm_struct *mm)
{
	if (!mm || mmap_write_lock_killable(mm))
		return;
	mm->mmap_base = max(mm->mmap_base, MAPPINGS_FROM);
	mmap_write_unlock(mm);
}

static int nv_open(struct inode *inode, struct file *file)
{
	struct fwd_state *nv = state_of(inode);
	struct fwd_file *f;
	char name[16];

	if (!nv)
		return -ENODEV;
	snprintf(name, sizeof(name), nv->gpu ? "nvidia%u" : "nvidiactl", MINOR(inode->i_rdev));
	f = fwd_file_open(name);
	if (IS_ERR(f))
		return PTR_ERR(f);
	f->nv = nv;
	file->private_data = f;
	map_high(current->mm);
	return 0;
}

static int nv_release(struct inode *inode, struct file *file)
{
	struct fwd_file *f = file->private_data;

	fwd_clients_drop(f);
	fwd_file_close(f);
	return 0;
}

/* ---- poll ---- */

/* In an interrupt. */
static void seen(void *arg, s64 events)
{
	struct fwd_file *f = arg;
	unsigned long flags;

	spin_lock_irqsave(&f->poll_lock, flags);
	f->polling = false;
	if (events > 0)
		f->seen = true;
	spin_unlock_irqrestore(&f->poll_lock, flags);
	wake_up_all(&f->wait);
}

static bool take_seen(struct fwd_file *f)
{
	bool was;

	spin_lock_irq(&f->poll_lock);
	was = f->seen;
	f->seen = false;
	spin_unlock_irq(&f->poll_lock);
	return was;
}

/* Whether the driver has an event for @f. The answer clears it in the driver. */
static bool ask(struct fwd_file *f, struct fwd_process *p)
{
	struct fwd_call *call = fwd_call_new(FWD_POLL, 0);
	bool found = false;

	if (call) {
		fwd_add_fd(call, f->host_fd, 0, 0);
		found = fwd_run(p, call) > 0;
	}
	fwd_call_free(call);
	return found;
}

static __poll_t nv_poll(struct file *file, poll_table *wait)
{
	struct fwd_file *f = file->private_data;
	struct fwd_process *p = fwd_file_user(f);
	bool found;

	if (!p)
		return EPOLLERR;
	poll_wait(file, &f->wait, wait);
	mutex_lock(&f->lock);
	found = take_seen(f);
	if (!found && !READ_ONCE(f->polling)) {
		fwd_poll_cancel(f->poll_lane);
		f->poll_lane = NULL;
		found = ask(f, p);
		if (!found) {
			WRITE_ONCE(f->polling, true);
			f->poll_lane = fwd_poll_start(f->opener, f->host_fd, seen, f);
		}
	}
	mutex_unlock(&f->lock);
	fwd_process_put(p);
	return found ? EPOLLIN | EPOLLPRI : 0;
}

/* ---- ioctl ---- */

static long plain(struct fwd_file *f, u32 nr, void *arg, u32 size)
{
	struct fwd_process *p = fwd_file_user(f);
	struct fwd_call *call = fwd_call_new(FWD_IOCTL, _IOC(_IOC_READ | _IOC_WRITE, NV_IOCTL_MAGIC, nr, size));
	long ret = -ENOMEM;

	if (!p || !call)
		goto out;
	fwd_add_fd(call, f->host_fd, 0, 0);
	ret = fwd_add(call, size, 0, 0);
	if (ret)
		goto out;
	memcpy(fwd_buf(call, 0), arg, size);
	ret = fwd_run(p, call);
	memcpy(arg, fwd_buf(call, 0), size);
out:
	fwd_call_free(call);
	fwd_process_put(p);
	return ret;
}

/* The escapes that the driver answers before rm_ioctl(). */
static long escape(struct fwd_file *f, u32 nr, void *arg, u32 size)
{
	switch (nr) {
	case NV_ESC_CARD_INFO:
	case NV_ESC_CHECK_VERSION_STR:
	case NV_ESC_ATTACH_GPUS_TO_FD:
	case NV_ESC_QUERY_DEVICE_INTR:
	case NV_ESC_SYS_PARAMS:
	case NV_ESC_WAIT_OPEN_COMPLETE:
		return plain(f, nr, arg, size);
	case NV_ESC_NUMA_INFO:
	case NV_ESC_SET_NUMA_STATUS:
		fwd_not_forwarded("escape", nr);
		return -EINVAL;
	case NV_ESC_EXPORT_TO_DMABUF_FD:
		if (size < 8)
			return -EINVAL;
		put32(arg, size - 8, nv_dma_buf_export(f->nv, arg));
		return 0;
	}
	return rm_ioctl(NULL, f->nv, f, nr, arg, size) == NV_OK ? 0 : -EINVAL;
}

static long nv_ioctl(struct file *file, unsigned int cmd, unsigned long user)
{
	struct nv_xfer xfer = { _IOC_NR(cmd), _IOC_SIZE(cmd), user };
	void *arg;
	long ret;

	if (xfer.cmd == NV_ESC_IOCTL_XFER_CMD) {
		if (xfer.size != sizeof(xfer))
			return -EINVAL;
		if (copy_from_user(&xfer, (void __user *)user, sizeof(xfer)))
			return -EFAULT;
	}
	if (xfer.size > ARGUMENT_MAX)
		return -EINVAL;
	arg = kzalloc(max_t(size_t, xfer.size, 8), GFP_KERNEL);
	if (!arg)
		return -ENOMEM;
	ret = -EFAULT;
	if (!copy_from_user(arg, u64_to_user_ptr(xfer.ptr), xfer.size))
		ret = escape(file->private_data, xfer.cmd, arg, xfer.size);
	if (ret != -EFAULT && copy_to_user(u64_to_user_ptr(xfer.ptr), arg, xfer.size))
		ret = -EFAULT;
	kfree(arg);
	return ret;
}

/* Which host files can be mapped, and how large, their driver knows: it has the last word. */
static int nv_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct fwd_file *f = file->private_data;

	if (vma->vm_pgoff)
		return -EINVAL;
	return fwd_map(vma, f->host_fd, 0);
}

static const struct file_operations nvidia_fops = {
	.owner = THIS_MODULE,
	.poll = nv_poll,
	.unlocked_ioctl = nv_ioctl,
	.mmap = nv_mmap,
	.open = nv_open,
	.release = nv_release,
};

/* ---- init ---- */

static char *nv_devnode(const struct device *dev, umode_t *mode)
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static void remove_nodes(u32 gpus)
{
	while (gpus--)
		device_destroy(nv_class, MKDEV(NV_MAJOR_DEVICE_NUMBER, fwd_gpus[gpus].minor));
}

static int make_nodes(void)
{
	struct device *dev;
	u32 i;

	for (i = 0; i < fwd_gpu_count; i++) {
		dev = device_create(nv_class, NULL, MKDEV(NV_MAJOR_DEVICE_NUMBER, fwd_gpus[i].minor), NULL, "nvidia%u",
				    fwd_gpus[i].minor);
		if (IS_ERR(dev))
			goto err;
	}
	dev = device_create(nv_class, NULL, MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_CTL), NULL, "nvidiactl");
	if (!IS_ERR(dev))
		return 0;
err:
	remove_nodes(i);
	return PTR_ERR(dev);
}

static int add_cdev(struct cdev *cdev, u32 minor, u32 count)
{
	cdev_init(cdev, &nvidia_fops);
	cdev->owner = THIS_MODULE;
	return cdev_add(cdev, MKDEV(NV_MAJOR_DEVICE_NUMBER, minor), count);
}

int fwd_chardev_init(void)
{
	int ret = register_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, 0), NV_GPU_MAX + 1, "nvidia");

	if (ret)
		return ret;
	ret = register_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_CTL), 1, "nvidiactl");
	if (ret)
		goto err_region;
	nv_class = class_create("nvforward");
	ret = PTR_ERR_OR_ZERO(nv_class);
	if (ret)
		goto err_ctl_region;
	nv_class->devnode = nv_devnode;
	ret = add_cdev(&gpu_cdev, 0, NV_GPU_MAX + 1);
	if (ret)
		goto err_class;
	ret = add_cdev(&ctl_cdev, NV_CTL, 1);
	if (ret)
		goto err_gpu;
	ret = make_nodes();
	if (!ret)
		return 0;

	cdev_del(&ctl_cdev);
err_gpu:
	cdev_del(&gpu_cdev);
err_class:
	class_destroy(nv_class);
err_ctl_region:
	unregister_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_CTL), 1);
err_region:
	unregister_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, 0), NV_GPU_MAX + 1);
	return ret;
}

void fwd_chardev_exit(void)
{
	remove_nodes(fwd_gpu_count);
	device_destroy(nv_class, MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_CTL));
	cdev_del(&ctl_cdev);
	cdev_del(&gpu_cdev);
	class_destroy(nv_class);
	unregister_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_CTL), 1);
	unregister_chrdev_region(MKDEV(NV_MAJOR_DEVICE_NUMBER, 0), NV_GPU_MAX + 1);
}
