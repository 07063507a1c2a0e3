/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* How a core comes and goes, and how the shell calls it. */
#ifndef CKM_CORE_LINK_H
#define CKM_CORE_LINK_H

#include <linux/module.h>

#include "core/core_ops.h"

int ckm_core_register(const struct cgpu_core_ops *ops, struct module *owner);
void ckm_core_unregister(const struct cgpu_core_ops *ops);

/* Between enter and leave the core does not change. Never across a copy to or
 * from user memory or a call into the driver; sleeping locks may be taken
 * before, none inside. Returns NULL when no core is registered, and then there
 * is nothing to leave.
 */
const struct cgpu_core_ops *ckm_core_enter(void);
void ckm_core_leave(void);

/* The active core's module is pinned while a container exists. */
int ckm_core_pin(void);
void ckm_core_unpin(void);

/* "X.Y.Z\n" of the active core, then the others'. */
int ckm_core_list(char *buf, size_t size);
/* Make the registered core @version the active one: -ENOENT, -EINVAL if state
 * cannot be carried over.
 */
int ckm_core_switch(const char *version);


#endif
