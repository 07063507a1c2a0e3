// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Controls. Memory, devices and the objects above a subdevice. */
#include "nv_table.h"

/* Headers are below src/common/sdk/nvidia/inc/. */
#define H_0041		"ctrl/ctrl0041.h"
#define H_0080BSP	"ctrl/ctrl0080/ctrl0080bsp.h"
#define H_0080DMA	"ctrl/ctrl0080/ctrl0080dma.h"
#define H_0080FB	"ctrl/ctrl0080/ctrl0080fb.h"
#define H_0080FIFO	"ctrl/ctrl0080/ctrl0080fifo.h"
#define H_0080GPU	"ctrl/ctrl0080/ctrl0080gpu.h"
#define H_0080GR	"ctrl/ctrl0080/ctrl0080gr.h"
#define H_0080HOST	"ctrl/ctrl0080/ctrl0080host.h"
#define H_0080MSENC	"ctrl/ctrl0080/ctrl0080msenc.h"
#define H_0080NVJPG	"ctrl/ctrl0080/ctrl0080nvjpg.h"
#define H_0080PERF	"ctrl/ctrl0080/ctrl0080perf.h"
#define H_00DA		"ctrl/ctrl00da.h"
#define H_00DE		"ctrl/ctrl00de.h"
#define H_00E0		"ctrl/ctrl00e0.h"
#define H_00F1		"ctrl/ctrl00f1.h"
#define H_00F8		"ctrl/ctrl00f8.h"
#define H_00FB		"ctrl/ctrl00fb.h"
#define H_00FD		"ctrl/ctrl00fd.h"

static const struct cgpu_control rows[] = {
	{ 0x00410110, 535, 16, CGPU_PASS, DOC("NV0041_CTRL_CMD_GET_SURFACE_INFO", H_0041,
	  "the driver reads a list behind a pointer: nothing depends on it") },
	{ 0x00410118, 535, 8, CGPU_PASS, DOC("NV0041_CTRL_CMD_GET_MEM_PAGE_SIZE", H_0041) },
	{ 0x00800201, 535, 16, CGPU_PASS, DOC("NV0080_CTRL_CMD_GPU_GET_CLASSLIST", H_0080GPU,
	  "the driver reads a list behind a pointer: nothing depends on it") },
	{ 0x00800280, 535, 4, CGPU_PASS, DOC("NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES", H_0080GPU) },
	{ 0x00800288, 535, 4, CGPU_PASS, DOC("NV0080_CTRL_CMD_GPU_QUERY_SW_STATE_PERSISTENCE",
	  H_0080GPU) },
	{ 0x00800289, 535, 4, CGPU_PASS, DOC("NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE",
	  H_0080GPU) },
	{ 0x00800289, 555, 8, CGPU_PASS },
	{ 0x0080028b, 535, 0, CGPU_REFUSE, DOC("unnamed", NULL,
	  "not in the public driver: what it does is not known") },
	{ 0x0080028e, 535, 1, CGPU_PASS, DOC("NV0080_CTRL_CMD_GPU_GET_VGX_CAPS", H_0080GPU) },
	{ 0x00800292, 535, 644, CGPU_PASS, DOC("NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2", H_0080GPU) },
	{ 0x00800292, 550, 700, CGPU_PASS },
	{ 0x00800292, 555, 404, CGPU_PASS },
	{ 0x00800292, 580, 804, CGPU_PASS },
	{ 0x00800294, 535, 4, CGPU_PASS, DOC("NV0080_CTRL_CMD_GPU_GET_BRAND_CAPS", H_0080GPU) },
	{ 0x00801102, 535, 16, CGPU_REFUSE, DOC("NV0080_CTRL_CMD_GR_GET_CAPS", H_0080GR,
	  "graphics") },
	{ 0x00801104, 535, 16, CGPU_REFUSE, DOC("NV0080_CTRL_CMD_GR_GET_INFO", H_0080GR,
	  "graphics") },
	{ 0x00801108, 535, 32, CGPU_ANSWER_OK, DOC("NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE",
	  H_0080GR, "spatial share of the card") },
	{ 0x00801109, 535, 48, CGPU_PASS, DOC("NV0080_CTRL_CMD_GR_GET_CAPS_V2", H_0080GR) },
	{ 0x00801301, 535, 16, CGPU_REFUSE, DOC("NV0080_CTRL_CMD_FB_GET_CAPS", H_0080FB,
	  "graphics") },
	{ 0x00801307, 535, 3, CGPU_PASS, DOC("NV0080_CTRL_CMD_FB_GET_CAPS_V2", H_0080FB) },
	{ 0x00801402, 535, 3, CGPU_PASS, DOC("NV0080_CTRL_CMD_HOST_GET_CAPS_V2", H_0080HOST) },
	{ 0x00801701, 535, 16, CGPU_REFUSE, DOC("NV0080_CTRL_CMD_FIFO_GET_CAPS", H_0080FIFO,
	  "graphics") },
	{ 0x00801707, 535, 12, CGPU_REFUSE,
	  DOC("NV0080_CTRL_CMD_FIFO_GET_ENGINE_CONTEXT_PROPERTIES", H_0080FIFO, "graphics") },
	{ 0x0080170d, 535, 24, CGPU_PASS, DOC("NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST", H_0080FIFO,
	  "the driver reads a list behind a pointer: nothing depends on it") },
	{ 0x0080170f, 535, 16, CGPU_ANSWER_OK, DOC("NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES",
	  H_0080FIFO, "scheduling") },
	{ 0x00801711, 535, 4, CGPU_REFUSE, DOC("NV0080_CTRL_CMD_FIFO_STOP_RUNLIST", H_0080FIFO,
	  "stops a whole engine") },
	{ 0x00801712, 535, 4, CGPU_REFUSE, DOC("NV0080_CTRL_CMD_FIFO_START_RUNLIST", H_0080FIFO,
	  "starts a whole engine") },
	{ 0x00801713, 535, 2, CGPU_PASS, DOC("NV0080_CTRL_CMD_FIFO_GET_CAPS_V2", H_0080FIFO) },
	{ 0x00801714, 535, 16396, CGPU_REFUSE, DOC("NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS", H_0080FIFO,
	  "needs its channels checked for ownership") },
	{ 0x00801806, 535, 192, CGPU_PASS, DOC("NV0080_CTRL_CMD_DMA_ADV_SCHED_GET_VA_CAPS",
	  H_0080DMA) },
	{ 0x0080180d, 535, 12, CGPU_PASS, DOC("NV0080_CTRL_CMD_DMA_GET_CAPS", H_0080DMA) },
	{ 0x00801909, 550, 1, CGPU_ANSWER_OK, DOC("NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL",
	  H_0080PERF, "clock limit of the whole card") },
	{ 0x00801b01, 535, 16, CGPU_PASS, DOC("NV0080_CTRL_CMD_MSENC_GET_CAPS", H_0080MSENC) },
	{ 0x00801c02, 535, 12, CGPU_PASS, DOC("NV0080_CTRL_CMD_BSP_GET_CAPS_V2", H_0080BSP) },
	{ 0x00801f02, 535, 16, CGPU_PASS, DOC("NV0080_CTRL_CMD_NVJPG_GET_CAPS_V2", H_0080NVJPG) },
	{ 0x00809909, 535, 1, CGPU_ANSWER_OK, DOC("unnamed", NULL,
	  "not in the public driver; libcuda of 535 sets it for each context and needs the answer") },
	{ 0x00da0002, 535, 24, CGPU_REFUSE, DOC("NV_SEMAPHORE_SURFACE_CTRL_CMD_BIND_CHANNEL",
	  H_00DA, "graphics") },
	{ 0x00da0002, 560, 40, CGPU_REFUSE },
	{ 0x00da0006, 560, 40, CGPU_REFUSE, DOC("NV_SEMAPHORE_SURFACE_CTRL_CMD_UNBIND_CHANNEL",
	  H_00DA, "graphics") },
	{ 0x00de0001, 545, 8, CGPU_REFUSE, DOC("NV00DE_CTRL_CMD_REQUEST_DATA_POLL", H_00DE,
	  "its class shows the card's memory totals") },
	{ 0x00e00101, 550, 1048, CGPU_REFUSE, DOC("NV00E0_CTRL_CMD_EXPORT_MEM", H_00E0,
	  "fabric management"), FD(1040, GPU) },
	{ 0x00e00102, 550, 1540, CGPU_REFUSE, DOC("NV00E0_CTRL_CMD_IMPORT_MEM", H_00E0,
	  "fabric management") },
	{ 0x00f10001, 550, 8200, CGPU_REFUSE, DOC("NV00F1_CTRL_CMD_GET_FABRIC_EVENTS", H_00F1,
	  "fabric management") },
	{ 0x00f10001, 580, 10248, CGPU_REFUSE },
	{ 0x00f10001, 590, 11272, CGPU_REFUSE },
	{ 0x00f10002, 550, 2056, CGPU_REFUSE, DOC("NV00F1_CTRL_CMD_FINISH_MEM_UNIMPORT", H_00F1,
	  "fabric management") },
	{ 0x00f10003, 550, 2, CGPU_REFUSE, DOC("NV00F1_CTRL_CMD_DISABLE_IMPORTERS", H_00F1,
	  "fabric management") },
	{ 0x00f80102, 535, 2072, CGPU_REFUSE, DOC("NV00F8_CTRL_CMD_DESCRIBE", H_00F8,
	  "fabric management") },
	{ 0x00f80102, 545, 2120, CGPU_REFUSE },
	{ 0x00f80102, 580, 2136, CGPU_REFUSE },
	{ 0x00f80103, 535, 2064, CGPU_REFUSE, DOC("NV00F8_CTRL_CMD_ATTACH_MEM", H_00F8,
	  "needs a charge that follows memory given to a fabric object") },
	{ 0x00fb0101, 550, 2120, CGPU_REFUSE, DOC("NV00FB_CTRL_CMD_VALIDATE", H_00FB,
	  "fabric management") },
	{ 0x00fb0101, 580, 2136, CGPU_REFUSE },
	{ 0x00fd0101, 535, 32, CGPU_REFUSE, DOC("NV00FD_CTRL_CMD_GET_INFO", H_00FD,
	  "needs a charge that follows memory given to a fabric object") },
	{ 0x00fd0102, 535, 40, CGPU_REFUSE, DOC("NV00FD_CTRL_CMD_ATTACH_MEM", H_00FD,
	  "needs a charge that follows memory given to a fabric object") },
	{ 0x00fd0104, 535, 16, CGPU_REFUSE, DOC("NV00FD_CTRL_CMD_ATTACH_GPU", H_00FD,
	  "needs a charge that follows memory given to a fabric object"), FD(8, GPU) },
	{ 0x00fd0105, 535, 24, CGPU_REFUSE, DOC("NV00FD_CTRL_CMD_DETACH_MEM", H_00FD,
	  "needs a charge that follows memory given to a fabric object") },
	{ 0x00fd0106, 550, 24, CGPU_REFUSE, DOC("NV00FD_CTRL_CMD_ATTACH_REMOTE_GPU", H_00FD,
	  "fabric management") },
	{ 0x00fd0106, 580, 32, CGPU_REFUSE },
	{ 0x00fd0106, 590, 40, CGPU_REFUSE },
	{ 0x00fd0107, 550, 4, CGPU_REFUSE, DOC("NV00FD_CTRL_CMD_SET_FAILURE", H_00FD,
	  "fabric management") },
};

const struct cgpu_control_table cgpu_controls_device = {
	.first = 0x00410000,
	.count = sizeof(rows) / sizeof(rows[0]),
	.row = rows,
};
