/* SPDX-License-Identifier: MIT */
/* The client, its calls, and the GPUs it can open. */
#include "rm.h"
#include "rm_internal.h"
#include "nv_call.h"
#include "nv_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define FIRST_HANDLE	0x5c000000u
#define NEWEST_BRANCH	580	/* where the driver names no version */

static const struct {
	rm_status status;
	const char *name;
} status_names[] = {
	{ NV_OK, "NV_OK" },
	{ NV_ERR_INSUFFICIENT_RESOURCES, "NV_ERR_INSUFFICIENT_RESOURCES" },
	{ NV_ERR_INSUFFICIENT_PERMISSIONS, "NV_ERR_INSUFFICIENT_PERMISSIONS" },
	{ NV_ERR_INVALID_ARGUMENT, "NV_ERR_INVALID_ARGUMENT" },
	{ NV_ERR_INVALID_CLASS, "NV_ERR_INVALID_CLASS" },
	{ NV_ERR_INVALID_CLIENT, "NV_ERR_INVALID_CLIENT" },
	{ NV_ERR_INVALID_STATE, "NV_ERR_INVALID_STATE" },
	{ NV_ERR_NO_MEMORY, "NV_ERR_NO_MEMORY" },
	{ NV_ERR_NOT_SUPPORTED, "NV_ERR_NOT_SUPPORTED" },
	{ NV_ERR_OBJECT_NOT_FOUND, "NV_ERR_OBJECT_NOT_FOUND" },
};

const char *rm_strerror(rm_status status)
{
	if (status < 0)
		return strerror((int)-status);
	for (size_t i = 0; i < sizeof(status_names) / sizeof(status_names[0]); i++)
		if (status_names[i].status == status)
			return status_names[i].name;
	return "an RM status without a name here";
}

rm_status rm_note(struct rm *rm, rm_status status, const char *call)
{
	if (status && !rm->error.call[0]) {
		snprintf(rm->error.call, sizeof(rm->error.call), "%s", call);
		rm->error.status = status;
	}
	return status;
}

rm_status rm_note_errno(struct rm *rm, const char *call)
{
	return rm_note(rm, -errno, call);
}

int rm_open_node(struct rm *rm, const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", rm->dir, name);
	return open(path, O_RDWR | O_CLOEXEC);
}

rm_status rm_note_open(struct rm *rm, const char *name)
{
	char call[sizeof(rm->error.call)];

	snprintf(call, sizeof(call), "open(%.60s/%.24s)", rm->dir, name);
	return rm_note_errno(rm, call);
}

rm_status rm_ioctl(struct rm *rm, int fd, unsigned int nr, void *arg, uint32_t size,
		   const uint32_t *status, const char *call)
{
	if (ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', nr, size), arg) < 0)
		return rm_note_errno(rm, call);
	return rm_note(rm, status ? *status : 0, call);
}

/* ---- the client and its calls ---- */

static rm_status check_version(struct rm *rm)
{
	struct nv_api_version ver = { .cmd = '2' };
	rm_status st;

	st = rm_ioctl(rm, rm->ctl, NV_ESC_CHECK_VERSION_STR, &ver, sizeof(ver), NULL,
		      "CHECK_VERSION_STR");
	memcpy(rm->version, ver.versionString, sizeof(rm->version) - 1);
	rm->branch = strtoul(rm->version, NULL, 10);
	if (!rm->branch)
		rm->branch = NEWEST_BRANCH;
	return st;
}

rm_status rm_open(struct rm *rm, const char *dir)
{
	struct nvos64 arg = { .hClass = NV01_ROOT_CLIENT };
	rm_status st;

	memset(rm, 0, sizeof(*rm));
	rm->last_handle = FIRST_HANDLE;
	if (!dir)
		dir = getenv("NVSIM_DEV");
	snprintf(rm->dir, sizeof(rm->dir), "%s", dir && *dir ? dir : "/dev");

	rm->ctl = rm_open_node(rm, "nvidiactl");
	if (rm->ctl < 0)
		return rm_note_open(rm, "nvidiactl");
	st = check_version(rm);
	if (!st)
		st = rm_ioctl(rm, rm->ctl, NV_ESC_RM_ALLOC, &arg, sizeof(arg), &arg.status,
			      "RM_ALLOC(0x41)");
	if (st) {
		close(rm->ctl);
		rm->ctl = -1;
		return st;
	}
	rm->client = arg.hObjectNew;
	return 0;
}

void rm_close(struct rm *rm)
{
	if (rm->ctl < 0)
		return;
	if (rm->client)
		rm_free(rm, rm->client, rm->client);
	close(rm->ctl);
	rm->ctl = -1;
}

/* Of @size if the table does not have the call, as of the doorbell's classes. */
uint32_t rm_class_bytes(const struct rm *rm, uint32_t class_id, uint32_t size)
{
	const struct cgpu_class *row = cgpu_call_class(rm->branch, class_id);

	return size && row && row->params_size ? row->params_size : size;
}

static uint32_t control_bytes(const struct rm *rm, uint32_t cmd, uint32_t size)
{
	const struct cgpu_control *row = cgpu_call_control(rm->branch, cmd);

	return size && row && row->params_size ? row->params_size : size;
}

rm_status rm_alloc(struct rm *rm, uint32_t parent, uint32_t class_id, void *params,
		   uint32_t size, uint32_t *handle)
{
	struct nvos64 arg = {
		.hRoot = rm->client,
		.hObjectParent = parent,
		.hObjectNew = ++rm->last_handle,
		.hClass = class_id,
		.pAllocParms = (uintptr_t)params,
		.paramsSize = rm_class_bytes(rm, class_id, size),
	};
	char call[32];
	rm_status st;

	snprintf(call, sizeof(call), "RM_ALLOC(0x%x)", class_id);
	st = rm_ioctl(rm, rm->ctl, NV_ESC_RM_ALLOC, &arg, sizeof(arg), &arg.status, call);
	*handle = st ? 0 : arg.hObjectNew;
	return st;
}

rm_status rm_free(struct rm *rm, uint32_t parent, uint32_t handle)
{
	struct nvos00 arg = { .hRoot = rm->client, .hObjectParent = parent, .hObjectOld = handle };

	return rm_ioctl(rm, rm->ctl, NV_ESC_RM_FREE, &arg, sizeof(arg), &arg.status, "RM_FREE");
}

rm_status rm_control(struct rm *rm, uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct nvos54 arg = {
		.hClient = rm->client,
		.hObject = object,
		.cmd = cmd,
		.params = (uintptr_t)params,
		.paramsSize = control_bytes(rm, cmd, size),
	};
	char call[32];

	snprintf(call, sizeof(call), "RM_CONTROL(0x%x)", cmd);
	return rm_ioctl(rm, rm->ctl, NV_ESC_RM_CONTROL, &arg, sizeof(arg), &arg.status, call);
}

rm_status rm_dup(struct rm *rm, uint32_t parent, uint32_t client_src, uint32_t handle_src,
		 uint32_t *handle)
{
	struct nvos55 arg = {
		.hClient = rm->client,
		.hParent = parent,
		.hObject = ++rm->last_handle,
		.hClientSrc = client_src,
		.hObjectSrc = handle_src,
	};
	rm_status st;

	st = rm_ioctl(rm, rm->ctl, NV_ESC_RM_DUP_OBJECT, &arg, sizeof(arg), &arg.status,
		      "RM_DUP_OBJECT");
	*handle = st ? 0 : arg.hObject;
	return st;
}

/* ---- GPUs ---- */

static const struct nv_card_info *card_of(const struct nv_card_info *cards, uint32_t gpu_id)
{
	for (int i = 0; i < MAX_GPUS; i++)
		if (cards[i].valid && cards[i].gpu_id == gpu_id)
			return &cards[i];
	return NULL;
}

static bool node_opens(struct rm *rm, uint32_t minor)
{
	char node[32];
	int fd;

	snprintf(node, sizeof(node), "nvidia%u", minor);
	fd = rm_open_node(rm, node);
	if (fd < 0)
		return false;
	close(fd);
	return true;
}

rm_status rm_list_gpus(struct rm *rm, struct rm_gpu_info list[MAX_GPUS], unsigned int *count)
{
	struct nv_card_info cards[MAX_GPUS] = { 0 };
	struct nv_attached_ids ids = { 0 };
	rm_status st;

	*count = 0;
	st = rm_ioctl(rm, rm->ctl, NV_ESC_CARD_INFO, cards, sizeof(cards), NULL, "CARD_INFO");
	if (!st)
		st = rm_control(rm, rm->client, NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS, &ids, sizeof(ids));
	if (st)
		return st;

	for (int i = 0; i < MAX_GPUS && ids.gpuIds[i] != NV0000_CTRL_GPU_INVALID_ID; i++) {
		const struct nv_card_info *card = card_of(cards, ids.gpuIds[i]);
		struct nv_id_info id = { .gpuId = ids.gpuIds[i] };

		if (!card || !node_opens(rm, card->minor_number))
			continue;
		st = rm_control(rm, rm->client, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, &id, sizeof(id));
		if (st)
			return st;
		list[(*count)++] = (struct rm_gpu_info) {
			.gpu_id = card->gpu_id,
			.minor = card->minor_number,
			.device_instance = id.deviceInstance,
			.sub_device_instance = id.subDeviceInstance,
			.domain = card->pci_info.domain,
			.bus = card->pci_info.bus,
			.slot = card->pci_info.slot,
			.function = card->pci_info.function,
			.vendor_id = card->pci_info.vendor_id,
			.device_id = card->pci_info.device_id,
		};
	}
	return 0;
}

static rm_status read_uuid(struct rm_gpu *gpu)
{
	struct nv_gid_info gid = { .flags = NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY };
	rm_status st;

	st = rm_control(gpu->rm, gpu->subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &gid, sizeof(gid));
	memcpy(gpu->uuid, gid.data, sizeof(gpu->uuid));
	return st;
}

rm_status rm_gpu_open(struct rm_gpu *gpu, struct rm *rm, const struct rm_gpu_info *info)
{
	struct nv_device_params dev = { .deviceId = info->device_instance };
	struct nv_subdevice_params sub = { .subDeviceId = info->sub_device_instance };
	struct nv_register_fd reg = { .ctl_fd = rm->ctl };
	char node[32];
	rm_status st;

	memset(gpu, 0, sizeof(*gpu));
	gpu->rm = rm;
	gpu->info = *info;
	snprintf(node, sizeof(node), "nvidia%u", info->minor);
	gpu->fd = rm_open_node(rm, node);
	if (gpu->fd < 0)
		return rm_note_open(rm, node);
	st = rm_ioctl(rm, gpu->fd, NV_ESC_REGISTER_FD, &reg, sizeof(reg), NULL, "REGISTER_FD");
	if (!st)
		st = rm_alloc(rm, rm->client, NV01_DEVICE_0, &dev, sizeof(dev), &gpu->device);
	if (!st)
		st = rm_alloc(rm, gpu->device, NV20_SUBDEVICE_0, &sub, sizeof(sub),
			      &gpu->subdevice);
	if (!st)
		st = read_uuid(gpu);
	if (st)
		rm_gpu_close(gpu);
	return st;
}

void rm_gpu_close(struct rm_gpu *gpu)
{
	if (gpu->device)
		rm_free(gpu->rm, gpu->rm->client, gpu->device);
	if (gpu->fd >= 0)
		close(gpu->fd);
	gpu->device = 0;
	gpu->fd = -1;
}

static const struct rm_arch archs[] = ABI_ARCHS;	/* newest first */
#define ARCH_COUNT (sizeof(archs) / sizeof(archs[0]))

static bool has_class(const struct nv_class_list *classes, uint32_t class_id)
{
	for (uint32_t i = 0; i < classes->numClasses && i < 200; i++)
		if (classes->classList[i] == class_id)
			return true;
	return false;
}

rm_status rm_gpu_find_arch(struct rm_gpu *gpu)
{
	struct nv_class_list classes = { 0 };
	rm_status st;

	st = rm_control(gpu->rm, gpu->device, NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2, &classes,
			sizeof(classes));
	if (st)
		return st;
	for (size_t i = 0; i < ARCH_COUNT; i++) {
		if (has_class(&classes, archs[i].gpfifo) && has_class(&classes, archs[i].compute)) {
			gpu->arch = &archs[i];
			return 0;
		}
	}
	return rm_note(gpu->rm, NV_ERR_NOT_SUPPORTED, "a channel class known here in GET_CLASSLIST_V2");
}

rm_status rm_gpu_name(struct rm_gpu *gpu, char name[64])
{
	struct nv_gpu_name arg = { 0 };
	rm_status st;

	st = rm_control(gpu->rm, gpu->subdevice, NV2080_CTRL_CMD_GPU_GET_NAME_STRING, &arg, sizeof(arg));
	snprintf(name, 64, "%.63s", arg.gpuNameString);
	return st;
}

void rm_gpu_uuid_text(const struct rm_gpu *gpu, char text[48])
{
	const uint8_t *u = gpu->uuid;
	int n = sprintf(text, "GPU-");

	for (int i = 0; i < 16; i++)
		n += sprintf(text + n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			     u[i]);
}

rm_status rm_gpu_memory(struct rm_gpu *gpu, struct rm_memory *mem)
{
	struct nv_fb_info_v2 fb = {
		.fbInfoListSize = 3,
		.fbInfoList = { { NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE, 0 }, { NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE, 0 },
				{ NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE, 0 } },
	};
	rm_status st;

	st = rm_control(gpu->rm, gpu->subdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2, &fb, sizeof(fb));
	mem->ram = (uint64_t)fb.fbInfoList[0].data << 10;
	mem->total = (uint64_t)fb.fbInfoList[1].data << 10;
	mem->free = (uint64_t)fb.fbInfoList[2].data << 10;
	return st;
}

rm_status rm_gpu_processes(struct rm_gpu *gpu, struct rm_process *list, unsigned int max,
			   unsigned int *count)
{
	/* With a class other than the subdevice's, the list has only processes with a context. */
	struct nv_pids pids = { .id = KEPLER_CHANNEL_GROUP_A };
	struct nv_pids_info *info;
	rm_status st;

	*count = 0;
	st = rm_control(gpu->rm, gpu->subdevice, NV2080_CTRL_CMD_GPU_GET_PIDS, &pids, sizeof(pids));
	if (st || !pids.pidTblCount)
		return st;
	info = calloc(1, sizeof(*info));
	if (!info)
		return rm_note(gpu->rm, -ENOMEM, "calloc");
	for (uint32_t i = 0; i < pids.pidTblCount && i < 200; i++)
		info->pidInfoList[info->pidInfoListCount++].pid = pids.pidTbl[i];
	st = rm_control(gpu->rm, gpu->subdevice, NV2080_CTRL_CMD_GPU_GET_PID_INFO, info, sizeof(*info));
	for (uint32_t i = 0; !st && i < info->pidInfoListCount && *count < max; i++)
		list[(*count)++] = (struct rm_process) {
			.pid = info->pidInfoList[i].pid,
			.bytes = info->pidInfoList[i].data.memPrivate + info->pidInfoList[i].data.memSharedOwned,
		};
	free(info);
	return st;
}

/* Busy part of the last second: its samples are before the tracker. */
rm_status rm_gpu_utilization(struct rm_gpu *gpu, unsigned int *percent)
{
	struct nv_util_samples *samples = calloc(1, sizeof(*samples));
	const size_t head = offsetof(struct nv_util_samples, samples), slots = 72;
	bool old = gpu->rm->branch < 570;
	size_t graphics = offsetof(struct nv_util_sample, fb) +
		(old ? sizeof(struct nv_engine_util_v1) : sizeof(struct nv_engine_util));
	const uint32_t cmd = NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2;
	size_t each = (control_bytes(gpu->rm, cmd, sizeof(*samples)) - head) / slots;
	uint64_t sum = 0, used = 0, time;
	uint32_t util;
	rm_status st;

	if (!samples)
		return rm_note(gpu->rm, -ENOMEM, "calloc");
	samples->bufSize = each * slots;
	st = rm_control(gpu->rm, gpu->subdevice, cmd, samples, sizeof(*samples));
	for (uint32_t i = 1; !st && i <= 6; i++) {
		const char *at = (char *)samples->samples + (samples->tracker + slots - i) % slots * each;

		memcpy(&time, at, sizeof(time));
		memcpy(&util, at + graphics, sizeof(util));
		if (!time)
			continue;
		sum += util;
		used++;
	}
	*percent = used ? sum / used / 100 : 0;
	free(samples);
	return st;
}
