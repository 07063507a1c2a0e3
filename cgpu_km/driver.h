/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The link to nvidia.ko: its kernel-side RM interface. */
#ifndef CKM_DRIVER_H
#define CKM_DRIVER_H

#include <linux/types.h>

#include "uapi.h"

/* kernel-open/common/inc/nv-gpu-info.h */
struct cgpu_abi;
struct nv_gpu_info {
	u32 gpu_id;
	struct {
		u32 domain;
		u8 bus, slot, function;
	} pci;
	u8 needs_numa_setup;
	void *os_device_ptr;
};

struct file_operations;

/* A GPU as the driver enumerates it. */
struct ckm_gpu_desc {
	u32 gpu_id;
	u32 nv_minor;
	char pci[16];		/* dddd:bb:ss.f */
	char uuid[48];		/* "" when the driver does not know it yet */
};

/* Symbol taken, version agreed on. Pins nvidia.ko until ckm_driver_put().
 * -ENODEV: not loaded; -EOPNOTSUPP: version not known (and not allowed by
 * parameter). Caller serialises get and put.
 * @quiet: that it is not loaded is not worth a line.
 */
int ckm_driver_get(bool quiet);
void ckm_driver_put(void);
const char *ckm_driver_version(void);
/* The branch whose rows of the call table hold. */
u32 ckm_driver_branch(void);
const struct cgpu_abi *ckm_driver_abi(void);
/* Of the parameters of FB_GET_INFO_V2, at most NV_FB_INFO_V2_SIZE. */
u32 ckm_driver_fb_info_size(void);
/* Of those of PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2; 0: the branch has none. */
u32 ckm_driver_util_size(void);

/* True if @core reads this driver's calls as it was attached by: what was learned
 * then stays until the last container is gone. Caller serialises with get and put.
 */
bool ckm_driver_fits(const struct cgpu_core_ops *core);

/* Between get and put. Returns how many, at most CGPU_MAX_GPUS. */
u32 ckm_driver_enumerate(struct ckm_gpu_desc *desc);

/* Char device major of nvidia-uvm as it was at ckm_driver_learn_uvm(): looked up
 * in /proc/devices, so only ever in an administrator's context.
 */
void ckm_driver_learn_uvm(void);
u32 ckm_driver_uvm_major(void);

/* True if these are file operations of the driver (or its simulation). */
bool ckm_driver_owns(const struct file_operations *fops);

/* RM calls as a kernel client: may sleep and spin for milliseconds. @params
 * are kernel addresses. Return an RM status (NV_OK is 0).
 */
u32 ckm_rm_alloc(u32 client, u32 parent, u32 *handle, u32 cls, void *params, u32 size);
u32 ckm_rm_free(u32 client, u32 parent, u32 handle);
u32 ckm_rm_control(u32 client, u32 object, u32 cmd, void *params, u32 size);

int ckm_rm_open_gpu(u32 gpu_id);
void ckm_rm_close_gpu(u32 gpu_id);

#endif
