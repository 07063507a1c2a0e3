/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* All differences between kernels. probe.h has the questions, and Kbuild the answers: a version
 * number says little about a kernel with backports. Supported: 5.10 … 7.3.
 */
#ifndef CKM_COMPAT_H
#define CKM_COMPAT_H

#include <linux/device.h>
#include <linux/device/class.h>
#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/linkage.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/proc_fs.h>
#include <linux/rbtree.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/workqueue.h>
#include <net/genetlink.h>

#include "probed.h"

#ifdef HAVE_LINUX_UNALIGNED
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

/* ---- generic netlink ---- */

/* Listening requires CAP_NET_ADMIN. Without the flag any process of the host can listen to the
 * ids and sizes in events.
 */
#ifdef GENL_MCAST_CAP_NET_ADMIN
#define CKM_MCAST_ADMIN	GENL_MCAST_CAP_NET_ADMIN
#else
#define CKM_MCAST_ADMIN	0
#endif

#ifdef HAVE_GENL_SPLIT_OPS
#define CKM_GENL_OP	const struct genl_split_ops
#else
#define CKM_GENL_OP	const struct genl_ops
#endif

/* The first command whose header is checked strictly; a kernel without it checks none. */
#ifdef HAVE_GENL_RESV_START_OP
#define CKM_GENL_STRICT_FROM(command)	.resv_start_op = (command),
#else
#define CKM_GENL_STRICT_FROM(command)
#endif

/* ---- ftrace ---- */

#ifdef HAVE_FTRACE_REGS
#define CKM_FTRACE_REGS		struct ftrace_regs
#define ckm_ftrace_regs(fregs)	ftrace_get_regs(fregs)
#else
#define CKM_FTRACE_REGS		struct pt_regs
#define ckm_ftrace_regs(fregs)	(fregs)
#endif

/* No protection against recursion, which could skip a hit. */
#ifdef HAVE_FTRACE_RECURSION_SAFE
#define CKM_FTRACE_UNPROTECTED	FTRACE_OPS_FL_RECURSION_SAFE
#else
#define CKM_FTRACE_UNPROTECTED	0
#endif

/* ---- devices, procfs ---- */

static inline struct class *ckm_class_create(const char *name)
{
#ifdef HAVE_CLASS_CREATE_NAME
	return class_create(name);
#else
	return class_create(THIS_MODULE, name);
#endif
}

#ifdef HAVE_DEVNODE_CONST
#define CKM_DEVNODE_DEV	const struct device
#else
#define CKM_DEVNODE_DEV	struct device
#endif

static inline void *ckm_pde_data(const struct inode *inode)
{
#ifdef HAVE_PDE_DATA
	return pde_data(inode);
#else
	return PDE_DATA(inode);
#endif
}

/* ---- inodes and dentries ---- */

/* The first parameter of getattr(), and of generic_fillattr(). */
#if defined(HAVE_GETATTR_IDMAP)
#define CKM_IDMAP	struct mnt_idmap *idmap,
#define CKM_IDMAP_ARG	idmap,
#elif defined(HAVE_GETATTR_USERNS)
#define CKM_IDMAP	struct user_namespace *idmap,
#define CKM_IDMAP_ARG	idmap,
#else
#define CKM_IDMAP
#define CKM_IDMAP_ARG
#endif

static inline void ckm_fillattr(CKM_IDMAP u32 mask, struct inode *inode, struct kstat *stat)
{
#ifdef HAVE_FILLATTR_MASK
	generic_fillattr(CKM_IDMAP_ARG mask, inode, stat);
#else
	generic_fillattr(CKM_IDMAP_ARG inode, stat);
#endif
}

static inline void ckm_inode_init_ts(struct inode *inode)
{
#if defined(HAVE_SIMPLE_INODE_INIT_TS)
	simple_inode_init_ts(inode);
#elif defined(HAVE_INODE_SET_CTIME)
	inode->i_atime = inode->i_mtime = inode_set_ctime_current(inode);
#else
	inode->i_atime = inode->i_mtime = inode->i_ctime = current_time(inode);
#endif
}

#ifndef HAVE_ALLOC_INODE_SB
#define alloc_inode_sb(sb, cache, gfp)	kmem_cache_alloc(cache, gfp)
#endif

#ifdef HAVE_INODE_JUST_DROP
#define ckm_drop_inode	inode_just_drop
#else
#define ckm_drop_inode	generic_delete_inode
#endif

/* A dentry is freed with its last reference. */
static inline void ckm_drop_dentries(struct super_block *sb)
{
#ifdef HAVE_S_D_FLAGS
	sb->s_d_flags |= DCACHE_DONTCACHE;
#else
	sb->s_d_op = &simple_dentry_operations;
#endif
}

/* @dentry is new, gets @inode, and stays until simple_recursive_removal() or the end of the
 * mount, by ckm_kill_super().
 */
static inline void ckm_pin_dentry(struct dentry *dentry, struct inode *inode)
{
#ifdef HAVE_D_MAKE_PERSISTENT
	d_make_persistent(dentry, inode);
	dput(dentry);
#else
	d_add(dentry, inode);
#endif
}

static inline void ckm_kill_super(struct super_block *sb)
{
#ifdef HAVE_D_MAKE_PERSISTENT
	kill_anon_super(sb);
#else
	kill_litter_super(sb);
#endif
}

/* ---- mappings ---- */

static inline void ckm_vm_flags_mod(struct vm_area_struct *vma, unsigned long set,
				    unsigned long clear)
{
#ifdef HAVE_VM_FLAGS_MOD
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

/* The mapping field of the page: the address space of a file, or a tagged anon_vma; NULL: neither. */
static inline const void *ckm_page_mapping(struct page *page)
{
#ifdef page_folio
	return page_folio(page)->mapping;
#else
	return compound_head(page)->mapping;
#endif
}

/* Empty @vma, whose pages have no struct page. */
static inline void ckm_zap_vma(struct vm_area_struct *vma)
{
#ifdef HAVE_ZAP_SPECIAL_VMA_RANGE
	zap_special_vma_range(vma, vma->vm_start, vma->vm_end - vma->vm_start);
#else
	zap_vma_ptes(vma, vma->vm_start, vma->vm_end - vma->vm_start);
#endif
}

#ifdef HAVE_VMA_SET_FILE
static inline void ckm_vma_reset_file(struct vm_area_struct *vma, struct file *file)
{
}
#else
static inline void vma_set_file(struct vm_area_struct *vma, struct file *file)
{
	struct file *before = vma->vm_file;

	vma->vm_file = get_file(file);
	fput(before);
}

/* When mmap() of @file fails, mmap_region() drops @file and not the file of @vma. */
static inline void ckm_vma_reset_file(struct vm_area_struct *vma, struct file *file)
{
	if (vma->vm_file != file)
		vma_set_file(vma, file);
}
#endif

#ifndef HAVE_FAULT_IN_READABLE
static inline size_t fault_in_readable(const char __user *user, size_t size)
{
	return fault_in_pages_readable(user, size) ? size : 0;
}
#endif

/* ---- library ---- */

#ifndef HAVE_SYSTEM_DFL_WQ
#define system_dfl_wq	system_unbound_wq
#endif

#ifndef HAVE_MEMSET_AFTER
#define memset_after(obj, value, member) \
	memset((u8 *)(obj) + offsetofend(typeof(*(obj)), member), value, \
	       sizeof(*(obj)) - offsetofend(typeof(*(obj)), member))
#endif

#ifndef HAVE_RB_ADD
static inline void rb_add(struct rb_node *node, struct rb_root *root,
			  bool (*less)(struct rb_node *, const struct rb_node *))
{
	struct rb_node **link = &root->rb_node, *parent = NULL;

	while (*link) {
		parent = *link;
		link = less(node, parent) ? &parent->rb_left : &parent->rb_right;
	}
	rb_link_node(node, parent, link);
	rb_insert_color(node, root);
}

/* The first of those equal to @key. */
static inline struct rb_node *rb_find_first(const void *key, const struct rb_root *root,
					    int (*compare)(const void *, const struct rb_node *))
{
	struct rb_node *node = root->rb_node, *found = NULL;

	while (node) {
		int order = compare(key, node);

		if (!order)
			found = node;
		node = order <= 0 ? node->rb_left : node->rb_right;
	}
	return found;
}
#endif

#ifndef ASM_RET	/* of <linux/linkage.h>: before 5.17 and its backports */
#define ASM_RET	"ret\n\t"
#endif

#endif
