// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the file system of nodes. Callers hold ckm_lock, mount and umount take it. */
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/fsnotify.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/slab.h>

#include "compat.h"
#include "core/nv_abi.h"
#include "driver/driver.h"
#include "driver/proc_devices.h"
#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/minor.h"
#include "state/nodefs.h"

#define CKM_NODEFS_MAGIC 0x6367706e	/* "cgpn"; cgpu-runtime has a copy */

static struct super_block *nodes_sb;	/* ckm_lock; NULL: not mounted */
static struct class *class;

/* ---- stat() of a node ---- */

/* i_private is the driver's device number. It is 0 for nvidia-uvm: that module's major can
 * change while the node exists, so it is looked up.
 */
static dev_t number_of_driver(const struct inode *inode)
{
	dev_t number = (unsigned long)inode->i_private;

	if (number)
		return number;
	number = MKDEV(ckm_driver_uvm_major(), 0);
	return MAJOR(number) ? number : inode->i_rdev;
}

/* In the directory stat() returns the true number: an engine that copies a node from there
 * with stat() and mknod() must create a node of this module, never one of the driver.
 */
static int node_getattr(CKM_IDMAP const struct path *path, struct kstat *stat, u32 mask,
			unsigned int flags)
{
	const struct inode *inode = d_inode(path->dentry);

	ckm_fillattr(CKM_IDMAP_ARG mask, d_inode(path->dentry), stat);
	if (path->mnt->mnt_root == path->dentry)
		stat->rdev = number_of_driver(inode);
	return 0;
}

static const struct inode_operations node_ops = {
	.getattr	= node_getattr,
};

/* ---- directories and nodes ---- */

static struct inode *make_inode(umode_t mode)
{
	struct inode *inode = new_inode(nodes_sb);

	if (!inode)
		return NULL;
	inode->i_ino = get_next_ino();
	inode->i_mode = mode;
	ckm_inode_init_ts(inode);
	return inode;
}

static struct inode *make_dir_inode(umode_t mode)
{
	struct inode *inode = make_inode(S_IFDIR | mode);

	if (!inode)
		return NULL;
	inode->i_op = &simple_dir_inode_operations;
	inode->i_fop = &simple_dir_operations;
	inc_nlink(inode);	/* "." */
	return inode;
}

/* Add a dentry with @inode below @parent; it stays pinned until it is removed. The
 * reference to @inode is consumed, also after an error. NULL @inode: -ENOMEM.
 */
static struct dentry *add_entry(struct dentry *parent, const char *name, struct inode *inode)
{
	struct dentry *dentry;

	if (!inode)
		return ERR_PTR(-ENOMEM);
	dentry = d_alloc_name(parent, name);
	if (!dentry) {
		iput(inode);
		return ERR_PTR(-ENOMEM);
	}
	ckm_pin_dentry(dentry, inode);
	return dentry;
}

static int add_node(struct dentry *dir, const char *name, u32 minor, dev_t shown)
{
	struct inode *inode = make_inode(S_IFCHR);

	if (inode) {
		init_special_inode(inode, S_IFCHR | 0666, MKDEV(ckm_major(), minor));
		inode->i_op = &node_ops;
		inode->i_private = (void *)(unsigned long)shown;
	}
	return PTR_ERR_OR_ZERO(add_entry(dir, name, inode));
}

static int fill_dir(struct ckm_container *ct)
{
	struct inode *dir = d_inode(ct->nodes);
	char name[16];
	int ret;
	u32 i, n;

	inode_lock(dir);
	ret = add_node(ct->nodes, "nvidiactl", ct->ctl_minor, MKDEV(NV_MAJOR_DEVICE_NUMBER, NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE));
	if (!ret)
		ret = add_node(ct->nodes, "nvidia-uvm", ct->uvm_minor, 0);
	for (i = 0; !ret && i < ct->slot_count; i++) {
		n = ct->slot[i].gpu->desc.nv_minor;
		snprintf(name, sizeof(name), "nvidia%u", n);
		ret = add_node(ct->nodes, name, ct->slot[i].minor, MKDEV(NV_MAJOR_DEVICE_NUMBER, n));
	}
	inode_unlock(dir);
	return ret;
}

static void remove_dir(struct ckm_container *ct)
{
	if (ct->nodes)
		simple_recursive_removal(ct->nodes, NULL);
	ct->nodes = NULL;
}

/* A node has the mode for use in the container, 0666. On the host the directory's mode
 * 0700 denies access.
 */
static int add_dir(struct ckm_container *ct)
{
	struct inode *root = d_inode(nodes_sb->s_root);
	struct dentry *dir;
	int ret;

	inode_lock(root);
	dir = add_entry(nodes_sb->s_root, ct->dir, make_dir_inode(0700));
	if (!IS_ERR(dir))
		inc_nlink(root);
	inode_unlock(root);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	ct->nodes = dir;
	ret = fill_dir(ct);
	if (ret)
		remove_dir(ct);
	else
		fsnotify_mkdir(root, dir);
	return ret;
}

/* ---- the superblock ---- */

static const struct super_operations super_ops = {
	.statfs		= simple_statfs,
	.drop_inode	= ckm_drop_inode,
};

static int fill_locked(struct super_block *sb)
{
	struct ckm_container *ct;
	int ret = 0;

	lockdep_assert_held(&ckm_lock);
	nodes_sb = sb;		/* cleared by kill_super(), after a failure too */
	sb->s_root = d_make_root(make_dir_inode(0755));
	if (!sb->s_root)
		return -ENOMEM;
	list_for_each_entry(ct, &ckm_containers, node) {
		if (!ct->dying)
			ret = add_dir(ct);
		if (ret)
			return ret;
	}
	return 0;
}

static int fill_super(struct super_block *sb, struct fs_context *fc)
{
	int ret;

	sb->s_blocksize = PAGE_SIZE;
	sb->s_blocksize_bits = PAGE_SHIFT;
	sb->s_magic = CKM_NODEFS_MAGIC;
	sb->s_op = &super_ops;
	ckm_drop_dentries(sb);
	sb->s_iflags |= SB_I_NOEXEC;
	sb->s_time_gran = 1;
	mutex_lock(&ckm_lock);
	ret = fill_locked(sb);
	mutex_unlock(&ckm_lock);
	return ret;
}

/* Called with s_umount held, as fill_super() is, so the order is s_umount, ckm_lock.
 * Nothing mounts or unmounts this file system under ckm_lock.
 */
static void kill_super(struct super_block *sb)
{
	struct ckm_container *ct;

	mutex_lock(&ckm_lock);
	if (nodes_sb == sb) {
		list_for_each_entry(ct, &ckm_containers, node)
			ct->nodes = NULL;
		nodes_sb = NULL;
	}
	mutex_unlock(&ckm_lock);
	ckm_kill_super(sb);
}

static int get_tree(struct fs_context *fc)
{
	return get_tree_single(fc, fill_super);
}

static const struct fs_context_operations context_ops = {
	.get_tree	= get_tree,
};

static int init_context(struct fs_context *fc)
{
	fc->ops = &context_ops;
	fc->global = true;	/* owned by the initial user namespace, so nodes can be opened */
	return 0;
}

/* No FS_USERNS_MOUNT: mounting requires CAP_SYS_ADMIN in the initial user namespace. */
static struct file_system_type node_fs = {
	.owner			= THIS_MODULE,
	.name			= "cgpu",
	.init_fs_context	= init_context,
	.kill_sb		= kill_super,
};

/* ---- device numbers in sysfs ---- */

/* If /sys/dev/char has no entry for a device number, runc before 1.1.7 omits the device
 * from the rules it passes to systemd for the container's scope. An entry also creates a
 * node in devtmpfs. It is named by its minor, in a directory of its own, for root only.
 */
static char *devtmpfs_name(CKM_DEVNODE_DEV *dev, umode_t *mode)
{
	if (mode)
		*mode = 0600;
	return kasprintf(GFP_KERNEL, "cgpu-minor/%u", MINOR(dev->devt));
}

static void free_device(struct device *dev)
{
	kfree(dev);
}

/* Every process of the host can read sysfs, and every network namespace gets the uevents of devices
 * that belong to none: an entry names its minor, not the container, and has no uevents.
 */
static int add_number(u32 minor)
{
	struct device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	int ret;

	if (!dev)
		return -ENOMEM;
	device_initialize(dev);
	dev->devt = MKDEV(ckm_major(), minor);
	dev->class = class;
	dev->release = free_device;
	dev_set_uevent_suppress(dev, true);
	ret = dev_set_name(dev, "cgpu-minor!%u", minor);
	if (!ret)
		ret = device_add(dev);
	if (ret)
		put_device(dev);
	return ret;
}

static void remove_numbers(struct ckm_container *ct)
{
	u32 i;

	/* device_destroy() ignores numbers without a device. */
	device_destroy(class, MKDEV(ckm_major(), ct->ctl_minor));
	device_destroy(class, MKDEV(ckm_major(), ct->uvm_minor));
	for (i = 0; i < ct->slot_count; i++)
		device_destroy(class, MKDEV(ckm_major(), ct->slot[i].minor));
}

static int add_numbers(struct ckm_container *ct)
{
	int ret;
	u32 i;

	ret = add_number(ct->ctl_minor);
	if (!ret)
		ret = add_number(ct->uvm_minor);
	for (i = 0; !ret && i < ct->slot_count; i++)
		ret = add_number(ct->slot[i].minor);
	if (ret)
		remove_numbers(ct);
	return ret;
}

/* ---- for instance.c and main.c ---- */

int ckm_nodes_add(struct ckm_container *ct)
{
	int ret;

	lockdep_assert_held(&ckm_lock);
	ret = add_numbers(ct);
	if (ret || !nodes_sb)
		return ret;
	ret = add_dir(ct);
	if (ret)
		remove_numbers(ct);
	return ret;
}

void ckm_nodes_remove(struct ckm_container *ct)
{
	lockdep_assert_held(&ckm_lock);
	remove_dir(ct);
	remove_numbers(ct);
}

int ckm_nodes_init(void)
{
	class = ckm_class_create("cgpu");
	if (IS_ERR(class))
		return PTR_ERR(class);
	class->devnode = devtmpfs_name;
	return 0;
}

void ckm_nodes_exit(void)
{
	class_destroy(class);
}

int ckm_nodefs_register(void)
{
	return register_filesystem(&node_fs);
}

void ckm_nodefs_unregister(void)
{
	unregister_filesystem(&node_fs);
	rcu_barrier();	/* wait until its inodes are freed */
}
