/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Sessions of video engines, and what contexts are measured to take. */
#ifndef CKM_RM_ALLOC_CONTEXT_H
#define CKM_RM_ALLOC_CONTEXT_H

#include "core/nv_row.h"

struct ckm_alloc;

/* NV_OK if the object of a video engine may be made; then it is charged and counted. Sleeps; takes
 * rm_lock, gpu->lock.
 */
u32 ckm_alloc_check_video(struct ckm_alloc *a);
/* Put a new channel on the runlist of its engine, graphics' or an asynchronous copy engine's, where the driver has not
 * done it. False: it is on another, and must be freed. Sleeps: an RM call.
 */
bool ckm_alloc_bind_channel(const struct ckm_alloc *a);
/* The engine whose context the driver makes with the object; CGPU_ENGINE_OTHER: none. */
enum cgpu_engine ckm_alloc_context_of(const struct ckm_alloc *a);
/* After the driver made it, and free_before was read. Sleeps: an RM call; takes rm_lock, gpu->lock. */
void ckm_alloc_measure_context(struct ckm_alloc *a);

#endif
