// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Memory: the ways to allocate it, and the ways to map it. */
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

#define PARENTS (NVT_BIT(NVT_DEVICE) | NVT_BIT(NVT_SUBDEVICE))

static u64 page_size_of(u32 attr, u32 attr2, u64 size)
{
	switch (NVOS32_ATTR_PAGE_SIZE(attr)) {
	case 1:
		return SZ_4K;
	case 2:
		return SZ_64K;
	case 3:
		return NVOS32_ATTR2_HUGE(attr2) == 2 ? SZ_512M : SZ_2M;
	}
	return size >= SZ_2M ? SZ_2M : SZ_64K;
}

/* Turing has no pages of 512 MiB, and no chip has them in system memory (tests/rm/test_sizes.py). */
NV_STATUS nvsim_check_page_size(u32 attr, u32 attr2, bool sys)
{
	bool asked = NVOS32_ATTR_PAGE_SIZE(attr) == 3 && NVOS32_ATTR2_HUGE(attr2) == 2;

	return asked && (sys || nvsim_chip->chip.arch < CHIP_AMPERE) ? NV_ERR_INVALID_STATE : NV_OK;
}

static u32 with_page_size(u32 attr, u64 ps)
{
	u32 v = ps == SZ_4K ? 1 : ps == SZ_64K ? 2 : 3;

	return (attr & ~(3u << 23)) | (v << 23);
}

/* Classes 0x40 and 0x3e. The actual values go back into @p. */
NV_STATUS nvsim_mem_create(struct nvobj *parent, u32 cls, struct nv_mem_params *p, struct nvmem **out)
{
	bool fb = cls == NV01_MEMORY_LOCAL_USER;
	u32 loc = NVOS32_ATTR_LOCATION(p->attr);
	struct nvmem *m;
	u64 ps, size;

	if (!parent->gpu || !p->size || p->size > 1ull << 46)
		return NV_ERR_INVALID_ARGUMENT;
	if ((p->flags & NVOS32_ALLOC_FLAGS_VIRTUAL) || (p->attr2 & NVOS32_ATTR2_USE_EGM))
		return NV_ERR_INVALID_ARGUMENT;
	if (fb ? loc != NVOS32_ATTR_LOCATION_VIDMEM : loc != NVOS32_ATTR_LOCATION_PCI && loc != NVOS32_ATTR_LOCATION_ANY)
		return NV_ERR_INVALID_ARGUMENT;
	if (fb && READ_ONCE(parent->gpu->lock_lost))
		return NV_ERR_STATE_IN_USE;
	if (nvsim_check_page_size(p->attr, p->attr2, !fb) != NV_OK) {
		if (fb && nvsim_branch < 550)
			WRITE_ONCE(parent->gpu->lock_lost, true);
		return NV_ERR_INVALID_STATE;
	}
	ps = fb ? page_size_of(p->attr, p->attr2, p->size) : PAGE_SIZE;
	size = ALIGN(p->size, ps);
	if (!fb && size >> PAGE_SHIFT > totalram_pages())
		return NV_ERR_NO_MEMORY;
	if (fb && size > parent->gpu->fb_total)
		return NV_ERR_NO_MEMORY;
	m = nvmem_create(parent->gpu, fb ? NVLOC_FB : NVLOC_SYS, size, ps);
	if (!m)
		return NV_ERR_NO_MEMORY;
	p->attr = with_page_size(p->attr, ps);
	p->size = size;
	p->limit = size - 1;
	p->offset = m->addr;
	m->attr = p->attr;
	m->attr2 = p->attr2;
	*out = m;
	return NV_OK;
}

static NV_STATUS pin_os_desc(struct nvgpu *gpu, u64 uaddr, u64 limit, struct nvmem **out)
{
	u64 len = limit + 1, count;
	struct nvmem *m;
	void *pages;
	NV_STATUS st;

	if (!len || len > SZ_1G || offset_in_page(uaddr))
		return NV_ERR_INVALID_ADDRESS;
	count = DIV_ROUND_UP_ULL(len, PAGE_SIZE);
	st = os_lock_user_pages((void *)uaddr, count, &pages, NV_LOCK_USER_PAGES_FLAGS_WRITE_YES);
	/* NVIDIA's driver does, and takes them of an administrator (os_lookup_user_io_memory()). */
	if (st == NV_ERR_INVALID_ADDRESS)
		pr_info_ratelimited("looks for registers at an address of a process\n");
	if (st != NV_OK)
		return st;
	m = nvmem_create(gpu, NVLOC_OSDESC, count << PAGE_SHIFT, PAGE_SIZE);
	if (m)
		m->pages = nvpages_of_user(pages, count);
	if (!m || !m->pages) {
		if (m)
			nvmem_put(m);
		os_unlock_user_pages(count, pages);
		return NV_ERR_NO_MEMORY;
	}
	kvfree(pages);
	m->attr = NVOS32_ATTR_LOCATION_PCI << 25;
	*out = m;
	return NV_OK;
}

/* Files ready-made memory as a handle; consumes @m. */
static NV_STATUS add_mem(struct nvclient *c, u32 hparent, u32 *handle, struct nvmem *m, u32 cls)
{
	NV_STATUS st = nvsim_dup_mem(c, hparent, handle, m, cls);

	nvmem_put(m);
	return st;
}

/* Class 0x71: pins pages of the caller, before any lock is taken. */
static NV_STATUS alloc_os_desc(const struct nvsec *sec, u32 hroot, u32 hparent, u32 *handle, u64 uaddr, u64 limit)
{
	struct nvgpu *gpu = NULL;
	NV_STATUS st = NV_OK;
	struct nvclient *c;
	struct nvobj *parent;
	struct nvmem *m;

	if (sec->kernel)
		return NV_ERR_NOT_SUPPORTED;
	down_read(&nvsim_api_lock);
	c = nvsim_client_get(sec, hroot, &st);
	parent = c ? nvsim_obj_find_type(c, hparent, PARENTS) : NULL;
	if (parent)
		gpu = parent->gpu;
	else if (c)
		st = NV_ERR_INVALID_OBJECT_PARENT;
	up_read(&nvsim_api_lock);
	if (st != NV_OK)
		return st;
	st = pin_os_desc(gpu, uaddr, limit, &m);
	if (st != NV_OK)
		return st;
	down_write(&nvsim_api_lock);
	c = nvsim_client_get(sec, hroot, &st);
	if (c)
		st = add_mem(c, hparent, handle, m, NV01_MEMORY_SYSTEM_OS_DESCRIPTOR);
	else
		nvmem_put(m);
	up_write(&nvsim_api_lock);
	return st;
}

/* Both older allocation calls end here, as they do in the driver: one RM_ALLOC of the class they mean. */
static NV_STATUS alloc_classed(const struct nvsec *sec, u32 hroot, u32 hparent, u32 *handle, u32 cls, struct nv_mem_params *mp)
{
	NV_STATUS st = NV_OK;
	struct nvclient *c;
	struct nvobj *parent;
	struct nvmem *m;

	down_write(&nvsim_api_lock);
	c = nvsim_client_get(sec, hroot, &st);
	if (!c)
		goto out;
	parent = nvsim_obj_find_type(c, hparent, PARENTS);
	if (!parent)
		st = NV_ERR_INVALID_OBJECT_PARENT;
	else
		st = nvsim_mem_create(parent, cls, mp, &m);
	if (st == NV_OK)
		st = add_mem(c, hparent, handle, m, cls);
out:
	up_write(&nvsim_api_lock);
	return st;
}

static NV_STATUS vid_heap_alloc(const struct nvsec *sec, struct nvos32 *p, u32 flags, u32 *attr, u32 *attr2, u32 *handle, u64 *size,
				u64 *offset, u64 *limit)
{
	struct nv_mem_params mp = { .flags = flags, .attr = *attr, .attr2 = *attr2, .size = *size };
	u32 cls = NVOS32_ATTR_LOCATION(*attr) == NVOS32_ATTR_LOCATION_VIDMEM ? NV01_MEMORY_LOCAL_USER : NV01_MEMORY_SYSTEM;
	NV_STATUS st;

	if (!(flags & NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED))
		*handle = 0;
	if (flags & NVOS32_ALLOC_FLAGS_VIRTUAL) {
		mp.hVASpace = p->hVASpace;
		st = nvsim_alloc_virtual(sec, p->hRoot, p->hObjectParent, handle, &mp);
	} else {
		st = alloc_classed(sec, p->hRoot, p->hObjectParent, handle, cls, &mp);
	}
	if (st == NV_OK) {
		*attr = mp.attr;
		*attr2 = mp.attr2;
		*size = mp.size;
		*offset = mp.offset;
		*limit = mp.limit;
	}
	return st;
}

static NV_STATUS vid_heap_info(const struct nvsec *sec, struct nvos32 *p)
{
	NV_STATUS st = NV_OK;
	struct nvclient *c;
	struct nvobj *o;

	down_read(&nvsim_api_lock);
	c = nvsim_client_get(sec, p->hRoot, &st);
	o = c ? nvsim_obj_find_type(c, p->hObjectParent, PARENTS) : NULL;
	if (c && !o)
		st = NV_ERR_INVALID_OBJECT_PARENT;
	if (o) {
		p->total = o->gpu->fb_total;
		p->free = nvsim_fb_free(o->gpu);
		p->data.Info.base = 0;
		p->data.Info.size = p->free;
		p->data.Info.offset = o->gpu->fb_total - p->free;
	}
	up_read(&nvsim_api_lock);
	return st;
}

void nvsim_op_vid_heap(const struct nvsec *sec, struct nvos32 *p)
{
	struct nvos32_size *a = &p->data.AllocSize;
	struct nvos32_tiled *t = &p->data.AllocTiledPitchHeight;
	struct nvos32_range *r = &p->data.AllocSizeRange;

	switch (p->function) {
	case NVOS32_FUNCTION_ALLOC_SIZE:
		p->status = vid_heap_alloc(sec, p, a->flags, &a->attr, &a->attr2, &a->hMemory, &a->size, &a->offset, &a->limit);
		break;
	case NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT:
		p->status = vid_heap_alloc(sec, p, t->flags, &t->attr, &t->attr2, &t->hMemory, &t->size, &t->offset, &t->limit);
		break;
	case NVOS32_FUNCTION_ALLOC_SIZE_RANGE:
		p->status = vid_heap_alloc(sec, p, r->flags, &r->attr, &r->attr2, &r->hMemory, &r->size, &r->offset, &r->limit);
		break;
	case NVOS32_FUNCTION_ALLOC_OS_DESCRIPTOR:
		p->status = alloc_os_desc(sec, p->hRoot, p->hObjectParent, &p->data.AllocOsDesc.hMemory,
					  p->data.AllocOsDesc.descriptor, p->data.AllocOsDesc.limit);
		return;
	case NVOS32_FUNCTION_FREE: {
		struct nvos00 f = { .hRoot = p->hRoot, .hObjectParent = p->hObjectParent, .hObjectOld = p->data.Free.hMemory };

		nvsim_op_free(sec, &f);
		p->status = f.status;
		return;
	}
	case NVOS32_FUNCTION_INFO:
		p->status = vid_heap_info(sec, p);
		return;
	default:
		p->status = NV_ERR_NOT_SUPPORTED;
		return;
	}
	if (p->status == NV_OK) {
		u8 keep[sizeof(p->data._room)];

		memcpy(keep, p->data._room, sizeof(keep));
		vid_heap_info(sec, p);		/* total and free */
		memcpy(p->data._room, keep, sizeof(keep));
	}
}

void nvsim_op_alloc_memory(const struct nvsec *sec, struct nvos02 *p, s32 fd)
{
	struct nv_mem_params mp = { .size = p->limit + 1 };
	struct nvos33 map = {};

	if (p->hClass == NV01_MEMORY_SYSTEM_OS_DESCRIPTOR) {
		p->status = alloc_os_desc(sec, p->hRoot, p->hObjectParent, &p->hObjectNew, p->pMemory, p->limit);
		return;
	}
	p->status = NV_ERR_INVALID_CLASS;
	if (p->hClass != NV01_MEMORY_SYSTEM && p->hClass != NV01_MEMORY_LOCAL_USER)
		return;
	mp.attr = (p->hClass == NV01_MEMORY_SYSTEM ? NVOS32_ATTR_LOCATION_PCI : NVOS32_ATTR_LOCATION_VIDMEM) << 25;
	p->status = alloc_classed(sec, p->hRoot, p->hObjectParent, &p->hObjectNew, p->hClass, &mp);
	if (p->status != NV_OK)
		return;
	p->limit = mp.limit;
	/* flags: ALLOC 17:16 (1 none), MAPPING 31:30 (1 no map) */
	if (sec->kernel || p->hClass != NV01_MEMORY_SYSTEM || ((p->flags >> 16) & 3) == 1 || p->flags >> 30 == 1)
		return;
	map.hClient = p->hRoot;
	map.hDevice = p->hObjectParent;
	map.hMemory = p->hObjectNew;
	map.length = p->limit + 1;
	nvsim_op_map(sec, &map, fd);
	p->pMemory = map.pLinearAddress;
}

/* Whether the CPU sees it through BAR1. */
static bool in_bar1(const struct nvobj *o)
{
	return o->mem->loc == NVLOC_FB || o->doorbell_in_bar1;
}

/* Gives file @fd its one mapping context. */
static NV_STATUS set_context(const struct nvobj *o, u64 off, u64 len, u64 window, bool ro, s32 fd)
{
	struct nvmem *m = o->mem;
	bool ctl = m->loc != NVLOC_FB && m->loc != NVLOC_USERMODE;
	NV_STATUS st = NV_OK;
	nv_file_private_t *fp;
	void *priv;

	fp = nv_get_file_private(fd, ctl, &priv);
	if (!fp)
		return NV_ERR_INVALID_ARGUMENT;
	if (fp->mmap.valid) {
		st = NV_ERR_STATE_IN_USE;
	} else if (!ctl && fp->nv->gpu != m->gpu) {
		st = NV_ERR_INVALID_ARGUMENT;
	} else {
		if (in_bar1(o)) {
			fp->mmap.window = window;
			nvsim_bar1_show(fp);
		} else {
			nvpages_note(m->pages);
			fp->mmap.pages = m->pages;
		}
		fp->mmap.first = off >> PAGE_SHIFT;
		fp->mmap.count = DIV_ROUND_UP_ULL(offset_in_page(off) + len, PAGE_SIZE);
		fp->mmap.read_only = ro;
		smp_store_release(&fp->mmap.valid, true);
	}
	nv_put_file_private(priv);
	return st;
}

void nvsim_op_map(const struct nvsec *sec, struct nvos33 *p, s32 fd)
{
	struct nvclient *c;
	struct nvobj *o, *by;
	struct nvmem *m;
	u64 at = 0, window = 0;

	down_write(&nvsim_api_lock);
	p->status = NV_OK;
	c = nvsim_client_get(sec, p->hClient, &p->status);
	if (!c)
		goto out;
	o = nvsim_obj_find(c, p->hMemory);
	by = nvsim_obj_find_type(c, p->hDevice, PARENTS | NVT_BIT(NVT_CLIENT));
	if (!o || !by) {
		p->status = NV_ERR_OBJECT_NOT_FOUND;
		goto out;
	}
	if (o->type != NVT_MEMORY) {
		p->status = o->type == NVT_DEVICE ? NV_ERR_INVALID_OBJECT_PARENT : NV_ERR_NOT_SUPPORTED;
		goto out;
	}
	m = o->mem;
	if (m->loc == NVLOC_OSDESC)	/* its pages are not RM's (RmGetAllocPrivate()) */
		p->status = NV_ERR_OBJECT_NOT_FOUND;
	else if (p->offset >= m->size)
		p->status = NV_ERR_INVALID_BASE;
	else if (!p->length || p->length > m->size - p->offset)
		p->status = NV_ERR_INVALID_LIMIT;
	else if (c->tgid != task_tgid_nr(current))
		p->status = NV_ERR_INVALID_CLIENT;
	else if (in_bar1(o))
		p->status = nvsim_bar1_map(o, by, p->offset, p->length, &at, &window);
	else
		at = 0x100000000000ull + m->addr + p->offset;
	if (p->status == NV_OK)
		p->status = set_context(o, p->offset, p->length, window,
					m->read_only || NVOS33_ACCESS(p->flags) == NVOS33_FLAGS_ACCESS_READ_ONLY, fd);
	if (p->status == NV_OK)
		p->pLinearAddress = at;
	else if (in_bar1(o) && at)
		nvsim_bar1_unmap(o, at);
out:
	up_write(&nvsim_api_lock);
}

void nvsim_op_unmap(const struct nvsec *sec, struct nvos34 *p)
{
	struct nvclient *c;
	struct nvobj *o;

	down_write(&nvsim_api_lock);
	p->status = NV_OK;
	c = nvsim_client_get(sec, p->hClient, &p->status);
	o = c ? nvsim_obj_find_type(c, p->hMemory, NVT_BIT(NVT_MEMORY)) : NULL;
	if (c && (!o || (in_bar1(o) && !nvsim_bar1_unmap(o, p->pLinearAddress))))
		p->status = NV_ERR_OBJECT_NOT_FOUND;
	up_write(&nvsim_api_lock);
}

/* RmUpdateDeviceMappingInfo(): of the caller's file or not. Other mappings than those in BAR1 are not kept. */
void nvsim_op_rename_map(struct nvos56 *p)
{
	struct nvclient *c;
	struct nvobj *o;

	down_write(&nvsim_api_lock);
	c = nvsim_client_find(p->hClient);
	o = c ? nvsim_obj_find_type(c, p->hMemory, NVT_BIT(NVT_MEMORY) | NVT_BIT(NVT_CHANNEL)) : NULL;
	p->status = NV_ERR_OBJECT_NOT_FOUND;
	if (!c)
		p->status = NV_ERR_INVALID_CLIENT;
	else if (o && nvsim_obj_find_type(c, p->hDevice, NVT_BIT(NVT_DEVICE) | NVT_BIT(NVT_SUBDEVICE)) &&
		 (o->type != NVT_MEMORY || !in_bar1(o) || nvsim_bar1_rename(o, p->pOldCpuAddress, p->pNewCpuAddress)))
		p->status = NV_OK;
	up_write(&nvsim_api_lock);
}

/* The addresses and the memory of a mapping. A window on addresses in RM; here the address space itself, too. */
static NV_STATUS find_both(struct nvclient *c, const struct nvos46 *p, struct nvobj **v, struct nvobj **o)
{
	struct nvobj *by = nvsim_obj_find(c, p->hDevice);

	*v = nvsim_obj_find(c, p->hDma);
	*o = nvsim_obj_find(c, p->hMemory);
	if (!by || !*v || !*o)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (((*v)->type != NVT_VIRTUAL && (*v)->type != NVT_VASPACE) || (*o)->type != NVT_MEMORY)
		return NV_ERR_INVALID_OBJECT_HANDLE;
	/* bAllowUnicastMapping: of one subdevice by NV01_MEMORY_VIRTUAL only */
	return by->type == NVT_SUBDEVICE && (*v)->cls == NV50_MEMORY_VIRTUAL ? NV_ERR_NOT_SUPPORTED : NV_OK;
}

void nvsim_op_map_dma(const struct nvsec *sec, struct nvos46 *p)
{
	struct nvclient *c;
	struct nvobj *v, *o;
	u64 va, len;

	if (nvsim_fault(NV_ESC_RM_MAP_MEMORY_DMA, &p->status) == NVSIM_FAULT_FAILS)
		return;
	down_write(&nvsim_api_lock);
	p->status = NV_OK;
	c = nvsim_client_get(sec, p->hClient, &p->status);
	if (!c)
		goto out;
	p->status = find_both(c, p, &v, &o);
	if (p->status != NV_OK)
		goto out;
	p->status = NV_ERR_INVALID_LIMIT;
	if (!p->length || p->length > o->mem->size || p->offset > o->mem->size - p->length || offset_in_page(p->offset))
		goto out;
	len = PAGE_ALIGN(p->length);	/* whole pages are mapped: libnvcuvid asks for 176 bytes */
	va = NVOS46_OFFSET_FIXED(p->flags) ? p->dmaOffset : v->va ?: v->as->next_va;
	p->status = NV_ERR_INVALID_ADDRESS;
	if (offset_in_page(va) || va >= 1ull << 49 || len > (1ull << 49) - va || nvas_busy(v->as, va, len))
		goto out;
	p->status = nvas_map_dma(v->as, va, len, v, o, p->offset) ? NV_ERR_NO_MEMORY : NV_OK;
	v->dma_mapped = true;
	o->dma_mapped = true;
	if (p->status == NV_OK && !NVOS46_OFFSET_FIXED(p->flags) && !v->va)
		v->as->next_va = ALIGN(va + len, SZ_2M);
	p->dmaOffset = va;
out:
	up_write(&nvsim_api_lock);
}

void nvsim_op_map_dma_v1(const struct nvsec *sec, struct nvos46_v1 *p)
{
	struct nvos46 q = {
		.hClient = p->hClient, .hDevice = p->hDevice, .hDma = p->hDma, .hMemory = p->hMemory,
		.offset = p->offset, .length = p->length, .flags = p->flags, .dmaOffset = p->dmaOffset,
	};

	nvsim_op_map_dma(sec, &q);
	p->dmaOffset = q.dmaOffset;
	p->status = q.status;
}

void nvsim_op_unmap_dma(const struct nvsec *sec, struct nvos47 *p)
{
	struct nvclient *c;
	struct nvobj *v;

	down_write(&nvsim_api_lock);
	p->status = NV_OK;
	c = nvsim_client_get(sec, p->hClient, &p->status);
	if (!c)
		goto out;
	v = nvsim_obj_find_type(c, p->hDma, NVT_BIT(NVT_VIRTUAL) | NVT_BIT(NVT_VASPACE));
	/* Deferred, the TLB's entries stay: here all of the mapping, until its space goes. */
	if (v && p->flags & NVOS47_FLAGS_DEFER_TLB)
		goto out;
	/*
	 * Without a size all of the mapping that begins there; hMemory is ignored
	 * (serverInterUnmap).
	 */
	if (!v || (!p->size && !nvas_unmap_dma(v->as, p->dmaOffset, v)))
		p->status = NV_ERR_OBJECT_NOT_FOUND;
	else if (p->dmaOffset >= 1ull << 49 || p->size > 1ull << 49)
		p->status = NV_ERR_INVALID_ADDRESS;
	else if (p->size && nvas_unmap(v->as, p->dmaOffset, p->size))
		p->status = NV_ERR_NO_MEMORY;
out:
	up_write(&nvsim_api_lock);
}

void nvsim_op_unmap_dma_v1(const struct nvsec *sec, struct nvos47_v1 *p)
{
	struct nvos47 q = {
		.hClient = p->hClient, .hDevice = p->hDevice, .hDma = p->hDma, .hMemory = p->hMemory,
		.flags = p->flags, .dmaOffset = p->dmaOffset,
	};

	nvsim_op_unmap_dma(sec, &q);
	p->status = q.status;
}
