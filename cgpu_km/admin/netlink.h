/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The generic netlink family of uapi.h. */
#ifndef CKM_NETLINK_H
#define CKM_NETLINK_H

/* Register the family: 0 or -errno. The exit waits for running commands. */
int ckm_netlink_init(void);
void ckm_netlink_exit(void);

#endif
