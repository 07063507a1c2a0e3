/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The file operations of our device nodes. */
#ifndef CKM_CHARDEV_H
#define CKM_CHARDEV_H

struct file_operations;

extern const struct file_operations ckm_front_fops;

#endif
