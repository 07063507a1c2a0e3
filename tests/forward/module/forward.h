/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* nvforward: the driver's interface in User-Mode Linux, its calls made by nvforwardd on the host.
 * docs/develop/forward.md.
 *
 * Locks: a file's @lock and an address space's are taken before nothing but processes_lock (host.c), under which no
 * call is made. No lock but a file's, for a poll of no time, is held across a call of the host.
 */
#ifndef FWD_FORWARD_H
#define FWD_FORWARD_H

#include <linux/cdev.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "nvabi.h"
#include "rm_ops.h"
#include "wire.h"

#define FWD_GPUS_MAX	32

/* ---- host.c: the way to nvforwardd ---- */

struct fwd_process;

/* A call under way. Buffers are laid out in @data by fwd_add(); their results are there afterwards. */
struct fwd_call {
	struct fwd_request request;
	int fds[FWD_FDS_MAX];		/* of this program, on the host */
	u32 at[FWD_BUFS_MAX];		/* of the buffers, in @data */
	u32 bytes;			/* of @data, in use */
	s64 ret;
	u32 got;			/* bytes of data that came back */
	int fd;				/* the file that came back, or -1 */
	u8 *data;			/* FWD_DATA_MAX bytes */
};

int fwd_host_init(const char *path);
void fwd_host_exit(void);

/* The process of @current, or with rights and for no process of the guest: the kernel's. A reference.
 * NULL: no memory.
 */
struct fwd_process *fwd_process_get(void);
struct fwd_process *fwd_process_kernel(void);
struct fwd_process *fwd_process_ref(struct fwd_process *p);
void fwd_process_put(struct fwd_process *p);
u32 fwd_process_tgid(u32 host_pid);

struct fwd_call *fwd_call_new(u32 op, u32 cmd);
void fwd_call_free(struct fwd_call *call);
/* A buffer of @size bytes, whose address goes to @at of buffer @parent. Its number, or -E2BIG. */
int fwd_add(struct fwd_call *call, u32 size, u32 parent, u32 at);
void *fwd_buf(struct fwd_call *call, u32 buf);
/* A file, whose number goes to @at of @buf. Its number, or -E2BIG. */
int fwd_add_fd(struct fwd_call *call, int host_fd, u32 buf, u32 at);

/* Make the call in @p's process on the host, and sleep until it has returned. Not interrupted: neither is the driver.
 * Its result, or -EIO if nvforwardd is gone.
 */
s64 fwd_run(struct fwd_process *p, struct fwd_call *call);

/* The same for FWD_CLOSE: this program's descriptor goes before nvforwardd's, which then is the last. */
void fwd_close_over(struct fwd_process *p, struct fwd_call *call);

/* One poll under way, of a file. @seen is called from an interrupt, once, with the events. */
struct fwd_lane;
struct fwd_lane *fwd_poll_start(struct fwd_process *p, int host_fd, void (*seen)(void *arg, s64 events), void *arg);
void fwd_poll_cancel(struct fwd_lane *lane);

int fwd_host_dup(int fd);
void fwd_host_close(int fd);

/* ---- files ---- */

struct fwd_gpu {
	u32 gpu_id, minor;
	u32 domain;
	u8 bus, slot, function;
	char bdf[16];
};

struct fwd_state {		/* nv_state_t of the driver: what nv_get_adapter_state() returns */
	struct fwd_gpu *gpu;	/* NULL: the control device */
};

extern struct fwd_gpu fwd_gpus[FWD_GPUS_MAX];
extern struct fwd_state fwd_states[FWD_GPUS_MAX], fwd_ctl;
extern u32 fwd_gpu_count, fwd_branch;
extern char fwd_version[64];

#define FWD_USERS_MAX	4

struct fwd_file {
	int host_fd;
	struct fwd_state *nv;		/* NULL: of nvidia-uvm */
	struct fwd_process *opener;
	struct mutex lock;		/* pins; users */
	struct list_head pins;		/* pages of the guest that the driver has, until their object is freed */
	struct fwd_process *users[FWD_USERS_MAX];	/* besides the opener; their processes last as long */
	/* poll */
	wait_queue_head_t wait;
	spinlock_t poll_lock;		/* seen, polling */
	bool seen, polling;
	struct fwd_lane *poll_lane;	/* of the pollers, who hold @lock */
	struct fwd_uvm *uvm;
};

/* ---- nvidia-uvm: uvm.c ---- */

/* An address space. What nvidia-uvm holds of others' is only counted here: cgpu_km charges it at the functions by which
 * the driver takes and drops it.
 */
struct fwd_uvm {
	struct fwd_file *f;
	bool initialized;
	struct mutex lock;		/* held, ranges */
	struct list_head held;
	struct list_head ranges;	/* external ranges and semaphore pools */
};

u32 uvm_va_space_create(void *mapping, struct fwd_uvm *v, u64 flags);
u32 uvm_va_space_register_gpu(struct fwd_uvm *v, const u8 *uuid, void *params, void *numa, void *node, void *uuid_out);
u32 uvm_api_alloc_semaphore_pool(u64 *params, struct file *file);
u32 uvm_api_create_external_range(u64 *params, struct file *file);
u32 uvm_api_free(u64 *params, struct file *file);
u32 uvm_api_create_range_group(u64 *params, struct file *file);
u32 uvm_api_destroy_range_group(u64 *params, struct file *file);
u32 uvm_va_range_create_mmap(struct fwd_uvm *v, struct mm_struct *mm, struct vm_area_struct *vma, void **range);

enum fwd_hold { FWD_HOLD_MEMORY, FWD_HOLD_CHANNEL };

u32 nvUvmInterfaceDupMemory(void *device, u32 client, u32 memory, u32 *dup, void *info);
u32 nvUvmInterfaceFreeDupedHandle(void *device, u32 dup);
u32 nvUvmInterfaceDupAddressSpace(void *device, u32 client, u32 space, void **dup, void *info);
u32 nvUvmInterfaceRetainChannel(void *space, u32 client, u32 channel, void **retained, void *info);
void nvUvmInterfaceReleaseChannel(void *retained);

/* Records. fwd_hold_memory() and fwd_hold_channel() take, as nvidia-uvm does before it makes the mapping or registers
 * the channel; what was taken is of no range until fwd_hold_keep(), or given back by fwd_hold_cancel().
 */
struct fwd_held;
u32 fwd_hold_memory(u32 client, u32 memory, const u8 *uuid, u64 base, u64 bytes, struct list_head *taken);
u32 fwd_hold_channel(u32 client, u32 channel, const u8 *uuid, struct list_head *taken);
void fwd_hold_keep(struct fwd_uvm *v, struct list_head *taken);
void fwd_hold_cancel(struct list_head *taken);
/* Drop mappings in a range, on one GPU or (NULL) all; a channel; all of a GPU; everything. */
void fwd_hold_drop_range(struct fwd_uvm *v, const u8 *uuid, u64 base, u64 bytes);
void fwd_hold_drop_channel(struct fwd_uvm *v, u32 client, u32 channel);
void fwd_hold_drop_gpu(struct fwd_uvm *v, const u8 *uuid, bool mappings);
void fwd_hold_drop_all(struct fwd_uvm *v);

struct fwd_file *fwd_file_open(const char *name);
void fwd_file_close(struct fwd_file *f);
/* The process of @current as a user of @f. A reference. */
struct fwd_process *fwd_file_user(struct fwd_file *f);

int fwd_chardev_init(void);
void fwd_chardev_exit(void);
int fwd_uvm_init(void);
void fwd_uvm_exit(void);
int fwd_procfs_init(void);
void fwd_procfs_exit(void);
int fwd_mmap_init(void);

/* Map a host file in the process of @vma, at its addresses and nowhere else: the guest's page tables have nothing
 * there.
 */
int fwd_map(struct vm_area_struct *vma, int host_fd, u64 offset);

/* ---- rm.c, osif.c, client.c ---- */

u32 rm_ioctl(void *sp, struct fwd_state *nv, struct fwd_file *f, u32 cmd, void *arg, u32 size);
u32 os_memcpy_from_user(void *to, const void __user *from, u32 n);
u32 os_memcpy_to_user(void __user *to, const void *from, u32 n);
u32 os_lock_user_pages(void *address, u64 count, void **pages, u32 flags);
u32 os_unlock_user_pages(u64 count, void *pages);
struct fwd_file *nv_get_file_private(s32 fd, u8 ctl, void **priv);
void nv_put_file_private(void *priv);
u32 nv_is_gpu_accessible(struct fwd_state *nv);
u32 nv_dma_buf_export(struct fwd_state *nv, void *params);
void rm_kernel_rmapi_op(struct nvidia_stack_s *sp, void *op);
struct fwd_state *nv_get_adapter_state(u32 domain, u8 bus, u8 slot);
u32 nv_get_dev_minor(struct fwd_state *nv);
u32 nvidia_get_rm_ops(struct nv_rm_ops *ops);
int nvidia_p2p_put_pages(u64 token, u32 space, u64 address, void *table);

/* Where the parameters of a call are: of a process, or the kernel's. */
struct fwd_memory {
	u32 (*read)(void *to, u64 from, u32 n);
	u32 (*write)(u64 to, const void *from, u32 n);
};

extern const struct fwd_memory fwd_of_user, fwd_of_kernel;

/* One RM call, on @host_fd by @p, with what its parameters point to. An RM status, NV_OK if it was made: the driver's
 * own is in @top. @f: NULL for the kernel's calls.
 */
u32 fwd_escape(struct fwd_process *p, struct fwd_file *f, int host_fd, u32 nr, u8 *top, u32 size,
	       const struct fwd_memory *memory);

/* RM clients, by the control file that they are bound to: the kernel's calls on them go there. */
void fwd_client_add(u32 client, struct fwd_file *f);
void fwd_client_remove(u32 client);
void fwd_clients_drop(struct fwd_file *f);
int fwd_client_fd(u32 client);	/* a duplicate, or -ENOENT */
int fwd_kernel_open(void);
void fwd_kernel_close(void);

/* Pages for an OS descriptor: pinned until the object is freed. */
int fwd_pin(struct fwd_file *f, struct fwd_call *call, u64 address, u64 bytes, u32 parent, u32 at);
void fwd_pin_keep(struct fwd_file *f, u32 client, u32 memory);
void fwd_pin_drop(struct fwd_file *f, u32 client, u32 memory);

/* What was not forwarded, each once: /proc/driver/nvforward. */
void fwd_not_forwarded(const char *kind, u32 number);
void fwd_show_not_forwarded(struct seq_file *m);

static inline u32 get32(const void *p, u32 at)
{
	u32 v;

	memcpy(&v, p + at, sizeof(v));
	return v;
}

static inline u64 get64(const void *p, u32 at)
{
	u64 v;

	memcpy(&v, p + at, sizeof(v));
	return v;
}

static inline void put32(void *p, u32 at, u32 v)
{
	memcpy(p + at, &v, sizeof(v));
}

static inline void put64(void *p, u32 at, u64 v)
{
	memcpy(p + at, &v, sizeof(v));
}

#endif
