// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * One simulated GPU: framebuffer accounting, its shared pages, and the time of a call to its
 * firmware.
 */
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/pid.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "nvsim.h"

/* The driver publishes totals to every process through the shared data page. */
static void publish(struct nvgpu *gpu)
{
	if (!gpu->rusd_page)
		return;
	WRITE_ONCE(*(u64 *)(gpu->rusd_page + NV_RUSD_PMA_STAMP), ktime_get_real_ns() / 1000);
	WRITE_ONCE(*(u64 *)(gpu->rusd_page + NV_RUSD_PMA_TOTAL), gpu->fb_total);
	WRITE_ONCE(*(u64 *)(gpu->rusd_page + NV_RUSD_PMA_FREE), gpu->fb_total - gpu->fb_used);
}

bool nvsim_fb_take(struct nvgpu *gpu, u64 bytes, u64 *addr)
{
	bool ok;

	spin_lock(&gpu->fb_lock);
	ok = bytes <= gpu->fb_total - gpu->fb_used;
	if (ok) {
		gpu->fb_used += bytes;
		/* allocations may be scattered: an address is only where one begins */
		if (gpu->fb_next + bytes > gpu->fb_total)
			gpu->fb_next = 0;
		*addr = gpu->fb_next;
		gpu->fb_next += bytes;
		publish(gpu);
	}
	spin_unlock(&gpu->fb_lock);
	return ok;
}

void nvsim_fb_give(struct nvgpu *gpu, u64 bytes)
{
	spin_lock(&gpu->fb_lock);
	gpu->fb_used -= bytes;
	publish(gpu);
	spin_unlock(&gpu->fb_lock);
}

u64 nvsim_fb_free(struct nvgpu *gpu)
{
	u64 left;

	spin_lock(&gpu->fb_lock);
	left = gpu->fb_total - gpu->fb_used;
	spin_unlock(&gpu->fb_lock);
	return left;
}

/* Where the GPU's BARs would be: registers, framebuffer, instance memory. */
u64 nvsim_gpu_bar(const struct nvgpu *gpu, u32 bar)
{
	if (!bar)
		return 0xa0000000ull + ((u64)gpu->index << 24);
	return (bar == 1 ? 0x100000000000ull : 0x180000000000ull) + ((u64)gpu->index << 40);
}

static u32 rnd(struct nvgpu *gpu)
{
	/* splitmix64: the same seed gives the same run */
	u64 z = gpu->prng += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) >> 32;
}

bool nvsim_chance(struct nvgpu *gpu, int pct)
{
	return pct > 0 && rnd(gpu) % 100 < pct;
}

/* The driver polls for the firmware's answer: part of the wait burns the CPU, the rest sleeps. */
static void wait_us(u32 us)
{
	u32 spin = min_t(u32, us, max(nvsim.control_spin_us, 0));
	u64 end = ktime_get_ns() + spin * 1000ull;

	while (ktime_get_ns() < end)
		cpu_relax();
	if (us > spin)
		usleep_range(us - spin, us - spin + 5);
}

/* A control that goes to the GPU: the caller changes the GPU's state between begin and end. */
u32 nvsim_rpc_begin(struct nvgpu *gpu)
{
	u32 us;

	mutex_lock(&gpu->lock);
	us = max(nvsim.control_us, 0);
	us = us - us / 10 + rnd(gpu) % (us / 5 + 1);
	if (nvsim_chance(gpu, nvsim.tail_pct))
		us = max(nvsim.tail_us, 0);
	wait_us(us / 2);
	return us - us / 2;
}

void nvsim_rpc_end(struct nvgpu *gpu, u32 left_us)
{
	wait_us(left_us);
	mutex_unlock(&gpu->lock);
}

/* The robust-channel error of the driver: an error notifier entry, and the channel's events. */
static void report_dead(struct nvchan *c)
{
	struct nvobj *o;

	nvsim_chan_notify(c, 0, ktime_get_real_ns(), 31);	/* 31: MMU fault, as Xid numbers it */
	list_for_each_entry(o, &c->obj->children, sibling)
		if (o->type == NVT_EVENT)
			nvsim_event_signal(o);
}

static void rc_channel(struct nvgpu *gpu, struct nvobj *o)
{
	struct engine *e = o->chan->run.tsg->eng;
	unsigned long flags;
	bool report;

	raw_spin_lock_irqsave(&e->lock, flags);
	report = o->chan->run.dead && !o->chan->reported;
	if (report)
		o->chan->reported = true;
	raw_spin_unlock_irqrestore(&e->lock, flags);
	if (report)
		report_dead(o->chan);
}

static void rc_work(struct work_struct *w)
{
	struct nvgpu *gpu = container_of(w, struct nvgpu, rc_work);
	struct nvclient *c;
	struct nvobj *o;
	unsigned long h;

	down_read(&nvsim_api_lock);
	list_for_each_entry(c, &nvsim_clients, link)
		xa_for_each(&c->objs, h, o)
			if (o->type == NVT_CHANNEL && o->gpu == gpu)
				rc_channel(gpu, o);
	up_read(&nvsim_api_lock);
}

static void intr_work(struct work_struct *w)
{
	struct nvgpu *gpu = container_of(w, struct nvgpu, intr_work);
	u32 i;

	for (i = 0; i < NVSIM_ENGINES; i++)
		if (test_and_clear_bit(i, &gpu->intr) && i <= NVSIM_COPIES)
			nvsim_event_interrupt(gpu, i ? NV2080_NOTIFIERS_CE0 + i - 1 : NV2080_NOTIFIERS_GRAPHICS);
}

/* The engines' side, under their locks. */
static bool mem_read(void *as, u64 va, void *buf, u32 len)
{
	return nvas_read(as, va, buf, len);
}

static bool mem_write(void *as, u64 va, const void *buf, u32 len)
{
	return nvas_write(as, va, buf, len);
}

static bool mem_exchange(void *as, u64 va, u64 *seen, u64 to, u32 len)
{
	return nvas_exchange(as, va, seen, to, len);
}

static void fault(struct engine *e)
{
	schedule_work(&nvsim_gpu_of(e)->rc_work);
}

static void interrupt(struct engine *e)
{
	set_bit(e->index, &nvsim_gpu_of(e)->intr);
	schedule_work(&nvsim_gpu_of(e)->intr_work);
}

static int make_pages(struct nvgpu *gpu)
{
	struct page *page;

	gpu->usermode = nvmem_create(gpu, NVLOC_USERMODE, NVC361_NV_USERMODE__SIZE, PAGE_SIZE);
	gpu->rusd = nvmem_create(gpu, NVLOC_RUSD, PAGE_SIZE, PAGE_SIZE);
	if (!gpu->usermode || !gpu->rusd)
		return -ENOMEM;
	gpu->rusd->read_only = true;
	page = nvpages_page(gpu->usermode->pages, 0, GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	gpu->card.doorbell = page_address(page) + NVC361_NOTIFY_CHANNEL_PENDING;
	page = nvpages_page(gpu->rusd->pages, 0, GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	gpu->rusd_page = page_address(page);
	publish(gpu);
	return 0;
}

static void identify(struct nvgpu *gpu, u32 index)
{
	int i;

	gpu->index = index;
	gpu->bus = index + 1;
	gpu->gpu_id = gpu->bus << 8;
	snprintf(gpu->bdf, sizeof(gpu->bdf), "0000:%02x:00.0", gpu->bus);
	strscpy(gpu->name, nvsim.name, sizeof(gpu->name));
	gpu->prng = nvsim.seed * 0x1000003 + index;
	for (i = 0; i < 16; i += 4) {
		u32 r = rnd(gpu);

		memcpy(gpu->uuid + i, &r, 4);
	}
}

struct nvgpu *nvsim_gpu_create(u32 index)
{
	static const u32 types[NVSIM_ENGINES] = {
		NV2080_ENGINE_TYPE_GRAPHICS, NV2080_ENGINE_TYPE_COPY0, NV2080_ENGINE_TYPE_COPY0 + 1, NV2080_ENGINE_TYPE_COPY0 + 2,
		NV2080_ENGINE_TYPE_NVDEC0, NV2080_ENGINE_TYPE_NVENC0, NV2080_ENGINE_TYPE_NVJPEG0, NV2080_ENGINE_TYPE_OFA0,
	};
	struct nvgpu *gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	int i, err;

	if (!gpu)
		return ERR_PTR(-ENOMEM);
	gpu->nv.gpu = gpu;
	mutex_init(&gpu->lock);
	mutex_init(&gpu->rec_lock);
	spin_lock_init(&gpu->fb_lock);
	INIT_LIST_HEAD(&gpu->recs);
	INIT_LIST_HEAD(&gpu->listeners);
	INIT_LIST_HEAD(&gpu->bar1_maps);
	INIT_LIST_HEAD(&gpu->bar1_windows);
	INIT_LIST_HEAD(&gpu->bar1_files);
	spin_lock_init(&gpu->bar1_lock);
	INIT_WORK(&gpu->rc_work, rc_work);
	INIT_WORK(&gpu->intr_work, intr_work);
	identify(gpu, index);
	gpu->fb_total = (u64)nvsim.fb_mib[min(index, nvsim.fb_mib_count - 1)] * SZ_1M;
	nvsim_board_find(gpu);
	gpu->card.rules = &nvsim.rules;
	gpu->card.pccsr = nvctx_is_turing();
	gpu->card.mem = (struct push_mem) { mem_read, mem_write, mem_exchange };
	gpu->card.fault = fault;
	gpu->card.interrupt = interrupt;
	for (i = 0; i < NVSIM_ENGINES; i++) {
		ida_init(&gpu->groups[i]);
		ida_init(&gpu->channels[i]);
		engine_init(&gpu->eng[i], &gpu->card, i, types[i]);
	}
	err = make_pages(gpu);
	if (err) {
		nvsim_gpu_destroy(gpu);
		return ERR_PTR(err);
	}
	return gpu;
}

void nvsim_gpu_destroy(struct nvgpu *gpu)
{
	struct nvtsg_rec *r, *next;
	int i;

	for (i = 0; i < NVSIM_ENGINES; i++)
		engine_stop(&gpu->eng[i]);
	cancel_work_sync(&gpu->rc_work);
	cancel_work_sync(&gpu->intr_work);
	list_for_each_entry_safe(r, next, &gpu->recs, link) {
		put_pid(r->pid);
		kfree(r);
	}
	if (gpu->global_as)
		nvas_put(gpu->global_as);
	gpu->rusd_page = NULL;
	if (gpu->usermode)
		nvmem_put(gpu->usermode);
	if (gpu->rusd)
		nvmem_put(gpu->rusd);
	for (i = 0; i < NVSIM_ENGINES; i++) {
		ida_destroy(&gpu->groups[i]);
		ida_destroy(&gpu->channels[i]);
	}
	nvsim_board_put(gpu);
	WARN_ONCE(gpu->fb_used, "nvsim: %llu bytes of the framebuffer leaked\n", gpu->fb_used);
	kfree(gpu);
}
