// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The resource manager: clients, the object tree, and the escapes that reach it. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/hashtable.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "nvsim.h"

#define HANDLE_CLIENT 0xc1d00000u
#define HANDLE_KERNEL_CLIENT 0xc1e00000u
#define HANDLE_OBJECT 0xcaf00000u
#define HANDLE_RANGE 0x100000u

LIST_HEAD(nvsim_clients);
/* Each call looks its client up: a list would make it cost more beside a thousand clients. */
static DEFINE_HASHTABLE(by_handle, 10);	/* nvsim_api_lock */
static u32 next_client = 1, next_kernel_client = 1;	/* nvsim_api_lock */

NV_STATUS nvsim_param_in(const struct nvsec *sec, void *to, u64 from, u32 n)
{
	if (!sec->kernel)
		return os_memcpy_from_user(to, (const void *)(uintptr_t)from, n);
	memcpy(to, (const void *)(uintptr_t)from, n);
	return NV_OK;
}

NV_STATUS nvsim_param_out(const struct nvsec *sec, u64 to, const void *from, u32 n)
{
	if (!sec->kernel)
		return os_memcpy_to_user((void *)(uintptr_t)to, from, n);
	memcpy((void *)(uintptr_t)to, from, n);
	return NV_OK;
}

struct nvclient *nvsim_client_find(u32 handle)
{
	struct nvclient *c;

	hash_for_each_possible(by_handle, c, named, handle)
		if (c->obj.handle == handle)
			return c;
	return NULL;
}

/* The strict check of the driver: a client answers only to the file that made it, or to the kernel. */
struct nvclient *nvsim_client_get(const struct nvsec *sec, u32 handle, NV_STATUS *st)
{
	struct nvclient *c = nvsim_client_find(handle);

	if (!c || (!sec->kernel && c->owner != sec->os_info)) {
		*st = NV_ERR_INVALID_CLIENT;
		return NULL;
	}
	return c;
}

struct nvobj *nvsim_obj_find(struct nvclient *c, u32 handle)
{
	if (handle == c->obj.handle)
		return &c->obj;
	return xa_load(&c->objs, handle);
}

struct nvobj *nvsim_obj_find_type(struct nvclient *c, u32 handle, u32 types)
{
	struct nvobj *o = nvsim_obj_find(c, handle);

	return o && (types & NVT_BIT(o->type)) ? o : NULL;
}

struct nvobj *nvsim_obj_device(struct nvobj *o)
{
	while (o && o->type != NVT_DEVICE)
		o = o->parent;
	return o;
}

static u32 pick_handle(struct nvclient *c)
{
	u32 i, h;

	for (i = 0; i < HANDLE_RANGE; i++) {
		h = HANDLE_OBJECT + (c->next_handle++ % HANDLE_RANGE);
		if (!xa_load(&c->objs, h))
			return h;
	}
	return 0;
}

/* Files @o under *@handle, or under a handle of RM's choice when that is 0. */
NV_STATUS nvsim_obj_add(struct nvclient *c, struct nvobj *parent, struct nvobj *o, u32 *handle)
{
	u32 h = *handle;
	int err;

	if (!h)
		h = pick_handle(c);
	if (!h)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	if (h == c->obj.handle)
		return NV_ERR_INSERT_DUPLICATE_NAME;
	err = xa_insert(&c->objs, h, o, GFP_KERNEL);
	if (err)
		return err == -EBUSY ? NV_ERR_INSERT_DUPLICATE_NAME : NV_ERR_NO_MEMORY;
	o->handle = h;
	o->client = c;
	o->parent = parent;
	list_add(&o->sibling, &parent->children);
	*handle = h;
	return NV_OK;
}

void nvsim_dep_add(struct nvdep *d, struct nvobj *on, struct nvobj *who)
{
	d->obj = who;
	list_add(&d->link, &on->dependants);
}

/* The deepest object to free before @o: its children first, then its dependants. Iterative. */
static struct nvobj *first_to_go(struct nvobj *o)
{
	for (;;) {
		if (!list_empty(&o->children))
			o = list_first_entry(&o->children, struct nvobj, sibling);
		else if (!list_empty(&o->dependants))
			o = list_first_entry(&o->dependants, struct nvdep, link)->obj;
		else
			return o;
	}
}

void nvsim_obj_free(struct nvobj *o)
{
	struct nvobj *victim;
	bool last;

	lockdep_assert_held_write(&nvsim_api_lock);
	do {
		victim = first_to_go(o);
		last = victim == o;
		if (victim->parent) {
			xa_erase(&victim->client->objs, victim->handle);
			list_del(&victim->sibling);
		}
		nvsim_obj_destroy(victim);
	} while (!last);
}

static struct nvclient *client_create(const struct nvsec *sec)
{
	struct nvclient *c = kzalloc(sizeof(*c), GFP_KERNEL);

	if (!c)
		return NULL;
	c->kernel = sec->kernel;
	c->owner = sec->os_info;
	c->tgid = task_tgid_nr(current);
	c->euid = current_euid();
	c->pid = get_pid(task_tgid(current));
	xa_init(&c->objs);
	INIT_LIST_HEAD(&c->obj.children);
	INIT_LIST_HEAD(&c->obj.dependants);
	c->obj.client = c;
	c->obj.cls = NV01_ROOT_CLIENT;
	c->obj.type = NVT_CLIENT;
	do {
		u32 n = sec->kernel ? next_kernel_client++ : next_client++;

		c->obj.handle = (sec->kernel ? HANDLE_KERNEL_CLIENT : HANDLE_CLIENT) + n % HANDLE_RANGE;
	} while (nvsim_client_find(c->obj.handle));
	list_add_tail(&c->link, &nvsim_clients);
	hash_add(by_handle, &c->named, c->obj.handle);
	return c;
}

NV_STATUS nvsim_client_alloc(const struct nvsec *sec, struct nvos64 *p)
{
	struct nvclient *c = client_create(sec);

	if (!c)
		return NV_ERR_NO_MEMORY;
	p->hRoot = c->obj.handle;
	p->hObjectNew = c->obj.handle;
	return NV_OK;
}

void nvsim_client_destroy(struct nvclient *c)
{
	list_del(&c->link);
	hash_del(&c->named);
	xa_destroy(&c->objs);
	put_pid(c->pid);
	kfree(c);
}

void nvsim_op_free(const struct nvsec *sec, struct nvos00 *p)
{
	struct nvclient *c;
	struct nvobj *o;

	if (nvsim_fault(NV_ESC_RM_FREE, &p->status) == NVSIM_FAULT_FAILS)
		return;
	down_write(&nvsim_api_lock);
	p->status = NV_OK;
	c = nvsim_client_get(sec, p->hRoot, &p->status);
	if (c) {
		o = nvsim_obj_find(c, p->hObjectOld);
		if (o)	/* an unknown handle is NV_OK: seen of an H100 */
			nvsim_obj_free(o);
	}
	up_write(&nvsim_api_lock);
}

/* The end of a file: objects exported on it, its clients, and its reference to a control file. */
void nvsim_rm_cleanup_file(nv_file_private_t *nvfp)
{
	struct nvclient *c, *next;

	down_write(&nvsim_api_lock);
	nvsim_export_drop(nvfp);
	list_for_each_entry_safe(c, next, &nvsim_clients, link)
		if (c->owner == nvfp)
			nvsim_obj_free(&c->obj);
	up_write(&nvsim_api_lock);
	if (nvfp->ctl_nvfp)
		nv_put_file_private(nvfp->ctl_priv);
	nvfp->ctl_nvfp = NULL;
}

void nvsim_rm_exit(void)
{
	struct nvclient *c, *next;

	down_write(&nvsim_api_lock);
	list_for_each_entry_safe(c, next, &nvsim_clients, link)
		nvsim_obj_free(&c->obj);
	up_write(&nvsim_api_lock);
}

static NV_STATUS register_fd(nv_file_private_t *nvfp, s32 fd)
{
	nv_file_private_t *ctl;
	NV_STATUS st = NV_ERR_INVALID_ARGUMENT;
	void *priv = NULL;

	down_write(&nvsim_api_lock);
	if (nvfp->ctl_nvfp) {
		up_write(&nvsim_api_lock);
		return NV_ERR_INVALID_STATE;
	}
	ctl = nv_get_file_private(fd, true, &priv);
	if (!ctl)
		goto out;
	if (ctl == nvfp || ctl->ctl_nvfp)
		goto out;
	st = NV_ERR_IN_USE;
	if (nvfp->register_or_refcount != NVFP_NONE)
		goto out;
	nvfp->register_or_refcount = NVFP_REGISTERED;
	nvfp->ctl_priv = priv;
	smp_store_release(&nvfp->ctl_nvfp, ctl);
	priv = NULL;	/* kept until nvfp is closed */
	st = NV_OK;
out:
	up_write(&nvsim_api_lock);
	if (priv)
		nv_put_file_private(priv);
	return st;
}

static NV_STATUS esc_alloc(nv_state_t *nv, const struct nvsec *sec, void *arg, u32 size)
{
	struct nvos21 *p21 = arg;
	struct nvos64 p64 = {}, *p = arg;
	u32 cls = p21->hClass;

	if (size != sizeof(*p21) && size != sizeof(*p))
		return NV_ERR_INVALID_ARGUMENT;
	if (cls != NV01_EVENT && cls != NV01_EVENT_OS_EVENT && cls != 0x78 && cls != 0x7e && nv->gpu)
		return NV_ERR_INVALID_ARGUMENT;
	if (cls == NV01_ROOT || cls == NV01_ROOT_NON_PRIV)
		p21->hClass = NV01_ROOT_CLIENT;
	if (size == sizeof(*p)) {
		nvsim_op_alloc(sec, p);
		if (nvsim.trace && p->status != NV_OK)
			pr_info("class %#x: status %#x\n", p->hClass, p->status);
		return NV_OK;
	}
	memcpy(&p64, p21, 24);
	p64.paramsSize = p21->paramsSize;
	nvsim_op_alloc(sec, &p64);
	p21->hRoot = p64.hRoot;
	p21->hObjectNew = p64.hObjectNew;
	p21->status = p64.status;
	return NV_OK;
}

struct escape {
	u32 cmd, size;
	bool gpu_node;		/* valid on the GPU's node, else on the control node */
	void (*fn)(const struct nvsec *sec, void *arg);
	u16 since, before;	/* branches of the driver, see nvsim_in_branch() */
};

static void esc_alloc_memory(const struct nvsec *sec, void *arg)
{
	struct nvos02_fd *p = arg;

	nvsim_op_alloc_memory(sec, &p->params, p->fd);
}

static void esc_map(const struct nvsec *sec, void *arg)
{
	struct nvos33_fd *p = arg;

	nvsim_op_map(sec, &p->params, p->fd);
}

/* The OS events of a client go with its own free only, not with its file's (escape.c). */
static void esc_free(const struct nvsec *sec, void *arg)
{
	struct nvos00 *p = arg;

	nvsim_op_free(sec, p);
	if (p->status == NV_OK && p->hObjectOld == p->hRoot)
		rm_client_free_os_events(p->hRoot);
}

static void esc_control(const struct nvsec *sec, void *arg)
{
	struct nvos54 *p = arg;

	nvsim_op_control(sec, p);
	if (nvsim.trace && p->status != NV_OK)
		pr_info("control %#x of %u bytes: status %#x\n", p->cmd, p->paramsSize, p->status);
}

static void esc_dup(const struct nvsec *sec, void *arg) { nvsim_op_dup(sec, arg); }
static void esc_share(const struct nvsec *sec, void *arg) { nvsim_op_share(sec, arg); }
static void esc_vid_heap(const struct nvsec *sec, void *arg) { nvsim_op_vid_heap(sec, arg); }
static void esc_unmap(const struct nvsec *sec, void *arg) { nvsim_op_unmap(sec, arg); }
static void esc_map_dma(const struct nvsec *sec, void *arg) { nvsim_op_map_dma(sec, arg); }
static void esc_map_dma_v1(const struct nvsec *sec, void *arg) { nvsim_op_map_dma_v1(sec, arg); }
static void esc_unmap_dma(const struct nvsec *sec, void *arg) { nvsim_op_unmap_dma(sec, arg); }
static void esc_unmap_dma_v1(const struct nvsec *sec, void *arg) { nvsim_op_unmap_dma_v1(sec, arg); }
static void esc_alloc_object(const struct nvsec *sec, void *arg) { ((struct nvos05 *)arg)->status = NV_ERR_INVALID_CLASS; }
static void esc_idle(const struct nvsec *sec, void *arg) { ((struct nvos30 *)arg)->status = NV_ERR_NOT_SUPPORTED; }
static void esc_ctxdma(const struct nvsec *sec, void *arg) { ((struct nvos39 *)arg)->status = NV_ERR_NOT_SUPPORTED; }
static void esc_bind_ctxdma(const struct nvsec *sec, void *arg) { ((struct nvos49 *)arg)->status = NV_ERR_NOT_SUPPORTED; }
static void esc_rename_map(const struct nvsec *sec, void *arg) { nvsim_op_rename_map(arg); }
static void esc_status_code(const struct nvsec *sec, void *arg) { ((struct nv_status_code *)arg)->status = NV_OK; }

static const struct escape escapes[] = {
	{ NV_ESC_RM_ALLOC_MEMORY, sizeof(struct nvos02_fd), true, esc_alloc_memory },
	{ NV_ESC_RM_ALLOC_OBJECT, sizeof(struct nvos05), false, esc_alloc_object },
	{ NV_ESC_RM_FREE, sizeof(struct nvos00), false, esc_free },
	{ NV_ESC_RM_CONTROL, sizeof(struct nvos54), false, esc_control },
	{ NV_ESC_RM_DUP_OBJECT, sizeof(struct nvos55), false, esc_dup },
	{ NV_ESC_RM_SHARE, sizeof(struct nvos57), false, esc_share },
	{ NV_ESC_RM_IDLE_CHANNELS, sizeof(struct nvos30), false, esc_idle },
	{ NV_ESC_RM_VID_HEAP_CONTROL, sizeof(struct nvos32), false, esc_vid_heap },
	{ NV_ESC_RM_MAP_MEMORY, sizeof(struct nvos33_fd), false, esc_map },
	{ NV_ESC_RM_UNMAP_MEMORY, sizeof(struct nvos34), false, esc_unmap },
	{ NV_ESC_RM_ALLOC_CONTEXT_DMA2, sizeof(struct nvos39), false, esc_ctxdma },
	{ NV_ESC_RM_MAP_MEMORY_DMA, sizeof(struct nvos46_v1), false, esc_map_dma_v1, .before = 580 },
	{ NV_ESC_RM_MAP_MEMORY_DMA, sizeof(struct nvos46), false, esc_map_dma, .since = 580 },
	{ NV_ESC_RM_UNMAP_MEMORY_DMA, sizeof(struct nvos47_v1), false, esc_unmap_dma_v1, .before = 550 },
	{ NV_ESC_RM_UNMAP_MEMORY_DMA, sizeof(struct nvos47), false, esc_unmap_dma, .since = 550 },
	{ NV_ESC_RM_BIND_CONTEXT_DMA, sizeof(struct nvos49), false, esc_bind_ctxdma },
	{ NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO, sizeof(struct nvos56), false, esc_rename_map },
	{ NV_ESC_STATUS_CODE, sizeof(struct nv_status_code), false, esc_status_code },
};

NV_STATUS nvsim_rm_escape(nv_state_t *nv, nv_file_private_t *nvfp, u32 cmd, void *arg, u32 size)
{
	struct nvsec sec = { .admin = capable(CAP_SYS_ADMIN) };
	size_t i;

	sec.os_info = smp_load_acquire(&nvfp->ctl_nvfp);
	if (!sec.os_info)
		sec.os_info = nvfp;
	if (cmd == NV_ESC_RM_ALLOC)
		return esc_alloc(nv, &sec, arg, size);
	if (cmd == NV_ESC_REGISTER_FD)
		return size == 4 ? register_fd(nvfp, *(s32 *)arg) : NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < ARRAY_SIZE(escapes); i++) {
		if (escapes[i].cmd != cmd || !nvsim_in_branch(escapes[i].since, escapes[i].before))
			continue;
		if (escapes[i].gpu_node != !!nv->gpu)
			return NV_ERR_INVALID_ARGUMENT;
		if (size != escapes[i].size) {
			pr_info_ratelimited("escape %#x has %u bytes here, %u are given\n", cmd,
					    escapes[i].size, size);
			return NV_ERR_INVALID_ARGUMENT;
		}
		if (nvsim.unmap_ms > 0 && (cmd == NV_ESC_RM_FREE || cmd == NV_ESC_RM_UNMAP_MEMORY))
			msleep(nvsim.unmap_ms);
		escapes[i].fn(&sec, arg);
		return NV_OK;
	}
	pr_info_ratelimited("escape %#x of %u bytes is unknown\n", cmd, size);
	return NV_ERR_GENERIC;
}
