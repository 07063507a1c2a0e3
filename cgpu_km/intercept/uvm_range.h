/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What nvidia-uvm allocates of the host's memory for an address space, its external ranges and semaphore pools, and its
 * range groups. The driver charges it to no process, so each is charged to the container's system memory and counted.
 */
#ifndef CKM_UVM_RANGE_H
#define CKM_UVM_RANGE_H

#include <linux/types.h>

struct ckm_backing;
struct ckm_call;
struct ckm_container;
struct ckm_uvm_range;

enum ckm_uvm_kind { CKM_UVM_EXTERNAL, CKM_UVM_POOL };

/**
 * ckm_uvm_range_charge() - charge a range before the driver makes it
 * @call: the call, of a uvm file
 * @kind: CKM_UVM_*
 * @base: its address
 * @length: its length in bytes, as the driver reads it
 *
 * Context: Process; takes rm_lock; sleeps.
 * Return: the record, for ckm_uvm_range_list() or ckm_uvm_range_drop(); NULL over a limit, or without kernel memory.
 */
struct ckm_uvm_range *ckm_uvm_range_charge(struct ckm_call *call, u32 kind, u64 base, u64 length);

/* The driver has made it, or has not freed it. Takes rm_lock. */
void ckm_uvm_range_list(struct ckm_backing *backing, struct ckm_uvm_range *range);

/* Remove the oldest range at @base from the list, before the driver frees it: a range that another thread makes at the
 * same address meanwhile is another one. A tenant that races frees with allocations can leave a range charged until
 * its file is gone, but none uncharged. NULL: there is none. Takes rm_lock.
 */
struct ckm_uvm_range *ckm_uvm_range_take(struct ckm_backing *backing, u64 base);

/* Uncharge and free a record that is not listed. Takes rm_lock. */
void ckm_uvm_range_drop(struct ckm_container *ct, struct ckm_uvm_range *range);

/* Whether [start, end) is a pool of this file. Takes rm_lock. */
bool ckm_uvm_is_pool(struct ckm_backing *backing, u64 start, u64 end);

/* Charge one range group, or the file's address space, before the driver makes it. -ENOMEM: over a limit, nothing
 * changed. The space stays charged until the file is gone. Take rm_lock.
 */
int ckm_uvm_group_charge(struct ckm_call *call);
void ckm_uvm_group_uncharge(struct ckm_backing *backing);
int ckm_uvm_space_charge(struct ckm_call *call);

/* The backing file is gone: uncharge all of it. Takes rm_lock; sleeps. */
void ckm_uvm_ranges_release(struct ckm_container *ct, struct ckm_backing *backing);

#endif
