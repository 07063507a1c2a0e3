// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Ranges of a UVM VA space; the managed ones are made in uvm_managed.c. */
#include <linux/mm.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

#define VA_LIMIT (1ull << 49)

bool uvm_bad_range(u64 base, u64 len)
{
	return !len || offset_in_page(base | len) || base >= VA_LIMIT || len > VA_LIMIT - base;
}

/* The range that has all of [base, base + len). */
struct uvm_ext *uvm_range_find(struct uvm_vas *v, u64 base, u64 len)
{
	struct uvm_ext *x;

	list_for_each_entry(x, &v->ranges, link)
		if (base >= x->base && base - x->base < x->len && len <= x->len - (base - x->base))
			return x;
	return NULL;
}

bool uvm_range_overlaps(struct uvm_vas *v, u64 base, u64 len)
{
	struct uvm_ext *x;

	list_for_each_entry(x, &v->ranges, link)
		if (base < x->base + x->len && x->base < base + len)
			return true;
	return false;
}

/* NULL if there is something, or no memory. */
struct uvm_ext *uvm_range_add(struct uvm_vas *v, u64 base, u64 len)
{
	struct uvm_ext *x = uvm_range_overlaps(v, base, len) ? NULL : kzalloc(sizeof(*x), GFP_KERNEL);

	if (x) {
		x->base = base;
		x->len = len;
		list_add_tail(&x->link, &v->ranges);
	}
	return x;
}

/* nvidia-uvm's name for it and its arguments. */
noinline NV_STATUS uvm_api_create_external_range(struct uvm_range *p, struct file *file)
{
	struct uvm_vas *v = file->private_data;
	struct uvm_ext *x;

	if (uvm_bad_range(p->base, p->length))
		return NV_ERR_INVALID_ADDRESS;
	mutex_lock(&v->lock);
	x = uvm_range_add(v, p->base, p->length);
	mutex_unlock(&v->lock);
	return x ? NV_OK : NV_ERR_UVM_ADDRESS_IN_USE;
}

/* uvm_map_sked_reflected_range(): one page of the GPU's, which outlives the GPU's VA space. Nothing is behind it here. */
NV_STATUS uvm_range_reflect(struct uvm_vas *v, const struct uvm_map_dyn *p)
{
	NV_STATUS st = NV_OK;
	struct uvm_ext *x;
	struct uvm_gpu *g;

	if (uvm_bad_range(p->base, p->length))
		return NV_ERR_INVALID_ADDRESS;
	mutex_lock(&v->lock);
	g = uvm_gpu_find(v, p->gpuUuid);
	if (!g || !g->as) {
		st = NV_ERR_INVALID_DEVICE;
	} else if ((p->length != SZ_4K && p->length != SZ_64K && p->length != SZ_2M) || p->base & (p->length - 1)) {
		st = NV_ERR_INVALID_ADDRESS;
	} else {
		x = uvm_range_add(v, p->base, p->length);
		if (x)
			x->reflected = true;
		else
			st = NV_ERR_UVM_ADDRESS_IN_USE;
	}
	mutex_unlock(&v->lock);
	return st;
}

static void unmap_all(struct uvm_vas *v, struct uvm_ext *x)
{
	struct uvm_gpu *g;

	list_for_each_entry(g, &v->gpus, link)
		if (g->as)
			nvas_unmap(g->as, x->base, x->len);
}

/* The memory that UVM itself maps there in every VA space; NULL for an external range. */
struct nvmem *uvm_range_backing(const struct uvm_ext *x)
{
	return x->managed ?: x->pool;
}

/* False for NULL. */
static bool is_external(const struct uvm_ext *x)
{
	return x && !uvm_range_backing(x) && !x->reflected;
}

void uvm_range_drop(struct uvm_vas *v, struct uvm_ext *x)
{
	unmap_all(v, x);
	if (x->fb_bytes)
		nvsim_fb_give(x->managed->gpu, x->fb_bytes);
	if (uvm_range_backing(x))
		nvmem_put(uvm_range_backing(x));
	list_del(&x->link);
	kfree(x);
}

/* A range made by mmap() ends with its mapping; a pool's mapping has to go first (uvm_free()). */
NV_STATUS uvm_range_free(struct uvm_vas *v, u64 base, u64 len)
{
	NV_STATUS st = NV_ERR_INVALID_ADDRESS;
	struct uvm_ext *x;

	mutex_lock(&v->lock);
	x = uvm_range_find(v, base, 1);
	if (x && x->base == base && x->len == len && !x->managed) {
		st = x->pool_mapped ? NV_ERR_INVALID_ARGUMENT : NV_OK;
		if (st == NV_OK)
			uvm_range_drop(v, x);
	}
	mutex_unlock(&v->lock);
	return st;
}

/* nvidia-uvm's name for it and its arguments. */
noinline NV_STATUS uvm_api_free(struct uvm_range *p, struct file *file)
{
	return uvm_range_free(file->private_data, p->base, p->length);
}

void uvm_ranges_drop(struct uvm_vas *v)
{
	struct uvm_ext *x, *next;

	list_for_each_entry_safe(x, next, &v->ranges, link)
		uvm_range_drop(v, x);
}

/* A GPU loses its VA space: UVM's mappings there are removed, RM's stay. */
void uvm_gpu_drop_as(struct uvm_vas *v, struct uvm_gpu *g)
{
	struct uvm_ext *x;

	if (!g->as)
		return;
	uvm_chans_stop(g);
	list_for_each_entry(x, &v->ranges, link)
		nvas_unmap(g->as, x->base, x->len);
	uvm_chans_drop(g);
	nvas_put(g->as);
	g->as = NULL;
}

static NV_STATUS map_gpu(struct uvm_vas *v, struct uvm_gpu *g, const struct uvm_map_ext *p)
{
	struct nvdup *dup;
	struct nvmem *mem;
	NV_STATUS st;
	u32 handle;

	st = nvUvmInterfaceDupMemory(g->gpu, p->hClient, p->hMemory, &handle, NULL);
	if (st != NV_OK)
		return st;
	dup = nvdup_create(g->gpu, handle);
	if (!dup) {
		nvUvmInterfaceFreeDupedHandle(g->gpu, handle);
		return NV_ERR_NO_MEMORY;
	}
	mem = dup->mem;
	if (p->length > mem->size || p->offset > mem->size - p->length)
		st = NV_ERR_INVALID_LIMIT;
	else if (mem->loc == NVLOC_FB && mem->gpu != g->gpu && !uvm_peers_enabled(v, mem->gpu, g->gpu))
		st = NV_ERR_INVALID_DEVICE;
	else if (nvas_map(g->as, p->base, p->length, mem, p->offset, dup))
		st = NV_ERR_NO_MEMORY;
	if (st != NV_OK)
		nvdup_put(dup);
	return st;
}

/* One reference for each (range, GPU), as UVM has it. */
static NV_STATUS map_gpus(struct uvm_vas *v, const struct uvm_map_ext *p)
{
	NV_STATUS st = NV_OK;
	struct uvm_gpu *g;
	u64 i;

	for (i = 0; i < p->gpuAttributesCount; i++) {
		g = uvm_gpu_find(v, p->perGpuAttributes[i].gpuUuid);
		if (!g || !g->as)
			return NV_ERR_INVALID_DEVICE;
	}
	for (i = 0; st == NV_OK && i < p->gpuAttributesCount; i++)
		st = map_gpu(v, uvm_gpu_find(v, p->perGpuAttributes[i].gpuUuid), p);
	return st;
}

NV_STATUS uvm_range_map(struct uvm_vas *v, const struct uvm_map_ext *p)
{
	struct uvm_ext *x;
	NV_STATUS st;

	if (uvm_bad_range(p->base, p->length) || offset_in_page(p->offset))
		return NV_ERR_INVALID_ADDRESS;
	if (!p->gpuAttributesCount || p->gpuAttributesCount > UVM_MAX_GPUS)
		return NV_ERR_INVALID_ARGUMENT;
	mutex_lock(&v->lock);
	x = uvm_range_find(v, p->base, p->length);
	st = is_external(x) ? map_gpus(v, p) : NV_ERR_INVALID_ADDRESS;
	mutex_unlock(&v->lock);
	return st;
}

/* The older form: the same with room for fewer GPUs. */
void uvm_do_map_external_v1(struct uvm_vas *v, void *arg)
{
	struct uvm_map_ext *q = kvzalloc(sizeof(*q), GFP_KERNEL);
	struct uvm_map_ext_v1 *p = arg;

	p->rmStatus = NV_ERR_NO_MEMORY;
	if (!q)
		return;
	q->base = p->base;
	q->length = p->length;
	q->offset = p->offset;
	memcpy(q->perGpuAttributes, p->perGpuAttributes, sizeof(p->perGpuAttributes));
	q->gpuAttributesCount = p->gpuAttributesCount;
	q->rmCtrlFd = p->rmCtrlFd;
	q->hClient = p->hClient;
	q->hMemory = p->hMemory;
	p->rmStatus = p->gpuAttributesCount > UVM_MAX_GPUS_V1 ? NV_ERR_INVALID_ARGUMENT : uvm_range_map(v, q);
	kvfree(q);
}

NV_STATUS uvm_range_unmap(struct uvm_vas *v, const struct uvm_unmap_ext *p)
{
	NV_STATUS st = NV_OK;
	struct uvm_ext *x;
	struct uvm_gpu *g;

	if (uvm_bad_range(p->base, p->length))
		return NV_ERR_INVALID_ADDRESS;
	mutex_lock(&v->lock);
	x = uvm_range_find(v, p->base, p->length);
	g = uvm_gpu_find(v, p->gpuUuid);
	if (!is_external(x))
		st = NV_ERR_INVALID_ADDRESS;
	else if (!g || !g->as)
		st = NV_ERR_INVALID_DEVICE;
	else if (nvas_unmap(g->as, p->base, p->length))
		st = NV_ERR_NO_MEMORY;
	mutex_unlock(&v->lock);
	return st;
}
