// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "backfs.h"
#include "calls.h"
#include "container.h"
#include "core/nv_abi.h"
#include "core_link.h"
#include "driver.h"
#include "gpu.h"
#include "interpose.h"
#include "managed.h"
#include "rm_calls.h"
#include "seal.h"

struct ckm_back *ckm_front_back(struct file *file)
{
	return file->f_op == &ckm_front_fops ? file->private_data : NULL;
}

/* ---- objects in use ---- */

struct cgpu_obj *ckm_tenant_hold(struct ckm_container *ct, u32 client, u32 object)
{
	const struct cgpu_core_ops *core;
	struct cgpu_obj *obj;

	mutex_lock(&ct->rm_lock);
	core = ckm_core_enter();
	obj = core->tree_live(&ct->tree, client, object);
	if (obj)
		obj->busy++;
	ckm_core_leave();
	mutex_unlock(&ct->rm_lock);
	return obj;
}

bool ckm_tenant_owns(struct ckm_back *back, u32 client, u32 object)
{
	const struct cgpu_core_ops *core;
	struct cgpu_obj *obj;
	bool owns;

	core = ckm_core_enter();
	rcu_read_lock();
	obj = core->tree_live(&back->ct->tree, client, object);
	owns = obj && obj->owner == back->id;
	rcu_read_unlock();
	ckm_core_leave();
	return owns;
}

void ckm_tenant_unhold(struct ckm_container *ct, struct cgpu_obj *obj)
{
	if (!obj)
		return;
	mutex_lock(&ct->rm_lock);
	/* Its client's file died meanwhile: we were the last to know it. */
	if (!--obj->busy && obj->state == CGPU_OBJ_DETACHED)
		ckm_obj_free(container_of(obj, struct ckm_obj, core));
	mutex_unlock(&ct->rm_lock);
}

static struct cgpu_mem *get_ref_locked(struct ckm_container *ct, struct cgpu_mem *mem)
{
	const struct cgpu_core_ops *core;

	lockdep_assert_held(&ct->rm_lock);
	if (!mem)
		return NULL;
	core = ckm_core_enter();
	core->mem_get(mem);
	ckm_core_leave();
	return mem;
}

struct cgpu_mem *ckm_tenant_get_mem(struct ckm_container *ct, struct cgpu_obj *obj)
{
	struct cgpu_mem *mem;

	mutex_lock(&ct->rm_lock);
	mem = get_ref_locked(ct, obj->mem);
	mutex_unlock(&ct->rm_lock);
	return mem;
}

u32 ckm_tenant_hold_memory(struct ckm_container *ct, u32 client, u32 object,
			   struct cgpu_obj **obj, struct cgpu_mem **mem)
{
	*obj = ckm_tenant_hold(ct, client, object);
	if (!*obj)
		return NV_ERR_NOT_FOUND;
	if ((*obj)->kind != CGPU_KIND_VIDMEM && (*obj)->kind != CGPU_KIND_SYSMEM)
		return NV_ERR_NOT_SUPPORTED;
	*mem = ckm_tenant_get_mem(ct, *obj);
	return NV_OK;
}

struct cgpu_mem *ckm_tenant_get_context(struct ckm_container *ct, struct cgpu_obj *channel)
{
	struct cgpu_mem *mem;

	mutex_lock(&ct->rm_lock);
	mem = channel->mem;
	if (!mem && channel->parent && channel->parent->kind == CGPU_KIND_TSG)
		mem = channel->parent->mem;
	mem = get_ref_locked(ct, mem);
	mutex_unlock(&ct->rm_lock);
	return mem;
}

void ckm_tenant_put_mem(struct ckm_container *ct, struct cgpu_mem *mem)
{
	mutex_lock(&ct->rm_lock);
	ckm_mem_put_locked(ct, mem);
	mutex_unlock(&ct->rm_lock);
}

/* ---- file operations ---- */

static dev_t real_device(u32 node, const struct ckm_slot *slot)
{
	switch (node) {
	case CGPU_NODE_CTL:
		return MKDEV(NV_MAJOR, NV_MINOR_CTL);
	case CGPU_NODE_GPU:
		return MKDEV(NV_MAJOR, slot->gpu->desc.nv_minor);
	default:
		return MKDEV(ckm_driver_uvm_major(), 0);
	}
}

static int front_open(struct inode *inode, struct file *file)
{
	struct ckm_container *ct;
	struct ckm_slot *slot;
	struct ckm_back *back;
	u32 node;

	ct = ckm_container_by_minor(iminor(inode), &node, &slot);
	if (!ct)
		return -ENODEV;
	if (node == CGPU_NODE_UVM && !ckm_seal_has_uvm()) {
		ckm_container_put(ct);
		return -ENODEV;
	}
	back = ckm_back_open(ct, slot, node, real_device(node, slot), file->f_flags);
	ckm_container_put(ct);
	if (IS_ERR(back))
		return PTR_ERR(back);
	file->private_data = back;
	return 0;
}

static int front_release(struct inode *inode, struct file *file)
{
	struct ckm_back *back = file->private_data;

	fput(back->file);
	return 0;
}

static __poll_t front_poll(struct file *file, poll_table *wait)
{
	struct ckm_back *back = file->private_data;

	if (!back->drv->poll)
		return DEFAULT_POLLMASK;
	ckm_back_mirror_flags(back, file->f_flags);
	return back->drv->poll(back->file, wait);
}

static int front_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct ckm_back *back = file->private_data;

	if (!back->drv->mmap)
		return -ENODEV;
	if (back->node == CGPU_NODE_UVM)
		return ckm_managed_mmap(back, vma);
	/* The driver's vm_ops look at vma->vm_file: it must be theirs. */
	vma_set_file(vma, back->file);
	return back->drv->mmap(back->file, vma);
}

/* Unwrap the driver's own wrapper, so that there is one struct to seal. */
static int unwrap(unsigned int *cmd, unsigned long *user)
{
	struct {
		u32 nr, size;
		u64 ptr;
	} xfer;

	if (_IOC_NR(*cmd) != NV_ESC_XFER_CMD)
		return 0;
	if (_IOC_SIZE(*cmd) != sizeof(xfer) ||
	    copy_from_user(&xfer, (void __user *)*user, sizeof(xfer)))
		return -EFAULT;
	if (xfer.nr > _IOC_NRMASK || xfer.nr == NV_ESC_XFER_CMD || xfer.size > _IOC_SIZEMASK)
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
	row = core->call_escape(ckm_driver_branch(), _IOC_NR(cmd), _IOC_SIZE(cmd),
				call->back->node);
	if (row)
		rc.row = *row;
	ckm_core_leave();
	/* A refusal that cannot be said in the struct is said by the call. */
	if (!row || (rc.row.verdict == CGPU_REFUSE && !rc.row.status_at)) {
		ckm_refused(call, "escape", _IOC_NR(cmd));
		return -EINVAL;
	}
	ret = ckm_call_fetch(call, user, _IOC_SIZE(cmd));
	return ret ?: ckm_rm_dispatch(&rc);
}

/* The driver would compare with the flags we made it take (seal.c). */
static long initialize_again(struct ckm_back *back, const struct cgpu_uvm_call *row,
			     unsigned long user)
{
	u64 flags;

	if (get_user(flags, (u64 __user *)user))
		return -EFAULT;
	return put_user(flags == back->space_flags ? NV_OK : NV_ERR_ARGUMENT,
			(u32 __user *)(user + row->status_at));
}

/* Ranges of uvm's own that no dup of memory and no mapping shows: their page
 * tables, estimated as those of a mapping of one page. What is unmapped of them is
 * in the tenant's memory too, so they are given back with the file; programs make
 * a few for each GPU.
 */
static int charge_uvm_tables(struct ckm_back *back)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	u64 bytes = core->call_page_tables(0);

	ckm_core_leave();
	return ckm_back_tables(back, bytes);
}

/* All but those that only ask: page tables, channels' and managed memory come and
 * go.
 */
static bool uvm_call_moves(u32 nr)
{
	switch (nr) {
	case UVM_PAGEABLE_MEM_ACCESS:
	case UVM_PAGEABLE_MEM_ACCESS_ON_GPU:
	case UVM_VALIDATE_VA_RANGE:
	case UVM_CREATE_EXTERNAL_RANGE:
		return false;
	}
	return true;
}

/* uvm's structs are not sealed: what counts of them, the memory it takes and
 * gives back, is charged where the driver does it (seal.c).
 */
static long front_uvm_ioctl(struct ckm_call *call, unsigned int cmd, unsigned long user)
{
	struct ckm_back *back = call->back;
	const struct cgpu_core_ops *core = ckm_core_enter();
	const struct cgpu_uvm_call *found = core->call_uvm(ckm_driver_branch(), cmd);
	struct cgpu_uvm_call row = { .verdict = CGPU_REFUSE };
	bool moves;
	long ret;

	if (found)
		row = *found;
	ckm_core_leave();
	if (row.verdict == CGPU_REFUSE ||
	    (row.verdict == CGPU_UVM_MANAGED && !ckm_managed_allowed(back->ct))) {
		ckm_refused(call, "uvm call", cmd);
		return -EINVAL;
	}
	if (row.verdict == CGPU_ANSWER_OK)
		return put_user(NV_OK, (u32 __user *)(user + row.status_at));
	if (row.nr == UVM_INITIALIZE) {
		if (smp_load_acquire(&back->space_sealed))
			return initialize_again(back, &row, user);
	} else if (row.status_at && !smp_load_acquire(&back->space_sealed)) {
		/* As the driver says it of a file without a space; one that was
		 * made unseen by the seal is none.
		 */
		return put_user(NV_ERR_ILLEGAL_ACTION, (u32 __user *)(user + row.status_at));
	}
	if (row.nr == UVM_MAP_DYN_PARALLELISM || row.nr == UVM_ALLOC_SEMAPHORE_POOL) {
		if (charge_uvm_tables(back))
			return put_user(NV_ERR_NO_MEMORY, (u32 __user *)(user + row.status_at));
	}
	/* No line that all processors share is written by a call that only asks. */
	moves = uvm_call_moves(row.nr);
	if (moves)
		ckm_container_moves_begin(back->ct);
	ret = back->drv->unlocked_ioctl(back->file, cmd, user);
	if (moves)
		ckm_container_moves_end(back->ct);
	return ret;
}

static long front_ioctl(struct file *file, unsigned int cmd, unsigned long user)
{
	struct ckm_back *back = file->private_data;
	struct ckm_call call;
	long ret;

	if (READ_ONCE(back->ct->dying))
		return -ENODEV;
	ckm_back_mirror_flags(back, file->f_flags);
	ret = ckm_call_begin(&call, back);
	if (ret)
		return ret;
	if (back->node == CGPU_NODE_UVM)
		ret = front_uvm_ioctl(&call, cmd, user);
	else
		ret = front_rm_ioctl(&call, cmd, user);
	ckm_call_end(&call);
	return ret;
}

const struct file_operations ckm_front_fops = {
	.owner		= THIS_MODULE,
	.open		= front_open,
	.release	= front_release,
	.unlocked_ioctl	= front_ioctl,
	.mmap		= front_mmap,
	.poll		= front_poll,
};
