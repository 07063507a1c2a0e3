// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the backing files and their mount. Takes f_lock of a backing file. */
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "compat.h"
#include "core/nv_call.h"
#include "driver/driver.h"
#include "intercept/backing_file.h"
#include "state/container.h"

#define CKM_BACKFS_MAGIC 0x63677075	/* "cgpu" */

static struct vfsmount *mount;
static struct kmem_cache *backing_cache;
static const struct cred *open_cred;	/* root's, for the driver's own checks at open */
static atomic64_t next_id = ATOMIC64_INIT(0);

/* Records that are not freed yet, some of them by RCU: ckm_backing_exit() waits for zero. */
static atomic_t alive = ATOMIC_INIT(0);
static DECLARE_WAIT_QUEUE_HEAD(gone);

static struct ckm_backing *backing_of(struct inode *inode)
{
	return container_of(inode, struct ckm_backing, inode);
}

static struct inode *alloc_backing(struct super_block *sb)
{
	struct ckm_backing *backing = alloc_inode_sb(sb, backing_cache, GFP_KERNEL);

	if (!backing)
		return NULL;
	/* The inode is initialised by the slab's constructor and by alloc_inode(). */
	memset_after(backing, 0, inode);
	xa_init(&backing->exports);
	atomic_inc(&alive);
	return &backing->inode;
}

/* Runs in an RCU callback. */
static void free_backing(struct inode *inode)
{
	kmem_cache_free(backing_cache, backing_of(inode));
	if (atomic_dec_and_test(&alive))
		wake_up(&gone);
}

/* The last reference is gone and the driver's release has returned: drop the charges.
 * Sleeps.
 */
static void evict_backing(struct inode *inode)
{
	struct ckm_backing *backing = backing_of(inode);

	truncate_inode_pages_final(&inode->i_data);
	clear_inode(inode);
	if (backing->ct) {
		backing->release(backing);
		ckm_container_put(backing->ct);
		module_put(THIS_MODULE);
	}
}

static const struct super_operations backing_super_ops = {
	.alloc_inode	= alloc_backing,
	.free_inode	= free_backing,
	.evict_inode	= evict_backing,
	.drop_inode	= ckm_drop_inode,
	.statfs		= simple_statfs,
};

static int init_backing_fs(struct fs_context *fc)
{
	struct pseudo_fs_context *ctx = init_pseudo(fc, CKM_BACKFS_MAGIC);

	if (!ctx)
		return -ENOMEM;
	ctx->ops = &backing_super_ops;
	/* A backing file cannot be reopened through /proc/self/fd or map_files. */
	fc->s_iflags |= SB_I_NODEV | SB_I_NOEXEC;
	return 0;
}

/* No .owner: an internal mount would pin the module forever. */
static struct file_system_type backing_fs = {
	.name			= "cgpu_backing",
	.init_fs_context	= init_backing_fs,
	.kill_sb		= kill_anon_super,
};

/* The only operation of a backing file: the VFS can release it and nothing else. A mapping shows
 * the file to the kernel, which calls its operations for remap_file_pages(), madvise() and others
 * outside of any call of ours (docs/develop/boundary.md). The driver's module reference from the
 * open is dropped here; __fput() drops the guard's.
 */
static int guard_release(struct inode *inode, struct file *file)
{
	struct ckm_backing *backing = backing_of(inode);
	int ret = 0;

	if (backing->ends)	/* not while it is opened */
		backing->ends(backing);
	ckm_mem_ops_begin(backing->ct);
	if (backing->drv->release)
		ret = backing->drv->release(inode, file);
	ckm_mem_ops_end(backing->ct);
	module_put(backing->drv->owner);
	return ret;
}

static void put_guard(struct ckm_backing *backing)
{
	backing->guard.owner = THIS_MODULE;
	backing->guard.release = guard_release;
	__module_get(THIS_MODULE);
	backing->real->f_op = &backing->guard;
}

struct ckm_backing *ckm_backing_open(struct ckm_container *ct, struct ckm_slot *slot,
				     u32 node, dev_t rdev, unsigned int flags,
				     void (*release)(struct ckm_backing *backing))
{
	struct path path = { .mnt = mount };
	struct inode *inode = new_inode(mount->mnt_sb);
	struct ckm_backing *backing;
	struct file *file;

	if (!inode)
		return ERR_PTR(-ENOMEM);
	backing = backing_of(inode);
	backing->node = node;
	backing->id = atomic64_inc_return(&next_id);
	backing->slot = slot;
	backing->release = release;
	INIT_LIST_HEAD(&backing->clients);
	init_rwsem(&backing->view_lock);
	inode->i_ino = get_next_ino();
	init_special_inode(inode, S_IFCHR | 0600, rdev);

	/* Not hashed: the dentry goes with its last reference. */
	path.dentry = d_alloc_name(mount->mnt_root, "backing");
	if (!path.dentry) {
		iput(inode);
		return ERR_PTR(-ENOMEM);
	}
	d_instantiate(path.dentry, inode);

	/* From here on evict_backing() calls release() and drops both references. */
	ckm_container_get(ct);
	backing->ct = ct;
	__module_get(THIS_MODULE);

	file = dentry_open(&path, (flags & (O_ACCMODE | O_NONBLOCK)) | O_LARGEFILE, open_cred);
	if (IS_ERR(file)) {
		dput(path.dentry);
		return ERR_CAST(file);
	}
	/* A device number alone does not prove that the driver serves the file. */
	if (!ckm_driver_owns(file->f_op)) {
		fput(file);
		dput(path.dentry);
		return ERR_PTR(-ENXIO);
	}
	backing->real = file;
	backing->drv = file->f_op;
	put_guard(backing);
	dput(path.dentry);
	return backing;
}

void ckm_backing_mirror_flags(struct ckm_backing *backing, unsigned int flags)
{
	struct file *file = backing->real;

	if (!((file->f_flags ^ flags) & O_NONBLOCK))
		return;
	spin_lock(&file->f_lock);
	file->f_flags = (file->f_flags & ~O_NONBLOCK) | (flags & O_NONBLOCK);
	spin_unlock(&file->f_lock);
}

static void init_backing_once(void *backing)
{
	inode_init_once(&((struct ckm_backing *)backing)->inode);
}

int ckm_backing_init(void)
{
	int ret = -ENOMEM;

	backing_cache = kmem_cache_create("cgpu_backing", sizeof(struct ckm_backing), 0,
					  SLAB_RECLAIM_ACCOUNT | SLAB_ACCOUNT, init_backing_once);
	if (!backing_cache)
		return -ENOMEM;
	open_cred = prepare_kernel_cred(&init_task);
	if (!open_cred)
		goto err_cache;
	mount = kern_mount(&backing_fs);
	if (IS_ERR(mount)) {
		ret = PTR_ERR(mount);
		goto err_cred;
	}
	return 0;

err_cred:
	put_cred(open_cred);
err_cache:
	kmem_cache_destroy(backing_cache);
	return ret;
}

void ckm_backing_exit(void)
{
	kern_unmount(mount);
	/* The root inode is a record too, without a container. */
	wait_event(gone, atomic_read(&alive) == 0);
	rcu_barrier();
	put_cred(open_cred);
	kmem_cache_destroy(backing_cache);
}
