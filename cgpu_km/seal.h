/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The seal: the driver copies every argument from user memory again after our
 * check. While a task is inside a call of ours, entry redirection makes the
 * driver use the copy that was checked.
 *
 *   rm_ioctl                       gets our top-level struct, and gives us its
 *                                  result before the tenant sees it
 *   os_memcpy_from_user            reads inside a sealed range get our copy
 *   nv_get_file_private            our file -> its back file
 *   nvUvmInterfaceDupMemory        uvm takes a reference: charge it
 *   nvUvmInterfaceFreeDupedHandle  uvm gives it back
 *
 * No kretprobes: one that is missed fails open. A missed entry redirection
 * leaves call->ran false, and the call fails closed.
 */
#ifndef CKM_SEAL_H
#define CKM_SEAL_H

#include <linux/list.h>
#include <linux/types.h>

struct ckm_back;
struct ckm_call;
struct ckm_container;
struct task_struct;

struct ckm_range {
	unsigned long user;
	u32 size;
	void *copy;
};

/* One call of a tenant. Made, used and dropped by one task. */
struct ckm_call {
	struct hlist_node node;
	struct rcu_head rcu;
	struct task_struct *task;
	struct ckm_back *back;
	u8 *top;		/* the checked struct; after the call, what the driver made of it */
	u32 size;
	struct ckm_range nested;	/* size 0: none */
	/* Runs where rm_ioctl() returned, before the driver copies @arg out; may change it. */
	void (*post)(struct ckm_call *call, u8 *arg);
	void *post_data;
	bool ran;		/* rm_ioctl() ran, with our copy */
	u8 aside;		/* which redirections let the next call through */
};

struct ckm_call *ckm_call_begin(struct ckm_back *back);
void ckm_call_end(struct ckm_call *call);	/* frees top and nested copies */

/* Symbols found, probes armed: -ENOENT names the missing one in the log. Caller
 * holds ckm_lock.
 */
int ckm_seal_attach(void);
void ckm_seal_detach(void);

void ckm_seal_exit(void);

#endif
