/* SPDX-License-Identifier: MIT */
#include "rm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIRST_HANDLE	0x5c000000u
#define FIRST_VA	(1ull << 36)	/* a GPFIFO entry holds 40 bits */
#define VA_ALIGN	(2ull << 20)

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

/* Keep the first failure; hand the status on. */
static rm_status note(struct rm *rm, rm_status status, const char *call)
{
	if (status && !rm->error.call[0]) {
		snprintf(rm->error.call, sizeof(rm->error.call), "%s", call);
		rm->error.status = status;
	}
	return status;
}

static rm_status note_errno(struct rm *rm, const char *call)
{
	return note(rm, -errno, call);
}

static int open_node(struct rm *rm, const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", rm->dir, name);
	return open(path, O_RDWR | O_CLOEXEC);
}

static rm_status note_open(struct rm *rm, const char *name)
{
	char call[sizeof(rm->error.call)];

	snprintf(call, sizeof(call), "open(%.60s/%.24s)", rm->dir, name);
	return note_errno(rm, call);
}

rm_status rm_ioctl(struct rm *rm, int fd, unsigned int nr, void *arg, uint32_t size,
		   const uint32_t *status, const char *call)
{
	if (ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', nr, size), arg) < 0)
		return note_errno(rm, call);
	return note(rm, status ? *status : 0, call);
}

/* ---- the client and its calls ---- */

static rm_status check_version(struct rm *rm)
{
	struct nv_check_version ver = { .cmd = '2' };
	rm_status st;

	st = rm_ioctl(rm, rm->ctl, NV_ESC_CHECK_VERSION_STR, &ver, sizeof(ver), NULL,
		      "CHECK_VERSION_STR");
	memcpy(rm->version, ver.version, sizeof(rm->version) - 1);
	return st;
}

rm_status rm_open(struct rm *rm, const char *dir)
{
	struct nv_alloc arg = { .class_id = NV01_ROOT_CLIENT };
	rm_status st;

	memset(rm, 0, sizeof(*rm));
	rm->last_handle = FIRST_HANDLE;
	if (!dir)
		dir = getenv("NVSIM_DEV");
	snprintf(rm->dir, sizeof(rm->dir), "%s", dir && *dir ? dir : "/dev");

	rm->ctl = open_node(rm, "nvidiactl");
	if (rm->ctl < 0)
		return note_open(rm, "nvidiactl");
	st = check_version(rm);
	if (!st)
		st = rm_ioctl(rm, rm->ctl, NV_ESC_RM_ALLOC, &arg, sizeof(arg), &arg.status,
			      "RM_ALLOC(0x41)");
	if (st) {
		close(rm->ctl);
		rm->ctl = -1;
		return st;
	}
	rm->client = arg.handle;
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

rm_status rm_alloc(struct rm *rm, uint32_t parent, uint32_t class_id, void *params,
		   uint32_t size, uint32_t *handle)
{
	struct nv_alloc arg = {
		.root = rm->client,
		.parent = parent,
		.handle = ++rm->last_handle,
		.class_id = class_id,
		.params = (uintptr_t)params,
		.params_size = size,
	};
	char call[32];
	rm_status st;

	snprintf(call, sizeof(call), "RM_ALLOC(0x%x)", class_id);
	st = rm_ioctl(rm, rm->ctl, NV_ESC_RM_ALLOC, &arg, sizeof(arg), &arg.status, call);
	*handle = st ? 0 : arg.handle;
	return st;
}

rm_status rm_free(struct rm *rm, uint32_t parent, uint32_t handle)
{
	struct nv_free arg = { .root = rm->client, .parent = parent, .handle = handle };

	return rm_ioctl(rm, rm->ctl, NV_ESC_RM_FREE, &arg, sizeof(arg), &arg.status, "RM_FREE");
}

rm_status rm_control(struct rm *rm, uint32_t object, uint32_t cmd, void *params, uint32_t size)
{
	struct nv_control arg = {
		.client = rm->client,
		.object = object,
		.cmd = cmd,
		.params = (uintptr_t)params,
		.params_size = size,
	};
	char call[32];

	snprintf(call, sizeof(call), "RM_CONTROL(0x%x)", cmd);
	return rm_ioctl(rm, rm->ctl, NV_ESC_RM_CONTROL, &arg, sizeof(arg), &arg.status, call);
}

rm_status rm_dup(struct rm *rm, uint32_t parent, uint32_t client_src, uint32_t handle_src,
		 uint32_t *handle)
{
	struct nv_dup arg = {
		.client = rm->client,
		.parent = parent,
		.handle = ++rm->last_handle,
		.client_src = client_src,
		.handle_src = handle_src,
	};
	rm_status st;

	st = rm_ioctl(rm, rm->ctl, NV_ESC_RM_DUP_OBJECT, &arg, sizeof(arg), &arg.status,
		      "RM_DUP_OBJECT");
	*handle = st ? 0 : arg.handle;
	return st;
}

/*
 * CPU mappings: the driver keeps one pending mapping per file, so each takes a
 * fresh file of the GPU node (video memory, doorbells) or the control node.
 */
static rm_status map_cpu(struct rm_gpu *gpu, bool system, uint32_t parent, uint32_t memory,
			 uint64_t length, void **cpu)
{
	struct rm *rm = gpu->rm;
	struct nv_map_memory arg = {
		.client = rm->client,
		.device = parent,
		.memory = memory,
		.length = length,
	};
	struct nv_register_fd reg = { .ctl_fd = rm->ctl };
	rm_status st = 0;
	char node[32];

	snprintf(node, sizeof(node), system ? "nvidiactl" : "nvidia%u", gpu->info.minor);
	arg.fd = open_node(rm, node);
	if (arg.fd < 0)
		return note_open(rm, node);
	if (!system)
		st = rm_ioctl(rm, arg.fd, NV_ESC_REGISTER_FD, &reg, sizeof(reg), NULL,
			      "REGISTER_FD");
	if (!st)
		st = rm_ioctl(rm, rm->ctl, NV_ESC_RM_MAP_MEMORY, &arg, sizeof(arg), &arg.status,
			      "RM_MAP_MEMORY");
	if (!st) {
		*cpu = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, arg.fd, 0);
		if (*cpu == MAP_FAILED) {
			*cpu = NULL;
			st = note_errno(rm, system ? "mmap(nvidiactl)" : "mmap(GPU node)");
		}
	}
	close(arg.fd);
	return st;
}

/* ---- GPUs ---- */

static const struct nv_card_info *card_of(const struct nv_card_info *cards, uint32_t gpu_id)
{
	for (int i = 0; i < NV_MAX_GPUS; i++)
		if (cards[i].valid && cards[i].gpu_id == gpu_id)
			return &cards[i];
	return NULL;
}

static bool node_opens(struct rm *rm, uint32_t minor)
{
	char node[32];
	int fd;

	snprintf(node, sizeof(node), "nvidia%u", minor);
	fd = open_node(rm, node);
	if (fd < 0)
		return false;
	close(fd);
	return true;
}

rm_status rm_list_gpus(struct rm *rm, struct rm_gpu_info list[NV_MAX_GPUS], unsigned int *count)
{
	struct nv_card_info cards[NV_MAX_GPUS] = { 0 };
	struct nv_attached_ids ids = { 0 };
	rm_status st;

	*count = 0;
	st = rm_ioctl(rm, rm->ctl, NV_ESC_CARD_INFO, cards, sizeof(cards), NULL, "CARD_INFO");
	if (!st)
		st = rm_control(rm, rm->client, CTRL_GPU_GET_ATTACHED_IDS, &ids, sizeof(ids));
	if (st)
		return st;

	for (int i = 0; i < NV_MAX_GPUS && ids.gpu_id[i] != NV_GPU_ID_END; i++) {
		const struct nv_card_info *card = card_of(cards, ids.gpu_id[i]);
		struct nv_id_info id = { .gpu_id = ids.gpu_id[i] };

		if (!card || !node_opens(rm, card->minor))
			continue;
		st = rm_control(rm, rm->client, CTRL_GPU_GET_ID_INFO_V2, &id, sizeof(id));
		if (st)
			return st;
		list[(*count)++] = (struct rm_gpu_info) {
			.gpu_id = card->gpu_id,
			.minor = card->minor,
			.device_instance = id.device_instance,
			.sub_device_instance = id.sub_device_instance,
			.domain = card->domain,
			.bus = card->bus,
			.slot = card->slot,
			.function = card->function,
			.vendor_id = card->vendor_id,
			.device_id = card->device_id,
		};
	}
	return 0;
}

static rm_status read_uuid(struct rm_gpu *gpu)
{
	struct nv_gid_info gid = { .flags = NV_GID_FORMAT_BINARY };
	rm_status st;

	st = rm_control(gpu->rm, gpu->subdevice, CTRL_GPU_GET_GID_INFO, &gid, sizeof(gid));
	memcpy(gpu->uuid, gid.data, sizeof(gpu->uuid));
	return st;
}

rm_status rm_gpu_open(struct rm_gpu *gpu, struct rm *rm, const struct rm_gpu_info *info)
{
	struct nv_device_params dev = { .device_id = info->device_instance };
	struct nv_subdevice_params sub = { .sub_device_id = info->sub_device_instance };
	struct nv_register_fd reg = { .ctl_fd = rm->ctl };
	char node[32];
	rm_status st;

	memset(gpu, 0, sizeof(*gpu));
	gpu->rm = rm;
	gpu->info = *info;
	snprintf(node, sizeof(node), "nvidia%u", info->minor);
	gpu->fd = open_node(rm, node);
	if (gpu->fd < 0)
		return note_open(rm, node);
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

static const struct rm_arch archs[] = {		/* newest first */
	{ "Hopper", 0xc86f, 0xc661, 0xcbc0, 0xc8b5 },
	{ "Ada",    0xc56f, 0xc561, 0xc9c0, 0xc7b5 },
	{ "Ampere", 0xc56f, 0xc561, 0xc6c0, 0xc6b5 },
	{ "Turing", 0xc46f, 0xc461, 0xc5c0, 0xc5b5 },
};
#define ARCH_COUNT (sizeof(archs) / sizeof(archs[0]))

static bool has_class(const struct nv_classlist *classes, uint32_t class_id)
{
	for (uint32_t i = 0; i < classes->count && i < 200; i++)
		if (classes->class_id[i] == class_id)
			return true;
	return false;
}

rm_status rm_gpu_find_arch(struct rm_gpu *gpu)
{
	struct nv_classlist classes = { 0 };
	rm_status st;

	st = rm_control(gpu->rm, gpu->device, CTRL_GPU_GET_CLASSLIST_V2, &classes,
			sizeof(classes));
	if (st)
		return st;
	for (size_t i = 0; i < ARCH_COUNT; i++) {
		if (has_class(&classes, archs[i].gpfifo) && has_class(&classes, archs[i].compute)) {
			gpu->arch = &archs[i];
			return 0;
		}
	}
	return note(gpu->rm, NV_ERR_NOT_SUPPORTED, "a channel class known here in GET_CLASSLIST_V2");
}

rm_status rm_gpu_name(struct rm_gpu *gpu, char name[64])
{
	struct nv_gpu_name arg = { 0 };
	rm_status st;

	st = rm_control(gpu->rm, gpu->subdevice, CTRL_GPU_GET_NAME_STRING, &arg, sizeof(arg));
	snprintf(name, 64, "%.63s", arg.ascii);
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
	struct nv_fb_info fb = {
		.count = 3,
		.list = { { FB_INFO_RAM_SIZE, 0 }, { FB_INFO_HEAP_SIZE, 0 },
			  { FB_INFO_HEAP_FREE, 0 } },
	};
	rm_status st;

	st = rm_control(gpu->rm, gpu->subdevice, CTRL_FB_GET_INFO_V2, &fb, sizeof(fb));
	mem->ram = (uint64_t)fb.list[0].data << 10;
	mem->total = (uint64_t)fb.list[1].data << 10;
	mem->free = (uint64_t)fb.list[2].data << 10;
	return st;
}

rm_status rm_gpu_processes(struct rm_gpu *gpu, struct rm_process *list, unsigned int max,
			   unsigned int *count)
{
	/* Asked by a class other than the subdevice's, only processes with a context answer. */
	struct nv_pids pids = { .id = KEPLER_CHANNEL_GROUP_A };
	struct nv_pid_info *info;
	rm_status st;

	*count = 0;
	st = rm_control(gpu->rm, gpu->subdevice, CTRL_GPU_GET_PIDS, &pids, sizeof(pids));
	if (st || !pids.count)
		return st;
	info = calloc(1, sizeof(*info));
	if (!info)
		return note(gpu->rm, -ENOMEM, "calloc");
	for (uint32_t i = 0; i < pids.count && i < 200; i++)
		info->list[info->count++].pid = pids.pid[i];
	st = rm_control(gpu->rm, gpu->subdevice, CTRL_GPU_GET_PID_INFO, info, sizeof(*info));
	for (uint32_t i = 0; !st && i < info->count && *count < max; i++)
		list[(*count)++] = (struct rm_process) {
			.pid = info->list[i].pid,
			.bytes = info->list[i].private_bytes + info->list[i].shared_owned,
		};
	free(info);
	return st;
}

/* ---- address spaces and memory ---- */

static rm_status uvm_call(struct rm_space *space, unsigned long nr, void *arg,
			  const uint32_t *status, const char *call)
{
	if (ioctl(space->uvm, nr, arg) < 0)
		return note_errno(space->gpu->rm, call);
	return note(space->gpu->rm, *status, call);
}

static rm_status uvm_attach(struct rm_space *space)
{
	struct rm_gpu *gpu = space->gpu;
	struct uvm_initialize init = { 0 };
	struct uvm_register_gpu reg = { .ctl_fd = -1 };
	struct uvm_register_vaspace vas = {
		.ctl_fd = gpu->rm->ctl,
		.client = gpu->rm->client,
		.vaspace = space->vaspace,
	};
	rm_status st;

	memcpy(reg.uuid, gpu->uuid, sizeof(reg.uuid));
	memcpy(vas.uuid, gpu->uuid, sizeof(vas.uuid));
	st = uvm_call(space, UVM_INITIALIZE, &init, &init.status, "UVM_INITIALIZE");
	if (!st)
		st = uvm_call(space, UVM_REGISTER_GPU, &reg, &reg.status, "UVM_REGISTER_GPU");
	if (!st)
		st = uvm_call(space, UVM_REGISTER_GPU_VASPACE, &vas, &vas.status,
			      "UVM_REGISTER_GPU_VASPACE");
	return st;
}

rm_status rm_space_create(struct rm_space *space, struct rm_gpu *gpu)
{
	struct nv_vaspace_params params = {
		.flags = NV_VASPACE_EXTERNALLY_OWNED | NV_VASPACE_PAGE_FAULTING,
	};
	rm_status st;

	*space = (struct rm_space) { .gpu = gpu, .next_va = FIRST_VA };
	space->uvm = open_node(gpu->rm, "nvidia-uvm");
	if (space->uvm < 0)
		return note_open(gpu->rm, "nvidia-uvm");
	st = rm_alloc(gpu->rm, gpu->device, FERMI_VASPACE_A, &params, sizeof(params),
		      &space->vaspace);
	if (!st)
		st = uvm_attach(space);
	if (st)
		rm_space_destroy(space);
	return st;
}

void rm_space_destroy(struct rm_space *space)
{
	if (space->uvm >= 0)
		close(space->uvm);
	space->uvm = -1;
	if (space->vaspace)
		rm_free(space->gpu->rm, space->gpu->device, space->vaspace);
	space->vaspace = 0;
}

static rm_status map_gpu(struct rm_buffer *buf)
{
	static struct uvm_map_external map;	/* 9 KiB: not on the stack */
	struct rm_space *space = buf->space;
	struct rm *rm = space->gpu->rm;
	uint64_t length = (buf->size + 0xffff) & ~0xffffull;
	struct uvm_range range = { .base = space->next_va, .length = length };
	rm_status st;

	st = uvm_call(space, UVM_CREATE_EXTERNAL_RANGE, &range, &range.status,
		      "UVM_CREATE_EXTERNAL_RANGE");
	if (st)
		return st;
	space->next_va += (length + VA_ALIGN - 1) & ~(VA_ALIGN - 1);

	memset(&map, 0, sizeof(map));
	map.base = range.base;
	map.length = buf->size;
	map.gpu_count = 1;
	memcpy(map.gpu[0].uuid, space->gpu->uuid, sizeof(map.gpu[0].uuid));
	map.ctl_fd = rm->ctl;
	map.client = rm->client;
	map.memory = buf->handle;
	st = uvm_call(space, UVM_MAP_EXTERNAL_ALLOCATION, &map, &map.status,
		      "UVM_MAP_EXTERNAL_ALLOCATION");
	if (st)
		uvm_call(space, UVM_FREE, &range, &range.status, "UVM_FREE");
	else
		buf->va = range.base;
	return st;
}

rm_status rm_buffer_create(struct rm_buffer *buf, struct rm_space *space, uint64_t size,
			   unsigned int how)
{
	struct rm_gpu *gpu = space->gpu;
	struct nv_memory_params params = {
		.owner = gpu->rm->client,
		.attr = NV_ATTR_NONCONTIG_ALLOWED,
		.size = size,
	};
	rm_status st;

	*buf = (struct rm_buffer) { .space = space, .system = how & RM_BUF_SYSTEM };
	if (buf->system) {
		params.attr |= NV_ATTR_LOCATION_PCI;
	} else if (size % VA_ALIGN == 0) {
		params.attr |= NV_ATTR_PAGE_SIZE_HUGE;
		params.attr2 |= NV_ATTR2_PAGE_SIZE_2M;
	}
	st = rm_alloc(gpu->rm, gpu->device, buf->system ? NV01_MEMORY_SYSTEM : NV01_MEMORY_LOCAL_USER,
		      &params, sizeof(params), &buf->handle);
	if (st)
		return st;
	buf->size = params.size;
	if (how & RM_BUF_GPU)
		st = map_gpu(buf);
	if (!st && (how & RM_BUF_CPU))
		st = map_cpu(gpu, buf->system, gpu->device, buf->handle, buf->size, &buf->cpu);
	if (st)
		rm_buffer_destroy(buf);
	return st;
}

/* In the order CUDA was seen to free: the handle first, the GPU mapping last. */
void rm_buffer_destroy(struct rm_buffer *buf)
{
	struct uvm_range range = { .base = buf->va };

	if (buf->cpu)
		munmap(buf->cpu, buf->size);
	if (buf->handle)
		rm_free(buf->space->gpu->rm, buf->space->gpu->device, buf->handle);
	if (buf->va)
		uvm_call(buf->space, UVM_FREE, &range, &range.status, "UVM_FREE");
	memset(buf, 0, sizeof(*buf));
}

/* ---- groups and channels ---- */

rm_status rm_group_create(struct rm_group *group, struct rm_space *space, uint32_t engine)
{
	struct rm_gpu *gpu = space->gpu;
	struct nv_tsg_params tsg = { .vaspace = space->vaspace, .engine = engine };
	void *page;
	rm_status st;

	*group = (struct rm_group) { .space = space, .engine = engine };
	st = gpu->arch ? 0 : rm_gpu_find_arch(gpu);
	if (!st)
		st = rm_buffer_create(&group->notifier, space, 4096, RM_BUF_SYSTEM | RM_BUF_CPU);
	if (!st) {
		tsg.error_object = group->notifier.handle;
		st = rm_alloc(gpu->rm, gpu->device, KEPLER_CHANNEL_GROUP_A, &tsg, sizeof(tsg),
			      &group->tsg);
	}
	if (!st)
		st = rm_alloc(gpu->rm, gpu->subdevice, gpu->arch->usermode, NULL, 0,
			      &group->usermode);
	if (!st)
		st = map_cpu(gpu, false, gpu->subdevice, group->usermode, DOORBELL_SIZE, &page);
	if (st)
		rm_group_destroy(group);
	else
		group->doorbell = (volatile uint32_t *)((char *)page + DOORBELL_OFFSET);
	return st;
}

rm_status rm_group_enable(struct rm_group *group, bool enable)
{
	struct nv_schedule arg = { .enable = enable };

	return rm_control(group->space->gpu->rm, group->tsg, CTRL_TSG_GPFIFO_SCHEDULE, &arg,
			  sizeof(arg));
}

uint32_t rm_group_fault(const struct rm_group *group)
{
	volatile const struct nv_notification *n = group->notifier.cpu;

	if (!n || !n->status)
		return 0;
	return n->info32 ? n->info32 : n->status;
}

void rm_group_destroy(struct rm_group *group)
{
	struct rm_gpu *gpu = group->space->gpu;

	if (group->tsg)
		rm_free(gpu->rm, gpu->device, group->tsg);
	if (group->doorbell)
		munmap((char *)group->doorbell - DOORBELL_OFFSET, DOORBELL_SIZE);
	if (group->usermode)
		rm_free(gpu->rm, gpu->subdevice, group->usermode);
	rm_buffer_destroy(&group->notifier);
	group->tsg = group->usermode = 0;
	group->doorbell = NULL;
}

static uint32_t entries_for(uint32_t depth)
{
	uint32_t n = 16;

	while (n < depth + 1)	/* a full ring would look empty */
		n *= 2;
	return n;
}

static rm_status alloc_engine_object(struct rm_channel *ch)
{
	struct rm_gpu *gpu = ch->group->space->gpu;
	struct nv_copy_params copy = { .version = 1, .engine = ch->group->engine };

	if (ch->group->engine == NV_ENGINE_GR0)
		return rm_alloc(gpu->rm, ch->handle, gpu->arch->compute, NULL, 0, &ch->object);
	return rm_alloc(gpu->rm, ch->handle, gpu->arch->copy, &copy, sizeof(copy), &ch->object);
}

/* One buffer: semaphores, descriptors, ring, USERD. */
rm_status rm_channel_create(struct rm_channel *ch, struct rm_group *group, uint32_t depth)
{
	struct rm_gpu *gpu = group->space->gpu;
	uint32_t n = entries_for(depth);
	uint32_t pb_at = n * sizeof(struct nvsim_sem);
	uint32_t ring_at = pb_at + n * sizeof(struct nvsim_work);
	uint32_t userd_at = (ring_at + n * 8 + USERD_SIZE - 1) & ~(USERD_SIZE - 1);
	struct nv_channel_params params = {
		.gpfifo_entries = n,
		.engine = group->engine,
		.vaspace = 0,	/* the group's */
	};
	struct nv_token token = { 0 };
	rm_status st;
	char *cpu;

	*ch = (struct rm_channel) { .group = group, .entries = n };
	st = rm_buffer_create(&ch->mem, group->space, (userd_at + USERD_SIZE + 4095) & ~4095u,
			      RM_BUF_SYSTEM | RM_BUF_CPU | RM_BUF_GPU);
	if (st)
		return st;
	cpu = ch->mem.cpu;
	ch->sem = (void *)cpu;
	ch->pb = (void *)(cpu + pb_at);
	ch->ring = (void *)(cpu + ring_at);
	ch->userd = (void *)(cpu + userd_at);
	ch->sem_va = ch->mem.va;
	ch->pb_va = ch->mem.va + pb_at;

	params.error_object = group->notifier.handle;
	params.gpfifo_va = ch->mem.va + ring_at;
	params.userd_memory[0] = ch->mem.handle;
	params.userd_offset[0] = userd_at;
	st = rm_alloc(gpu->rm, group->tsg, gpu->arch->gpfifo, &params, sizeof(params), &ch->handle);
	if (!st)
		st = alloc_engine_object(ch);
	if (!st)
		st = rm_control(gpu->rm, ch->handle, CTRL_GET_WORK_SUBMIT_TOKEN, &token,
				sizeof(token));
	ch->token = token.token;
	if (st)
		rm_channel_destroy(ch);
	return st;
}

void rm_channel_destroy(struct rm_channel *ch)
{
	if (ch->handle)
		rm_free(ch->group->space->gpu->rm, ch->group->tsg, ch->handle);
	if (ch->mem.handle)
		rm_buffer_destroy(&ch->mem);
	ch->handle = 0;
}

void rm_channel_queue(struct rm_channel *ch, uint32_t op, uint32_t flags, uint64_t amount)
{
	uint32_t slot = ch->queued % ch->entries;
	uint64_t va = ch->pb_va + slot * sizeof(struct nvsim_work);
	uint64_t words = sizeof(struct nvsim_work) / 4;

	ch->pb[slot].op = op;
	ch->pb[slot].flags = flags;
	ch->pb[slot].amount = amount;
	ch->pb[slot].sem_va = ch->sem_va + slot * sizeof(struct nvsim_sem);
	ch->pb[slot].sem_value = ch->queued + 1;
	ch->ring[slot] = (va & 0xfffffffcull) | (va >> 32 & 0xff) << 32 | words << 42;
	ch->queued++;
}

void rm_channel_kick(struct rm_channel *ch)
{
	__sync_synchronize();	/* the ring before the index, the index before the bell */
	ch->userd[USERD_GP_PUT / 4] = ch->queued % ch->entries;
	__sync_synchronize();
	*ch->group->doorbell = ch->token;
}

bool rm_channel_reap(struct rm_channel *ch, uint64_t *gpu_ns)
{
	volatile struct nvsim_sem *sem = &ch->sem[ch->done % ch->entries];

	if (ch->done == ch->queued || sem->value != ch->done + 1)
		return false;
	__sync_synchronize();
	*gpu_ns = sem->time_ns;
	ch->done++;
	return true;
}
