// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Does nothing: cgpu_km looks at the driver again when a module is loaded whose name begins as those
 * of the driver's. nvsim's nvidia-uvm is there without one.
 */
#include <linux/module.h>

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("A name that begins as the driver's, for tests");
