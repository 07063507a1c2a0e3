/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The list of cores, and the swap of the active one: docs/user/upgrade.md. */
#ifndef CKM_CORE_SWAP_H
#define CKM_CORE_SWAP_H

#include <linux/types.h>

#define CKM_CORE_VERSION_MAX	32	/* with its NUL */

/* Write the text of /proc/cgpu_km/upgrade to @buf (docs/reference/proc.md, section 3).
 * Returns its length, less than @size bytes. Takes ckm_lock.
 */
int ckm_core_list(char *buf, size_t size);
/**
 * ckm_core_switch() - make a registered core the active one
 * @version: its version
 *
 * Context: Process; sleeps. Takes ckm_lock, and ctrl_lock and lock of every GPU.
 * Return: 0, also if it is active already; no task is inside the old core any more.
 * -ENOENT: not registered, or being unloaded; -EIO: its self-test failed; -EOPNOTSUPP: it
 * cannot take over the state or the driver; -ENOMEM. After an error nothing is changed.
 */
int ckm_core_switch(const char *version);

#endif
