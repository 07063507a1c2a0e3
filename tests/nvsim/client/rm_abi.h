/* SPDX-License-Identifier: MIT */
/*
 * The driver's user ABI (580.105.08) as far as the test clients use it:
 * ioctl numbers, classes, controls and struct layouts. docs/develop/nvsim.md
 * describes their use. Written from the layouts, with names of our own; the asserts
 * below each struct check its size and the offsets that matter.
 */
#ifndef RM_ABI_H
#define RM_ABI_H

#include <stddef.h>
#include <stdint.h>

/* ---- status ---- */
#define NV_OK				0x00
#define NV_WARN_NOTHING_TO_DO		0x10006
#define NV_ERR_INSUFFICIENT_RESOURCES	0x1a
#define NV_ERR_INSUFFICIENT_PERMISSIONS	0x1b
#define NV_ERR_INVALID_ARGUMENT		0x1f
#define NV_ERR_INVALID_CLASS		0x22
#define NV_ERR_INVALID_CLIENT		0x23
#define NV_ERR_INVALID_STATE		0x40
#define NV_ERR_NO_MEMORY		0x51
#define NV_ERR_NOT_SUPPORTED		0x56
#define NV_ERR_OBJECT_NOT_FOUND		0x57

/* ---- ioctl numbers: _IOWR('F', nr, size) ---- */
#define NV_ESC_RM_FREE			0x29
#define NV_ESC_RM_CONTROL		0x2a
#define NV_ESC_RM_ALLOC			0x2b
#define NV_ESC_RM_DUP_OBJECT		0x34
#define NV_ESC_RM_MAP_MEMORY		0x4e
#define NV_ESC_RM_UNMAP_MEMORY		0x4f
#define NV_ESC_CARD_INFO		200
#define NV_ESC_REGISTER_FD		201
#define NV_ESC_CHECK_VERSION_STR	210

/* ---- nvidia-uvm: plain numbers ---- */
#define UVM_INITIALIZE			0x30000001
#define UVM_REGISTER_GPU_VASPACE	25
#define UVM_MM_INITIALIZE		75
#define UVM_UNREGISTER_GPU_VASPACE	26
#define UVM_MAP_EXTERNAL_ALLOCATION	33
#define UVM_FREE			34
#define UVM_REGISTER_GPU		37
#define UVM_UNREGISTER_GPU		38
#define UVM_UNMAP_EXTERNAL		66
#define UVM_CREATE_EXTERNAL_RANGE	73

/* ---- classes ---- */
#define NV01_MEMORY_SYSTEM		0x003e
#define NV01_MEMORY_LOCAL_USER		0x0040
#define NV01_ROOT_CLIENT		0x0041
#define NV01_DEVICE_0			0x0080
#define NV20_SUBDEVICE_0		0x2080
#define FERMI_VASPACE_A			0x90f1
#define KEPLER_CHANNEL_GROUP_A		0xa06c

/* ---- controls ---- */
#define CTRL_GPU_GET_ATTACHED_IDS	0x00000201
#define CTRL_GPU_GET_ID_INFO_V2		0x00000205
#define CTRL_GPU_GET_CLASSLIST_V2	0x00800292
#define CTRL_GPU_GET_NAME_STRING	0x20800110
#define CTRL_GPU_GET_GID_INFO		0x2080014a
#define CTRL_GPU_GET_PIDS		0x2080018d
#define CTRL_GPU_GET_PID_INFO		0x2080018e
#define CTRL_FB_GET_INFO_V2		0x20801303
#define CTRL_PERF_GET_UTIL_SAMPLES	0x20802096
#define CTRL_TSG_GPFIFO_SCHEDULE	0xa06c0101
#define CTRL_TSG_SET_TIMESLICE		0xa06c0103
#define CTRL_TSG_GET_TIMESLICE		0xa06c0104
#define CTRL_TSG_PREEMPT		0xa06c0105
#define CTRL_GET_WORK_SUBMIT_TOKEN	0xc36f0108

/* FB_GET_INFO_V2 indexes; data in KiB */
#define FB_INFO_RAM_SIZE		0x07
#define FB_INFO_TOTAL_RAM_SIZE		0x08
#define FB_INFO_HEAP_SIZE		0x09
#define FB_INFO_HEAP_FREE		0x16

#define NV_MAX_GPUS			32
#define NV_ENGINE_GR0			1
#define NV_ENGINE_COPY0			9

#define ABI_SIZE(type, bytes) \
	_Static_assert(sizeof(type) == (bytes), #type " is not " #bytes " bytes")
#define ABI_AT(type, field, offset) \
	_Static_assert(offsetof(type, field) == (offset), #type "." #field " is not at " #offset)

/* ---- top-level structs of /dev/nvidiactl ---- */

struct nv_alloc {		/* RM_ALLOC, NVOS64 */
	uint32_t root, parent, handle, class_id;
	uint64_t params;
	uint64_t rights;
	uint32_t params_size;
	uint32_t flags;
	uint32_t status;
	uint32_t pad;
};
ABI_SIZE(struct nv_alloc, 48);
ABI_AT(struct nv_alloc, params, 16);
ABI_AT(struct nv_alloc, params_size, 32);
ABI_AT(struct nv_alloc, status, 40);

struct nv_free {		/* NVOS00 */
	uint32_t root, parent, handle, status;
};
ABI_SIZE(struct nv_free, 16);

struct nv_control {		/* NVOS54 */
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};
ABI_SIZE(struct nv_control, 32);
ABI_AT(struct nv_control, cmd, 8);
ABI_AT(struct nv_control, status, 28);

struct nv_dup {			/* NVOS55 */
	uint32_t client, parent, handle, client_src, handle_src, flags, status;
};
ABI_SIZE(struct nv_dup, 28);

struct nv_map_memory {		/* NVOS33 and the fd the driver appends */
	uint32_t client, device, memory, pad0;
	uint64_t offset, length;
	uint64_t address;
	uint32_t status, flags;
	int32_t fd;
	uint32_t pad1;
};
ABI_SIZE(struct nv_map_memory, 56);
ABI_AT(struct nv_map_memory, status, 40);
ABI_AT(struct nv_map_memory, fd, 48);

struct nv_unmap_memory {	/* NVOS34 */
	uint32_t client, device, memory, pad0;
	uint64_t address;
	uint32_t status, flags;
};
ABI_SIZE(struct nv_unmap_memory, 32);
ABI_AT(struct nv_unmap_memory, status, 24);

struct nv_card_info {		/* CARD_INFO takes an array of these */
	uint8_t valid, pad0[3];
	uint32_t domain;
	uint8_t bus, slot, function, pad1;
	uint16_t vendor_id, device_id;
	uint32_t gpu_id;
	uint16_t irq, pad2;
	uint64_t reg_address, reg_size, fb_address, fb_size;
	uint32_t minor;
	uint8_t name[10], pad3[2];
};
ABI_SIZE(struct nv_card_info, 72);
ABI_AT(struct nv_card_info, gpu_id, 16);
ABI_AT(struct nv_card_info, reg_address, 24);
ABI_AT(struct nv_card_info, minor, 56);

struct nv_check_version {
	uint32_t cmd, reply;
	char version[64];
};
ABI_SIZE(struct nv_check_version, 72);

struct nv_register_fd {
	int32_t ctl_fd;
};
ABI_SIZE(struct nv_register_fd, 4);

/* ---- allocation parameters ---- */

struct nv_device_params {	/* class 0x80 */
	uint32_t device_id, client_share, target_client, target_device, flags, pad0;
	uint64_t va_size, va_start, va_limit;
	uint32_t va_mode, pad1;
};
ABI_SIZE(struct nv_device_params, 56);

struct nv_subdevice_params {	/* class 0x2080 */
	uint32_t sub_device_id;
};
ABI_SIZE(struct nv_subdevice_params, 4);

struct nv_vaspace_params {	/* class 0x90f1 */
	uint32_t index, flags;
	uint64_t va_size, va_start, va_limit;
	uint32_t big_page_size, pad0;
	uint64_t va_base;
	uint32_t pasid, pad1;
};
ABI_SIZE(struct nv_vaspace_params, 56);
#define NV_VASPACE_EXTERNALLY_OWNED	(1u << 3)
#define NV_VASPACE_PAGE_FAULTING	(1u << 6)

struct nv_memory_params {	/* classes 0x40 and 0x3e */
	uint32_t owner, type, flags, width, height;
	int32_t pitch;
	uint32_t attr, attr2;
	uint32_t format, compr_covg, zcull_covg, pad0;
	uint64_t range_lo, range_hi;
	uint64_t size, alignment, offset, limit;
	uint64_t address;
	uint32_t ctag_offset, vaspace, internal_flags, tag;
	int32_t numa_node;
	uint32_t pad1;
};
ABI_SIZE(struct nv_memory_params, 128);
ABI_AT(struct nv_memory_params, attr, 24);
ABI_AT(struct nv_memory_params, size, 64);
ABI_AT(struct nv_memory_params, numa_node, 120);
#define NV_ATTR_PAGE_SIZE_HUGE		(3u << 23)
#define NV_ATTR_LOCATION_VIDMEM		(0u << 25)
#define NV_ATTR_LOCATION_PCI		(1u << 25)
#define NV_ATTR_NONCONTIG_ALLOWED	(3u << 27)
#define NV_ATTR2_PAGE_SIZE_2M		(1u << 20)

struct nv_tsg_params {		/* class 0xa06c */
	uint32_t error_object, ecc_error_object, vaspace, engine;
	uint8_t vgpu_plugin_context, pad[3];
};
ABI_SIZE(struct nv_tsg_params, 20);

struct nv_channel_mem {
	uint64_t base, size;
	uint32_t address_space, cache_attrib;
};

struct nv_channel_params {	/* the GPFIFO classes */
	uint32_t error_object, buffer_object;
	uint64_t gpfifo_va;
	uint32_t gpfifo_entries, flags;
	uint32_t context_share, vaspace;
	uint32_t userd_memory[8];
	uint64_t userd_offset[8];
	uint32_t engine, cid, sub_device_id, ecc_error_object;
	struct nv_channel_mem reserved_mem[4];
	uint32_t phys_channel_group, internal_flags;
	struct nv_channel_mem reserved_notifier[2];
	uint32_t process_id, sub_process_id;
	uint32_t encrypt_iv[3], decrypt_iv[3], hmac_nonce[8];
	uint32_t tpc_config_id, pad;
};
ABI_SIZE(struct nv_channel_params, 368);
ABI_AT(struct nv_channel_params, gpfifo_va, 8);
ABI_AT(struct nv_channel_params, userd_memory, 32);
ABI_AT(struct nv_channel_params, userd_offset, 64);
ABI_AT(struct nv_channel_params, engine, 128);
ABI_AT(struct nv_channel_params, phys_channel_group, 240);
ABI_AT(struct nv_channel_params, process_id, 296);
ABI_AT(struct nv_channel_params, tpc_config_id, 360);

struct nv_copy_params {		/* copy-engine objects */
	uint32_t version, engine;
};
ABI_SIZE(struct nv_copy_params, 8);

struct nv_notification {	/* the content of an error notifier */
	uint64_t time_ns;
	uint32_t info32;
	uint16_t info16;
	uint16_t status;	/* 0 = nothing happened */
};
ABI_SIZE(struct nv_notification, 16);

/* ---- control parameters ---- */

struct nv_attached_ids {
	uint32_t gpu_id[NV_MAX_GPUS];
};
ABI_SIZE(struct nv_attached_ids, 128);
#define NV_GPU_ID_END			0xffffffffu

struct nv_id_info {
	uint32_t gpu_id, flags, device_instance, sub_device_instance;
	uint32_t sli_status, board_id, gpu_instance;
	int32_t numa_id;
};
ABI_SIZE(struct nv_id_info, 32);

struct nv_classlist {
	uint32_t count;
	uint32_t class_id[200];
};
ABI_SIZE(struct nv_classlist, 804);

struct nv_gpu_name {
	uint32_t flags;
	char ascii[128];	/* a union with 64 UTF-16 characters */
};
ABI_SIZE(struct nv_gpu_name, 132);

struct nv_gid_info {
	uint32_t index, flags, length;
	uint8_t data[256];
};
ABI_SIZE(struct nv_gid_info, 268);
#define NV_GID_FORMAT_BINARY		2

struct nv_fb_info {
	uint32_t count;
	struct {
		uint32_t index, data;
	} list[128];
};
ABI_SIZE(struct nv_fb_info, 1028);

struct nv_pids {
	uint32_t id_type, id, count;
	uint32_t pid[950];
};
ABI_SIZE(struct nv_pids, 3812);

struct nv_pid_info_entry {
	uint32_t pid, index, result, pad;
	uint64_t private_bytes, shared_owned, shared_duped;
	uint64_t protected_bytes[3];
	uint32_t compute_instance, gpu_instance;
};
ABI_SIZE(struct nv_pid_info_entry, 72);

struct nv_pid_info {
	uint32_t count, pad;
	struct nv_pid_info_entry list[200];
};
ABI_SIZE(struct nv_pid_info, 14408);

struct nv_engine_util {
	uint32_t util;		/* 1/100 % */
	uint32_t vgpu_scale, pid, sub_pid;
	char name[16];
	uint8_t reserved[96];
};
ABI_SIZE(struct nv_engine_util, 128);

struct nv_util_samples {	/* GPUMON_PERFMON_UTIL_SAMPLES_V2 */
	uint32_t type, buffer_size, count, tracker;
	struct {
		uint64_t time;
		struct nv_engine_util fb, graphics, encoder, decoder, jpeg, optical_flow;
	} sample[72];
};
ABI_SIZE(struct nv_util_samples, 55888);
ABI_AT(struct nv_util_samples, sample[0].graphics, 152);

struct nv_schedule {
	uint8_t enable, skip_submit, skip_enable;
};
ABI_SIZE(struct nv_schedule, 3);

struct nv_timeslice {
	uint64_t us;
};
ABI_SIZE(struct nv_timeslice, 8);

struct nv_token {
	uint32_t token;
};
ABI_SIZE(struct nv_token, 4);

/* ---- nvidia-uvm ---- */

struct uvm_initialize {
	uint64_t flags;
	uint32_t status, pad;
};
ABI_SIZE(struct uvm_initialize, 16);

struct uvm_register_gpu {
	uint8_t uuid[16];
	uint8_t numa_enabled, pad[3];
	int32_t numa_node, ctl_fd;
	uint32_t client, smc_part, status;
};
ABI_SIZE(struct uvm_register_gpu, 40);
ABI_AT(struct uvm_register_gpu, status, 36);

struct uvm_mm_initialize {
	int32_t fd;
	uint32_t status;
};
ABI_SIZE(struct uvm_mm_initialize, 8);

struct uvm_register_vaspace {
	uint8_t uuid[16];
	int32_t ctl_fd;
	uint32_t client, vaspace, status;
};
ABI_SIZE(struct uvm_register_vaspace, 32);

struct uvm_uuid_call {		/* UNREGISTER_GPU, UNREGISTER_GPU_VASPACE */
	uint8_t uuid[16];
	uint32_t status;
};
ABI_SIZE(struct uvm_uuid_call, 20);

struct uvm_range {		/* CREATE_EXTERNAL_RANGE, FREE */
	uint64_t base, length;
	uint32_t status, pad;
};
ABI_SIZE(struct uvm_range, 24);

struct uvm_unmap_external {
	uint64_t base, length;
	uint8_t uuid[16];
	uint32_t status, pad;
};
ABI_SIZE(struct uvm_unmap_external, 40);

struct uvm_map_external {
	uint64_t base, length, offset;
	struct {
		uint8_t uuid[16];
		uint32_t mapping, caching, format, element_bits, compression;
	} gpu[256];
	uint64_t gpu_count;
	int32_t ctl_fd;
	uint32_t client, memory, status;
};
ABI_SIZE(struct uvm_map_external, 9264);
ABI_AT(struct uvm_map_external, gpu, 24);
ABI_AT(struct uvm_map_external, gpu_count, 9240);
ABI_AT(struct uvm_map_external, status, 9260);

/* ---- the simulated GPU's own machine (docs/develop/nvsim.md section 2) ---- */

#define USERD_SIZE			512
#define USERD_GP_GET			0x88
#define USERD_GP_PUT			0x8c
#define DOORBELL_OFFSET			0x90
#define DOORBELL_SIZE			0x10000

struct nvsim_work {
	uint32_t op, flags;
	uint64_t amount;	/* KERNEL: ns; COPY: bytes */
	uint64_t sem_va, sem_value;
};
ABI_SIZE(struct nvsim_work, 32);
#define NVSIM_OP_KERNEL			1
#define NVSIM_OP_COPY			2
#define NVSIM_OP_RELEASE		3
#define NVSIM_FLAG_STUBBORN		1

struct nvsim_sem {
	uint64_t value, time_ns;
};
ABI_SIZE(struct nvsim_sem, 16);

#endif
