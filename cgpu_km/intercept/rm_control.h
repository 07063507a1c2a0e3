/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* RM_CONTROL. */
#ifndef CKM_RM_CONTROL_H
#define CKM_RM_CONTROL_H

struct ckm_rm_call;

/* A handler: rm_call.h. */
long ckm_rm_run_control(struct ckm_rm_call *rc);

#endif
