/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The functions of nvidia.ko for kernel clients of the resource manager. */
#ifndef CKM_RM_OPS_H
#define CKM_RM_OPS_H

#include "core/nv_struct.h"

struct nvidia_stack_s;		/* the driver's */

/* kernel-open/common/inc/nv-modeset-interface.h; order stable 390 … 595. make test-abi compares the
 * prototypes with each release's. From 595 on (cgpu_abi.reset_aware) the open and the close have one
 * more argument: without it the driver counts the opener, so that the GPU is not reset under it.
 */
struct nv_rm_ops {
	const char *version_string;
	struct {
		u8 allow_write_combining;
	} system_info;
	int (*alloc_stack)(struct nvidia_stack_s **sp);
	void (*free_stack)(struct nvidia_stack_s *sp);
	u32 (*enumerate_gpus)(struct nv_gpu_info *info);
	union {
		int (*open_gpu)(u32 gpu_id, struct nvidia_stack_s *sp);
		int (*open_gpu_595)(u32 gpu_id, struct nvidia_stack_s *sp, u8 reset_aware);
	};
	union {
		void (*close_gpu)(u32 gpu_id, struct nvidia_stack_s *sp);
		void (*close_gpu_595)(u32 gpu_id, struct nvidia_stack_s *sp, u8 reset_aware);
	};
	void (*op)(struct nvidia_stack_s *sp, void *ops);
	int (*set_callbacks)(const void *callbacks);
};

#endif
