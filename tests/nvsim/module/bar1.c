// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* BAR1: the window through which a CPU sees video memory. Each mapping takes pages of it, wherever the memory is. They are
 * free again when the mapping goes, and a process that has mapped them sees what the next mapping shows there.
 */
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

struct nvbar1 {
	struct list_head link;		/* nvgpu.bar1_maps: nvsim_api_lock */
	const struct nvobj *of, *by;	/* memory and device or subdevice: goes with either; compared only */
	u64 at, bytes;			/* @at: what the calls name it by */
	pid_t tgid;			/* the driver finds it for this process only */
	struct list_head place;		/* nvgpu.bar1_windows */
	u64 window, first;		/* pages: of BAR1, and of the memory there */
	struct nvpages *pages;		/* a reference */
};

u64 nvsim_bar1_size(void)
{
	return (u64)nvsim_chip->bar1_mib * SZ_1M;
}

/* What processes have filled in is of no use any more: @m has come, or goes. */
static void refill(struct nvgpu *gpu, const struct nvbar1 *m)
{
	u64 past = m->window + (m->bytes >> PAGE_SHIFT);
	struct nv_file_private *fp;

	lockdep_assert_held_write(&nvsim_api_lock);
	list_for_each_entry(fp, &gpu->bar1_files, bar1_file)
		if (fp->mmap.window < past && fp->mmap.window + fp->mmap.count > m->window)
			unmap_mapping_range(&fp->mapping, 0, 0, 1);
}

/* The first gap that is large enough. */
static bool place(struct nvgpu *gpu, struct nvbar1 *m)
{
	u64 pages = m->bytes >> PAGE_SHIFT, past = nvsim_bar1_size() >> PAGE_SHIFT;
	struct nvbar1 *other;

	list_for_each_entry(other, &gpu->bar1_windows, place) {
		if (other->window - m->window >= pages)
			break;
		m->window = other->window + (other->bytes >> PAGE_SHIFT);
	}
	if (past - m->window < pages)
		return false;
	spin_lock(&gpu->bar1_lock);
	list_add_tail(&m->place, &other->place);
	spin_unlock(&gpu->bar1_lock);
	return true;
}

/* List @fp among the files that show BAR1; nvsim_api_lock guards the list. */
void nvsim_bar1_show(nv_file_private_t *fp)
{
	lockdep_assert_held_write(&nvsim_api_lock);
	list_add_tail(&fp->bar1_file, &fp->nv->gpu->bar1_files);
}

void nvsim_bar1_hide(nv_file_private_t *fp)
{
	down_write(&nvsim_api_lock);
	list_del_init(&fp->bar1_file);
	up_write(&nvsim_api_lock);
}

/* What is seen at page @window of BAR1 now; NULL: nothing. */
struct page *nvsim_bar1_page(struct nvgpu *gpu, u64 window)
{
	struct nvpages *pages = NULL;
	struct page *page = NULL;
	struct nvbar1 *m;
	u64 at = 0;

	spin_lock(&gpu->bar1_lock);
	list_for_each_entry(m, &gpu->bar1_windows, place) {
		if (window < m->window || window - m->window >= m->bytes >> PAGE_SHIFT)
			continue;
		pages = m->pages;
		at = m->first + (window - m->window);
		nvpages_get(pages);
		break;
	}
	spin_unlock(&gpu->bar1_lock);
	if (pages) {
		page = nvpages_page(pages, at, GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
		nvpages_put(pages);
	}
	return page;
}

/* @window: the page of BAR1 at which @off is seen. */
NV_STATUS nvsim_bar1_map(const struct nvobj *o, const struct nvobj *by, u64 off, u64 len, u64 *at, u64 *window)
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
	m->by = by;
	m->tgid = task_tgid_nr(current);
	m->bytes = bytes;
	if (!place(gpu, m)) {
		kfree(m);
		return NV_ERR_NO_MEMORY;
	}
	m->pages = o->mem->pages;
	m->first = ALIGN_DOWN(off, page) >> PAGE_SHIFT;
	nvpages_get(m->pages);
	*window = m->window + (off % page >> PAGE_SHIFT);
	m->at = 0x100000000000ull + gpu->bar1_next + off % page;
	gpu->bar1_next += bytes;
	gpu->bar1_used += bytes;
	list_add_tail(&m->link, &gpu->bar1_maps);
	*at = m->at;
	refill(gpu, m);
	return NV_OK;
}

static void drop(struct nvgpu *gpu, struct nvbar1 *m)
{
	gpu->bar1_used -= m->bytes;
	list_del(&m->link);
	spin_lock(&gpu->bar1_lock);
	list_del(&m->place);
	spin_unlock(&gpu->bar1_lock);
	refill(gpu, m);
	nvpages_put(m->pages);
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

/* What RM keeps in the back references of a device or subdevice goes with that, too. */
void nvsim_bar1_forget(struct nvgpu *gpu, const struct nvobj *o)
{
	struct nvbar1 *m, *next;

	lockdep_assert_held_write(&nvsim_api_lock);
	list_for_each_entry_safe(m, next, &gpu->bar1_maps, link)
		if (m->of == o || m->by == o)
			drop(gpu, m);
}
