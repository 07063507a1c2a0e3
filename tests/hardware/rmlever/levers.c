// SPDX-License-Identifier: MIT
/* The calls themselves, timed around the ioctl. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

#include "rmlever.h"

#include "nv_struct.h"
#include "nv_call.h"

static struct outcome control(uint32_t client, uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct nvos54 arg = {
		.hClient = client, .hObject = object, .cmd = cmd, .params = (uintptr_t)params, .paramsSize = size,
	};
	struct outcome out = { .begin_ns = now_ns() };
	int fd = objects_fd(client);

	if (fd < 0)
		out.status = -EBADF;
	else if (real_ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', NV_ESC_RM_CONTROL, sizeof(arg)), &arg) < 0)
		out.status = -errno;
	else
		out.status = arg.status;
	out.end_ns = now_ns();
	return out;
}

struct outcome lever_timeslice(const struct object *tsg, uint64_t us)
{
	return control(tsg->client, tsg->handle, NVA06C_CTRL_CMD_SET_TIMESLICE, &us, sizeof(us));
}

struct outcome lever_get_timeslice(const struct object *tsg, uint64_t *us)
{
	return control(tsg->client, tsg->handle, NVA06C_CTRL_CMD_GET_TIMESLICE, us, sizeof(*us));
}

struct outcome lever_preempt(const struct object *tsg, bool wait, uint32_t timeout_us)
{
	struct nv_preempt arg = { .bWait = wait, .bManualTimeout = timeout_us != 0, .timeoutUs = timeout_us };

	return control(tsg->client, tsg->handle, NVA06C_CTRL_CMD_PREEMPT, &arg, sizeof(arg));
}

struct outcome lever_restart(const struct object *channel, bool force, bool bypass)
{
	uint8_t arg[2] = { force, bypass };

	return control(channel->client, channel->handle, NVA06F_CTRL_CMD_RESTART_RUNLIST, arg, sizeof(arg));
}

struct outcome lever_disable(const struct object *by, const struct channel_name *list, uint32_t count, bool disable,
			     bool only_scheduling)
{
	struct nv_disable_channels arg = {
		.bDisable = disable, .numChannels = count, .bOnlyDisableScheduling = only_scheduling,
	};
	struct object sub;

	if (!objects_subdevice(by, &sub))
		return (struct outcome) { .status = -ENODEV };
	for (uint32_t i = 0; i < count; i++) {
		arg.hClientList[i] = list[i].client;
		arg.hChannelList[i] = list[i].handle;
	}
	return control(sub.client, sub.handle, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &arg, sizeof(arg));
}

struct outcome lever_heap(const struct object *by, uint64_t *total_bytes, uint64_t *free_bytes)
{
	const struct cgpu_control *row = cgpu_call_control(table_branch(), NV2080_CTRL_CMD_FB_GET_INFO_V2);
	struct nv_fb_info_v2 arg = {
		.fbInfoListSize = 2,
		.fbInfoList = { { NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE, 0 },
				{ NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE, 0 } },
	};
	struct object sub;
	struct outcome out;

	if (!objects_subdevice(by, &sub))
		return (struct outcome) { .status = -ENODEV };
	out = control(sub.client, sub.handle, NV2080_CTRL_CMD_FB_GET_INFO_V2, &arg, row->params_size);
	*total_bytes = (uint64_t)arg.fbInfoList[0].data << 10;
	*free_bytes = (uint64_t)arg.fbInfoList[1].data << 10;
	return out;
}

struct outcome lever_samples(const struct object *by, struct util_sample *out, unsigned int max, unsigned int *count)
{
	const uint32_t cmd = NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2;
	const struct cgpu_control *row = cgpu_call_control(table_branch(), cmd);
	const struct cgpu_abi *abi = cgpu_call_abi(table_branch());
	static unsigned char params[sizeof(struct nv_util_samples)];
	uint64_t oldest = UINT64_MAX, ns;
	uint32_t each, slots, first = 0, size;
	struct outcome done;
	struct object sub;

	*count = 0;
	if (!row || !objects_subdevice(by, &sub))
		return (struct outcome) { .status = -ENODEV };
	size = row->params_size - AT(nv_util_samples, samples);
	each = abi->util_stride;
	slots = size / each;
	memset(params, 0, sizeof(params));
	memcpy(params + AT(nv_util_samples, bufSize), &size, sizeof(size));
	done = control(sub.client, sub.handle, cmd, params, row->params_size);
	for (uint32_t i = 0; !done.status && i < slots; i++) {
		ns = long_at(params + AT(nv_util_samples, samples) + i * each + AT(nv_util_sample, base));
		if (ns && ns < oldest) {
			oldest = ns;
			first = i;
		}
	}
	for (uint32_t i = 0; !done.status && i < slots && *count < max; i++) {
		const unsigned char *at = params + AT(nv_util_samples, samples) + (first + i) % slots * each;

		if (!long_at(at + AT(nv_util_sample, base)))
			continue;
		out[*count].ns = long_at(at + AT(nv_util_sample, base));
		out[(*count)++].pid = word_at(at + abi->util_pid);
	}
	return done;
}
