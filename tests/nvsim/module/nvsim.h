/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * nvsim's own types. Lock order, outermost first:
 *   mmap_lock -> uvm_vas.lock -> nvsim_api_lock -> nvgpu.lock -> engine.lock -> nvas.lock
 *   dups_lock, nvsim_event_lock, nvgpu.rec_lock, nvgpu.fb_lock, nv_file_private.lock: leaves
 * So nothing copies to or from user memory, and nothing faults, with one of them held.
 */
#ifndef NVSIM_H
#define NVSIM_H

#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rbtree.h>
#include <linux/rwsem.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "compat.h"
#include "engine.h"
#include "nvabi.h"
#include "rm_ops.h"

/* nvtypes.h */
typedef u32 NvU32;
typedef s32 NvS32;
typedef u64 NvU64;
typedef u8 NvU8;
typedef u8 NvBool;
typedef u32 NV_STATUS;
typedef struct nvidia_stack_s nvidia_stack_t;

#define NVSIM_VERSION_DEFAULT "580.105.08"
#define NV_MAX_IOCTL_SIZE 16384

#define NVSIM_MAX_GPUS 16
#define NVSIM_COPIES 3		/* COPY0 to COPY2 */
#define NVSIM_VIDEOS 4		/* NVDEC0, NVENC0, NVJPEG0, OFA0, of which a chip may lack some */
#define NVSIM_ENGINES (1 + NVSIM_COPIES + NVSIM_VIDEOS)	/* GR0 is the first */
#define NVSIM_GRCES 2		/* COPY3 and COPY4: on GR0's runlist */
#define NVSIM_PAGES_PER_CHUNK 512

/* Backing store: ordinary pages that appear when touched. Lives as long as memory or a CPU mapping of it. */
struct nvpages {
	struct kref ref;		/* the driver's usage_count: of memory and of its mappings */
	struct kref record;		/* files with a context of it, which the driver does not count (mmap.c) */
	bool gone;			/* the driver would have freed its record */
	struct nvpages *next;		/* nv_file_private.late */
	bool late;			/* on that list */
	u64 count;
	bool pinned;			/* user pages of an OS descriptor */
	u64 nchunks;
	struct page ***chunk;		/* [nchunks], slots published by cmpxchg */
};

enum nvloc { NVLOC_FB, NVLOC_SYS, NVLOC_OSDESC, NVLOC_USERMODE, NVLOC_RUSD };

/* One allocation. Handles, duplicates, exports and GPU mappings hold a reference; the last one gives the FB back. */
struct nvmem {
	struct kref ref;
	struct nvgpu *gpu;
	enum nvloc loc;
	u64 size;			/* as reported to the client */
	u64 page_size;
	u64 fb_bytes;			/* taken from the framebuffer */
	u64 addr;
	u32 attr, attr2;
	bool read_only;
	struct nvpages *pages;
};

/*
 * Memory duplicated into UVM's kernel client. The driver's two functions identify it by its handle.
 */
struct nvdup {
	struct kref ref;
	u32 handle;
	void *device;
	struct nvmem *mem;
};

struct nvas;

/* uvm_dup.c; named and declared as in the driver's nv_uvm_interface.h */
NV_STATUS nvUvmInterfaceDupMemory(void *device, u32 hClient, u32 hPhysMemory, u32 *hDupMemory, void *info);
NV_STATUS nvUvmInterfaceDupAddressSpace(void *device, u32 hClient, u32 hVaSpace, struct nvas **as, void *info);
NV_STATUS nvUvmInterfaceFreeDupedHandle(void *device, u32 hPhysHandle);
NV_STATUS nvUvmInterfaceRetainChannel(void *vaSpace, u32 hClient, u32 hChannel, void **retainedChannel, void *info);
void nvUvmInterfaceReleaseChannel(void *retainedChannel);
struct nvmem *nvdup_mem(u32 handle);	/* valid until the handle is freed */
struct nvdup *nvdup_create(void *device, u32 handle);
void nvdup_get(struct nvdup *dup);
void nvdup_put(struct nvdup *dup);
void nvdup_exit(void);

/* GPU virtual address space, shared by RM handles, UVM and channels. */
struct nvas {
	struct kref ref;
	struct nvgpu *gpu;
	raw_spinlock_t lock;		/* protects root; taken from the engine's timer */
	struct rb_root root;		/* struct nvmap by va */
	u64 next_va;			/* under nvsim_api_lock: where MAP_MEMORY_DMA puts things */
	u64 pool;			/* under nvsim_api_lock: bytes of page tables of what was refused */
	bool fixed_only;		/* ranges are where the caller wants them */
};

struct nvmap {
	struct rb_node node;
	u64 va, len, off;
	struct nvmem *mem;
	struct nvdup *dup;		/* UVM's reference, shared by the parts of a split; NULL for RM's maps */
	const struct nvobj *dma, *of;	/* MAP_MEMORY_DMA: goes with either of them; compared only */
	u64 fb_bytes;			/* of its page tables, on the GPU of the address space */
	struct nvgpu *fb_gpu;
};

enum nvtype {
	NVT_CLIENT, NVT_DEVICE, NVT_SUBDEVICE, NVT_VASPACE, NVT_MEMORY, NVT_VIRTUAL, NVT_TSG, NVT_CTXSHARE, NVT_CHANNEL,
	NVT_ENGOBJ, NVT_EVENT, NVT_BINAPI, NVT_DEBUGGER, NVT_MPS, NVT_PEERS, NVT_VIDEO, NVT_CONTEXT_DMA,
};

#define NVT_BIT(t) (1u << (t))

struct nvclient;

/* Clients that may dup an object. */
struct nvshare {
	bool set;			/* a policy of its own, not its parent's */
	bool all;
	bool user, process;		/* of the same euid, of the same process as its client */
	u32 client;			/* 0: none */
};

/* A resource server object. All fields: nvsim_api_lock. */
struct nvobj {
	struct nvobj *parent;
	struct nvclient *client;
	struct list_head sibling, children;
	struct list_head dependants;	/* struct nvdep.link: objects to free before this one */
	u32 handle, cls;
	enum nvtype type;
	struct nvgpu *gpu;
	struct nvshare share;
	bool dma_mapped;		/* mapped by MAP_MEMORY_DMA */
	bool doorbell_in_bar1;		/* a usermode object that asked for it */
	u64 va;				/* an NV50_MEMORY_VIRTUAL: its first address */
	struct nvas *default_as;	/* a device's own or shared VA space */
	union {
		struct nvmem *mem;
		struct nvas *as;
		struct nvtsg *tsg;
		struct nvchan *chan;
		struct nvpeers *peers;
		struct nvcontext_dma *context_dma;
		struct {
			u32 event_fd, event_index;
			struct list_head listen;	/* nvgpu.listeners: nvsim_event_lock */
		};
	};
};

struct nvdep {
	struct list_head link;
	struct nvobj *obj;
};

/* A name of the system memory that it was made of, for a channel's errors; freed with the memory. */
struct nvcontext_dma {
	struct nvmem *mem;
	u64 offset, bytes;
	struct nvdep dep;
};

/* A RM client, bound to the file that made it. All fields: nvsim_api_lock. */
struct nvclient {
	struct nvobj obj;
	struct list_head link;		/* nvsim_clients */
	struct hlist_node named;	/* by handle */
	struct nv_file_private *owner;	/* NULL for kernel clients */
	bool kernel;
	pid_t tgid;
	kuid_t euid;
	struct pid *pid;
	u32 next_handle;
	struct xarray objs;		/* handle -> nvobj */
};

#define NVSIM_DEPS 4

struct nvchan {
	struct engine_chan run;
	struct nvobj *obj;
	struct nvdep deps[NVSIM_DEPS];	/* nvsim_api_lock */
	struct nvas *as;
	struct nvctx *ctx;		/* its own reference */
	struct nvmem *userd_mem, *notifier;
	u64 notifier_at, notifier_bytes;	/* of the notifier's memory: where the channel's begins */
	u32 token, token_index;		/* and the entry of the notifier that shows it */
	bool own_tsg;			/* made with it, and goes with it */
	bool reported;			/* its death: engine.lock */
};

/* A TSG in /proc/driver/nvsim; outlives the TSG. count: engine.lock. */
struct nvtsg_rec {
	struct list_head link;		/* nvgpu.recs: nvgpu.rec_lock */
	struct engine_count count;
	u32 hclient, htsg, engine;
	u64 timeslice_us;
	bool enabled, ended;
	u32 preempt;			/* of compute, as it was set last: 0 WFI, 1 CTA, 2 CILP */
	u32 bound;			/* the engine of the last BIND, 0: none */
	struct pid *pid;
};

/* A TSG's id and context buffers, or a channel's id and instance block: they live as long as it, and as long as UVM
 * holds a channel.
 */
struct nvctx {
	struct kref ref;
	struct nvgpu *gpu;
	u64 bytes;			/* of FB */
	struct ida *ids;		/* the pool that its id is of */
	u32 id;
	u32 chram;			/* a channel's word: read without a lock */
};

/* Goes with its last handle. */
struct nvtsg {
	u32 handles;			/* nvsim_api_lock */
	struct engine_tsg run;
	struct nvtsg_rec *rec;
	struct nvas *as;
	struct nvctx *ctx;		/* its own reference */
	u32 id, interleave;
};

/* The PCI device that shows the GPU's registers (board.c). NULL: there is none. */
struct nvboard {
	struct pci_dev *pdev;
	u32 __iomem *boot, *pccsr;
};

struct nv_state_s {
	struct nvgpu *gpu;		/* NULL: the control device */
};
typedef struct nv_state_s nv_state_t;

struct nvgpu {
	struct nv_state_s nv;
	u32 index, gpu_id, bus;
	u8 uuid[16];
	char bdf[16], name[64];
	struct device *dev;
	struct nvboard board;
	struct mutex lock;		/* the GPU lock: held across everything that goes to the GPU */
	u64 prng;			/* under lock */
	spinlock_t fb_lock;		/* fb_* and the shared data page */
	u64 fb_total, fb_used, fb_next;
	bool lock_lost;			/* 535 returned with the lock taken: no allocation any more */
	struct ida groups[NVSIM_ENGINES], channels[NVSIM_ENGINES];	/* ids in use, by runlist; all of Turing's in [0] */
	struct list_head bar1_maps;	/* and these: nvsim_api_lock */
	struct list_head bar1_windows;	/* and bar1_lock; by their place */
	struct list_head bar1_files;	/* nv_file_private.bar1_file */
	spinlock_t bar1_lock;
	u64 bar1_used, bar1_next;
	u32 compute_mode;		/* nvsim_api_lock */
	atomic_t opens;
	atomic_t external;		/* of these the modules that do not know of resets */
	struct nvmem *usermode, *rusd;
	struct nvas *global_as;		/* of all devices without a share: nvsim_api_lock */
	u8 *rusd_page;
	struct engine_card card;
	struct engine eng[NVSIM_ENGINES];
	struct work_struct rc_work;
	struct work_struct intr_work;
	unsigned long intr;		/* a bit for each engine that raised an interrupt: atomic */
	struct list_head listeners;	/* nvobj.listen of events: nvsim_event_lock */
	struct mutex rec_lock;		/* recs */
	struct list_head recs;
	u32 nr_ended;
	struct proc_dir_entry *proc, *proc_sim;
};

static inline struct nvgpu *nvsim_gpu_of(const struct engine *e)
{
	return container_of(e->card, struct nvgpu, card);
}

static inline struct nvtsg *nvchan_tsg(const struct nvchan *c)
{
	return container_of(c->run.tsg, struct nvtsg, run);
}

/* An exported object on a control file. */
struct nvexport {
	struct nvmem *mem;
	u32 cls;
};

#define NVFP_MAGIC 0x6e766670
#define NVFP_NONE 0
#define NVFP_REGISTERED 1

struct nvmmap_ctx {
	bool valid;
	bool read_only;
	struct nvpages *pages;			/* NULL: of video memory, */
	u64 window;				/* seen through this page of BAR1 and those behind it */
	u64 first, count;
};

/* Private data of an open nvidia node (the driver keeps nv_linux_file_private_t around it; here they are one). */
struct nv_file_private {
	u32 magic;
	nv_state_t *nv;
	struct address_space mapping;
	struct nv_file_private *ctl_nvfp;	/* set once under nvsim_api_lock, read without */
	void *ctl_priv;
	u32 register_or_refcount;		/* nvsim_api_lock */
	struct nvmmap_ctx mmap;			/* set once under nvsim_api_lock */
	struct nvpages *late;			/* lock; memory whose last mapping went after it was freed */
	struct list_head bar1_file;		/* nvsim_api_lock */
	u16 max_handles;			/* nvsim_api_lock */
	struct nvexport *handles;		/* nvsim_api_lock */
	u32 device_instance;
	u8 metadata[64];
	spinlock_t lock;			/* event_pending, late */
	bool event_pending;
	wait_queue_head_t wait;
	u32 nr_attached;
	u32 *attached;
};
typedef struct nv_file_private nv_file_private_t;

/* The caller. */
struct nvsec {
	bool kernel;			/* through op(): kernel pointers, any client */
	bool admin;
	struct nv_file_private *os_info;
};

/* One RM_CONTROL on its way. */
struct nvctl {
	const struct nvsec *sec;
	struct nvclient *client;
	struct nvobj *obj;
	u32 cmd, size;
	void *params;			/* kernel copy */
	void *list;			/* kernel copy of the list params point to */
	u32 count;			/* its elements */
	bool ones;			/* answer all ones */
};

struct nvsim_params {
	char *version, *called, *name, *arch;
	int fb_mib[NVSIM_MAX_GPUS];	/* of each GPU; those beyond the count have the last one's */
	unsigned int fb_mib_count;
	int gpus, ctx_mib, video, video_ctx_kib, no_ce_caps;
	int control_us, control_spin_us, tail_us, tail_pct, err40_pct, hmm;
	int ctx_ms, close_ms, missing_ms, refuse_dead, unmap_ms, tables_kib, channel_ids, trace;
	int fault_nth, fault_times, fault_kind, gone, asleep, mixed;
	uint fault_cmd;
	struct engine_rules rules;
	ulong seed;
};

/* A pair of an information list: {index, value} in the driver's headers too. */
struct nvinfo {
	u32 index, value;
};

#define CHIP_AMPERE 0x170		/* nvchip.chip.arch */

/*
 * The chip of a profile. Counts named litter_* are of the whole chip, the others of its enabled
 * part.
 */
struct nvchip {
	const char *arch, *short_name;
	struct {
		u32 arch, impl;
	} chip;				/* MC_GET_ARCH_INFO */
	u32 gpfifo, usermode, compute, copy;
	const u32 *classes;
	u32 nr_classes;
	u16 device_id;
	u32 subsystem_id;
	u32 sm_version, warps, cores_per_sm, tensor_per_sm, rt_per_sm;
	u32 gpcs, litter_gpcs, litter_tpcs, litter_fbps, fbpas_per_fbp, migs, pes_per_gpc;
	u32 fbps, ltcs, ltc_slices;
	u32 bus_width, ram_type, l2_bytes, pcie_gen, bar1_mib;
	u32 graphics_khz, memory_khz;
};

/* version.c */
extern u32 nvsim_branch;
int nvsim_version_init(void);
const char *nvsim_release(void);

/* The branches that a row of a table is for: [since, before), 0: no end. */
static inline bool nvsim_in_branch(u16 since, u16 before)
{
	return nvsim_branch >= since && (!before || nvsim_branch < before);
}

/* chip.c */
extern const struct nvchip *nvsim_chip;
int nvsim_chip_init(void);
bool nvsim_is_usermode(u32 cls);
u32 nvsim_chip_classes(u32 *list, u32 max);
u32 nvsim_chip_tpcs(void);
u32 nvsim_chip_gpc_tpcs(u32 gpc);
u32 nvsim_chip_gr_info(u32 index);
u32 nvsim_video_engine(u32 cls);	/* NV2080_ENGINE_TYPE_* of a class of the chip; 0: none */
bool nvsim_has_video(u32 engine);

/* main.c */
extern struct nvsim_params nvsim;
extern struct nvgpu *nvsim_gpu[NVSIM_MAX_GPUS];
extern struct rw_semaphore nvsim_api_lock;	/* the RM API lock: write for everything that changes objects */
extern nv_state_t nvsim_ctl;
struct nvgpu *nvsim_gpu_by_id(u32 gpu_id);
struct nvgpu *nvsim_gpu_by_uuid(const u8 *uuid);

/* fault.c */
enum nvsim_fault { NVSIM_FAULT_NONE, NVSIM_FAULT_FAILS, NVSIM_FAULT_ONES, NVSIM_FAULT_LONGER };
enum nvsim_fault nvsim_fault_hit(u32 cmd, u32 *status);

/* FAILS: the call is not made, its status is set. ONES: it succeeds, and its answer is all ones. LONGER: an allocation
 * reads eight bytes more of parameters, as a release whose struct has grown.
 */
static inline enum nvsim_fault nvsim_fault(u32 cmd, u32 *status)
{
	return unlikely(nvsim.fault_nth | nvsim.gone) ? nvsim_fault_hit(cmd, status) : NVSIM_FAULT_NONE;
}

/* chardev.c, mmap.c */
int nvsim_chardev_init(void);
void nvsim_chardev_exit(void);
int nvsim_mmap(struct file *file, struct vm_area_struct *vma);
void nvsim_mmap_file_ends(struct nv_file_private *fp);
NvBool nv_is_gpu_accessible(nv_state_t *nv);

/* osif.c: the driver's own names and signatures; kprobes find them by these */
nv_state_t *nv_get_adapter_state(NvU32 domain, NvU8 bus, NvU8 slot);
NvU32 nv_get_dev_minor(nv_state_t *nv);
void rm_client_free_os_events(NvU32 hclient);
NV_STATUS rm_ioctl(nvidia_stack_t *sp, nv_state_t *nv, nv_file_private_t *nvfp, NvU32 cmd, void *arg, NvU32 size);
NV_STATUS os_memcpy_from_user(void *to, const void *from, NvU32 n);
NV_STATUS os_memcpy_to_user(void *to, const void *from, NvU32 n);
NV_STATUS os_lock_user_pages(void *address, NvU64 count, void **pages, NvU32 flags);
NV_STATUS os_unlock_user_pages(NvU64 count, void *pages);
nv_file_private_t *nv_get_file_private(NvS32 fd, NvBool ctl, void **os_private);
void nv_put_file_private(void *os_private);
NV_STATUS nvidia_get_rm_ops(struct nv_rm_ops *ops);
int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 va, void *table);
void rm_kernel_rmapi_op(nvidia_stack_t *sp, void *cmd);
int nvidia_dev_get(u32 gpu_id, nvidia_stack_t *sp, NvBool reset_aware);
void nvidia_dev_put(u32 gpu_id, nvidia_stack_t *sp, NvBool reset_aware);

/* procfs.c */
/* power.c */
NV_STATUS nv_set_system_power_state(u32 to, u32 depth);
int nvsim_power_wait(void);		/* of a process's call; -ERESTARTSYS */
void nvsim_power_kernel_call(void);
u32 nvsim_power_asleep_calls(void);	/* of kernel clients, so far */
extern const struct proc_ops nvsim_suspend_ops;

int nvsim_proc_init(void);
void nvsim_proc_exit(void);

/* rm.c */
NV_STATUS nvsim_rm_escape(nv_state_t *nv, nv_file_private_t *nvfp, u32 cmd, void *arg, u32 size);
void nvsim_rm_cleanup_file(nv_file_private_t *nvfp);
void nvsim_rm_exit(void);
NV_STATUS nvsim_client_alloc(const struct nvsec *sec, struct nvos64 *p);
void nvsim_client_destroy(struct nvclient *c);
NV_STATUS nvsim_param_in(const struct nvsec *sec, void *to, u64 from, u32 n);
NV_STATUS nvsim_param_out(const struct nvsec *sec, u64 to, const void *from, u32 n);
struct nvclient *nvsim_client_find(u32 handle);
struct nvclient *nvsim_client_get(const struct nvsec *sec, u32 handle, NV_STATUS *st);
struct nvobj *nvsim_obj_find(struct nvclient *c, u32 handle);
struct nvobj *nvsim_obj_find_type(struct nvclient *c, u32 handle, u32 types);
NV_STATUS nvsim_obj_add(struct nvclient *c, struct nvobj *parent, struct nvobj *o, u32 *handle);
void nvsim_obj_free(struct nvobj *o);
void nvsim_dep_add(struct nvdep *d, struct nvobj *on, struct nvobj *who);
struct nvobj *nvsim_obj_device(struct nvobj *o);
void nvsim_op_free(const struct nvsec *sec, struct nvos00 *p);
extern struct list_head nvsim_clients;		/* nvsim_api_lock */

void nvsim_uuid_string(const struct nvgpu *gpu, char *buf);

/* rm_dup.c */
void nvsim_op_dup(const struct nvsec *sec, struct nvos55 *p);
void nvsim_op_share(const struct nvsec *sec, struct nvos57 *p);
NV_STATUS nvsim_obj_share(struct nvobj *o, u16 type, u8 action, u32 target, u32 mask);
bool nvsim_obj_shared_with(const struct nvobj *o, const struct nvclient *dst);
NV_STATUS nvsim_dup_mem(struct nvclient *c, u32 hparent, u32 *handle, struct nvmem *mem, u32 cls);

/* rm_alloc.c */
void nvsim_op_alloc(const struct nvsec *sec, struct nvos64 *p);
NV_STATUS nvsim_alloc_virtual(const struct nvsec *sec, u32 hroot, u32 hparent, u32 *handle,
			      struct nv_mem_params *mp);
void nvsim_obj_destroy(struct nvobj *o);

/* rm_mem.c */
/* NV_ERR_INVALID_STATE if the chip has no such pages, or @sys memory has none. */
NV_STATUS nvsim_check_page_size(u32 attr, u32 attr2, bool sys);
NV_STATUS nvsim_mem_create(struct nvobj *parent, u32 cls, struct nv_mem_params *p, struct nvmem **out);
void nvsim_op_vid_heap(const struct nvsec *sec, struct nvos32 *p);
void nvsim_op_alloc_memory(const struct nvsec *sec, struct nvos02 *p, s32 fd);
void nvsim_op_map(const struct nvsec *sec, struct nvos33 *p, s32 fd);
void nvsim_op_unmap(const struct nvsec *sec, struct nvos34 *p);
void nvsim_op_rename_map(struct nvos56 *p);
void nvsim_op_map_dma(const struct nvsec *sec, struct nvos46 *p);
void nvsim_op_map_dma_v1(const struct nvsec *sec, struct nvos46_v1 *p);
void nvsim_op_unmap_dma(const struct nvsec *sec, struct nvos47 *p);
void nvsim_op_unmap_dma_v1(const struct nvsec *sec, struct nvos47_v1 *p);

/* rm_ctrl*.c, rm_sched.c, rm_export.c */
typedef NV_STATUS (*nvctl_fn)(struct nvctl *c);
struct nvctl_entry {
	u32 cmd;
	s32 size;			/* exact; negative: at most; 0: no parameters */
	u32 types;			/* NVT_BIT()s it is for */
	u32 flags;
	nvctl_fn fn;
	nvctl_fn after;			/* without locks: follows pointers in params */
	u16 since, before;		/* branches of the driver, see nvsim_in_branch() */
};

/*
 * A control with params {count u32 @0, pointer @ptr}: the list is read before and written after, as
 * the params are.
 */
struct nvctl_list {
	u32 cmd, ptr, out, elem, max;
};
#define NVSIM_BUS_INFO_MAX 52		/* NV2080_CTRL_BUS_INFO_MAX_LIST_SIZE */
extern const struct nvctl_list nvsim_ctrl_lists[];
#define NVCTL_PRIV 1			/* root in the initial user namespace, or kernel */
#define NVCTL_NICE 2			/* CAP_SYS_NICE, root or kernel */
#define NVCTL_KERNEL 4
#define NVCTL_WRITE 8			/* takes the API lock for writing */
void nvsim_op_control(const struct nvsec *sec, struct nvos54 *p);
extern const struct nvctl_entry nvsim_ctrl_client[];
extern const struct nvctl_entry nvsim_ctrl_gpu[];
extern const struct nvctl_entry nvsim_ctrl_info[];
extern const struct nvctl_entry nvsim_ctrl_gr[];
extern const struct nvctl_entry nvsim_ctrl_bus[];
extern const struct nvctl_entry nvsim_ctrl_peers[];
extern const struct nvctl_entry nvsim_ctrl_smi[];
extern const struct nvctl_entry nvsim_ctrl_clock[];
extern const struct nvctl_entry nvsim_ctrl_sched[];
extern const struct nvctl_entry nvsim_ctrl_export[];
void nvsim_export_drop(nv_file_private_t *nvfp);

/* rm_chan.c */
/* The engine on whose runlist an NV2080_ENGINE_TYPE_* is. NULL: none of the card. */
struct engine *nvsim_engine_of(struct nvgpu *gpu, u32 type);
NV_STATUS nvsim_tsg_create(struct nvobj *o, const struct nv_tsg_params *p);
void nvsim_tsg_get(struct nvtsg *tsg);
void nvsim_tsg_put(struct nvtsg *tsg);
NV_STATUS nvsim_chan_create(struct nvobj *o, const struct nv_chan_params *p);
void nvsim_chan_destroy(struct nvchan *chan);
/* Writes entry @index of the channel's notifier, if it has one with so many. */
void nvsim_chan_notify(struct nvchan *c, u32 index, u64 ns, u32 info);
NV_STATUS nvsim_engobj_create(struct nvobj *o, bool copy);
NV_STATUS nvsim_video_create(struct nvobj *o, const struct nv_video_params *p);

/* The size that NVOS64 gives and the parameters' first word repeats. */
static inline u32 nvsim_video_params_size(u32 cls)
{
	return (cls & 0xff) == 0xfa && nvsim_branch < 545 ? 8 : sizeof(struct nv_video_params);
}

/* ctx.c */
NV_STATUS nvctx_of_group(struct engine *e, struct nvctx **out);
NV_STATUS nvctx_of_channel(struct engine *e, struct nvctx **out);
void nvctx_put(struct nvctx *ctx);
bool nvctx_has_chram(void);
bool nvctx_is_turing(void);
u32 *nvctx_chram(struct nvctx *channel);
NV_STATUS nvsim_ctl_fifo_info(struct nvctl *c);

/* bar1.c */
u64 nvsim_bar1_size(void);
NV_STATUS nvsim_bar1_map(const struct nvobj *o, const struct nvobj *by, u64 off, u64 len, u64 *at, u64 *window);
void nvsim_bar1_show(nv_file_private_t *fp);
void nvsim_bar1_hide(nv_file_private_t *fp);
struct page *nvsim_bar1_page(struct nvgpu *gpu, u64 window);
bool nvsim_bar1_unmap(const struct nvobj *o, u64 at);
bool nvsim_bar1_rename(const struct nvobj *o, u64 old, u64 at);
void nvsim_bar1_forget(struct nvgpu *gpu, const struct nvobj *o);

/* event.c */
extern struct mutex nvsim_event_lock;
u32 nvsim_event_alloc_os(u32 hclient, nv_file_private_t *nvfp, u32 fd);
u32 nvsim_event_free_os(u32 hclient, u32 fd);
u32 nvsim_event_os_count(void);
void nvsim_event_client_gone(u32 hclient);
void nvsim_event_file_gone(nv_file_private_t *nvfp);
NV_STATUS nvsim_event_create(struct nvobj *o, u32 index, u64 data);
void nvsim_event_destroy(struct nvobj *o);
void nvsim_event_signal(struct nvobj *event);
void nvsim_event_interrupt(struct nvgpu *gpu, u32 index);

/* mem.c */
struct nvpages *nvpages_create(u64 count);
struct nvpages *nvpages_of_user(struct page *const *pages, u64 count);
void nvpages_get(struct nvpages *p);
void nvpages_put(struct nvpages *p);
/* The record alone: of a context that points to it, alive or not. */
void nvpages_note(struct nvpages *p);
void nvpages_forget(struct nvpages *p);
struct page *nvpages_page(struct nvpages *p, u64 idx, gfp_t gfp);
struct nvmem *nvmem_create(struct nvgpu *gpu, enum nvloc loc, u64 size, u64 page_size);
void nvmem_get(struct nvmem *m);
void nvmem_put(struct nvmem *m);
struct nvas *nvas_create(struct nvgpu *gpu);
void nvas_get(struct nvas *as);
void nvas_put(struct nvas *as);
int nvas_map(struct nvas *as, u64 va, u64 len, struct nvmem *mem, u64 off, struct nvdup *dup);
int nvas_unmap(struct nvas *as, u64 va, u64 len);
/* What UVM mapped of @gpu's memory. */
void nvas_unmap_peer(struct nvas *as, const struct nvgpu *gpu);
/* MAP_MEMORY_DMA of @of's memory through @dma; nvas_forget() undoes those of either. */
void nvas_pool(struct nvas *as, u64 bytes);	/* at least as many from here on, while there is room on the card */
int nvas_map_dma(struct nvas *as, u64 va, u64 len, const struct nvobj *dma, const struct nvobj *of, u64 off);
bool nvas_unmap_dma(struct nvas *as, u64 va, const struct nvobj *dma);
void nvas_forget(struct nvas *as, const struct nvobj *gone);
bool nvas_busy(struct nvas *as, u64 va, u64 len);
bool nvas_read(struct nvas *as, u64 va, void *buf, u32 len);
bool nvas_write(struct nvas *as, u64 va, const void *buf, u32 len);
bool nvas_exchange(struct nvas *as, u64 va, u64 *seen, u64 to, u32 len);

/* gpu.c */
struct nvgpu *nvsim_gpu_create(u32 index);
void nvsim_gpu_destroy(struct nvgpu *gpu);
bool nvsim_fb_take(struct nvgpu *gpu, u64 bytes, u64 *addr);
void nvsim_fb_give(struct nvgpu *gpu, u64 bytes);
u64 nvsim_fb_free(struct nvgpu *gpu);
u64 nvsim_gpu_bar(const struct nvgpu *gpu, u32 bar);
u32 nvsim_rpc_begin(struct nvgpu *gpu);
void nvsim_rpc_end(struct nvgpu *gpu, u32 left_us);
bool nvsim_chance(struct nvgpu *gpu, int pct);

/* board.c */
void nvsim_board_find(struct nvgpu *gpu);
void nvsim_board_put(struct nvgpu *gpu);
u32 *nvsim_board_word(const struct nvgpu *gpu, u32 channel);
extern const struct kernel_param_ops nvsim_board_asleep;

/* uvm*.c */
struct uvm_gpu {
	struct list_head link;		/* uvm_vas.gpus */
	struct nvgpu *gpu;
	struct nvas *as;		/* NULL until a VA space is registered */
	struct list_head chans;		/* uvm_chan.link: uvm_vas.lock */
};

struct uvm_ext {
	struct list_head link;		/* uvm_vas.ranges */
	u64 base, len;
	struct nvmem *managed;		/* backing of a managed range */
	struct nvmem *pool;		/* backing of a semaphore pool; an external range has neither */
	bool pool_mapped;		/* by a CPU */
	bool reflected;			/* a page of the SMs' own (UVM_MAP_DYNAMIC_PARALLELISM_REGION): no memory */
	u64 off, fb_bytes;		/* managed: in the backing; taken from its GPU's framebuffer */
};

/* An open nvidia-uvm file: one VA space over several GPUs. */
struct uvm_vas {
	struct mutex lock;		/* everything below */
	struct address_space mapping;
	bool initialized;
	u64 flags;
	struct mm_struct *mm;		/* compared, never dereferenced */
	enum { UVM_MM_NONE, UVM_MM_ALIVE, UVM_MM_RELEASED } mm_state;
	struct uvm_vas *mm_of;		/* this file keeps its mm; a reference to its file */
	struct file *file;		/* its own file: no reference */
	struct list_head gpus, ranges, groups;
	u64 last_group;
	u16 peers[NVSIM_MAX_GPUS];	/* by index: bits of the GPUs with which it has peer access */
};

NV_STATUS uvm_va_space_create(struct address_space *mapping, struct uvm_vas **space, u64 flags);
NV_STATUS uvm_va_space_register_gpu(struct uvm_vas *v, const u8 *uuid, const void *rm_device, NvBool *numa, s32 *node,
				    u8 *uuid_out);
/* rm_peers.c */
NV_STATUS nvsim_peers_get(struct nvgpu *a, struct nvgpu *b);
bool nvsim_is_other(const struct nvgpu *gpu);
void nvsim_peers_put(struct nvgpu *a, struct nvgpu *b);
NV_STATUS nvsim_peers_create(struct nvobj *o, const u32 *params);
void nvsim_peers_destroy(struct nvpeers *peers);
/* uvm_peers.c */
bool uvm_peers_enabled(const struct uvm_vas *v, const struct nvgpu *a, const struct nvgpu *b);
void uvm_do_enable_peers(struct uvm_vas *v, void *arg);
void uvm_do_disable_peers(struct uvm_vas *v, void *arg);
void uvm_peers_drop(struct uvm_vas *v, struct uvm_gpu *g);
/* dmabuf.c */
NV_STATUS nv_dma_buf_export(nv_state_t *nv, struct nv_export_dmabuf *p);

int nvsim_uvm_init(void);
void nvsim_uvm_exit(void);
struct uvm_gpu *uvm_gpu_find(struct uvm_vas *v, const u8 *uuid);
struct uvm_ext *uvm_range_find(struct uvm_vas *v, u64 base, u64 len);
struct uvm_ext *uvm_range_add(struct uvm_vas *v, u64 base, u64 len);
void uvm_range_drop(struct uvm_vas *v, struct uvm_ext *x);
NV_STATUS uvm_api_create_external_range(struct uvm_range *p, struct file *file);
NV_STATUS uvm_range_reflect(struct uvm_vas *v, const struct uvm_map_dyn *p);
bool uvm_bad_range(u64 base, u64 len);
bool uvm_range_overlaps(struct uvm_vas *v, u64 base, u64 len);
NV_STATUS uvm_range_free(struct uvm_vas *v, u64 base, u64 len);
NV_STATUS uvm_range_map(struct uvm_vas *v, const struct uvm_map_ext *p);
NV_STATUS uvm_range_unmap(struct uvm_vas *v, const struct uvm_unmap_ext *p);
void uvm_gpu_drop_as(struct uvm_vas *v, struct uvm_gpu *g);
NV_STATUS uvm_chan_register(struct uvm_vas *v, struct uvm_gpu *g, u32 hclient, u32 hchannel);
NV_STATUS uvm_chan_unregister(struct uvm_vas *v, u32 hclient, u32 hchannel);
void uvm_chans_stop(struct uvm_gpu *g);
void uvm_chans_drop(struct uvm_gpu *g);
void uvm_ranges_drop(struct uvm_vas *v);
struct nvmem *uvm_range_backing(const struct uvm_ext *x);
void uvm_do_map_external_v1(struct uvm_vas *v, void *arg);
NV_STATUS uvm_api_alloc_semaphore_pool(void *params, struct file *file);
NV_STATUS uvm_api_free(struct uvm_range *p, struct file *file);
NV_STATUS uvm_va_range_create_mmap(struct uvm_vas *v, struct mm_struct *mm, struct vm_area_struct *vma,
				   struct uvm_ext **out);
NV_STATUS uvm_api_create_range_group(struct uvm_group *p, struct file *file);
NV_STATUS uvm_api_destroy_range_group(struct uvm_group *p, struct file *file);
void uvm_do_set_group(struct uvm_vas *v, void *arg);
void uvm_groups_drop(struct uvm_vas *v);
int uvm_pool_mmap(struct uvm_vas *v, struct vm_area_struct *vma);
NV_STATUS uvm_pool_release(struct uvm_vas *v, u64 at, u32 payload);
int nvsim_uvm_mmap(struct file *file, struct vm_area_struct *vma);

#endif
