// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Controls. The system and the client: classes 0x0000 … 0x003d. */
#include "nv_table.h"

/* Headers are below src/common/sdk/nvidia/inc/. */
#define H_0000CLIENT		"ctrl/ctrl0000/ctrl0000client.h"
#define H_0000GPU		"ctrl/ctrl0000/ctrl0000gpu.h"
#define H_0000GPUACCT		"ctrl/ctrl0000/ctrl0000gpuacct.h"
#define H_0000GSYNC		"ctrl/ctrl0000/ctrl0000gsync.h"
#define H_0000SYNCGPUBOOST	"ctrl/ctrl0000/ctrl0000syncgpuboost.h"
#define H_0000SYSTEM		"ctrl/ctrl0000/ctrl0000system.h"
#define H_0000UNIX		"ctrl/ctrl0000/ctrl0000unix.h"

#define NO_FABRIC	"no fabric: its objects are refused"
#define PEERS		"of several GPUs of the container; with one it has no peer"

static const struct cgpu_control rows[] = {
	{ 0x00000101, 535, 40, CGPU_PASS, DOC("NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION",
	  H_0000SYSTEM, "the driver reads a list behind a pointer: nothing depends on it") },
	{ 0x00000102, 535, 104, CGPU_PASS, DOC("NV0000_CTRL_CMD_SYSTEM_GET_CPU_INFO",
	  H_0000SYSTEM) },
	{ 0x00000102, 565, 108, CGPU_PASS },
	{ 0x00000127, 535, 168, CGPU_PEERS, DOC("NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS",
	  H_0000SYSTEM, PEERS), .copied_in = true },
	{ 0x00000127, 550, 176, CGPU_PEERS, .copied_in = true },
	{ 0x0000012b, 535, 4252, CGPU_PEERS, DOC("NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2",
	  H_0000SYSTEM, PEERS), .copied_in = true },
	{ 0x0000012b, 550, 8348, CGPU_PEERS, .copied_in = true },
	{ 0x00000136, 535, 4, CGPU_NOT_THERE, DOC("NV0000_CTRL_CMD_SYSTEM_GET_FABRIC_STATUS",
	  H_0000SYSTEM, NO_FABRIC), .copied_in = true },
	{ 0x0000013a, 535, 1352, CGPU_PEERS, DOC("NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX",
	  H_0000SYSTEM, PEERS), .copied_in = true },
	{ 0x000001f0, 535, 4, CGPU_PASS, DOC("NV0000_CTRL_CMD_SYSTEM_GET_FEATURES", H_0000SYSTEM) },
	{ 0x00000201, 535, 128, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS", H_0000GPU) },
	{ 0x00000202, 535, 40, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_ID_INFO", H_0000GPU,
	  "the driver reads a list behind a pointer: nothing depends on it") },
	{ 0x00000204, 535, 4, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS", H_0000GPU) },
	{ 0x00000205, 535, 32, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", H_0000GPU) },
	{ 0x00000214, 535, 256, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_PROBED_IDS", H_0000GPU) },
	{ 0x00000214, 580, 384, CGPU_PASS },
	{ 0x00000215, 535, 132, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_ATTACH_IDS", H_0000GPU) },
	{ 0x00000216, 535, 128, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_DETACH_IDS", H_0000GPU) },
	{ 0x0000021b, 535, 12, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_PCI_INFO", H_0000GPU) },
	{ 0x00000275, 535, 268, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID",
	  H_0000GPU) },
	{ 0x00000279, 535, 12, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE", H_0000GPU) },
	{ 0x0000027b, 535, 4, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE", H_0000GPU) },
	{ 0x00000288, 545, 3076, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS",
	  H_0000GPU) },
	{ 0x00000289, 550, 4, CGPU_GPU_ID, DOC("NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID", H_0000GPU),
	  .copied_in = true },
	{ 0x00000290, 550, 4, CGPU_GPU_ID, DOC("NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID", H_0000GPU),
	  .copied_in = true },
	{ 0x00000301, 535, 16, CGPU_REFUSE, DOC("NV0000_CTRL_CMD_GSYNC_GET_ATTACHED_IDS",
	  H_0000GSYNC, "graphics") },
	{ 0x00000a04, 535, 2244, CGPU_PASS, DOC("NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO",
	  H_0000SYNCGPUBOOST) },
	{ 0x00000b01, 535, 12, CGPU_REFUSE, DOC("NV0000_CTRL_CMD_GPUACCT_SET_ACCOUNTING_STATE",
	  H_0000GPUACCT, "accounting mode is the whole card's") },
	{ 0x00000b02, 535, 12, CGPU_PASS, DOC("NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE",
	  H_0000GPUACCT) },
	{ 0x00000b03, 535, 48, CGPU_REFUSE, DOC("NV0000_CTRL_CMD_GPUACCT_GET_PROC_ACCOUNTING_INFO",
	  H_0000GPUACCT, "other processes' memory and utilisation") },
	{ 0x00000b04, 535, 16012, CGPU_REFUSE, DOC("NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_PIDS",
	  H_0000GPUACCT, "other processes' ids") },
	{ 0x00000b05, 535, 8, CGPU_REFUSE, DOC("NV0000_CTRL_CMD_GPUACCT_CLEAR_ACCOUNTING_DATA",
	  H_0000GPUACCT, "clears the whole card's accounting") },
	{ 0x00000d01, 535, 12, CGPU_ADDR_SPACE, DOC("NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE",
	  H_0000CLIENT, "of shared data: system memory"), .copied_in = true },
	{ 0x00000d02, 535, 16, CGPU_PASS, DOC("NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO",
	  H_0000CLIENT) },
	{ 0x00000d04, 535, 12, CGPU_SHARE_POLICY,
	  DOC("NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY", H_0000CLIENT,
	  "with the user's or the process's own clients; a wider one is answered"),
	  .copied_in = true },
	{ 0x00003d02, 535, 40, CGPU_REFUSE, DOC("NV0000_CTRL_CMD_OS_UNIX_FLUSH_USER_CACHE",
	  H_0000UNIX, "not known to be used; names files of others") },
	{ 0x00003d05, 535, 24, CGPU_EXPORT, DOC("NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD",
	  H_0000UNIX, "inside one container only"), .copied_in = true, FD(16, CTL) },
	{ 0x00003d06, 535, 20, CGPU_IMPORT, DOC("NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD",
	  H_0000UNIX, "inside one container only"), .copied_in = true, FD(0, CTL) },
	{ 0x00003d08, 535, 76, CGPU_PASS, DOC("NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO",
	  H_0000UNIX, "inside one container only"), FD(0, CTL) },
	{ 0x00003d08, 545, 80, CGPU_PASS, FD(0, CTL) },
	{ 0x00003d0a, 535, 76, CGPU_EXPORT, DOC("NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD",
	  H_0000UNIX, "inside one container only"), .copied_in = true, FD(72, CTL) },
	{ 0x00003d0b, 535, 2128, CGPU_EXPORT, DOC("NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD",
	  H_0000UNIX, "inside one container only"), .copied_in = true, FD(0, CTL) },
	{ 0x00003d0c, 535, 652, CGPU_IMPORT, DOC("NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD",
	  H_0000UNIX, "inside one container only"), .copied_in = true, FD(0, CTL) },
	{ 0x00003d0d, 615, 24, CGPU_REFUSE, DOC("NV0000_CTRL_OS_UNIX_CMD_MEMACCT_SET_LIMITS",
	  H_0000UNIX, "NVIDIA's limit of a cgroup is set on the host"), FD(0, OTHER) },
	{ 0x00003d0e, 615, 1032, CGPU_REFUSE, DOC("NV0000_CTRL_OS_UNIX_CMD_MEMACCT_GET_LIMITS",
	  H_0000UNIX, "limits and use of a cgroup, which may be another one's"), FD(0, OTHER) },
	{ 0x00003d0f, 615, 4, CGPU_REFUSE, DOC("NV0000_CTRL_OS_UNIX_CMD_MEMACCT_GET_IMPL",
	  H_0000UNIX, "the slice's limit is none of NVIDIA's") },
};

const struct cgpu_control_table cgpu_controls_client = {
	.first = 0x00000000,
	.count = sizeof(rows) / sizeof(rows[0]),
	.row = rows,
};
