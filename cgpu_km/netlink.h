/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The generic netlink family of uapi.h. */
#ifndef CKM_NETLINK_H
#define CKM_NETLINK_H

#include <linux/types.h>

struct ckm_container;
struct ckm_gpu;
struct sk_buff;

/* A whole container: created, dying, gone, changed. The caller's context keeps
 * it there; may sleep, takes its GPUs' locks one by one. What is lost, for want
 * of memory here or of room at the receiver, the receiver learns by ENOBUFS.
 */
void ckm_netlink_event(struct ckm_container *ct, u32 event);

/* For events.c: one event, put together and sent. ckm_netlink_begin() gives NULL
 * when nobody listens or no memory is there; what is lost is counted. May sleep.
 */
struct sk_buff *ckm_netlink_begin(u32 event, void **head);
/* @put: 0, or an error: not everything went in. */
void ckm_netlink_send(struct sk_buff *skb, void *head, int put);
/* What never changes of a GPU, into a nest that the caller has begun. 0 or -EMSGSIZE. */
int ckm_netlink_put_gpu_names(struct sk_buff *skb, const struct ckm_gpu *gpu);

int ckm_netlink_init(void);
void ckm_netlink_exit(void);

#endif
