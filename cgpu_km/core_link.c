// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/ktime.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>

#include "container.h"
#include "core_link.h"
#include "driver.h"
#include "events.h"
#include "gpu.h"

#define TURN_SIZE_MAX	(64u << 10)

struct core_entry {
	struct list_head node;
	const struct cgpu_core_ops *ops;
	struct module *owner;
};

/* What was tried last, for /proc/cgpu_km/upgrade. */
struct outcome {
	char version[CKM_CORE_VERSION_MAX];
	int ret;
	char why[96];
};

static LIST_HEAD(cores);		/* ckm_lock */
/* Written under ckm_lock and, while there are GPUs, the gpu->lock of each; read under
 * any of them, or in an RCU read section.
 */
static struct core_entry __rcu *active;
static bool pinned;			/* ckm_lock */
static struct outcome last;		/* ckm_lock */

static struct core_entry *active_locked(void)
{
	return rcu_dereference_protected(active, lockdep_is_held(&ckm_lock));
}

const struct cgpu_core_ops *ckm_core_enter(void)
{
	struct core_entry *entry;

	rcu_read_lock();
	entry = rcu_dereference(active);
	if (!entry) {
		rcu_read_unlock();
		return NULL;
	}
	__release(RCU);		/* sparse: ckm_core_leave() has it */
	return entry->ops;
}

void ckm_core_leave(void)
{
	__acquire(RCU);
	rcu_read_unlock();
}

struct cgpu_turn *ckm_core_alloc_turn(void)
{
	struct core_entry *entry = active_locked();

	return entry ? kzalloc(entry->ops->turn_size, GFP_KERNEL) : NULL;
}

int ckm_core_pin(void)
{
	struct core_entry *entry = active_locked();

	if (!entry || !try_module_get(entry->owner))
		return -ENODEV;
	pinned = true;
	return 0;
}

void ckm_core_unpin(void)
{
	module_put(active_locked()->owner);
	pinned = false;
}

static struct core_entry *find(const char *version)
{
	struct core_entry *entry;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry(entry, &cores, node)
		if (!strcmp(entry->ops->version, version))
			return entry;
	return NULL;
}

static __printf(3, 4) int say(struct outcome *o, int ret, const char *why, ...)
{
	va_list args;

	va_start(args, why);
	vscnprintf(o->why, sizeof(o->why), why, args);
	va_end(args);
	o->ret = ret;
	return ret;
}

/* For the node, and for who listens: after what is active has been settled. */
static void conclude(const struct outcome *o)
{
	struct core_entry *now = active_locked();

	last = *o;
	ckm_events_core(now ? now->ops->version : NULL, o->version, o->ret, o->why);
}

/* ---- coming and going ---- */

/* Only what says how the rest is to be read is read before it is known to fit. */
static int check(const struct cgpu_core_ops *ops, struct outcome *o)
{
	int ret;

	if (ops->abi != CGPU_CORE_ABI)
		return say(o, -EINVAL, "it speaks ABI %u, this module %u", ops->abi,
			   CGPU_CORE_ABI);
	if (ops->ops_size != sizeof(*ops) || !ops->turn_size || ops->turn_size > TURN_SIZE_MAX)
		return say(o, -EINVAL, "its table is %u bytes (this module's: %zu), its state %u",
			   ops->ops_size, sizeof(*ops), ops->turn_size);
	strscpy(o->version, ops->version, sizeof(o->version));
	if (!*ops->version || strcmp(ops->version, o->version) ||
	    strspn(ops->version, "0123456789.") != strlen(ops->version))
		return say(o, -EINVAL, "it has no version of the form X.Y.Z");
	ret = ops->selftest();
	return ret ? say(o, ret, "its self-test failed (%d)", ret) : 0;
}

static int add(struct core_entry *entry, struct outcome *o)
{
	lockdep_assert_held(&ckm_lock);
	if (find(entry->ops->version))
		return say(o, -EEXIST, "a core of that version is there");
	list_add_tail(&entry->node, &cores);
	if (!active_locked()) {
		rcu_assign_pointer(active, entry);
		ckm_gpus_scan();
	}
	return 0;
}

int ckm_core_register(const struct cgpu_core_ops *ops, struct module *owner)
{
	struct core_entry *entry = kzalloc(sizeof(*entry), GFP_KERNEL);
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
		conclude(&now);
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

/* Only while it is not pinned: the module's reference count sees to that. */
void ckm_core_unregister(const struct cgpu_core_ops *ops)
{
	struct core_entry *entry;

	mutex_lock(&ckm_lock);
	entry = find(ops->version);
	list_del(&entry->node);
	if (entry == active_locked()) {
		ckm_gpus_forget();
		rcu_assign_pointer(active, list_first_entry_or_null(&cores, struct core_entry,
								    node));
		if (active_locked())
			ckm_gpus_scan();
	}
	mutex_unlock(&ckm_lock);
	synchronize_rcu();
	kfree(entry);
}
EXPORT_SYMBOL_GPL(ckm_core_unregister);

/* ---- swapping ---- */

/* The shell keeps slots by number, and promised what it showed. */
static bool same_seen(const struct cgpu_core_ops *from, const struct cgpu_turn *old,
		      const struct cgpu_core_ops *to, const struct cgpu_turn *fresh)
{
	struct cgpu_turn_slot_view slot[2];
	struct cgpu_turn_view gpu[2];
	u32 i;

	from->turn_view(old, &gpu[0]);
	to->turn_view(fresh, &gpu[1]);
	if (memcmp(&gpu[0], &gpu[1], sizeof(gpu[0])))
		return false;
	for (i = 0; i < CGPU_SLOTS; i++) {
		from->turn_slot_view(old, i, &slot[0]);
		to->turn_slot_view(fresh, i, &slot[1]);
		if (memcmp(&slot[0], &slot[1], sizeof(slot[0])))
			return false;
	}
	return true;
}

/* Of two cores the newer one knows both layouts: it may be either. */
static int carry(const struct cgpu_core_ops *from, const struct cgpu_turn *old,
		 const struct cgpu_core_ops *to, struct cgpu_turn *fresh)
{
	int ret = to->turn_migrate(fresh, old, from->turn_version);

	if (ret == -EINVAL && from->turn_back)
		ret = from->turn_back(old, fresh, to->turn_version);
	return ret;
}

/* Either every GPU has its new state, or all have kept the old one. */
static int carry_all(const struct cgpu_core_ops *from, const struct cgpu_core_ops *to,
		     struct cgpu_turn **fresh, struct outcome *o)
{
	struct ckm_gpu *gpu;
	int ret, i = 0;

	list_for_each_entry(gpu, &ckm_gpus, node) {
		lockdep_assert_held(&gpu->lock);
		ret = carry(from, gpu->turn, to, fresh[i]);
		if (ret)
			return say(o, -EOPNOTSUPP, "GPU %u: it cannot take over state %u from %s (%d)",
				   gpu->index, from->turn_version, from->version, ret);
		if (!same_seen(from, gpu->turn, to, fresh[i]))
			return say(o, -EOPNOTSUPP, "GPU %u: what it took over is not what was there",
				   gpu->index);
		i++;
	}
	i = 0;
	list_for_each_entry(gpu, &ckm_gpus, node) {
		swap(gpu->turn, fresh[i]);
		i++;		/* not inside: swap() reads it twice */
	}
	return 0;
}

/* No plan under way, and nobody looking. Turn threads first: a lever call takes its
 * time, and no tenant shall wait for it.
 */
static void lock_gpus(void)
{
	struct ckm_gpu *gpu;

	list_for_each_entry(gpu, &ckm_gpus, node)
		mutex_lock_nest_lock(&gpu->lever_lock, &ckm_lock);
	list_for_each_entry(gpu, &ckm_gpus, node)
		mutex_lock_nest_lock(&gpu->lock, &ckm_lock);
}

static void unlock_gpus(void)
{
	struct ckm_gpu *gpu;

	list_for_each_entry(gpu, &ckm_gpus, node)
		mutex_unlock(&gpu->lock);
	list_for_each_entry(gpu, &ckm_gpus, node) {
		mutex_unlock(&gpu->lever_lock);
		ckm_gpu_kick(gpu);
	}
}

/* With a state of @to's size for every GPU in @fresh; afterwards they are what is left. */
static int swap_locked(struct core_entry *to, struct cgpu_turn **fresh, struct outcome *o)
{
	struct core_entry *from = active_locked();
	u64 begin;
	int ret;

	if (pinned && !try_module_get(to->owner))
		return say(o, -ENOENT, "it is being unloaded");
	lock_gpus();
	/* Tenants wait for these locks: only for as long as it takes to copy. */
	preempt_disable();
	begin = ktime_get_ns();
	ret = carry_all(from->ops, to->ops, fresh, o);
	if (!ret) {
		rcu_assign_pointer(active, to);
		say(o, 0, "taken over from %s, tenants held for %llu ns", from->ops->version,
		       ktime_get_ns() - begin);
	}
	preempt_enable();
	unlock_gpus();
	if (pinned)
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

static int switch_to(struct core_entry *to, struct outcome *o)
{
	u32 count = count_gpus(), i;
	struct cgpu_turn **fresh;
	int ret;

	ret = to->ops->selftest();
	if (ret)
		return say(o, -EIO, "its self-test failed (%d)", ret);
	if (!ckm_driver_fits(to->ops))
		return say(o, -EOPNOTSUPP, "it reads the calls of driver %s otherwise",
			   ckm_driver_version());
	say(o, -ENOMEM, "no memory");
	fresh = kcalloc(count + 1, sizeof(*fresh), GFP_KERNEL);
	if (!fresh)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		fresh[i] = kzalloc(to->ops->turn_size, GFP_KERNEL);
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
	struct core_entry *to;

	strscpy(now.version, version, sizeof(now.version));
	mutex_lock(&ckm_lock);
	to = find(version);
	if (!to)
		say(&now, -ENOENT, "it is not registered");
	else if (to == active_locked())
		say(&now, 0, "it was active");
	else
		switch_to(to, &now);
	conclude(&now);
	mutex_unlock(&ckm_lock);
	/* Who comes back from here knows that nobody is inside the core before. */
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
	struct core_entry *entry, *first;
	int len = 0;

	mutex_lock(&ckm_lock);
	first = active_locked();
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
