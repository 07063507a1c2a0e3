/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Questions to the headers of the kernel, for the modules of the tests (cgpu_km/probe.mk). */

#ifdef PROBE_SANE
#include <linux/fs.h>
int probe(struct inode *inode) { return inode->i_mode; }
#endif

#ifdef PROBE_NONSENSE
#include <linux/fs.h>
int probe(struct inode *inode) { return vfs_no_such_function(inode); }
#endif

/* 5.17 */
#ifdef PROBE_PDE_DATA
#include <linux/proc_fs.h>
void *probe(const struct inode *inode) { return pde_data(inode); }
#endif

/* 6.2 */
#ifdef PROBE_DEVNODE_CONST
#include <linux/device.h>
static char *devnode(const struct device *dev, umode_t *mode) { return NULL; }
struct class probe = { .devnode = devnode };
#endif

/* 6.3 */
#ifdef PROBE_VM_FLAGS_SET
#include <linux/mm.h>
void probe(struct vm_area_struct *vma) { vm_flags_set(vma, VM_IO); }
#endif

/* 6.4 */
#ifdef PROBE_CLASS_CREATE_NAME
#include <linux/device.h>
struct class *probe(void) { return class_create("probe"); }
#endif

/* 6.13 */
#ifdef PROBE_HRTIMER_SETUP
#include <linux/hrtimer.h>
static enum hrtimer_restart tick(struct hrtimer *t) { return HRTIMER_NORESTART; }
void probe(struct hrtimer *t) { hrtimer_setup(t, tick, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_HARD); }
#endif

/* until 6.12; from 6.13 on the name is a string */
#ifdef PROBE_IMPORT_NS_BARE
#include <linux/module.h>
MODULE_IMPORT_NS(DMA_BUF);
#endif
