/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* How a core comes and goes, and how the shell calls it: docs/upgrade.md. */
#ifndef CKM_CORE_LINK_H
#define CKM_CORE_LINK_H

#include <linux/module.h>

#include "core/core_ops.h"

#define CKM_CORE_VERSION_MAX	32	/* with its NUL */

/* 0; -EINVAL: another ABI, or no version; -EEXIST: that version is there. Or what
 * its self-test says, or -ENOMEM.
 */
int ckm_core_register(const struct cgpu_core_ops *ops, struct module *owner);
/* Nobody is inside that core any more when it returns. */
void ckm_core_unregister(const struct cgpu_core_ops *ops);

/* Between enter and leave the core that was entered stays in memory: an RCU read
 * section, so that nobody waits for a swap. Nothing in it may sleep; locks that do
 * may be taken before. A GPU's turn state is only given to a core that was entered
 * under gpu->lock, under which a swap changes both. Returns NULL when no core is
 * registered, and then there is nothing to leave.
 */
const struct cgpu_core_ops *ckm_core_enter(void);
void ckm_core_leave(void);

/* Zeros of the size that the active core's turn state has; NULL: no memory, or no
 * core. Caller holds ckm_lock, so it fits until that is let go.
 */
struct cgpu_turn *ckm_core_alloc_turn(void);

/* The active core's module is pinned while a container exists. Caller holds ckm_lock. */
int ckm_core_pin(void);
void ckm_core_unpin(void);

/* The text of /proc/cgpu_km/upgrade: docs/proc.md, section 3. */
int ckm_core_list(char *buf, size_t size);
/* Make the registered core @version the active one: 0 also if it is; -ENOENT: not
 * registered; -EIO: its self-test failed; -EOPNOTSUPP: it cannot take over;
 * -ENOMEM. Sleeps, takes ckm_lock and the locks of every GPU. After an error
 * everything is as before.
 */
int ckm_core_switch(const char *version);

#endif
