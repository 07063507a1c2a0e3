/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Questions to the headers of the kernel, which compat.h has the answers to: probe.mk compiles
 * each block alone, from `#ifdef PROBE_<name>` on. The release with the change is that of the
 * mainline; distributions have it earlier or never.
 */

#ifdef PROBE_SANE
#include <linux/fs.h>
#include <linux/module.h>
int probe(struct inode *inode) { return inode->i_mode; }
#endif

#ifdef PROBE_NONSENSE
#include <linux/fs.h>
int probe(struct inode *inode) { return vfs_no_such_function(inode); }
#endif

/* 5.11 */
#ifdef PROBE_FTRACE_REGS
#include <linux/ftrace.h>
static void hit(unsigned long ip, unsigned long parent, struct ftrace_ops *ops,
		struct ftrace_regs *fregs)
{
	struct pt_regs *regs = ftrace_get_regs(fregs);

	(void)regs;
}
struct ftrace_ops probe = { .func = hit };
#endif

/* until 5.10, where the flag is the opposite of the later FTRACE_OPS_FL_RECURSION */
#ifdef PROBE_FTRACE_RECURSION_SAFE
#include <linux/ftrace.h>
struct ftrace_ops probe = { .flags = FTRACE_OPS_FL_RECURSION_SAFE };
#endif

/* 5.11; with it an mmap() that fails drops vma->vm_file, before it the file of the caller */
#ifdef PROBE_VMA_SET_FILE
#include <linux/mm.h>
void probe(struct vm_area_struct *vma, struct file *file) { vma_set_file(vma, file); }
#endif

/* 5.12 */
#ifdef PROBE_RB_ADD
#include <linux/rbtree.h>
static bool less(struct rb_node *a, const struct rb_node *b) { return a < b; }
static int compare(const void *key, const struct rb_node *node) { return 0; }
struct rb_node *probe(struct rb_node *node, struct rb_root *root)
{
	rb_add(node, root, less);
	return rb_find_first(root, root, compare);
}
#endif

/* 5.12 to 6.2 */
#ifdef PROBE_GETATTR_USERNS
#include <linux/fs.h>
static int getattr(struct user_namespace *ns, const struct path *path, struct kstat *stat,
		   u32 mask, unsigned int flags)
{
	return 0;
}
struct inode_operations probe = { .getattr = getattr };
#endif

/* 6.3 */
#ifdef PROBE_GETATTR_IDMAP
#include <linux/fs.h>
static int getattr(struct mnt_idmap *idmap, const struct path *path, struct kstat *stat,
		   u32 mask, unsigned int flags)
{
	return 0;
}
struct inode_operations probe = { .getattr = getattr };
#endif

/* 6.6 */
#ifdef PROBE_FILLATTR_MASK
#include <linux/fs.h>
void probe(struct mnt_idmap *idmap, u32 mask, struct inode *inode, struct kstat *stat)
{
	generic_fillattr(idmap, mask, inode, stat);
}
#endif

/* 5.16 */
#ifdef PROBE_FAULT_IN_READABLE
#include <linux/pagemap.h>
size_t probe(const char __user *user, size_t size) { return fault_in_readable(user, size); }
#endif

/* 5.16 */
#ifdef PROBE_MEMSET_AFTER
#include <linux/string.h>
struct pair { int first, second; };
void probe(struct pair *pair) { memset_after(pair, 0, first); }
#endif

/* 5.17 */
#ifdef PROBE_PDE_DATA
#include <linux/proc_fs.h>
void *probe(const struct inode *inode) { return pde_data(inode); }
#endif

/* 5.18 */
#ifdef PROBE_ALLOC_INODE_SB
#include <linux/fs.h>
void *probe(struct super_block *sb, struct kmem_cache *cache)
{
	return alloc_inode_sb(sb, cache, GFP_KERNEL);
}
#endif

/* 6.1 */
#ifdef PROBE_GENL_RESV_START_OP
#include <net/genetlink.h>
struct genl_family probe = { .resv_start_op = 1 };
#endif

/* 6.2 */
#ifdef PROBE_GENL_SPLIT_OPS
#include <net/genetlink.h>
static int pre(const struct genl_split_ops *op, struct sk_buff *skb, struct genl_info *info)
{
	return 0;
}
struct genl_family probe = { .pre_doit = pre };
#endif

/* 6.2 */
#ifdef PROBE_DEVNODE_CONST
#include <linux/device.h>
static char *devnode(const struct device *dev, umode_t *mode) { return NULL; }
struct class probe = { .devnode = devnode };
#endif

/* 6.3 */
#ifdef PROBE_VM_FLAGS_MOD
#include <linux/mm.h>
void probe(struct vm_area_struct *vma) { vm_flags_mod(vma, VM_DONTEXPAND, VM_MAYWRITE); }
#endif

/* 6.4 */
#ifdef PROBE_CLASS_CREATE_NAME
#include <linux/device.h>
struct class *probe(void) { return class_create("probe"); }
#endif

/* 6.6 */
#ifdef PROBE_INODE_SET_CTIME
#include <linux/fs.h>
struct timespec64 probe(struct inode *inode) { return inode_set_ctime_current(inode); }
#endif

/* 6.7 */
#ifdef PROBE_SIMPLE_INODE_INIT_TS
#include <linux/fs.h>
struct timespec64 probe(struct inode *inode) { return simple_inode_init_ts(inode); }
#endif

/* 6.12 */
#ifdef PROBE_LINUX_UNALIGNED
#include <linux/unaligned.h>
int probe(const int *from) { return get_unaligned(from); }
#endif

/* 6.17; from 7.2 on the kernel warns where work is queued in system_unbound_wq */
#ifdef PROBE_SYSTEM_DFL_WQ
#include <linux/workqueue.h>
bool probe(struct work_struct *work) { return queue_work(system_dfl_wq, work); }
#endif

/* 6.17 */
#ifdef PROBE_S_D_FLAGS
#include <linux/dcache.h>
#include <linux/fs.h>
void probe(struct super_block *sb) { sb->s_d_flags |= DCACHE_DONTCACHE; }
#endif

/* 6.18 */
#ifdef PROBE_INODE_JUST_DROP
#include <linux/fs.h>
struct super_operations probe = { .drop_inode = inode_just_drop };
#endif

/* 6.19 */
#ifdef PROBE_D_MAKE_PERSISTENT
#include <linux/dcache.h>
struct dentry *probe(struct dentry *dentry, struct inode *inode)
{
	return d_make_persistent(dentry, inode);
}
#endif

/* after 6.19 */
#ifdef PROBE_ZAP_SPECIAL_VMA_RANGE
#include <linux/mm.h>
void probe(struct vm_area_struct *vma) { zap_special_vma_range(vma, vma->vm_start, PAGE_SIZE); }
#endif
