/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The intercepted call that a task is in. The redirections (driver/redirect.h) look it
 * up by task.
 *
 * A call that is only forwarded must not slow down calls of other tasks. The record
 * therefore lives on the stack of the task that makes the call and is found through a
 * table of fixed slots, of which a task writes only those of its own hash bucket: no
 * lock, no allocation, no cache line shared by all processors. If the bucket is full,
 * the call goes into a tree, so that a tenant's many threads make no look-up long.
 */
#ifndef CKM_CALL_H
#define CKM_CALL_H

#include <linux/types.h>

struct cgpu_mem;
struct ckm_backing;
struct ckm_call_node;
struct ckm_redirection;
struct dma_buf;
struct file;
struct mutex;

struct ckm_range {
	unsigned long user;
	u32 size;
	bool answered;		/* the driver wrote into the copy */
	bool whole;		/* the driver reads it at once, by the size that it knows itself: a class's */
	void *copy;
};

/* True if the driver reads @n bytes at @at, where the copy is of another size: its struct is not the table's. */
static inline bool ckm_range_is_other(const struct ckm_range *r, unsigned long at, u32 n)
{
	return r->whole && at == r->user && n != r->size;
}

/* Bytes. Most structs of the driver fit; RM_VID_HEAP_CONTROL has 184. */
#define CKM_CALL_INLINE		192
/* Of nested parameters: those of most controls and of memory (128). With KASAN all of them
 * are allocated, so that a read behind their end is seen.
 */
#define CKM_CALL_NESTED		(IS_ENABLED(CONFIG_KASAN) ? 0 : 136)

/* One call of a tenant. Created, used and freed by one task, so without a lock. */
struct ckm_call {
	struct ckm_backing *backing;
	u8 *top;		/* the checked struct; after the call, with the driver's results */
	u32 size;
	struct ckm_range nested;	/* size 0: none */
	bool shares;		/* its fds may name files of containers with the same ipc name */
	struct cgpu_mem *map_mem;	/* system memory that it maps by an fd in it; a reference */
	bool shows;		/* the file that an fd in it names is to show memory: */
	struct ckm_backing *shown_by;	/* that file's, with a reference to the file; NULL: not seen */
	struct file *export_file;	/* backing file that an fd in it must name; a reference */
	/* Runs before rm_ioctl(), with @serial held. False: it is not called, and the status is in @arg. */
	bool (*may)(struct ckm_call *call, u8 *arg);
	/* Runs when rm_ioctl() has returned, before the driver copies @arg out; may change it. */
	void (*post)(struct ckm_call *call, u8 *arg);
	void *post_data;
	struct mutex *serial;	/* held around rm_ioctl(), @may and @post, which copy no user memory; or NULL */
	bool must_enter;	/* the driver must call rm_ioctl() before it reads parameters */
	bool entered;		/* rm_ioctl() was redirected, and runs with the kernel copy */
	bool ran;		/* it returned */
	bool unseen;		/* the driver may have run the call with the tenant's memory */
	bool dmabuf_wanted;	/* the next dma_buf_fd() belongs to this call */
	struct dma_buf *dmabuf;	/* the buffer of that dma_buf_fd(); a reference */
	const struct ckm_redirection *aside;	/* the next hit of this row is not redirected */
	bool no_pages;		/* RM found none of the process at the address */
	bool uvm_seen;		/* the redirection in uvm.c that this call depends on ran */
	bool uvm_pools_only;	/* an mmap that creates no managed range */
	u8 place;		/* index in its bucket */
	struct ckm_call_node *overflow;	/* entry in the tree; NULL: the call has a place */
	u8 inline_top[CKM_CALL_INLINE] __aligned(8);
	u8 inline_nested[CKM_CALL_NESTED] __aligned(8);
};

/**
 * ckm_call_begin() - make @call the call of the current task
 * @call: filled in; must stay valid until ckm_call_end()
 * @backing: backing file on which the call is made
 *
 * Sleeps: a full bucket needs an allocation. Takes overflow_lock in that case.
 *
 * Return: 0, or -ENOMEM.
 */
int ckm_call_begin(struct ckm_call *call, struct ckm_backing *backing);

/**
 * ckm_call_fetch() - copy the top-level struct of a call in, once
 * @call: ckm_call_begin() succeeded; gets @top and @size
 * @user: user address of the struct
 * @size: bytes
 *
 * The copy is freed by ckm_call_end(), also after an error. No lock may be held.
 *
 * Return: 0, -EFAULT or -ENOMEM.
 */
int ckm_call_fetch(struct ckm_call *call, unsigned long user, u32 size);

/* Unregister @call, free its copies and drop its references. Same task as begin. */
void ckm_call_end(struct ckm_call *call);

/* The call of the current task, NULL: none. Any context, a kprobe handler's included. */
struct ckm_call *ckm_call_mine(void);

#endif
