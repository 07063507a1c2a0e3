// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Backing pages, allocations, and GPU virtual address spaces. */
#include <linux/mm.h>
#include <linux/slab.h>

#include "nvsim.h"

struct nvpages *nvpages_create(u64 count)
{
	struct nvpages *p = kzalloc(sizeof(*p), GFP_KERNEL);

	if (!p)
		return NULL;
	kref_init(&p->ref);
	kref_init(&p->record);
	p->count = count;
	p->nchunks = DIV_ROUND_UP_ULL(count, NVSIM_PAGES_PER_CHUNK);
	p->chunk = kvcalloc(p->nchunks, sizeof(*p->chunk), GFP_KERNEL);
	if (!p->chunk) {
		kfree(p);
		return NULL;
	}
	return p;
}

void nvpages_get(struct nvpages *p)
{
	kref_get(&p->ref);
}

static void free_chunk(struct nvpages *p, struct page **chunk)
{
	int i;

	for (i = 0; i < NVSIM_PAGES_PER_CHUNK; i++) {
		if (!chunk[i])
			continue;
		if (p->pinned)
			unpin_user_page(chunk[i]);
		else
			put_page(chunk[i]);
	}
	free_page((unsigned long)chunk);
}

static void nvpages_release(struct kref *ref)
{
	struct nvpages *p = container_of(ref, struct nvpages, ref);
	u64 i;

	for (i = 0; i < p->nchunks; i++)
		if (p->chunk[i])
			free_chunk(p, p->chunk[i]);
	kvfree(p->chunk);
	p->chunk = NULL;
	WRITE_ONCE(p->gone, true);
	nvpages_forget(p);
}

void nvpages_put(struct nvpages *p)
{
	kref_put(&p->ref, nvpages_release);
}

void nvpages_note(struct nvpages *p)
{
	kref_get(&p->record);
}

static void free_record(struct kref *ref)
{
	kfree(container_of(ref, struct nvpages, record));
}

void nvpages_forget(struct nvpages *p)
{
	kref_put(&p->record, free_record);
}

static struct page **get_chunk(struct nvpages *p, u64 idx, gfp_t gfp)
{
	struct page ***slot = &p->chunk[idx / NVSIM_PAGES_PER_CHUNK];
	struct page **chunk = READ_ONCE(*slot);

	if (chunk || !gfp)
		return chunk;
	chunk = (struct page **)get_zeroed_page(gfp);
	if (chunk && cmpxchg(slot, NULL, chunk)) {
		free_page((unsigned long)chunk);
		chunk = READ_ONCE(*slot);
	}
	return chunk;
}

/* The page behind @idx, made now unless @gfp is 0. Any context that @gfp allows. */
struct page *nvpages_page(struct nvpages *p, u64 idx, gfp_t gfp)
{
	struct page **chunk, **slot, *page;

	if (idx >= p->count)
		return NULL;
	chunk = get_chunk(p, idx, gfp);
	if (!chunk)
		return NULL;
	slot = &chunk[idx % NVSIM_PAGES_PER_CHUNK];
	page = READ_ONCE(*slot);
	if (page || !gfp)
		return page;
	page = alloc_page(gfp | __GFP_ZERO);
	if (page && cmpxchg(slot, NULL, page)) {
		__free_page(page);
		page = READ_ONCE(*slot);
	}
	return page;
}

/* Takes @count pages that os_lock_user_pages() pinned. NULL: no memory, and they are the caller's. */
struct nvpages *nvpages_of_user(struct page *const *pages, u64 count)
{
	struct nvpages *p = nvpages_create(count);
	u64 i;

	if (!p)
		return NULL;
	for (i = 0; i < count; i += NVSIM_PAGES_PER_CHUNK)
		if (!get_chunk(p, i, GFP_KERNEL)) {
			nvpages_put(p);
			return NULL;
		}
	p->pinned = true;
	for (i = 0; i < count; i++)
		p->chunk[i / NVSIM_PAGES_PER_CHUNK][i % NVSIM_PAGES_PER_CHUNK] = pages[i];
	return p;
}

/* An allocation with its accounting done; the pages come from the caller (pinned ones) or are made on touch. */
struct nvmem *nvmem_create(struct nvgpu *gpu, enum nvloc loc, u64 size, u64 page_size)
{
	struct nvmem *m = kzalloc(sizeof(*m), GFP_KERNEL);

	if (!m)
		return NULL;
	kref_init(&m->ref);
	m->gpu = gpu;
	m->loc = loc;
	m->size = size;
	m->page_size = page_size;
	if (loc == NVLOC_OSDESC)
		return m;
	m->pages = nvpages_create(DIV_ROUND_UP_ULL(size, PAGE_SIZE));
	if (!m->pages)
		goto err;
	if (loc == NVLOC_FB) {
		u64 bytes = ALIGN(size, max_t(u64, page_size, SZ_64K));

		if (!nvsim_fb_take(gpu, bytes, &m->addr))
			goto err_pages;
		m->fb_bytes = bytes;
	}
	return m;

err_pages:
	nvpages_put(m->pages);
err:
	kfree(m);
	return NULL;
}

void nvmem_get(struct nvmem *m)
{
	kref_get(&m->ref);
}

static void nvmem_release(struct kref *ref)
{
	struct nvmem *m = container_of(ref, struct nvmem, ref);

	if (m->fb_bytes)
		nvsim_fb_give(m->gpu, m->fb_bytes);
	if (m->pages)
		nvpages_put(m->pages);
	kfree(m);
}

void nvmem_put(struct nvmem *m)
{
	kref_put(&m->ref, nvmem_release);
}

struct nvas *nvas_create(struct nvgpu *gpu)
{
	struct nvas *as = kzalloc(sizeof(*as), GFP_KERNEL);

	if (!as)
		return NULL;
	kref_init(&as->ref);
	as->gpu = gpu;
	raw_spin_lock_init(&as->lock);
	as->root = RB_ROOT;
	as->next_va = 0x100000000ull;
	return as;
}

void nvas_pool(struct nvas *as, u64 bytes)
{
	u64 addr;

	if (bytes > as->pool && nvsim_fb_take(as->gpu, bytes - as->pool, &addr))
		as->pool = bytes;
}

void nvas_get(struct nvas *as)
{
	kref_get(&as->ref);
}

static void drop_map(struct nvmap *map)
{
	if (map->fb_bytes)
		nvsim_fb_give(map->fb_gpu, map->fb_bytes);
	nvmem_put(map->mem);
	if (map->dup)
		nvdup_put(map->dup);
	kfree(map);
}

static void nvas_release(struct kref *ref)
{
	struct nvas *as = container_of(ref, struct nvas, ref);
	struct rb_node *n;

	while ((n = rb_first(&as->root))) {
		struct nvmap *map = rb_entry(n, struct nvmap, node);

		rb_erase(n, &as->root);
		drop_map(map);
	}
	nvsim_fb_give(as->gpu, as->pool);
	kfree(as);
}

void nvas_put(struct nvas *as)
{
	kref_put(&as->ref, nvas_release);
}

/* First mapping that ends behind @va; the caller checks whether it begins in time. */
static struct nvmap *lookup(struct nvas *as, u64 va)
{
	struct rb_node *n = as->root.rb_node;
	struct nvmap *best = NULL;

	while (n) {
		struct nvmap *map = rb_entry(n, struct nvmap, node);

		if (map->va + map->len > va) {
			best = map;
			n = n->rb_left;
		} else {
			n = n->rb_right;
		}
	}
	return best;
}

static void insert(struct nvas *as, struct nvmap *map)
{
	struct rb_node **link = &as->root.rb_node, *parent = NULL;

	while (*link) {
		parent = *link;
		link = map->va < rb_entry(parent, struct nvmap, node)->va ? &parent->rb_left : &parent->rb_right;
	}
	rb_link_node(&map->node, parent, link);
	rb_insert_color(&map->node, &as->root);
}

bool nvas_busy(struct nvas *as, u64 va, u64 len)
{
	unsigned long flags;
	struct nvmap *map;
	bool busy;

	raw_spin_lock_irqsave(&as->lock, flags);
	map = lookup(as, va);
	busy = map && map->va < va + len;
	raw_spin_unlock_irqrestore(&as->lock, flags);
	return busy;
}

static struct nvmap *new_map(u64 va, u64 len, struct nvmem *mem, u64 off, struct nvdup *dup)
{
	struct nvmap *map = kmalloc(sizeof(*map), GFP_KERNEL);

	if (map) {
		map->va = va;
		map->len = len;
		map->mem = mem;
		map->off = off;
		map->dup = dup;
		map->dma = NULL;
		map->of = NULL;
		map->fb_bytes = 0;
		map->fb_gpu = NULL;
	}
	return map;
}

/*
 * Maps @mem, with a reference of the mapping's own, over any older mapping. UVM's reference @dup
 * goes to the mapping.
 */
int nvas_map(struct nvas *as, u64 va, u64 len, struct nvmem *mem, u64 off, struct nvdup *dup)
{
	struct nvmap *map = new_map(va, len, mem, off, dup);
	unsigned long flags;
	int err;

	if (!map)
		return -ENOMEM;
	err = nvas_unmap(as, va, len);
	if (err) {
		kfree(map);
		return err;
	}
	nvmem_get(mem);
	raw_spin_lock_irqsave(&as->lock, flags);
	insert(as, map);
	raw_spin_unlock_irqrestore(&as->lock, flags);
	return 0;
}

int nvas_map_dma(struct nvas *as, u64 va, u64 len, const struct nvobj *dma, const struct nvobj *of, u64 off)
{
	struct nvmap *map = new_map(va, len, of->mem, off, NULL);
	unsigned long flags;
	u64 addr;

	if (!map)
		return -ENOMEM;
	map->dma = dma;
	map->of = of;
	map->fb_bytes = (u64)max(nvsim.tables_kib, 0) << 10;
	map->fb_gpu = as->gpu;
	if (map->fb_bytes && !nvsim_fb_take(as->gpu, map->fb_bytes, &addr)) {
		kfree(map);
		return -ENOMEM;
	}
	nvmem_get(of->mem);
	raw_spin_lock_irqsave(&as->lock, flags);
	insert(as, map);
	raw_spin_unlock_irqrestore(&as->lock, flags);
	return 0;
}

/* Takes [va, va + len) out of the first mapping in it. Returns that mapping when nothing of it is left. */
static struct nvmap *cut_one(struct nvas *as, u64 va, u64 len, struct nvmap **spare, bool *more)
{
	struct nvmap *map = lookup(as, va), *tail;
	u64 end = va + len, mend;

	*more = map && map->va < end;
	if (!*more)
		return NULL;
	mend = map->va + map->len;
	if (map->va < va && mend > end) {
		tail = *spare;
		*spare = NULL;
		*tail = (struct nvmap) { .va = end, .len = mend - end, .mem = map->mem, .off = map->off + (end - map->va),
				      .dup = map->dup, .dma = map->dma, .of = map->of };
		nvmem_get(map->mem);
		if (map->dup)
			nvdup_get(map->dup);
		map->len = va - map->va;
		insert(as, tail);
	} else if (map->va < va) {
		map->len = va - map->va;
	} else if (mend > end) {
		map->off += end - map->va;
		map->len = mend - end;
		map->va = end;
	} else {
		rb_erase(&map->node, &as->root);
		return map;
	}
	return NULL;
}

/* A mapping that is only partly inside is cut; in the middle, split, each part with its own reference. */
int nvas_unmap(struct nvas *as, u64 va, u64 len)
{
	struct nvmap *spare = new_map(0, 0, NULL, 0, NULL), *gone;
	unsigned long flags;
	bool more;

	if (!spare)
		return -ENOMEM;
	do {
		raw_spin_lock_irqsave(&as->lock, flags);
		gone = cut_one(as, va, len, &spare, &more);
		raw_spin_unlock_irqrestore(&as->lock, flags);
		if (gone)
			drop_map(gone);
	} while (more);
	kfree(spare);
	return 0;
}

/* Undo each mapping that @goes. The lock is not held while one is dropped. */
static void unmap_those(struct nvas *as, bool (*goes)(const struct nvmap *map, const void *of), const void *of)
{
	struct nvmap *map, *found;
	unsigned long flags;
	struct rb_node *n;

	do {
		found = NULL;
		raw_spin_lock_irqsave(&as->lock, flags);
		for (n = rb_first(&as->root); n && !found; n = rb_next(n)) {
			map = rb_entry(n, struct nvmap, node);
			if (goes(map, of))
				found = map;
		}
		if (found)
			rb_erase(&found->node, &as->root);
		raw_spin_unlock_irqrestore(&as->lock, flags);
		if (found)
			drop_map(found);
	} while (found);
}

static bool is_uvms_of_gpu(const struct nvmap *map, const void *gpu)
{
	return map->dup && map->mem->loc == NVLOC_FB && map->mem->gpu == gpu;
}

void nvas_unmap_peer(struct nvas *as, const struct nvgpu *gpu)
{
	unmap_those(as, is_uvms_of_gpu, gpu);
}

/* The mapping through @dma that begins at @va; false if there is none. */
bool nvas_unmap_dma(struct nvas *as, u64 va, const struct nvobj *dma)
{
	struct nvmap *map;
	unsigned long flags;
	bool found;

	raw_spin_lock_irqsave(&as->lock, flags);
	map = lookup(as, va);
	found = map && map->va == va && map->dma == dma;
	if (found)
		rb_erase(&map->node, &as->root);
	raw_spin_unlock_irqrestore(&as->lock, flags);
	if (found)
		drop_map(map);
	return found;
}

static bool is_by_object(const struct nvmap *map, const void *obj)
{
	return map->dma == obj || map->of == obj;
}

void nvas_forget(struct nvas *as, const struct nvobj *gone)
{
	unmap_those(as, is_by_object, gone);
}

/* A word is read and written whole: a poller must not see a half. */
static void put(void *to, const void *from, u32 n)
{
	unsigned long both = (unsigned long)to | (unsigned long)from;

	if (n == 4 && IS_ALIGNED(both, 4))
		smp_store_release((u32 *)to, READ_ONCE(*(const u32 *)from));
	else if (n == 8 && IS_ALIGNED(both, 8))
		smp_store_release((u64 *)to, READ_ONCE(*(const u64 *)from));
	else
		memcpy(to, from, n);
}

/* Zeros allocate no page: an untouched page reads as zero anyway. */
static bool write_page(struct nvmem *m, u64 off, const void *buf, u32 n)
{
	u64 idx = off >> PAGE_SHIFT;
	struct page *page;

	if (m->read_only || idx >= m->pages->count)
		return false;
	page = nvpages_page(m->pages, idx, 0);
	if (!page && !memchr_inv(buf, 0, n))
		return true;
	if (!page)
		page = nvpages_page(m->pages, idx, GFP_ATOMIC | __GFP_NOWARN);
	if (page)
		put(page_address(page) + offset_in_page(off), buf, n);
	return page;
}

static void read_page(struct nvmem *m, u64 off, void *buf, u32 n)
{
	struct page *page = nvpages_page(m->pages, off >> PAGE_SHIFT, 0);

	if (page)
		put(buf, page_address(page) + offset_in_page(off), n);
	else
		memset(buf, 0, n);
}

/* One GPU access; untouched pages read as zero and are allocated by a write. Any context. */
static bool access(struct nvas *as, u64 va, void *buf, u32 len, bool write)
{
	unsigned long flags;
	bool ok = true;

	raw_spin_lock_irqsave(&as->lock, flags);
	while (len && ok) {
		struct nvmap *map = lookup(as, va);
		u64 off;
		u32 n;

		ok = map && map->va <= va;
		if (!ok)
			break;
		off = map->off + (va - map->va);
		n = min_t(u64, len, min_t(u64, map->va + map->len - va, PAGE_SIZE - offset_in_page(off)));
		if (write)
			ok = write_page(map->mem, off, buf, n);
		else
			read_page(map->mem, off, buf, n);
		va += n;
		buf += n;
		len -= n;
	}
	raw_spin_unlock_irqrestore(&as->lock, flags);
	return ok;
}

bool nvas_read(struct nvas *as, u64 va, void *buf, u32 len)
{
	return access(as, va, buf, len, false);
}

bool nvas_write(struct nvas *as, u64 va, const void *buf, u32 len)
{
	return access(as, va, (void *)buf, len, true);
}

/*
 * Writes @to over an aligned word of 4 or 8 bytes if it holds *@seen; *@seen becomes the old value.
 */
bool nvas_exchange(struct nvas *as, u64 va, u64 *seen, u64 to, u32 len)
{
	struct page *page = NULL;
	unsigned long flags;
	struct nvmap *map;
	void *at;
	u64 off;

	if (!IS_ALIGNED(va, len))
		return false;
	raw_spin_lock_irqsave(&as->lock, flags);
	map = lookup(as, va);
	if (map && map->va <= va && !map->mem->read_only) {
		off = map->off + (va - map->va);
		page = nvpages_page(map->mem->pages, off >> PAGE_SHIFT, GFP_ATOMIC | __GFP_NOWARN);
	}
	if (page) {
		at = page_address(page) + offset_in_page(off);
		*seen = len == 8 ? cmpxchg((u64 *)at, *seen, to) : cmpxchg((u32 *)at, (u32)*seen, (u32)to);
	}
	raw_spin_unlock_irqrestore(&as->lock, flags);
	return page;
}
