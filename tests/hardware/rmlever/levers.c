// SPDX-License-Identifier: MIT
/* The calls themselves, timed around the ioctl. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

#include "rmlever.h"

#include "nv_abi.h"
#include "nv_call.h"

static struct outcome control(uint32_t client, uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct nv_control arg = {
		.client = client, .object = object, .cmd = cmd, .params = (uintptr_t)params, .params_size = size,
	};
	struct outcome out = { .begin_ns = now_ns() };
	int fd = objects_fd(client);

	if (fd < 0)
		out.status = -EBADF;
	else if (real_ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', ESC_RM_CONTROL, sizeof(arg)), &arg) < 0)
		out.status = -errno;
	else
		out.status = arg.status;
	out.end_ns = now_ns();
	return out;
}

struct outcome lever_timeslice(const struct object *tsg, uint64_t us)
{
	return control(tsg->client, tsg->handle, CTRL_TSG_SET_TIMESLICE, &us, sizeof(us));
}

struct outcome lever_get_timeslice(const struct object *tsg, uint64_t *us)
{
	return control(tsg->client, tsg->handle, CTRL_TSG_GET_TIMESLICE, us, sizeof(*us));
}

struct outcome lever_preempt(const struct object *tsg, bool wait, uint32_t timeout_us)
{
	struct nv_preempt arg = { .wait = wait, .manual_timeout = timeout_us != 0, .timeout_us = timeout_us };

	return control(tsg->client, tsg->handle, CTRL_TSG_PREEMPT, &arg, sizeof(arg));
}

struct outcome lever_restart(const struct object *channel, bool force, bool bypass)
{
	uint8_t arg[2] = { force, bypass };

	return control(channel->client, channel->handle, CTRL_RESTART_RUNLIST, arg, sizeof(arg));
}

struct outcome lever_disable(const struct object *by, const struct channel_name *list, uint32_t count, bool disable,
			     bool only_scheduling)
{
	struct nv_disable_channels arg = { .disable = disable, .count = count, .only_scheduling = only_scheduling };
	struct object sub;

	if (!objects_subdevice(by, &sub))
		return (struct outcome) { .status = -ENODEV };
	for (uint32_t i = 0; i < count; i++) {
		arg.client[i] = list[i].client;
		arg.channel[i] = list[i].handle;
	}
	return control(sub.client, sub.handle, CTRL_DISABLE_CHANNELS, &arg, sizeof(arg));
}

struct outcome lever_heap(const struct object *by, uint64_t *total_bytes, uint64_t *free_bytes)
{
	struct nv_fb_info arg = { .count = 2, .list = { FB_HEAP_SIZE, 0, FB_HEAP_FREE, 0 } };
	struct object sub;
	struct outcome out;

	if (!objects_subdevice(by, &sub))
		return (struct outcome) { .status = -ENODEV };
	out = control(sub.client, sub.handle, CTRL_FB_GET_INFO_V2, &arg,
		      abi_bytes(driver_branch ? driver_branch : 580, CTRL_FB_GET_INFO_V2, sizeof(arg)));
	*total_bytes = (uint64_t)arg.list[1] << 10;
	*free_bytes = (uint64_t)arg.list[3] << 10;
	return out;
}

struct outcome lever_samples(const struct object *by, struct util_sample *out, unsigned int max, unsigned int *count)
{
	const struct cgpu_control *row = cgpu_call_control(table_branch(), NV2080_CTRL_PERF_UTIL_SAMPLES);
	const struct cgpu_abi *abi = cgpu_call_abi(table_branch());
	static unsigned char params[NV_UTIL_PARAMS_MAX];
	uint64_t oldest = UINT64_MAX, ns;
	uint32_t each, slots, first = 0, size;
	struct outcome done;
	struct object sub;

	*count = 0;
	if (!row || !objects_subdevice(by, &sub))
		return (struct outcome) { .status = -ENODEV };
	size = row->params_size - NV_UTIL_SAMPLES;
	each = abi->util_stride;
	slots = size / each;
	memset(params, 0, sizeof(params));
	memcpy(params + NV_UTIL_BUFFER_SIZE, &size, sizeof(size));
	done = control(sub.client, sub.handle, NV2080_CTRL_PERF_UTIL_SAMPLES, params, row->params_size);
	for (uint32_t i = 0; !done.status && i < slots; i++) {
		ns = long_at(params + NV_UTIL_SAMPLES + i * each + NV_UTIL_TIME);
		if (ns && ns < oldest) {
			oldest = ns;
			first = i;
		}
	}
	for (uint32_t i = 0; !done.status && i < slots && *count < max; i++) {
		const unsigned char *at = params + NV_UTIL_SAMPLES + (first + i) % slots * each;

		if (!long_at(at + NV_UTIL_TIME))
			continue;
		out[*count].ns = long_at(at + NV_UTIL_TIME);
		out[(*count)++].pid = word_at(at + abi->util_pid);
	}
	return done;
}
