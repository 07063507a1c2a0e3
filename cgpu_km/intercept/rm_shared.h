/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Class 0xde, RM_USER_SHARED_DATA: a read-only page per GPU in which the driver publishes
 * the card's memory totals, utilisation and clocks. From 580 on, libcuda does not start
 * without an object of the class and its mapping. The object exists in our tree only, and
 * a page of zeros is mapped: for each figure in it, 0 means that it is not valid
 * (docs/decisions/0018).
 */
#ifndef CKM_RM_SHARED_H
#define CKM_RM_SHARED_H

#include <linux/types.h>

struct ckm_container;
struct ckm_rm_call;
struct vm_area_struct;

/* Handler of RM_MAP_MEMORY for such an object: rm_call.h. */
long ckm_shared_map(struct ckm_rm_call *rc);
/* The mmap that follows it. 0; -EACCES if it may be written; -EINVAL: too long. */
int ckm_shared_mmap(struct vm_area_struct *vma);
/* Whether the handle names such an object. Sleeps; takes rm_lock. */
bool ckm_shared_is(struct ckm_container *ct, u32 client, u32 object);

/* The page: 0 or -ENOMEM. At the exit no mapping is left. */
int ckm_shared_init(void);
void ckm_shared_exit(void);

#endif
