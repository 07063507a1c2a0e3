/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The reference to nvidia.ko and its RM interface for kernel clients. */
#ifndef CKM_DRIVER_H
#define CKM_DRIVER_H

#include <linux/types.h>

#include "uapi.h"

struct cgpu_abi;
struct cgpu_core_ops;
struct file_operations;

#define CKM_UUID_SIZE	48

/* What registers read as once the GPU has left the bus. An answer that is this is an error, not
 * a size or a number, whatever the status says.
 */
#define CKM_ALL_ONES	0xffffffffu

/* A GPU as the driver enumerates it. */
struct ckm_gpu_desc {
	u32 gpu_id;
	u32 nv_minor;
	char pci[16];		/* dddd:bb:ss.f */
	char uuid[CKM_UUID_SIZE];	/* "": the driver has not read it yet */
};

/**
 * ckm_driver_get() - take a reference to nvidia.ko and check its version
 * @quiet: log no error if nvidia.ko or a core is not loaded
 *
 * Pins nvidia.ko until ckm_driver_put(). Sleeps. Caller serialises get and put
 * (ckm_lock).
 *
 * Return: 0. -ENODEV: nvidia.ko is not loaded, refuses its kernel interface or lacks a
 * function that is needed, or no core is loaded. -EOPNOTSUPP: the call table has no rows for
 * the version, or was not wholly checked against it and the parameter any_driver is not set.
 */
int ckm_driver_get(bool quiet);
void ckm_driver_put(void);

/* The functions from here to ckm_driver_util_size() are valid between get and put. */
const char *ckm_driver_version(void);
/* The driver branch (580 of 580.105.08) that selects the rows of the call table. */
u32 ckm_driver_branch(void);
const struct cgpu_abi *ckm_driver_abi(void);
/* Bytes of the parameters of FB_GET_INFO_V2, at most sizeof(struct nv_fb_info_v2). */
u32 ckm_driver_fb_info_size(void);
/* Bytes of the parameters of PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2; 0: the branch has no
 * such control.
 */
u32 ckm_driver_util_size(void);

/* True if @core reads the driver's version to the same branch, ABI and sizes as the core
 * at the time of ckm_driver_get(), or if there is no reference: these values are kept
 * until the last put. Caller serialises with get and put.
 */
bool ckm_driver_fits(const struct cgpu_core_ops *core);

/* Fill @desc, an array of CGPU_MAX_GPUS. Returns the number of GPUs, or -ENOMEM; those without
 * a minor are left out. Sleeps. Between get and put.
 */
int ckm_driver_enumerate(struct ckm_gpu_desc *desc);
/* Copy the driver's UUID of a GPU, at most @size bytes, to @uuid; "" if it is no text. */
void ckm_driver_copy_uuid(char uuid[CKM_UUID_SIZE], const u8 *text, size_t size);

/* Minor of a GPU, given its nv_state_t. Between get and put. */
u32 ckm_driver_minor_of(void *nv);

/* True if @fops are file operations of the driver or of its simulation (nvsim). */
bool ckm_driver_owns(const struct file_operations *fops);

/* RM calls as a kernel client. They sleep and can spin for milliseconds; of this module's
 * locks only those that registry.h lists may be held. @params are kernel addresses, @size
 * is in bytes. Return an NV_STATUS; NV_OK is 0; NV_ERR_INSUFFICIENT_RESOURCES also if the driver's
 * stack could not be allocated.
 */
u32 ckm_drv_alloc(u32 client, u32 parent, u32 *handle, u32 cls, void *params, u32 size);
u32 ckm_drv_free(u32 client, u32 parent, u32 handle);
u32 ckm_drv_control(u32 client, u32 object, u32 cmd, void *params, u32 size);
/* Free the OS events of @client, whichever files they were made on. It must exist until the call returns: the driver
 * compares the handle. False: the release has no such function, and nothing is freed.
 */
bool ckm_drv_free_os_events(u32 client);
/* Allow client @to, and no other, to dup @object; @end: revoke that. */
u32 ckm_rm_lend(u32 client, u32 object, u32 to, bool end);

/* Open a GPU for kernel clients: 0, -ENOMEM, or -EIO if the driver fails. Sleeps. */
int ckm_rm_open_gpu(u32 gpu_id);
void ckm_rm_close_gpu(u32 gpu_id);

#endif
