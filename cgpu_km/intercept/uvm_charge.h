/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * References that nvidia-uvm takes in nvidia.ko for itself, charged until it drops them:
 *
 *   nvUvmInterfaceDupMemory        takes a reference to memory: charge it
 *   nvUvmInterfaceFreeDupedHandle  drops it
 *   nvUvmInterfaceRetainChannel    keeps a channel's context: the same; and returns the address
 *                                  of its word of state, which is kept (sched/run_state.h)
 *   nvUvmInterfaceReleaseChannel   drops it
 *   nvUvmInterfaceDupAddressSpace  only of the container whose file it is; nothing is charged
 */
#ifndef CKM_UVM_CHARGE_H
#define CKM_UVM_CHARGE_H

/* Redirect them. 0, or an error with the symbol in the log. Detach is a no-op if they are
 * not redirected. Caller holds ckm_lock.
 */
int ckm_uvm_charge_attach(void);
void ckm_uvm_charge_detach(void);

/* At module exit: wait until RCU has freed all records. */
void ckm_uvm_charge_exit(void);

#endif
