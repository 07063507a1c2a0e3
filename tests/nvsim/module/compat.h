/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Differences between the kernels on which nvsim builds (6.1 to 6.12). */
#ifndef NVSIM_COMPAT_H
#define NVSIM_COMPAT_H

#include <linux/version.h>
#include <linux/device.h>
#include <linux/mm.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags &= ~flags;
}
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
#define nvsim_class_create(name) class_create(THIS_MODULE, name)
#else
#define nvsim_class_create(name) class_create(name)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
#define NVSIM_DEVNODE_ARG struct device
#else
#define NVSIM_DEVNODE_ARG const struct device
#endif

#endif
