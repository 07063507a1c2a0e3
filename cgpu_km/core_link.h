/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Registration of a core by its module at load and unload; core_swap.c exports both. */
#ifndef CKM_CORE_LINK_H
#define CKM_CORE_LINK_H

#include <linux/module.h>

#include "core/core_ops.h"

/**
 * ckm_core_register() - add a core; the first one becomes the active core
 * @ops: operations, valid until ckm_core_unregister()
 * @owner: module of the core
 *
 * Sleeps; takes ckm_lock.
 *
 * Return: 0; -EINVAL: other ABI, or no version; -EEXIST: the version is registered;
 * -ENOMEM; or the error of the core's self-test.
 */
int ckm_core_register(const struct cgpu_core_ops *ops, struct module *owner);
/* Remove a core. When it returns no task is inside that core. Sleeps; takes ckm_lock. */
void ckm_core_unregister(const struct cgpu_core_ops *ops);

#endif
