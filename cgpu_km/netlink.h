/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The generic netlink family of uapi.h. */
#ifndef CKM_NETLINK_H
#define CKM_NETLINK_H

#include <linux/types.h>

struct ckm_container;

/* Multicast; lost events are the receiver's to find out (ENOBUFS, then LIST). */
void ckm_netlink_event(struct ckm_container *ct, u32 event);

int ckm_netlink_init(void);
void ckm_netlink_exit(void);

#endif
