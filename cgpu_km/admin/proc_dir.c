// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the directories below /proc/cgpu_km and the access check of their files. Takes no lock. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "admin/proc_dir.h"
#include "compat.h"
#include "registry.h"

#define WRITE_MAX 4096

struct file_node {
	const struct ckm_proc_file *desc;
	void *obj;
};

struct ckm_proc_dir {
	struct proc_dir_entry *entry;
	struct file_node node[];
};

static int show(struct seq_file *m, void *v)
{
	struct file_node *node = m->private;

	return node->desc->show(m, node->obj, node->desc->attr);
}

/* driver.c reads other procfs files under ckm_lock, and a read of our files takes
 * ckm_lock. Without a lock class of their own, lockdep reports a cycle.
 */
static struct lock_class_key seq_lock_key;

static int open(struct inode *inode, struct file *file)
{
	int ret;

	if (ckm_from_outside())
		return -EPERM;
	if ((file->f_mode & FMODE_WRITE) && !capable(CAP_SYS_ADMIN))
		return -EPERM;
	ret = single_open(file, show, ckm_pde_data(inode));
	if (!ret)
		lockdep_set_class(&((struct seq_file *)file->private_data)->lock, &seq_lock_key);
	return ret;
}

static ssize_t write(struct file *file, const char __user *user, size_t len, loff_t *pos)
{
	struct file_node *node = ckm_pde_data(file_inode(file));
	const char *why = NULL;
	char *text;
	int ret;

	/* Both the writer and the opener need the right: a passed descriptor does not
	 * carry it.
	 */
	if (ckm_from_outside() || !capable(CAP_SYS_ADMIN) ||
	    !file_ns_capable(file, &init_user_ns, CAP_SYS_ADMIN))
		return -EPERM;
	if (*pos || len > WRITE_MAX)
		return -EINVAL;
	text = memdup_user_nul(user, len);
	if (IS_ERR(text))
		return PTR_ERR(text);
	ret = node->desc->store(node->obj, node->desc->attr, text, len, &why);
	kfree(text);
	if (ret && why)
		pr_notice_ratelimited("%pD3 not written: %s (%d)\n", file, why, ret);
	if (ret)
		return ret;
	*pos += len;
	return len;
}

static const struct proc_ops read_ops = {
	.proc_open	= open,
	.proc_read	= seq_read,
	.proc_lseek	= seq_lseek,
	.proc_release	= single_release,
};

static const struct proc_ops write_ops = {
	.proc_open	= open,
	.proc_read	= seq_read,
	.proc_write	= write,
	.proc_lseek	= seq_lseek,
	.proc_release	= single_release,
};

struct ckm_proc_dir *ckm_proc_dir_add(const char *name, struct ckm_proc_dir *parent,
				      const struct ckm_proc_file *files, u32 count, void *obj)
{
	struct ckm_proc_dir *dir = kzalloc(struct_size(dir, node, count), GFP_KERNEL);
	u32 i;

	if (!dir)
		return NULL;
	dir->entry = proc_mkdir(name, parent ? parent->entry : NULL);
	if (!dir->entry)
		goto err_free;
	for (i = 0; i < count; i++) {
		dir->node[i].desc = &files[i];
		dir->node[i].obj = obj;
		if (!proc_create_data(files[i].name, files[i].store ? 0644 : 0444, dir->entry,
				      files[i].store ? &write_ops : &read_ops, &dir->node[i]))
			goto err_remove;
	}
	return dir;

err_remove:
	proc_remove(dir->entry);
err_free:
	kfree(dir);
	return NULL;
}

void ckm_proc_dir_remove(struct ckm_proc_dir *dir)
{
	if (!dir)
		return;
	proc_remove(dir->entry);
	kfree(dir);
}
