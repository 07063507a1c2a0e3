// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Calls of /dev/nvidiactl and /dev/nvidiaN. The size is in the call's number; where
 * one size has two layouts the branch decides.
 */
#include "nv_table.h"

#define BOTH	(CGPU_NODE_CTL | CGPU_NODE_GPU)
#define NVOS	"src/common/sdk/nvidia/inc/nvos.h"
#define WRAP	"src/nvidia/arch/nvalloc/unix/include/nv-unix-nvos-params-wrappers.h"
#define IOCTL	"kernel-open/common/inc/nv-ioctl.h"
#define NUMA	"kernel-open/common/inc/nv-ioctl-numa.h"

static const struct cgpu_escape rows[] = {
	{ 0x27, 535, 56, CGPU_NODE_GPU, CGPU_ALLOC_MEMORY, 40, DOC("NV_ESC_RM_ALLOC_MEMORY", WRAP,
	  "system memory only; the fd counts for class 0x3e alone"), FD(48, RM) },
	{ 0x28, 535, 20, CGPU_NODE_CTL, CGPU_REFUSE, 16, DOC("NV_ESC_RM_ALLOC_OBJECT", NVOS,
	  "older than RM_ALLOC, which replaced it") },
	{ 0x29, 535, 16, CGPU_NODE_CTL, CGPU_FREE, 12, DOC("NV_ESC_RM_FREE", NVOS,
	  "uncharged with the last reference") },
	{ 0x2a, 535, 32, CGPU_NODE_CTL, CGPU_CONTROL, 28, DOC("NV_ESC_RM_CONTROL", NVOS,
	  "by the table of controls") },
	{ 0x2b, 535, 32, BOTH, CGPU_ALLOC, 28, DOC("NV_ESC_RM_ALLOC", NVOS,
	  "by the table of classes; NVOS21") },
	{ 0x2b, 535, 48, BOTH, CGPU_ALLOC, 40, DOC("NV_ESC_RM_ALLOC", NVOS,
	  "by the table of classes; NVOS64") },
	{ 0x34, 535, 28, CGPU_NODE_CTL, CGPU_DUP, 24, DOC("NV_ESC_RM_DUP_OBJECT", NVOS,
	  "memory, channel groups and plain objects; the charge is shared") },
	{ 0x35, 535, 24, CGPU_NODE_CTL, CGPU_SHARE, 20, DOC("NV_ESC_RM_SHARE", NVOS,
	  "not forwarded: the processes of the container may dup what is shared with all") },
	{ 0x41, 535, 56, CGPU_NODE_CTL, CGPU_REFUSE, 48, DOC("NV_ESC_RM_IDLE_CHANNELS", NVOS,
	  "needs its channels checked for ownership") },
	{ 0x4a, 535, 184, CGPU_NODE_CTL, CGPU_VID_HEAP, 20, DOC("NV_ESC_RM_VID_HEAP_CONTROL", NVOS,
	  "allocate, free, info; totals are the slice's") },
	{ 0x4d, 535, 72, CGPU_NODE_CTL, CGPU_REFUSE, 0, DOC("NV_ESC_RM_ACCESS_REGISTRY", NVOS,
	  "the driver's configuration") },
	{ 0x4e, 535, 56, CGPU_NODE_CTL, CGPU_MAP, 40, DOC("NV_ESC_RM_MAP_MEMORY", WRAP,
	  "the memory must be the container's, and BAR1 have room for it"), FD(48, RM) },
	{ 0x4f, 535, 32, CGPU_NODE_CTL, CGPU_UNMAP, 24, DOC("NV_ESC_RM_UNMAP_MEMORY", NVOS) },
	{ 0x52, 535, 16, BOTH, CGPU_PASS, 12, DOC("NV_ESC_RM_GET_EVENT_DATA", NVOS) },
	{ 0x54, 535, 56, CGPU_NODE_CTL, CGPU_REFUSE, 48, DOC("NV_ESC_RM_ALLOC_CONTEXT_DMA2", NVOS,
	  "graphics") },
	{ 0x57, 535, 56, CGPU_NODE_CTL, CGPU_MAP_DMA, 48, DOC("NV_ESC_RM_MAP_MEMORY_DMA", NVOS,
	  "the memory must be the container's") },
	{ 0x57, 580, 64, CGPU_NODE_CTL, CGPU_MAP_DMA, 56 },
	{ 0x58, 535, 40, CGPU_NODE_CTL, CGPU_UNMAP_DMA, 32, DOC("NV_ESC_RM_UNMAP_MEMORY_DMA",
	  NVOS) },
	{ 0x58, 550, 48, CGPU_NODE_CTL, CGPU_UNMAP_DMA, 40 },
	{ 0x59, 535, 16, CGPU_NODE_CTL, CGPU_REFUSE, 12, DOC("NV_ESC_RM_BIND_CONTEXT_DMA", NVOS,
	  "graphics") },
	{ 0x5e, 535, 40, CGPU_NODE_CTL, CGPU_RENAME_MAP, 32,
	  DOC("NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO", NVOS) },
	{ 200, 535, 0, CGPU_NODE_CTL, CGPU_PASS, 0, DOC("NV_ESC_CARD_INFO", IOCTL,
	  "any number of cards; no memory totals") },
	{ 201, 535, 4, BOTH, CGPU_PASS, 0, DOC("NV_ESC_REGISTER_FD", IOCTL,
	  "no client can be made on a control file that was registered"), FD(0, CTL) },
	{ 206, 535, 16, BOTH, CGPU_OS_EVENT, 12, DOC("NV_ESC_ALLOC_OS_EVENT", IOCTL,
	  "of a client of the container"), FD(8, KEY) },
	{ 207, 535, 16, BOTH, CGPU_OS_EVENT, 12, DOC("NV_ESC_FREE_OS_EVENT", IOCTL,
	  "of a client of the container"), FD(8, KEY) },
	{ 209, 535, 12, BOTH, CGPU_PASS, 8, DOC("NV_ESC_STATUS_CODE", IOCTL) },
	{ 210, 535, 72, CGPU_NODE_CTL, CGPU_PASS, 0, DOC("NV_ESC_CHECK_VERSION_STR", IOCTL) },
	{ 212, 535, 0, CGPU_NODE_CTL, CGPU_KEEP_GPUS, 0, DOC("NV_ESC_ATTACH_GPUS_TO_FD", IOCTL,
	  "any number of ids") },
	{ 213, 535, 8, CGPU_NODE_GPU, CGPU_PASS, 4, DOC("NV_ESC_QUERY_DEVICE_INTR", IOCTL) },
	{ 213, 590, GONE },
	{ 214, 535, 8, CGPU_NODE_CTL, CGPU_ANSWER_OK, 0, DOC("NV_ESC_SYS_PARAMS", IOCTL,
	  "the host's size of memory blocks, which the driver takes once from anyone") },
	{ 215, 535, 560, CGPU_NODE_GPU, CGPU_REFUSE, 0, DOC("NV_ESC_NUMA_INFO", NUMA,
	  "physical addresses of the card's memory") },
	{ 216, 535, 4, CGPU_NODE_GPU, CGPU_REFUSE, 0, DOC("NV_ESC_SET_NUMA_STATUS", NUMA,
	  "memory of the whole card") },
	{ 217, 535, 2600, CGPU_NODE_GPU, CGPU_DMABUF, 2592, DOC("NV_ESC_EXPORT_TO_DMABUF_FD", IOCTL,
	  "onto a new dma-buf only"), FD(0, OTHER) },
	{ 217, 570, 2608, CGPU_NODE_GPU, CGPU_DMABUF, 2600, FD(0, OTHER) },
	{ 218, 550, 8, CGPU_NODE_GPU, CGPU_PASS, 4, DOC("NV_ESC_WAIT_OPEN_COMPLETE", IOCTL) },
};

const struct cgpu_escape_table cgpu_escapes = {
	.count = sizeof(rows) / sizeof(rows[0]),
	.row = rows,
};
