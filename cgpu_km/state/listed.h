/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the driver keeps in lists of the whole host or of a card, and walks in the calls of all:
 * limits for each container, so that no container makes such a walk long for another. The
 * lists are in docs/develop/bounds.md.
 */
#ifndef CKM_LISTED_H
#define CKM_LISTED_H

#include <linux/types.h>

#include "state/container.h"

struct cgpu_obj;

/* The kind of an RM object; CKM_LISTED_KINDS: the driver has no such list of it. */
enum ckm_listed ckm_listed_kind(const struct cgpu_obj *obj);

/* How many a container may have of @kind, a module parameter. No lock. */
u32 ckm_listed_max(enum ckm_listed kind);

/* Whether @ct may have one more of @kind; true for CKM_LISTED_KINDS. Caller holds rm_lock. */
bool ckm_listed_has_room_locked(const struct ckm_container *ct, enum ckm_listed kind);
/* Count one more, or one less; a no-op for CKM_LISTED_KINDS. Caller holds rm_lock. */
void ckm_listed_take_locked(struct ckm_container *ct, enum ckm_listed kind);
void ckm_listed_give_locked(struct ckm_container *ct, enum ckm_listed kind);

/* As proc and the kernel log name it: "os_events". */
const char *ckm_listed_name(enum ckm_listed kind);
/* What ckm_call_denied() says of one too many, before its class or number. */
const char *ckm_listed_refusal(enum ckm_listed kind);

#endif
