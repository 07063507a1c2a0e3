/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The show functions of stat and meminfo, for struct ckm_proc_file. */
#ifndef CKM_PROC_STAT_H
#define CKM_PROC_STAT_H

#include <linux/types.h>

struct seq_file;

/* @obj is the GPU or slot, @attr is unused. 0 or -errno. No lock held; sleep. */
int ckm_proc_show_gpu_stat(struct seq_file *m, void *obj, u32 attr);
int ckm_proc_show_meminfo(struct seq_file *m, void *obj, u32 attr);
int ckm_proc_show_slot_stat(struct seq_file *m, void *obj, u32 attr);

#endif
