/* SPDX-License-Identifier: MIT */
/* The objects that work needs: address spaces, memory, groups of channels, channels. */
#include "rm.h"
#include "rm_internal.h"

#include <errno.h>
#include <string.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- address spaces and memory ---- */

/*
 * CPU mappings: the driver keeps one pending mapping per file, so each takes a
 * fresh file of the GPU node (video memory, doorbells) or the control node.
 */
static rm_status map_cpu(struct rm_gpu *gpu, bool system, uint32_t parent, uint32_t memory,
			 uint64_t length, void **cpu)
{
	struct rm *rm = gpu->rm;
	struct nvos33_fd arg = {
		.params.hClient = rm->client,
		.params.hDevice = parent,
		.params.hMemory = memory,
		.params.length = length,
	};
	struct nv_register_fd reg = { .ctl_fd = rm->ctl };
	rm_status st = 0;
	char node[32];

	snprintf(node, sizeof(node), system ? "nvidiactl" : "nvidia%u", gpu->info.minor);
	arg.fd = rm_open_node(rm, node);
	if (arg.fd < 0)
		return rm_note_open(rm, node);
	if (!system)
		st = rm_ioctl(rm, arg.fd, NV_ESC_REGISTER_FD, &reg, sizeof(reg), NULL,
			      "REGISTER_FD");
	if (!st)
		st = rm_ioctl(rm, rm->ctl, NV_ESC_RM_MAP_MEMORY, &arg, sizeof(arg), &arg.params.status,
			      "RM_MAP_MEMORY");
	if (!st) {
		*cpu = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, arg.fd, 0);
		if (*cpu == MAP_FAILED) {
			*cpu = NULL;
			st = rm_note_errno(rm, system ? "mmap(nvidiactl)" : "mmap(GPU node)");
		}
	}
	close(arg.fd);
	return st;
}

static rm_status uvm_call(struct rm_space *space, unsigned long nr, void *arg,
			  const uint32_t *status, const char *call)
{
	if (ioctl(space->uvm, nr, arg) < 0)
		return rm_note_errno(space->gpu->rm, call);
	return rm_note(space->gpu->rm, *status, call);
}

/* As libcuda does: a second file, closed if the driver does not need it. */
static rm_status keep_mm(struct rm_space *space)
{
	struct uvm_mm_init mm = { .uvmFd = space->uvm };
	int fd = rm_open_node(space->gpu->rm, "nvidia-uvm");

	if (fd < 0)
		return rm_note_open(space->gpu->rm, "nvidia-uvm");
	if (ioctl(fd, UVM_MM_INITIALIZE, &mm) < 0) {
		close(fd);
		return rm_note_errno(space->gpu->rm, "UVM_MM_INITIALIZE");
	}
	if (mm.rmStatus) {
		close(fd);
		fd = -1;
	}
	space->uvm_mm = fd;
	return mm.rmStatus == NV_WARN_NOTHING_TO_DO ? NV_OK :
		rm_note(space->gpu->rm, mm.rmStatus, "UVM_MM_INITIALIZE");
}

static rm_status uvm_attach(struct rm_space *space)
{
	struct rm_gpu *gpu = space->gpu;
	struct uvm_init init = { 0 };
	struct uvm_reg_gpu reg = { .rmCtrlFd = -1 };
	struct uvm_gpu_vas vas = {
		.rmCtrlFd = gpu->rm->ctl,
		.hClient = gpu->rm->client,
		.hVaSpace = space->vaspace,
	};
	rm_status st;

	memcpy(reg.gpu_uuid, gpu->uuid, sizeof(reg.gpu_uuid));
	memcpy(vas.gpuUuid, gpu->uuid, sizeof(vas.gpuUuid));
	st = uvm_call(space, UVM_INITIALIZE, &init, &init.rmStatus, "UVM_INITIALIZE");
	if (!st)
		st = keep_mm(space);
	if (!st)
		st = uvm_call(space, UVM_REGISTER_GPU, &reg, &reg.rmStatus, "UVM_REGISTER_GPU");
	if (!st)
		st = uvm_call(space, UVM_REGISTER_GPU_VASPACE, &vas, &vas.rmStatus,
			      "UVM_REGISTER_GPU_VASPACE");
	return st;
}

rm_status rm_space_create(struct rm_space *space, struct rm_gpu *gpu)
{
	struct nv_vaspace_params params = {
		.flags = VASPACE_FLAGS,
	};
	rm_status st;

	*space = (struct rm_space) { .gpu = gpu, .uvm_mm = -1, .next_va = FIRST_VA };
	space->uvm = rm_open_node(gpu->rm, "nvidia-uvm");
	if (space->uvm < 0)
		return rm_note_open(gpu->rm, "nvidia-uvm");
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
	if (space->uvm_mm >= 0)
		close(space->uvm_mm);
	space->uvm_mm = -1;
	space->uvm = -1;
	if (space->vaspace)
		rm_free(space->gpu->rm, space->gpu->device, space->vaspace);
	space->vaspace = 0;
}

/* Older drivers have the same struct for fewer GPUs. */
#define MAP_EXTERNAL(type, space, at, buf)						\
	({										\
		static type map_;	/* 9 KiB: not on the stack */			\
											\
		map_ = (type) {								\
			.base = (at), .length = (buf)->size, .gpuAttributesCount = 1,		\
			.rmCtrlFd = (space)->gpu->rm->ctl,				\
			.hClient = (space)->gpu->rm->client, .hMemory = (buf)->handle,	\
		};									\
		memcpy(map_.perGpuAttributes[0].gpuUuid, (space)->gpu->uuid,		\
		       sizeof((space)->gpu->uuid));					\
		uvm_call(space, UVM_MAP_EXTERNAL_ALLOCATION, &map_, &map_.rmStatus,	\
			 "UVM_MAP_EXTERNAL_ALLOCATION");				\
	})

static rm_status free_range(struct rm_space *space, uint64_t base)
{
	struct uvm_free_v2 by_base = { .base = base };
	struct uvm_free range = { .base = base };

	if (space->gpu->rm->branch >= 590)
		return uvm_call(space, UVM_FREE, &by_base, &by_base.rmStatus, "UVM_FREE");
	return uvm_call(space, UVM_FREE, &range, &range.rmStatus, "UVM_FREE");
}

static rm_status map_gpu(struct rm_buffer *buf)
{
	struct rm_space *space = buf->space;
	uint64_t length = (buf->size + 0xffff) & ~0xffffull;
	struct uvm_range range = { .base = space->next_va, .length = length };
	rm_status st;

	st = uvm_call(space, UVM_CREATE_EXTERNAL_RANGE, &range, &range.rmStatus,
		      "UVM_CREATE_EXTERNAL_RANGE");
	if (st)
		return st;
	space->next_va += (length + VA_ALIGN - 1) & ~(VA_ALIGN - 1);

	st = space->gpu->rm->branch >= 550 ?
		MAP_EXTERNAL(struct uvm_map_ext, space, range.base, buf) :
		MAP_EXTERNAL(struct uvm_map_ext_v1, space, range.base, buf);
	if (st)
		free_range(space, range.base);
	else
		buf->va = range.base;
	return st;
}

rm_status rm_buffer_create(struct rm_buffer *buf, struct rm_space *space, uint64_t size,
			   unsigned int how)
{
	struct rm_gpu *gpu = space->gpu;
	struct nv_mem_params params = {
		.owner = gpu->rm->client,
		.attr = ATTR_NONCONTIG_ALLOWED,
		.size = size,
	};
	rm_status st;

	*buf = (struct rm_buffer) { .space = space, .system = how & RM_BUF_SYSTEM };
	if (buf->system) {
		params.attr |= ATTR_LOCATION_PCI;
	} else if (size % VA_ALIGN == 0) {
		params.attr |= ATTR_PAGE_HUGE;
		params.attr2 |= ATTR2_PAGE_2M;
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

/* In CUDA's observed order of frees: the handle first, the GPU mapping last. */
void rm_buffer_destroy(struct rm_buffer *buf)
{
	if (buf->cpu)
		munmap(buf->cpu, buf->size);
	if (buf->handle)
		rm_free(buf->space->gpu->rm, buf->space->gpu->device, buf->handle);
	if (buf->va)
		free_range(buf->space, buf->va);
	memset(buf, 0, sizeof(*buf));
}

/* ---- groups and channels ---- */

rm_status rm_group_create(struct rm_group *group, struct rm_space *space, uint32_t engine)
{
	struct rm_gpu *gpu = space->gpu;
	struct nv_tsg_params tsg = { .hVASpace = space->vaspace, .engineType = engine };
	void *page;
	rm_status st;

	*group = (struct rm_group) { .space = space, .engine = engine };
	st = gpu->arch ? 0 : rm_gpu_find_arch(gpu);
	if (!st)
		st = rm_buffer_create(&group->notifier, space, 4096, RM_BUF_SYSTEM | RM_BUF_CPU);
	if (!st) {
		tsg.hObjectError = group->notifier.handle;
		st = rm_alloc(gpu->rm, gpu->device, KEPLER_CHANNEL_GROUP_A, &tsg, sizeof(tsg),
			      &group->tsg);
	}
	if (!st)
		st = rm_alloc(gpu->rm, gpu->subdevice, gpu->arch->usermode, NULL, 0,
			      &group->usermode);
	if (!st)
		st = map_cpu(gpu, false, gpu->subdevice, group->usermode, NVC361_NV_USERMODE__SIZE, &page);
	if (st)
		rm_group_destroy(group);
	else
		group->doorbell = (volatile uint32_t *)((char *)page + NVC361_NOTIFY_CHANNEL_PENDING);
	return st;
}

rm_status rm_group_enable(struct rm_group *group, bool enable)
{
	struct nv_schedule arg = { .bEnable = enable };

	return rm_control(group->space->gpu->rm, group->tsg, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &arg,
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
		munmap((char *)group->doorbell - NVC361_NOTIFY_CHANNEL_PENDING, NVC361_NV_USERMODE__SIZE);
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
	struct nv_copy_params copy = { .version = 1, .engineType = ch->group->engine };

	if (ch->group->engine == NV2080_ENGINE_TYPE_GRAPHICS)
		return rm_alloc(gpu->rm, ch->handle, gpu->arch->compute, NULL, 0, &ch->object);
	return rm_alloc(gpu->rm, ch->handle, gpu->arch->copy, &copy, sizeof(copy), &ch->object);
}

/* The same with a handle of an address space before the USERD. */
static struct nv_chan_params_610 since_610(const struct nv_chan_params *p)
{
	struct nv_chan_params_610 newer = { 0 };

	memcpy(&newer, p, offsetof(struct nv_chan_params, hUserdMemory));
	memcpy(newer.hUserdMemory, p->hUserdMemory, sizeof(p->hUserdMemory));
	memcpy(newer.userdOffset, p->userdOffset,
	       sizeof(*p) - offsetof(struct nv_chan_params, userdOffset));
	return newer;
}

/* One buffer: semaphores, descriptors, ring, USERD. */
rm_status rm_channel_create(struct rm_channel *ch, struct rm_group *group, uint32_t depth)
{
	struct rm_gpu *gpu = group->space->gpu;
	uint32_t n = entries_for(depth);
	uint32_t pb_at = n * sizeof(struct nvsim_sem);
	uint32_t ring_at = pb_at + n * sizeof(struct nvsim_work);
	uint32_t userd_at = (ring_at + n * 8 + NV_RAMUSERD_CHAN_SIZE - 1) & ~(NV_RAMUSERD_CHAN_SIZE - 1);
	struct nv_chan_params params = {
		.gpFifoEntries = n,
		.engineType = group->engine,
		.hVASpace = 0,	/* the group's */
	};
	struct nv_token token = { 0 };
	struct nv_chan_params_610 newer;
	bool new_form = gpu->rm->branch >= 610;
	rm_status st;
	char *cpu;

	*ch = (struct rm_channel) { .group = group, .entries = n };
	st = rm_buffer_create(&ch->mem, group->space, (userd_at + NV_RAMUSERD_CHAN_SIZE + 4095) & ~4095u,
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

	params.hObjectError = group->notifier.handle;
	params.gpFifoOffset = ch->mem.va + ring_at;
	params.hUserdMemory[0] = ch->mem.handle;
	params.userdOffset[0] = userd_at;
	newer = since_610(&params);
	st = rm_alloc(gpu->rm, group->tsg, gpu->arch->gpfifo, new_form ? (void *)&newer : &params,
		      new_form ? sizeof(newer) : sizeof(params), &ch->handle);
	if (!st)
		st = alloc_engine_object(ch);
	if (!st)
		st = rm_control(gpu->rm, ch->handle, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, &token,
				sizeof(token));
	ch->token = token.workSubmitToken;
	if (st)
		rm_channel_destroy(ch);
	return st;
}

rm_status rm_channel_register(struct rm_channel *ch)
{
	struct rm_space *space = ch->group->space;
	struct uvm_reg_chan reg = {
		.rmCtrlFd = space->gpu->rm->ctl,
		.hClient = space->gpu->rm->client,
		.hChannel = ch->handle,
	};

	memcpy(reg.gpuUuid, space->gpu->uuid, sizeof(reg.gpuUuid));
	return uvm_call(space, UVM_REGISTER_CHANNEL, &reg, &reg.rmStatus, "UVM_REGISTER_CHANNEL");
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
	ch->userd[NV_USERD_GPPUT / 4] = ch->queued % ch->entries;
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
