/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Mappings for the CPU. Those of video memory, and of doorbells from Hopper on, take BAR1 space, which a card has a
 * fixed amount of.
 */
#ifndef CKM_RM_MAP_H
#define CKM_RM_MAP_H

struct ckm_rm_call;

/* Handlers: rm_call.h. */
long ckm_rm_map_memory(struct ckm_rm_call *rc);
long ckm_rm_unmap_memory(struct ckm_rm_call *rc);
long ckm_rm_rename_map(struct ckm_rm_call *rc);

#endif
