/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* RM_FREE. */
#ifndef CKM_RM_FREE_H
#define CKM_RM_FREE_H

#include <linux/types.h>

struct ckm_container;
struct ckm_rm_call;

/* A handler: rm_call.h. */
long ckm_rm_run_free(struct ckm_rm_call *rc);
/* The same for a call with the handles in other fields. Statuses of ours:
 * NV_ERR_OBJECT_NOT_FOUND if @object is not LIVE or @client is not of this file,
 * NV_ERR_STATE_IN_USE if it is pinned.
 */
long ckm_rm_free_object(struct ckm_rm_call *rc, u32 client, u32 object);

/* Free the clients of all control files of a container that has no users any more, with what is seen of their
 * memory. False: some objects are left. Either their file is being released, and ckm_container_end_again()
 * follows, or the driver refused several times, which is logged. Sleeps; takes end_lock, view_lock, rm_lock.
 */
bool ckm_clients_end(struct ckm_container *ct);

#endif
