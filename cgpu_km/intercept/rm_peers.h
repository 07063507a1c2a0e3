/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Peers: several GPUs of one container that reach each other's memory. */
#ifndef CKM_RM_PEERS_H
#define CKM_RM_PEERS_H

#include <linux/types.h>

struct ckm_alloc;
struct ckm_container;

/* Check the kernel copy of an NV50_P2P's parameters, and clear in it what the driver is to choose. Pins
 * the two subdevices, on which the object then depends. NV_OK; NV_ERR_INVALID_OBJECT_PARENT; NV_ERR_INSUFFICIENT_RESOURCES: no memory;
 * NV_ERR_INVALID_ARGUMENT: no subdevice of the caller's client; NV_ERR_NOT_SUPPORTED: the two GPUs cannot be
 * peers. Takes rm_lock.
 */
u32 ckm_peers_check(struct ckm_alloc *a);

/* Which answer a control with the verdict CGPU_PEERS gets: enum cgpu_peers. No lock. */
u32 ckm_peers_answer(struct ckm_container *ct, u32 cmd, const u8 *params, u32 size);

#endif
