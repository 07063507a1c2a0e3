/* SPDX-License-Identifier: MIT */
/* What most files of the modules include of the kernel, compiled once (scripts/build-modules). */
#include <linux/kconfig.h>
#include <linux/compiler_types.h>

/* Functions of these headers that print. */
#define KBUILD_BASENAME "headers"
#define KBUILD_MODNAME "headers"
#define __KBUILD_MODNAME headers

#ifdef __arch_um__
#include "cgpu_um.h"
#endif
#include <linux/device.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pagemap.h>
#include <linux/proc_fs.h>
#include <linux/ratelimit.h>
#include <linux/rbtree.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uuid.h>
#include <linux/workqueue.h>
#include <net/genetlink.h>

#undef KBUILD_BASENAME
#undef KBUILD_MODNAME
#undef __KBUILD_MODNAME
