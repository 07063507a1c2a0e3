/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A directory of /proc/cgpu_km from a table of its files. */
#ifndef CKM_PROC_DIR_H
#define CKM_PROC_DIR_H

#include <linux/types.h>

struct ckm_proc_dir;
struct seq_file;

/* A file; @obj is its directory's: NULL, GPU or slot. Without @store it is read-only. */
struct ckm_proc_file {
	const char *name;
	int (*show)(struct seq_file *m, void *obj, u32 attr);
	/* @why: what is wrong, for the log; NULL: @store has logged it. */
	int (*store)(void *obj, u32 attr, const char *text, size_t len, const char **why);
	u32 attr;	/* CGPU_G_* or CGPU_S_*, of files with one number */
};

/* Make a directory below @parent (NULL: /proc) with @count files, each of which gets
 * @obj. NULL: no memory, or the name exists. Sleeps.
 */
struct ckm_proc_dir *ckm_proc_dir_add(const char *name, struct ckm_proc_dir *parent,
				      const struct ckm_proc_file *files, u32 count, void *obj);
/* Remove a directory and what is below it. Waits for readers: not under a lock that a
 * reader takes.
 */
void ckm_proc_dir_remove(struct ckm_proc_dir *dir);

#endif
