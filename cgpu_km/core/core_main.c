// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* cgpu_core_X_Y_Z.ko: hands the core to the shell. The only file of the folder
 * that is not part of the core.
 */
#include <linux/module.h>

#include "../core_link.h"
#include "core_ops.h"

static int __init core_init(void)
{
	return ckm_core_register(&cgpu_core_ops, THIS_MODULE);
}

static void __exit core_exit(void)
{
	ckm_core_unregister(&cgpu_core_ops);
}

module_init(core_init);
module_exit(core_exit);

MODULE_DESCRIPTION("cgpu: decisions (ledger, policies, turn, call table)");
MODULE_AUTHOR("The cgpu authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(CGPU_VERSION);
