// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the charges of page tables that address spaces keep. Takes no lock. */
#include <linux/kernel.h>
#include <linux/slab.h>

#include "core/nv_abi.h"
#include "pure/mem_tree.h"
#include "state/rm_tables.h"

struct ckm_space *ckm_space_alloc(void)
{
	struct ckm_space *space = kzalloc(sizeof(*space), GFP_KERNEL_ACCOUNT);

	if (space)
		kref_init(&space->ref);
	return space;
}

void ckm_space_get(struct ckm_space *space)
{
	kref_get(&space->ref);
}

static void free_space(struct kref *ref)
{
	kfree(container_of(ref, struct ckm_space, ref));
}

void ckm_space_put(struct ckm_space *space)
{
	if (space)
		kref_put(&space->ref, free_space);
}

static bool is_handle(const struct cgpu_obj *obj)
{
	return obj->cls == FERMI_VASPACE_A;
}

/* Of the tables of a range, those for pages of 64 KiB: ckm_reserved_tables(). */
static u64 big_part(u64 tables)
{
	return tables / 17;
}

bool ckm_space_live_locked(struct ckm_space *space, const struct cgpu_obj *obj, u64 tables)
{
	if (!space)
		return false;
	if (is_handle(obj)) {
		space->gpu = obj->gpu;
		space->handles++;
	} else {
		space->now += big_part(tables);
		space->most = max(space->most, space->now);
	}
	return true;
}

u64 ckm_space_gone_locked(struct ckm_space *space, struct cgpu_obj *obj, u64 tables)
{
	u64 bytes;

	if (is_handle(obj)) {
		if (--space->handles)
			return 0;
		bytes = space->freed + space->refused;
		space->freed = 0;
		space->refused = 0;
		return bytes;
	}
	space->now -= big_part(tables);
	if (space->handles && space->gpu == obj->gpu) {
		bytes = min3(big_part(tables), space->most - space->freed, obj->overhead);
		space->freed += bytes;
		obj->overhead -= bytes;
	}
	return 0;
}

u64 ckm_space_refused_locked(struct ckm_space *space, const struct cgpu_obj *obj, u64 tables)
{
	u64 more;

	if (!space || !space->handles || space->gpu != obj->gpu || tables <= space->refused)
		return 0;
	more = tables - space->refused;
	space->refused = tables;
	return more;
}
