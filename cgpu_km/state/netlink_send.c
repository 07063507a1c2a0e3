// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the count of lost events; sends events. Takes no lock. */
#include <net/genetlink.h>

#include "state/netlink_send.h"
#include "uapi.h"

static struct genl_family *event_family;	/* release/acquire; NULL: not registered yet */
static atomic64_t lost;		/* events not sent for lack of memory */

/* Set ENOBUFS on every listener, the error of an overflow of its own receive buffer. */
static void say_lost(void)
{
	atomic64_inc(&lost);
	genl_set_err(event_family, &init_net, 0, 0, -ENOBUFS);
}

struct sk_buff *ckm_netlink_begin(u32 event, void **head)
{
	/* Pairs with ckm_netlink_set_family(): the family is registered. */
	struct genl_family *family = smp_load_acquire(&event_family);
	struct sk_buff *skb;
	u64 before = atomic64_read(&lost);

	if (!family || !genl_has_listeners(family, &init_net, 0))
		return NULL;
	skb = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	if (!skb)
		goto err;
	*head = genlmsg_put(skb, 0, 0, family, 0, CGPU_CMD_EVENT);
	if (!*head || nla_put_u32(skb, CGPU_A_EVENT, event) ||
	    (before && nla_put_u64_64bit(skb, CGPU_A_LOST, before, CGPU_A_PAD)))
		goto err_free;
	return skb;

err_free:
	nlmsg_free(skb);
err:
	say_lost();
	return NULL;
}

void ckm_netlink_send(struct sk_buff *skb, void *head, int put)
{
	if (put) {
		nlmsg_free(skb);
		say_lost();
		return;
	}
	genlmsg_end(skb, head);
	/* -ESRCH: the listeners are gone. A listener with a full buffer gets ENOBUFS. */
	if (genlmsg_multicast(event_family, skb, 0, 0, GFP_KERNEL) == -ENOMEM)
		say_lost();
}

void ckm_netlink_set_family(struct genl_family *family)
{
	/* Its registration comes first. */
	smp_store_release(&event_family, family);
}
