// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the char device major of nvidia-uvm. Callers hold ckm_lock. */
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/lockdep.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "driver/proc_devices.h"

static u32 uvm_major;	/* read without a lock */

#define DEVICES_MAX	16384u	/* bytes of /proc/devices that are read */

/* The lock of an open file of procfs has one class for all files made with seq_file. Those of sysfs
 * are read with it held, and writing /sys/power/state flushes file systems: lockdep would see a
 * cycle through ckm_lock and s_umount. This file is open here only.
 */
static struct lock_class_key devices_key;

/* Whether another file is not mounted over it: its text would be wrong, and the lock's class needs a
 * file that is made with seq_file.
 */
static bool is_proc_devices(const struct file *file)
{
	const struct dentry *dentry = file->f_path.dentry;

	return file_inode(file)->i_sb->s_magic == PROC_SUPER_MAGIC &&
	       IS_ROOT(dentry->d_parent) && !strcmp(dentry->d_name.name, "devices");
}

/* The text of /proc/devices, to be freed with kvfree(); NULL on any failure. */
static char *read_devices(void)
{
	struct file *file = filp_open("/proc/devices", O_RDONLY, 0);
	size_t got = 0;
	loff_t pos = 0;
	ssize_t n;
	char *text;

	if (IS_ERR(file))
		return NULL;
	text = is_proc_devices(file) ? kvmalloc(DEVICES_MAX, GFP_KERNEL) : NULL;
	if (text)
		lockdep_set_class(&((struct seq_file *)file->private_data)->lock, &devices_key);
	while (text && got < DEVICES_MAX - 1) {
		n = kernel_read(file, text + got, DEVICES_MAX - 1 - got, &pos);
		if (n <= 0)
			break;
		got += n;
	}
	if (text)
		text[got] = '\0';
	filp_close(file, NULL);
	return text;
}

int ckm_driver_learn_uvm(void)
{
	char *text = read_devices();
	u32 major = 0, n;
	char *line, *rest = text;
	char name[64];

	if (!text || !*text) {
		pr_err_ratelimited("/proc/devices cannot be read: the number of nvidia-uvm is not known\n");
		kvfree(text);
		return -EIO;
	}
	while ((line = strsep(&rest, "\n"))) {
		if (!strncmp(line, "Block devices", 13))
			break;
		if (sscanf(line, "%u %63s", &n, name) == 2 && !strcmp(name, "nvidia-uvm"))
			major = n;
	}
	kvfree(text);
	uvm_major = major;
	return 0;
}

u32 ckm_driver_uvm_major(void)
{
	return uvm_major;
}
