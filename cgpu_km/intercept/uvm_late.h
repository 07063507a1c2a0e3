/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * nvidia-uvm.ko that is loaded, or whose functions can be redirected, only after the first
 * container was created. Until then no uvm node can be opened (uvm.h).
 */
#ifndef CKM_UVM_LATE_H
#define CKM_UVM_LATE_H

#include <linux/types.h>

/* Between attach and detach of the other redirections; @ret is what ckm_uvm_attach()
 * returned then. While the functions are not redirected, an attempt is made every second; an
 * event and a line in the log report a failure, another one, and success. Stop does not wait
 * for the work item, which then does nothing. Caller holds ckm_lock.
 */
void ckm_uvm_late_start(int ret);
void ckm_uvm_late_stop(void);

/* An attempt now: nvidia-uvm may have been loaded, or unloaded. No-op between stop and start.
 * Opens /proc/devices, so not in the context of a tenant. Caller holds ckm_lock.
 */
void ckm_uvm_late_look(void);

/* Whether nvidia-uvm is there and its functions are not redirected. Any context. */
bool ckm_uvm_is_late(void);

/* At module exit, after the last stop: waits for the work item. Takes ckm_lock. */
void ckm_uvm_late_exit(void);

#endif
