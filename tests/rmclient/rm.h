/* SPDX-License-Identifier: MIT */
/*
 * A small client of the driver's user ABI: the calls of a CUDA program's library,
 * without the library. It is written from the contract in docs/develop/nvsim.md
 * and runs unchanged on the bare driver and in a container.
 *
 * Every function that returns an rm_status returns the driver's own status, or
 * -errno where a system call failed before the driver could answer. The first
 * failure of a client is kept in rm.error with the name of the call.
 */
#ifndef RM_H
#define RM_H

#include <stdbool.h>
#include <stdint.h>

#include "rm_abi.h"

typedef int64_t rm_status;	/* 0 = done, > 0 RM status, < 0 -errno */

const char *rm_strerror(rm_status status);

struct rm_error {
	char call[96];		/* "RM_ALLOC(0x40)", "open(/dev/nvidiactl)", "" = none */
	rm_status status;
};

/* One open control node and one RM client. */
struct rm {
	char dir[64];		/* where the nodes are */
	int ctl;
	uint32_t client;
	uint32_t last_handle;
	char version[64];	/* of the driver */
	uint32_t branch;	/* 550 of 550.163.01 */
	struct rm_error error;
};

/* @dir: NULL = $NVSIM_DEV, or /dev. */
rm_status rm_open(struct rm *rm, const char *dir);
void rm_close(struct rm *rm);

/*
 * Parameters have the bytes of the driver's branch: @size is that of the struct in the header, of which
 * an older driver takes a part.
 */
rm_status rm_alloc(struct rm *rm, uint32_t parent, uint32_t class_id, void *params,
		   uint32_t size, uint32_t *handle);
uint32_t rm_class_bytes(const struct rm *rm, uint32_t class_id, uint32_t size);
rm_status rm_free(struct rm *rm, uint32_t parent, uint32_t handle);
rm_status rm_control(struct rm *rm, uint32_t object, uint32_t cmd, void *params, uint32_t size);
rm_status rm_dup(struct rm *rm, uint32_t parent, uint32_t client_src, uint32_t handle_src,
		 uint32_t *handle);

/* An ioctl with its status at @status in its struct; @call names it in errors. */
rm_status rm_ioctl(struct rm *rm, int fd, unsigned int nr, void *arg, uint32_t size,
		   const uint32_t *status, const char *call);

/* The GPUs with a node in rm->dir that opens, in the order of their attached ids. */
struct rm_gpu_info {
	uint32_t gpu_id, minor, device_instance, sub_device_instance;
	uint32_t domain, bus, slot, function;
	uint16_t vendor_id, device_id;
};
rm_status rm_list_gpus(struct rm *rm, struct rm_gpu_info list[MAX_GPUS], unsigned int *count);

/* The classes of one GPU generation. */
struct rm_arch {
	const char *name;
	uint32_t gpfifo, usermode, compute, copy;
};

struct rm_gpu {
	struct rm *rm;
	struct rm_gpu_info info;
	int fd;
	uint32_t device, subdevice;
	uint8_t uuid[16];
	const struct rm_arch *arch;	/* NULL until rm_gpu_find_arch() */
};
rm_status rm_gpu_open(struct rm_gpu *gpu, struct rm *rm, const struct rm_gpu_info *info);
void rm_gpu_close(struct rm_gpu *gpu);
rm_status rm_gpu_find_arch(struct rm_gpu *gpu);
rm_status rm_gpu_name(struct rm_gpu *gpu, char name[64]);
void rm_gpu_uuid_text(const struct rm_gpu *gpu, char text[48]);

struct rm_memory {
	uint64_t ram, total, free;	/* bytes: the card, its heap, the free part of the heap */
};
rm_status rm_gpu_memory(struct rm_gpu *gpu, struct rm_memory *mem);

struct rm_process {
	uint32_t pid;
	uint64_t bytes;
};
/* Processes with a context; the count in *count is at most @max. */
rm_status rm_gpu_processes(struct rm_gpu *gpu, struct rm_process *list, unsigned int max,
			   unsigned int *count);
/* Per cent of recent time in which a process that is visible here ran kernels. */
rm_status rm_gpu_utilization(struct rm_gpu *gpu, unsigned int *percent);

/* A GPU address space, managed through nvidia-uvm. */
struct rm_space {
	struct rm_gpu *gpu;
	int uvm, uvm_mm;	/* the second keeps the process's mm for the driver; -1: not needed */
	uint32_t vaspace;
	uint64_t next_va;
};
rm_status rm_space_create(struct rm_space *space, struct rm_gpu *gpu);
void rm_space_destroy(struct rm_space *space);

struct rm_buffer {
	struct rm_space *space;
	uint32_t handle;
	bool system;
	uint64_t size;
	uint64_t va;		/* GPU address, 0 = not mapped there */
	void *cpu;		/* NULL = not mapped here */
};
#define RM_BUF_SYSTEM	1	/* system memory instead of the card's */
#define RM_BUF_CPU	2	/* map into this process */
#define RM_BUF_GPU	4	/* map into the GPU address space */
rm_status rm_buffer_create(struct rm_buffer *buf, struct rm_space *space, uint64_t size,
			   unsigned int how);
void rm_buffer_destroy(struct rm_buffer *buf);

/* A time-sliced group of channels with a doorbell. */
struct rm_group {
	struct rm_space *space;
	uint32_t tsg, engine;
	uint32_t usermode;
	volatile uint32_t *doorbell;
	struct rm_buffer notifier;
};
rm_status rm_group_create(struct rm_group *group, struct rm_space *space, uint32_t engine);
rm_status rm_group_enable(struct rm_group *group, bool enable);
/* 0, or the error code that the driver wrote when it killed a channel. */
uint32_t rm_group_fault(const struct rm_group *group);
void rm_group_destroy(struct rm_group *group);

/*
 * A channel. Work number n (from 0) uses slot n modulo entries of the ring, of
 * the descriptors and of the semaphores; it is complete when its semaphore
 * holds n + 1.
 */
struct rm_channel {
	struct rm_group *group;
	uint32_t handle, object, token, entries;
	struct rm_buffer mem;
	uint64_t pb_va, sem_va;
	volatile uint64_t *ring;
	volatile struct nvsim_work *pb;
	volatile struct nvsim_sem *sem;
	volatile uint32_t *userd;
	uint64_t queued;	/* written to the ring */
	uint64_t done;		/* seen complete by rm_channel_reap() */
};
/* @depth: how many works may be in flight. */
rm_status rm_channel_create(struct rm_channel *ch, struct rm_group *group, uint32_t depth);
void rm_channel_destroy(struct rm_channel *ch);
/* With nvidia-uvm, as a CUDA program's library does with each of its channels; until the space is destroyed. */
rm_status rm_channel_register(struct rm_channel *ch);
/* Put one work into the ring; the caller keeps queued - done < entries. */
void rm_channel_queue(struct rm_channel *ch, uint32_t op, uint32_t flags, uint64_t amount);
/* Ring the doorbell for everything queued. */
void rm_channel_kick(struct rm_channel *ch);
/* True and the GPU's time of completion if work number ch->done is complete; counts it. */
bool rm_channel_reap(struct rm_channel *ch, uint64_t *gpu_ns);

#endif
