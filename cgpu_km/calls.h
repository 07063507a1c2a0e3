/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Who is inside a call of ours: the redirections of seal.c ask by task.
 *
 * A call that only passes must not cost its neighbours anything, so a call
 * lives on its caller's stack and is found through a table of fixed slots that
 * only the tasks hashing there write: no lock, no allocation, no line that all
 * processors share. When a bucket is full a list takes over.
 */
#ifndef CKM_CALLS_H
#define CKM_CALLS_H

#include <linux/types.h>

struct ckm_back;
struct ckm_call_node;
struct dma_buf;
struct file;

struct ckm_range {
	unsigned long user;
	u32 size;
	bool answered;		/* the driver wrote into the copy */
	void *copy;
};

/* Most structs of the driver's fit; RM_VID_HEAP_CONTROL has 184. */
#define CKM_CALL_INLINE		192

/* One call of a tenant. Made, used and dropped by one task. */
struct ckm_call {
	struct ckm_back *back;
	u8 *top;		/* the checked struct; after the call, what the driver made of it */
	u32 size;
	struct ckm_range nested;	/* size 0: none */
	bool shares;		/* an fd in it may be of a container that shares with this one */
	struct file *carrier;	/* the back file that an fd in it must name; a reference */
	/* Runs where rm_ioctl() returned, before the driver copies @arg out; may change it. */
	void (*post)(struct ckm_call *call, u8 *arg);
	void *post_data;
	bool ran;		/* rm_ioctl() ran, with our copy */
	bool dmabuf_wanted;	/* the next dma_buf_fd() is this call's */
	struct dma_buf *dmabuf;	/* what it was for; a reference */
	u16 aside;		/* which redirections let the next call through */
	u8 place;		/* in its bucket */
	struct ckm_call_node *overflow;	/* on the list instead; NULL: it has a place */
	u8 inline_top[CKM_CALL_INLINE] __aligned(8);
};

/* Fills in @call and makes it current's. -ENOMEM. */
int ckm_call_begin(struct ckm_call *call, struct ckm_back *back);

/* Copy the top-level struct in: -EFAULT, -ENOMEM. */
int ckm_call_fetch(struct ckm_call *call, unsigned long user, u32 size);

/* The call is nobody's any more; its copies are freed. */
void ckm_call_end(struct ckm_call *call);

/* The call current is in, NULL for none. Any context, also a probe's. */
struct ckm_call *ckm_call_mine(void);

#endif
