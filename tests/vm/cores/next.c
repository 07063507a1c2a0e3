// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The core as its next version might be: another layout of the scheduler state, taken over
 * from the one before and given back to it. The layouts are made by Kbuild.
 */
#include <linux/module.h>

#include "next_parts/sched_before.h"

#include "core_link.h"
#include "sched_rr.h"

#define WORDS_BEFORE_SLOTS	(offsetof(struct cgpu_sched_before, slot))
#define AFTER_SLOTS		(offsetof(struct cgpu_sched_before, switch_ns))

static_assert(sizeof(struct cgpu_sched) > sizeof(struct cgpu_sched_before));
static_assert(offsetof(struct cgpu_sched, slot[1].cookie) != offsetof(struct cgpu_sched_before, slot[1].cookie));

/* The words both layouts have, in the same order: @head and @slot are where they begin. */
static void copy(u8 *to, size_t to_head, size_t to_slot, size_t to_stride, size_t to_rest,
		 const u8 *from, size_t head, size_t slot, size_t stride, size_t rest)
{
	u32 i;

	memcpy(to + to_head, from + head, WORDS_BEFORE_SLOTS);
	for (i = 0; i < CGPU_SLOTS; i++)
		memcpy(to + to_slot + i * to_stride, from + slot + i * stride,
		       sizeof(struct cgpu_sched_entity_before));
	memcpy(to + to_rest, from + rest, sizeof(struct cgpu_sched_before) - AFTER_SLOTS);
}

#define HERE	offsetof(struct cgpu_sched, policy), offsetof(struct cgpu_sched, slot[0].cookie), \
		sizeof(struct cgpu_sched_entity), offsetof(struct cgpu_sched, switch_ns)
#define BEFORE	0, WORDS_BEFORE_SLOTS, sizeof(struct cgpu_sched_entity_before), AFTER_SLOTS

static int next_migrate(struct cgpu_sched *fresh, const void *old, u32 old_version)
{
	u32 i;

	if (old_version == CGPU_SCHED_VERSION)
		return cgpu_sched_migrate(fresh, old, old_version);
	if (old_version != CGPU_SCHED_BEFORE)
		return -EINVAL;
	copy((u8 *)fresh, HERE, old, BEFORE);
	fresh->taken_over = 1;
	for (i = 0; i < CGPU_SLOTS; i++)
		fresh->slot[i].known_as = fresh->slot[i].cookie;
	cgpu_rr_refresh(fresh);
	return 0;
}

static int next_back(const struct cgpu_sched *t, void *older, u32 older_version)
{
	if (older_version != CGPU_SCHED_BEFORE)
		return -EINVAL;
	copy(older, BEFORE, (const u8 *)t, HERE);
	return 0;
}

static struct cgpu_core_ops ops;

static int __init next_init(void)
{
	ops = cgpu_core_ops;
	ops.sched.migrate = next_migrate;
	ops.sched.migrate_back = next_back;
	return ckm_core_register(&ops, THIS_MODULE);
}

static void __exit next_exit(void)
{
	ckm_core_unregister(&ops);
}

module_init(next_init);
module_exit(next_exit);

MODULE_DESCRIPTION("cgpu: a core with another layout, for tests");
MODULE_LICENSE("Dual MIT/GPL");
