/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The char device major of nvidia-uvm. */
#ifndef CKM_PROC_DEVICES_H
#define CKM_PROC_DEVICES_H

#include <linux/types.h>

/* ckm_driver_learn_uvm() reads the char device major of nvidia-uvm from /proc/devices.
 * It opens that file, so it may be called only in the context of an administrator.
 * -EIO: it cannot be read, and the number stays. ckm_driver_uvm_major() returns what was read
 * last, 0: nvidia-uvm is not loaded.
 */
int ckm_driver_learn_uvm(void);
u32 ckm_driver_uvm_major(void);

#endif
