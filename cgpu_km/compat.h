/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* All differences between kernel versions, each with its version. Supported: 6.1 … 6.12. */
#ifndef CKM_COMPAT_H
#define CKM_COMPAT_H

#include <linux/device.h>
#include <linux/device/class.h>
#include <linux/version.h>

/* 6.12: asm/unaligned.h moved to linux/. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

/* 6.6, and stable kernels with the backport: listening requires CAP_NET_ADMIN. On
 * older kernels any process of the host can listen to the ids and sizes in events.
 */
#include <net/genetlink.h>
#ifdef GENL_MCAST_CAP_NET_ADMIN
#define CKM_MCAST_ADMIN	GENL_MCAST_CAP_NET_ADMIN
#else
#define CKM_MCAST_ADMIN	0
#endif

/* 6.2: type of pre_doit()'s argument. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define CKM_GENL_OP	const struct genl_split_ops
#else
#define CKM_GENL_OP	const struct genl_ops
#endif

/* 6.4: class_create() lost its owner argument. Remove when 6.1 is no longer supported. */
static inline struct class *ckm_class_create(const char *name)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	return class_create(name);
#else
	return class_create(THIS_MODULE, name);
#endif
}

/* 6.2: devnode() takes a const device. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define CKM_DEVNODE_DEV	const struct device
#else
#define CKM_DEVNODE_DEV	struct device
#endif

/* 6.3: struct mnt_idmap replaces the user namespace; 6.6: request mask added. */
#include <linux/fs.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
#define CKM_IDMAP	struct mnt_idmap
#else
#define CKM_IDMAP	struct user_namespace
#endif

static inline void ckm_fillattr(CKM_IDMAP *idmap, u32 mask, struct inode *inode,
				struct kstat *stat)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	generic_fillattr(idmap, mask, inode, stat);
#else
	generic_fillattr(idmap, inode, stat);
#endif
}

/* 6.3: vm_flags are written by accessors only. */
#include <linux/mm.h>
static inline void ckm_vm_flags_mod(struct vm_area_struct *vma, unsigned long set,
				    unsigned long clear)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

/* 6.6: i_ctime has accessors only; 6.7: so have the other times. */
static inline void ckm_inode_init_ts(struct inode *inode)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
	simple_inode_init_ts(inode);
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	inode->i_atime = inode->i_mtime = inode_set_ctime_current(inode);
#else
	inode->i_atime = inode->i_mtime = inode->i_ctime = current_time(inode);
#endif
}

#endif
