// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Peer access of a UVM VA space: pairs of its GPUs that may map each other's memory (uvm_va_space.c). */
#include "nvsim.h"

bool uvm_peers_enabled(const struct uvm_vas *v, const struct nvgpu *a, const struct nvgpu *b)
{
	return v->peers[a->index] & BIT(b->index);
}

/* The access has a peer object of UVM's own for as long as it is enabled. */
void uvm_do_enable_peers(struct uvm_vas *v, void *arg)
{
	struct uvm_peer *p = arg;
	struct uvm_gpu *a, *b;

	mutex_lock(&v->lock);
	a = uvm_gpu_find(v, p->gpuUuidA);
	b = uvm_gpu_find(v, p->gpuUuidB);
	p->rmStatus = NV_ERR_INVALID_DEVICE;
	if (a && b && a != b && !uvm_peers_enabled(v, a->gpu, b->gpu))
		p->rmStatus = nvsim_peers_get(a->gpu, b->gpu);
	if (p->rmStatus == NV_OK) {
		v->peers[a->gpu->index] |= BIT(b->gpu->index);
		v->peers[b->gpu->index] |= BIT(a->gpu->index);
	}
	mutex_unlock(&v->lock);
}

/* What either has of the other's memory is unmapped. */
static void disable(struct uvm_vas *v, struct uvm_gpu *a, struct uvm_gpu *b)
{
	v->peers[a->gpu->index] &= ~BIT(b->gpu->index);
	v->peers[b->gpu->index] &= ~BIT(a->gpu->index);
	if (a->as)
		nvas_unmap_peer(a->as, b->gpu);
	if (b->as)
		nvas_unmap_peer(b->as, a->gpu);
	nvsim_peers_put(a->gpu, b->gpu);
}

void uvm_do_disable_peers(struct uvm_vas *v, void *arg)
{
	struct uvm_peer *p = arg;
	struct uvm_gpu *a, *b;

	mutex_lock(&v->lock);
	a = uvm_gpu_find(v, p->gpuUuidA);
	b = uvm_gpu_find(v, p->gpuUuidB);
	p->rmStatus = NV_ERR_INVALID_DEVICE;
	if (a && b && a != b && uvm_peers_enabled(v, a->gpu, b->gpu)) {
		disable(v, a, b);
		p->rmStatus = NV_OK;
	}
	mutex_unlock(&v->lock);
}

/* A GPU goes: its peers lose it. */
void uvm_peers_drop(struct uvm_vas *v, struct uvm_gpu *g)
{
	struct uvm_gpu *other;

	list_for_each_entry(other, &v->gpus, link)
		if (other != g && uvm_peers_enabled(v, g->gpu, other->gpu))
			disable(v, g, other);
}
