// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the list of registered cores. Takes ckm_lock; in a swap every GPU's ctrl_lock and lock. */
#include <linux/ktime.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>

#include "admin/attach.h"
#include "admin/core_swap.h"
#include "core_link.h"
#include "core_ref.h"
#include "driver/driver.h"
#include "registry.h"
#include "state/gpu.h"
#include "state/notify.h"

#define SCHED_SIZE_MAX	(64u << 10)

/* The last attempt, for /proc/cgpu_km/upgrade. */
struct outcome {
	char version[CKM_CORE_VERSION_MAX];
	int ret;
	char why[96];
};

static LIST_HEAD(cores);		/* ckm_lock */
static struct outcome last;		/* ckm_lock */

static struct ckm_core *find(const char *version)
{
	struct ckm_core *entry;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry(entry, &cores, node)
		if (!strcmp(entry->ops->version, version))
			return entry;
	return NULL;
}

static __printf(3, 4) int set_outcome(struct outcome *o, int ret, const char *why, ...)
{
	va_list args;

	va_start(args, why);
	vscnprintf(o->why, sizeof(o->why), why, args);
	va_end(args);
	o->ret = ret;
	return ret;
}

/* Publish the outcome in the proc file and as an event, once the active core is final. */
static void publish_outcome(const struct outcome *o)
{
	struct ckm_core *now = ckm_core_active_locked();

	last = *o;
	ckm_events_core(now ? now->ops->version : NULL, o->version, o->ret, o->why);
}

/* ---- registration ---- */

/* Only migrate_back() may be missing (core_ops.h). */
static bool is_whole(const struct cgpu_core_ops *ops)
{
	size_t at, last = offsetofend(struct cgpu_core_ops, nv);

	for (at = offsetof(struct cgpu_core_ops, selftest); at < last; at += sizeof(void *))
		if (at != offsetof(struct cgpu_core_ops, sched.migrate_back) &&
		    !*(void *const *)((const u8 *)ops + at))
			return false;
	return true;
}

/* Read a field only if its layout is known: first the ABI, then the sizes, then the rest. */
static int check(const struct cgpu_core_ops *ops, struct outcome *o)
{
	int ret;

	if (ops->abi != CGPU_CORE_ABI)
		return set_outcome(o, -EINVAL, "it speaks ABI %u, this module %u", ops->abi,
				   CGPU_CORE_ABI);
	if (ops->ops_size != sizeof(*ops) || !ops->sched_size || ops->sched_size > SCHED_SIZE_MAX)
		return set_outcome(o, -EINVAL,
				   "its table is %u bytes (this module's: %zu), its state %u",
				   ops->ops_size, sizeof(*ops), ops->sched_size);
	strscpy(o->version, ops->version, sizeof(o->version));
	if (!*ops->version || strcmp(ops->version, o->version) ||
	    strspn(ops->version, "0123456789.") != strlen(ops->version))
		return set_outcome(o, -EINVAL, "it has no version of the form X.Y.Z");
	if (!is_whole(ops))
		return set_outcome(o, -EINVAL, "its table lacks an operation");
	ret = ops->selftest();
	return ret ? set_outcome(o, ret, "its self-test failed (%d)", ret) : 0;
}

static int add(struct ckm_core *entry, struct outcome *o)
{
	lockdep_assert_held(&ckm_lock);
	if (find(entry->ops->version))
		return set_outcome(o, -EEXIST, "a core of that version is there");
	list_add_tail(&entry->node, &cores);
	if (!ckm_core_active_locked()) {
		ckm_core_set_active(entry);
		ckm_gpus_scan();
	}
	return 0;
}

int ckm_core_register(const struct cgpu_core_ops *ops, struct module *owner)
{
	struct ckm_core *entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	struct outcome now = {};
	int ret;

	if (!entry)
		return -ENOMEM;
	strscpy(now.version, module_name(owner), sizeof(now.version));
	entry->ops = ops;
	entry->owner = owner;
	ret = check(ops, &now);
	mutex_lock(&ckm_lock);
	if (!ret)
		ret = add(entry, &now);
	if (ret)
		publish_outcome(&now);
	mutex_unlock(&ckm_lock);
	if (ret) {
		pr_err("core %s refused: %s\n", now.version, now.why);
		kfree(entry);
		return ret;
	}
	pr_info("core %s registered\n", ops->version);
	return 0;
}
EXPORT_SYMBOL_GPL(ckm_core_register);

/* Never while the core is pinned: the reference count of its module prevents that. */
void ckm_core_unregister(const struct cgpu_core_ops *ops)
{
	struct ckm_core *entry;

	mutex_lock(&ckm_lock);
	entry = find(ops->version);
	list_del(&entry->node);
	if (entry == ckm_core_active_locked()) {
		ckm_gpus_forget();
		ckm_core_set_active(list_first_entry_or_null(&cores, struct ckm_core, node));
		if (ckm_core_active_locked())
			ckm_gpus_scan();
	}
	mutex_unlock(&ckm_lock);
	synchronize_rcu();
	kfree(entry);
}
EXPORT_SYMBOL_GPL(ckm_core_unregister);

/* ---- swap ---- */

/* Slot numbers and all values visible through the views must survive a core swap. */
static bool same_view(const struct cgpu_core_ops *from, const struct cgpu_sched *old,
		      const struct cgpu_core_ops *to, const struct cgpu_sched *fresh)
{
	struct cgpu_sched_entity_view slot[2];
	struct cgpu_sched_view gpu[2];
	u32 i;

	from->sched.view(old, &gpu[0]);
	to->sched.view(fresh, &gpu[1]);
	if (memcmp(&gpu[0], &gpu[1], sizeof(gpu[0])))
		return false;
	for (i = 0; i < CGPU_SLOTS; i++) {
		from->sched.slot_view(old, i, &slot[0]);
		to->sched.slot_view(fresh, i, &slot[1]);
		if (memcmp(&slot[0], &slot[1], sizeof(slot[0])))
			return false;
	}
	return true;
}

/* The newer of two cores has both layouts, and may be either of them. */
static int migrate_state(const struct cgpu_core_ops *from, const struct cgpu_sched *old,
			 const struct cgpu_core_ops *to, struct cgpu_sched *fresh)
{
	int ret = to->sched.migrate(fresh, old, from->sched_version);

	if (ret == -EINVAL && from->sched.migrate_back)
		ret = from->sched.migrate_back(old, fresh, to->sched_version);
	return ret;
}

/* All GPUs get their new state, or all keep the old one. */
static int carry_all(const struct cgpu_core_ops *from, const struct cgpu_core_ops *to,
		     struct cgpu_sched **fresh, struct outcome *o)
{
	struct ckm_gpu *gpu;
	int ret, i = 0;

	list_for_each_entry(gpu, &ckm_gpus, node) {
		lockdep_assert_held(&gpu->lock);
		ret = migrate_state(from, gpu->sched, to, fresh[i]);
		if (ret)
			return set_outcome(o, -EOPNOTSUPP,
					   "GPU %u: it cannot take over state %u from %s (%d)",
					   gpu->index, from->sched_version, from->version, ret);
		if (!same_view(from, gpu->sched, to, fresh[i]))
			return set_outcome(o, -EOPNOTSUPP,
					   "GPU %u: what it took over is not what was there",
					   gpu->index);
		i++;
	}
	i = 0;
	list_for_each_entry(gpu, &ckm_gpus, node) {
		swap(gpu->sched, fresh[i]);
		i++;		/* not inside: swap() evaluates it twice */
	}
	return 0;
}

/* With these locks no plan is in progress and no state is read. The ctrl_locks come
 * first: a driver call under one takes long, and no tenant may wait for it behind a
 * gpu->lock.
 */
static void lock_gpus(void)
{
	struct ckm_gpu *gpu;

	list_for_each_entry(gpu, &ckm_gpus, node)
		mutex_lock_nest_lock(&gpu->ctrl_lock, &ckm_lock);
	list_for_each_entry(gpu, &ckm_gpus, node)
		spin_lock_nest_lock(&gpu->lock, &ckm_lock);
}

static void unlock_gpus(void)
{
	struct ckm_gpu *gpu;

	list_for_each_entry(gpu, &ckm_gpus, node)
		spin_unlock(&gpu->lock);
	list_for_each_entry(gpu, &ckm_gpus, node) {
		mutex_unlock(&gpu->ctrl_lock);
		ckm_gpu_kick(gpu);
	}
}

/* @fresh has a state of @to's size for each GPU; after a swap, the old states. 0 or
 * -errno. Caller holds ckm_lock.
 */
static int swap_locked(struct ckm_core *to, struct cgpu_sched **fresh, struct outcome *o)
{
	struct ckm_core *from = ckm_core_active_locked();
	u64 begin;
	int ret;

	if (ckm_core_is_pinned() && !try_module_get(to->owner))
		return set_outcome(o, -ENOENT, "it is being unloaded");
	lock_gpus();
	begin = ktime_get_ns();
	ret = carry_all(from->ops, to->ops, fresh, o);
	if (!ret) {
		ckm_core_set_active(to);
		set_outcome(o, 0, "taken over from %s, tenants held for %llu ns",
			    from->ops->version,
		       ktime_get_ns() - begin);
	}
	unlock_gpus();
	if (ckm_core_is_pinned())
		module_put(ret ? to->owner : from->owner);
	return ret;
}

static u32 count_gpus(void)
{
	struct ckm_gpu *gpu;
	u32 count = 0;

	list_for_each_entry(gpu, &ckm_gpus, node)
		count++;
	return count;
}

static int switch_to(struct ckm_core *to, struct outcome *o)
{
	u32 count = count_gpus(), i;
	struct cgpu_sched **fresh;
	int ret;

	ret = to->ops->selftest();
	if (ret)
		return set_outcome(o, -EIO, "its self-test failed (%d)", ret);
	if (!ckm_driver_fits(to->ops))
		return set_outcome(o, -EOPNOTSUPP, "it reads the calls of driver %s otherwise",
				   ckm_driver_version());
	set_outcome(o, -ENOMEM, "no memory");
	fresh = kcalloc(count + 1, sizeof(*fresh), GFP_KERNEL);
	if (!fresh)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		fresh[i] = kzalloc(to->ops->sched_size, GFP_KERNEL);
		if (!fresh[i])
			goto out;
	}
	swap_locked(to, fresh, o);
out:
	for (i = 0; i < count; i++)
		kfree(fresh[i]);
	kfree(fresh);
	return o->ret;
}

int ckm_core_switch(const char *version)
{
	struct outcome now = {};
	struct ckm_core *to;

	strscpy(now.version, version, sizeof(now.version));
	mutex_lock(&ckm_lock);
	to = find(version);
	if (!to)
		set_outcome(&now, -ENOENT, "it is not registered");
	else if (to == ckm_core_active_locked())
		set_outcome(&now, 0, "it was active");
	else
		switch_to(to, &now);
	publish_outcome(&now);
	mutex_unlock(&ckm_lock);
	/* No task is inside the old core after this. */
	if (!now.ret)
		synchronize_rcu();
	if (now.ret)
		pr_notice("core %s not taken: %s (%d)\n", version, now.why, now.ret);
	else
		pr_info("core %s is active: %s\n", version, now.why);
	return now.ret;
}

int ckm_core_list(char *buf, size_t size)
{
	struct ckm_core *entry, *first;
	int len = 0;

	mutex_lock(&ckm_lock);
	first = ckm_core_active_locked();
	if (first)
		len = scnprintf(buf, size, "%s\n", first->ops->version);
	list_for_each_entry(entry, &cores, node)
		if (entry != first)
			len += scnprintf(buf + len, size - len, "%s\n", entry->ops->version);
	if (last.version[0])
		len += scnprintf(buf + len, size - len, "last: %s %d %s\n", last.version,
				 last.ret, last.why);
	mutex_unlock(&ckm_lock);
	return len;
}
