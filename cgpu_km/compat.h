/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Every difference between kernel versions, dated. Supported: 6.1 … 6.12. */
#ifndef CKM_COMPAT_H
#define CKM_COMPAT_H

#include <linux/device.h>
#include <linux/device/class.h>
#include <linux/version.h>

/* 6.12: asm/unaligned.h moved to linux/. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

/* 6.6, and stable kernels since: only CAP_NET_ADMIN may listen. Before that the
 * group is readable by everybody on the host; it tells ids and sizes.
 */
#include <net/genetlink.h>
#ifdef GENL_MCAST_CAP_NET_ADMIN
#define CKM_MCAST_ADMIN	GENL_MCAST_CAP_NET_ADMIN
#else
#define CKM_MCAST_ADMIN	0
#endif

/* 6.2: what pre_doit() is told of the command. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define CKM_GENL_OP	const struct genl_split_ops
#else
#define CKM_GENL_OP	const struct genl_ops
#endif

/* 6.4: class_create() lost its owner. May go when 6.1 is no longer supported. */
static inline struct class *ckm_class_create(const char *name)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	return class_create(name);
#else
	return class_create(THIS_MODULE, name);
#endif
}

/* 6.2: devnode() takes a const device. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#define CKM_DEVNODE_DEV	const struct device
#else
#define CKM_DEVNODE_DEV	struct device
#endif

#endif
