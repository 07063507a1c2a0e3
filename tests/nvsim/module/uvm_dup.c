// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* How UVM holds memory of an RM client: through two functions of nvidia.ko, by a handle in a kernel client. */
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "nvsim.h"

#define FIRST_HANDLE 0xcaf00000

static DEFINE_IDR(dups);		/* handle - FIRST_HANDLE -> struct nvmem, one reference each */
static DEFINE_MUTEX(dups_lock);		/* guards dups */

noinline NV_STATUS nvUvmInterfaceDupMemory(void *device, u32 hClient, u32 hPhysMemory, u32 *hDupMemory, void *info)
{
	NV_STATUS st = NV_OK;
	struct nvclient *c;
	struct nvobj *o;
	int id;

	down_read(&nvsim_api_lock);
	c = nvsim_client_find(hClient);
	o = c ? nvsim_obj_find_type(c, hPhysMemory, NVT_BIT(NVT_MEMORY)) : NULL;
	if (!c)
		st = NV_ERR_INVALID_CLIENT;
	else if (c->tgid != task_tgid_nr(current))
		st = NV_ERR_INSUFFICIENT_PERMISSIONS;
	else if (!o)
		st = NV_ERR_OBJECT_NOT_FOUND;
	if (st == NV_OK) {
		mutex_lock(&dups_lock);
		id = idr_alloc_cyclic(&dups, o->mem, 0, 0, GFP_KERNEL);
		mutex_unlock(&dups_lock);
		if (id < 0) {
			st = NV_ERR_NO_MEMORY;
		} else {
			nvmem_get(o->mem);
			*hDupMemory = FIRST_HANDLE + id;
		}
	}
	up_read(&nvsim_api_lock);
	return st;
}
EXPORT_SYMBOL(nvUvmInterfaceDupMemory);

/* As the driver: the client must be of the calling process. The file that the client is on does not matter. */
noinline NV_STATUS nvUvmInterfaceDupAddressSpace(void *device, u32 hClient, u32 hVaSpace, struct nvas **as, void *info)
{
	NV_STATUS st = NV_OK;
	struct nvclient *c;
	struct nvobj *o;

	down_read(&nvsim_api_lock);
	c = nvsim_client_find(hClient);
	o = c ? nvsim_obj_find_type(c, hVaSpace, NVT_BIT(NVT_VASPACE)) : NULL;
	if (!c) {
		st = NV_ERR_INVALID_CLIENT;
	} else if (c->tgid != task_tgid_nr(current)) {
		st = NV_ERR_INSUFFICIENT_PERMISSIONS;
	} else if (!o) {
		st = NV_ERR_OBJECT_NOT_FOUND;
	} else if (o->as->gpu != device) {
		st = NV_ERR_OTHER_DEVICE_FOUND;
	} else {
		*as = o->as;
		nvas_get(o->as);
	}
	up_read(&nvsim_api_lock);
	return st;
}
EXPORT_SYMBOL(nvUvmInterfaceDupAddressSpace);

noinline NV_STATUS nvUvmInterfaceFreeDupedHandle(void *device, u32 hPhysHandle)
{
	struct nvmem *mem;

	mutex_lock(&dups_lock);
	mem = idr_remove(&dups, hPhysHandle - FIRST_HANDLE);
	mutex_unlock(&dups_lock);
	if (!mem)
		return NV_ERR_OBJECT_NOT_FOUND;
	nvmem_put(mem);
	return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceFreeDupedHandle);

struct nvmem *nvdup_mem(u32 handle)
{
	struct nvmem *mem;

	mutex_lock(&dups_lock);
	mem = idr_find(&dups, handle - FIRST_HANDLE);
	mutex_unlock(&dups_lock);
	return mem;
}

struct nvdup *nvdup_create(void *device, u32 handle)
{
	struct nvdup *dup = kmalloc(sizeof(*dup), GFP_KERNEL);

	if (dup) {
		kref_init(&dup->ref);
		dup->handle = handle;
		dup->device = device;
		dup->mem = nvdup_mem(handle);
	}
	return dup;
}

void nvdup_get(struct nvdup *dup)
{
	kref_get(&dup->ref);
}

static void nvdup_release(struct kref *ref)
{
	struct nvdup *dup = container_of(ref, struct nvdup, ref);

	nvUvmInterfaceFreeDupedHandle(dup->device, dup->handle);
	kfree(dup);
}

void nvdup_put(struct nvdup *dup)
{
	kref_put(&dup->ref, nvdup_release);
}

void nvdup_exit(void)
{
	WARN_ON(!idr_is_empty(&dups));
	idr_destroy(&dups);
}
