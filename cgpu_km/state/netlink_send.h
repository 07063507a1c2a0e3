/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Sending of multicast events (docs/reference/netlink.md). */
#ifndef CKM_NETLINK_SEND_H
#define CKM_NETLINK_SEND_H

#include <linux/types.h>

struct genl_family;
struct sk_buff;

/**
 * ckm_netlink_begin() - begin the message of an event
 * @event: CGPU_EVENT_*
 * @head: set; for ckm_netlink_send()
 *
 * Sleeps, takes no lock.
 *
 * Return: the message, for ckm_netlink_send(). NULL: the group has no listener, the
 * family is not registered, or there is no memory: only the last is counted as lost.
 */
struct sk_buff *ckm_netlink_begin(u32 event, void **head);
/* Send the message, or with @put, an error of adding attributes, free it and count the
 * event as lost. Sleeps.
 */
void ckm_netlink_send(struct sk_buff *skb, void *head, int put);

/* To be called once the family is registered. */
void ckm_netlink_set_family(struct genl_family *family);

#endif
