/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
#ifndef CKM_RM_ALLOC_NOTIFIER_H
#define CKM_RM_ALLOC_NOTIFIER_H

#include <linux/types.h>

struct cgpu_obj;
struct ckm_call;
struct ckm_obj;

/* @obj: the new object below @parent. NV_OK, with its memory pinned in @held and as its dependency; else an RM status,
 * and @held may be pinned too. Takes rm_lock.
 */
u32 ckm_alloc_check_notifier(struct ckm_call *call, struct ckm_obj *obj, const struct cgpu_obj *parent,
			     struct cgpu_obj **held);

#endif
