// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The file operations of our nodes. Takes rm_lock when a backing file ends. */
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "call.h"
#include "compat.h"
#include "core/nv_abi.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "driver/proc_devices.h"
#include "intercept/backing_file.h"
#include "intercept/chardev.h"
#include "intercept/front_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_dispatch.h"
#include "intercept/rm_export.h"
#include "intercept/rm_os_event.h"
#include "intercept/rm_shared.h"
#include "intercept/rm_view.h"
#include "intercept/uvm.h"
#include "intercept/uvm_ioctl.h"
#include "intercept/uvm_managed.h"
#include "intercept/uvm_range.h"
#include "intercept/witness.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/minor.h"
#include "state/rm_object.h"

static dev_t real_device(u32 node, const struct ckm_slot *slot)
{
	switch (node) {
	case CGPU_NODE_CTL:
		return MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE);
	case CGPU_NODE_GPU:
		return MKDEV(NV_MAJOR_DEVICE_NUMBER, slot->gpu->desc.nv_minor);
	default:
		return MKDEV(ckm_driver_uvm_major(), 0);
	}
}

/* At eviction: remove the objects of the clients that are bound to the file, and drop
 * the charges that the file holds.
 */
static void release_backing(struct ckm_backing *backing)
{
	struct ckm_container *ct = backing->ct;

	if (backing->node == CGPU_NODE_UVM) {
		ckm_managed_release(ct, backing);
		ckm_uvm_ranges_release(ct, backing);
		ckm_uvm_tables_release(ct, backing);
		return;
	}
	ckm_os_events_of_file(backing);
	ckm_obj_put_mem(ct, backing->map_mem);
	if (backing->node != CGPU_NODE_CTL)
		return;
	ckm_clients_remove(ct, &backing->clients);
	ckm_exports_drop(ct, backing);
	ckm_container_end_again(ct);	/* it may have waited for these clients */
}

/* Before the driver releases the file, and with a control file its clients. */
static void file_ends(struct ckm_backing *backing)
{
	if (backing->node == CGPU_NODE_CTL) {
		mutex_lock(&backing->ct->end_lock);
		list_del(&backing->ctl_file);
		mutex_unlock(&backing->ct->end_lock);
		ckm_os_events_file_ends(backing);
	}
	ckm_views_file_ends(backing);
}

static int front_open(struct inode *inode, struct file *file)
{
	struct ckm_container *ct;
	struct ckm_slot *slot;
	struct ckm_backing *backing;
	u32 node;
	int ret;

	ct = ckm_container_by_minor(iminor(inode), &node, &slot);
	if (!ct)
		return -ENODEV;
	if (node == CGPU_NODE_UVM && !ckm_uvm_is_redirected()) {
		ckm_container_put(ct);
		return -ENODEV;
	}
	backing = ckm_backing_open(ct, slot, node, real_device(node, slot), file->f_flags,
				   release_backing);
	if (IS_ERR(backing)) {
		ckm_container_put(ct);
		return PTR_ERR(backing);
	}
	backing->ends = file_ends;
	if (node == CGPU_NODE_CTL) {
		mutex_lock(&ct->end_lock);
		list_add(&backing->ctl_file, &ct->ctl_files);
		mutex_unlock(&ct->end_lock);
	}
	ret = ckm_front_init(file, backing);
	if (ret)
		fput(backing->real);
	ckm_container_put(ct);
	return ret;
}

static int front_release(struct inode *inode, struct file *file)
{
	ckm_front_release(file);
	return 0;
}

static int map(struct ckm_backing *backing, struct vm_area_struct *vma)
{
	if (!backing->drv->mmap)
		return -ENODEV;
	if (xchg(&backing->maps_zeros, false))
		return ckm_shared_mmap(vma);
	if (backing->node == CGPU_NODE_UVM)
		return ckm_witness(backing) ? ckm_uvm_mmap(backing, vma) : -EIO;
	/* The driver's vm_ops use vma->vm_file: it must be the backing file. */
	vma_set_file(vma, backing->real);
	return backing->node == CGPU_NODE_GPU ? ckm_view_mmap(backing, vma)
					      : ckm_view_mmap_system(backing, vma);
}

static int front_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct ckm_backing *backing = ckm_front_get(file);
	int ret = -EACCES;

	if (!backing)
		return -ENODEV;
	/* A mapping keeps the container's memory, and a process of another one may outlive it. */
	if (ckm_front_may_map(file))
		ret = map(backing, vma);
	else
		ckm_say(backing->ct, "a mapping refused, pid %d is outside of the pid namespace in which the file was opened\n",
			task_tgid_nr(current));
	if (ret)
		ckm_vma_reset_file(vma, file);
	ckm_front_put(backing);
	return ret;
}

/* Unwrap NV_ESC_IOCTL_XFER_CMD, so that one struct is left to copy in. 0, -EFAULT or -EINVAL. */
static int unwrap(unsigned int *cmd, unsigned long *user)
{
	struct {
		u32 nr, size;
		u64 ptr;
	} xfer;

	if (_IOC_NR(*cmd) != NV_ESC_IOCTL_XFER_CMD)
		return 0;
	if (_IOC_SIZE(*cmd) != sizeof(xfer) ||
	    copy_from_user(&xfer, (void __user *)*user, sizeof(xfer)))
		return -EFAULT;
	if (xfer.nr > _IOC_NRMASK || xfer.nr == NV_ESC_IOCTL_XFER_CMD || xfer.size > _IOC_SIZEMASK)
		return -EINVAL;
	*cmd = _IOC(_IOC_READ | _IOC_WRITE, NV_IOCTL_MAGIC, xfer.nr, xfer.size);
	*user = xfer.ptr;
	return 0;
}

static long front_rm_ioctl(struct ckm_call *call, unsigned int cmd, unsigned long user)
{
	struct ckm_rm_call rc = { .call = call };
	const struct cgpu_core_ops *core;
	const struct cgpu_escape *row;
	int ret = unwrap(&cmd, &user);

	if (ret)
		return ret;
	rc.cmd = cmd;
	rc.user = user;
	core = ckm_core_enter();
	row = core->nv.escape(ckm_driver_branch(), _IOC_NR(cmd), _IOC_SIZE(cmd),
			      call->backing->node);
	if (row)
		rc.row = *row;
	ckm_core_leave();
	/* Without a status field in the struct, refuse by errno. */
	if (!row || (rc.row.verdict == CGPU_REFUSE && !rc.row.status_at)) {
		ckm_call_denied(call, "escape", _IOC_NR(cmd));
		return -EINVAL;
	}
	ret = ckm_call_fetch(call, user, _IOC_SIZE(cmd));
	return ret ?: ckm_rm_dispatch(&rc);
}

static long front_ioctl(struct file *file, unsigned int cmd, unsigned long user)
{
	struct ckm_backing *backing = ckm_front_get(file);
	struct ckm_call call;
	long ret = -ENODEV;

	if (!backing)
		return ret;
	if (READ_ONCE(backing->ct->dying))
		goto out;
	ret = -EIO;
	if (!ckm_witness(backing))
		goto out;
	ckm_backing_mirror_flags(backing, file->f_flags);
	ret = ckm_call_begin(&call, backing);
	if (ret)
		goto out;
	if (backing->node == CGPU_NODE_UVM)
		ret = ckm_uvm_ioctl(&call, cmd, user);
	else
		ret = front_rm_ioctl(&call, cmd, user);
	ckm_call_end(&call);
out:
	ckm_front_put(backing);
	return ret;
}

const struct file_operations ckm_front_fops = {
	.owner		= THIS_MODULE,
	.open		= front_open,
	.release	= front_release,
	.unlocked_ioctl	= front_ioctl,
	.mmap		= front_mmap,
	.poll		= ckm_front_poll,
};
