/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* RM_VID_HEAP_CONTROL. */
#ifndef CKM_RM_VID_HEAP_H
#define CKM_RM_VID_HEAP_H

struct ckm_rm_call;

/* A handler: rm_call.h. */
long ckm_rm_run_vid_heap(struct ckm_rm_call *rc);

#endif
