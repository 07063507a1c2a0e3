/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Differences between the kernels on which nvsim builds; ../../simgpu/engine/probe.h has the questions. */
#ifndef NVSIM_COMPAT_H
#define NVSIM_COMPAT_H

#include <linux/device.h>
#include <linux/mm.h>
#include <linux/proc_fs.h>

#include "probed.h"

#ifndef HAVE_VM_FLAGS_SET
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags &= ~flags;
}
#endif

#ifdef HAVE_CLASS_CREATE_NAME
#define nvsim_class_create(name) class_create(name)
#else
#define nvsim_class_create(name) class_create(THIS_MODULE, name)
#endif

#ifdef HAVE_DEVNODE_CONST
#define NVSIM_DEVNODE_ARG const struct device
#else
#define NVSIM_DEVNODE_ARG struct device
#endif

#ifdef HAVE_IMPORT_NS_BARE
#define NVSIM_IMPORT_DMA_BUF MODULE_IMPORT_NS(DMA_BUF)
#else
#define NVSIM_IMPORT_DMA_BUF MODULE_IMPORT_NS("DMA_BUF")
#endif

#ifndef HAVE_PDE_DATA
#define pde_data(inode) PDE_DATA(inode)
#endif

#endif
