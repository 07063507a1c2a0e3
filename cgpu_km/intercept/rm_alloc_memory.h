/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The older call for system memory. */
#ifndef CKM_RM_ALLOC_MEMORY_H
#define CKM_RM_ALLOC_MEMORY_H

struct ckm_rm_call;

/* Handler: rm_call.h. */
long ckm_rm_run_alloc_memory(struct ckm_rm_call *rc);

#endif
