// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* BAR1: the window through which a CPU sees video memory. Each mapping takes pages of it, wherever the memory is. */
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

struct nvbar1 {
	struct list_head link;		/* nvgpu.bar1_maps: nvsim_api_lock */
	const struct nvobj *of;		/* goes with it; compared only */
	u64 at, bytes;			/* @at: what the calls name it by */
	pid_t tgid;			/* the driver finds it for this process only */
};

u64 nvsim_bar1_size(void)
{
	return (u64)nvsim_chip->bar1_mib * SZ_1M;
}

NV_STATUS nvsim_bar1_map(const struct nvobj *o, u64 off, u64 len, u64 *at)
{
	struct nvgpu *gpu = o->mem->gpu;
	u64 page = clamp_t(u64, o->mem->page_size, SZ_64K, SZ_2M), bytes;
	struct nvbar1 *m;

	lockdep_assert_held_write(&nvsim_api_lock);
	bytes = ALIGN(off + len, page) - ALIGN_DOWN(off, page);
	if (bytes > nvsim_bar1_size() - gpu->bar1_used)
		return NV_ERR_NO_MEMORY;
	m = kzalloc(sizeof(*m), GFP_KERNEL);
	if (!m)
		return NV_ERR_NO_MEMORY;
	m->of = o;
	m->tgid = task_tgid_nr(current);
	m->bytes = bytes;
	m->at = 0x100000000000ull + gpu->bar1_next + off % page;
	gpu->bar1_next += bytes;
	gpu->bar1_used += bytes;
	list_add_tail(&m->link, &gpu->bar1_maps);
	*at = m->at;
	return NV_OK;
}

static void drop(struct nvgpu *gpu, struct nvbar1 *m)
{
	gpu->bar1_used -= m->bytes;
	list_del(&m->link);
	kfree(m);
}

/* The first that was made of those with this name. */
static struct nvbar1 *find(const struct nvobj *o, u64 at)
{
	struct nvbar1 *m;

	lockdep_assert_held_write(&nvsim_api_lock);
	list_for_each_entry(m, &o->mem->gpu->bar1_maps, link)
		if (m->of == o && m->at == at && m->tgid == task_tgid_nr(current))
			return m;
	return NULL;
}

bool nvsim_bar1_unmap(const struct nvobj *o, u64 at)
{
	struct nvbar1 *m = find(o, at);

	if (m)
		drop(o->mem->gpu, m);
	return m;
}

bool nvsim_bar1_rename(const struct nvobj *o, u64 old, u64 at)
{
	struct nvbar1 *m = find(o, old);

	if (m)
		m->at = at;
	return m;
}

void nvsim_bar1_forget(const struct nvobj *o)
{
	struct nvbar1 *m, *next;

	lockdep_assert_held_write(&nvsim_api_lock);
	list_for_each_entry_safe(m, next, &o->mem->gpu->bar1_maps, link)
		if (m->of == o)
			drop(o->mem->gpu, m);
}
