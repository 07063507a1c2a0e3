// SPDX-License-Identifier: MIT OR GPL-2.0
/* Owns the char device major of nvidia-uvm. Callers hold ckm_lock. */
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "driver/proc_devices.h"

static u32 uvm_major;	/* read without a lock */

/* Read a text file of procfs, at most @size - 1 bytes; NULL on any failure. @path is a
 * constant, never a tenant's. The file must be on procfs and one of the kernel's own:
 * kernel_read() requires .proc_read_iter, which a driver's file may lack and NVIDIA's do.
 */
static char *read_proc_file(const char *path, size_t size)
{
	struct file *file = filp_open(path, O_RDONLY, 0);
	size_t got = 0;
	loff_t pos = 0;
	ssize_t n;
	char *text;

	if (IS_ERR(file))
		return NULL;
	text = file_inode(file)->i_sb->s_magic == PROC_SUPER_MAGIC ?
	       kvmalloc(size, GFP_KERNEL) : NULL;
	while (text && got < size - 1) {
		n = kernel_read(file, text + got, size - 1 - got, &pos);
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
	char *text = read_proc_file("/proc/devices", 16384);
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
