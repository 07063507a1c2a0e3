/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A tenant's RM calls, by verdict. */
#ifndef CKM_RM_DISPATCH_H
#define CKM_RM_DISPATCH_H

struct ckm_rm_call;

/* Call the handler of rc->row.verdict. Returns the ioctl's value; RM errors go into the
 * struct's status, as in the driver. No lock held; sleeps.
 */
long ckm_rm_dispatch(struct ckm_rm_call *rc);

#endif
