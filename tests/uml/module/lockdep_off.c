// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Loading it ends lockdep's work until the machine does: a boot whose time goes to container engines takes a twelfth less.
 * The kernel has no parameter for that; kernel.prove_locking=0 leaves most of the cost.
 */
#include <linux/debug_locks.h>
#include <linux/module.h>

static int __init lockdep_off_init(void)
{
	debug_locks_off();
	return 0;
}

static void __exit lockdep_off_exit(void)
{
}

module_init(lockdep_off_init);
module_exit(lockdep_off_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("lockdep without work, for tests");
