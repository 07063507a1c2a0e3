/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* RM_DUP_OBJECT and RM_SHARE. */
#ifndef CKM_RM_DUP_H
#define CKM_RM_DUP_H

struct ckm_rm_call;

/* Handlers: rm_call.h. */
long ckm_rm_run_dup(struct ckm_rm_call *rc);
long ckm_rm_run_share(struct ckm_rm_call *rc);

#endif
