// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/percpu-rwsem.h>
#include <linux/slab.h>

#include "container.h"
#include "core_link.h"
#include "gpu.h"

struct core_entry {
	struct list_head node;
	const struct cgpu_core_ops *ops;
	struct module *owner;
};

static LIST_HEAD(cores);		/* ckm_lock */
static struct core_entry *active;	/* ckm_lock and core_sem for writing, either for reading */
static bool pinned;			/* ckm_lock */
DEFINE_STATIC_PERCPU_RWSEM(core_sem);

const struct cgpu_core_ops *ckm_core_enter(void)
{
	percpu_down_read(&core_sem);
	if (active)
		return active->ops;
	percpu_up_read(&core_sem);
	return NULL;
}

void ckm_core_leave(void)
{
	percpu_up_read(&core_sem);
}

int ckm_core_pin(void)
{
	lockdep_assert_held(&ckm_lock);
	if (!active || !try_module_get(active->owner))
		return -ENODEV;
	pinned = true;
	return 0;
}

void ckm_core_unpin(void)
{
	lockdep_assert_held(&ckm_lock);
	module_put(active->owner);
	pinned = false;
}

int ckm_core_register(const struct cgpu_core_ops *ops, struct module *owner)
{
	struct core_entry *entry;
	int ret;

	/* The shell reads words of the turn state itself (proc.c, netlink.c). */
	if (ops->abi != CGPU_CORE_ABI || ops->turn_size < sizeof(struct cgpu_turn)) {
		pr_err("core %s speaks ABI %u, this module %u\n", ops->version, ops->abi,
		       CGPU_CORE_ABI);
		return -EINVAL;
	}
	ret = ops->selftest();
	if (ret) {
		pr_err("core %s fails its self test\n", ops->version);
		return ret;
	}
	entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return -ENOMEM;
	entry->ops = ops;
	entry->owner = owner;

	mutex_lock(&ckm_lock);
	list_add_tail(&entry->node, &cores);
	if (!active) {
		percpu_down_write(&core_sem);
		active = entry;
		percpu_up_write(&core_sem);
		ckm_gpus_scan();
	}
	mutex_unlock(&ckm_lock);
	pr_info("core %s registered\n", ops->version);
	return 0;
}
EXPORT_SYMBOL_GPL(ckm_core_register);

/* Only while it is not pinned: the module's reference count sees to that. */
void ckm_core_unregister(const struct cgpu_core_ops *ops)
{
	struct core_entry *entry, *next;

	mutex_lock(&ckm_lock);
	list_for_each_entry_safe(entry, next, &cores, node) {
		if (entry->ops != ops)
			continue;
		list_del(&entry->node);
		if (entry == active) {
			ckm_gpus_forget();
			percpu_down_write(&core_sem);
			active = list_first_entry_or_null(&cores, struct core_entry, node);
			percpu_up_write(&core_sem);
			if (active)
				ckm_gpus_scan();
		}
		kfree(entry);
	}
	mutex_unlock(&ckm_lock);
}
EXPORT_SYMBOL_GPL(ckm_core_unregister);

int ckm_core_list(char *buf, size_t size)
{
	struct core_entry *entry;
	int len = 0;

	mutex_lock(&ckm_lock);
	if (active)
		len = scnprintf(buf, size, "%s\n", active->ops->version);
	list_for_each_entry(entry, &cores, node)
		if (entry != active)
			len += scnprintf(buf + len, size - len, "%s\n", entry->ops->version);
	mutex_unlock(&ckm_lock);
	return len;
}

/* New turn states for every GPU, made before anything is locked for the swap.
 * Caller holds every gpu->lock and core_sem for writing.
 */
static int migrate(const struct cgpu_core_ops *from, const struct cgpu_core_ops *to,
		   struct cgpu_turn **fresh)
{
	struct ckm_gpu *gpu;
	int ret = 0, i = 0;

	list_for_each_entry(gpu, &ckm_gpus, node) {
		ret = to->turn_migrate(fresh[i++], gpu->turn, from->turn_version);
		if (ret)
			return ret;
	}
	i = 0;
	list_for_each_entry(gpu, &ckm_gpus, node)
		swap(gpu->turn, fresh[i++]);
	return 0;
}

/* No plan under way, and nobody looking: a turn state is read under gpu->lock,
 * also outside a core section.
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

	list_for_each_entry(gpu, &ckm_gpus, node) {
		mutex_unlock(&gpu->lock);
		mutex_unlock(&gpu->lever_lock);
	}
}

static int switch_to(struct core_entry *to)
{
	struct cgpu_turn **fresh = kcalloc(CGPU_MAX_GPUS, sizeof(*fresh), GFP_KERNEL);
	struct core_entry *from = active;
	int i, ret = -ENOMEM;

	if (!fresh)
		return -ENOMEM;
	for (i = 0; i < CGPU_MAX_GPUS; i++) {
		fresh[i] = kzalloc(to->ops->turn_size, GFP_KERNEL);
		if (!fresh[i])
			goto out;
	}
	if (pinned && !try_module_get(to->owner)) {
		ret = -ENODEV;
		goto out;
	}
	lock_gpus();
	percpu_down_write(&core_sem);
	ret = migrate(from->ops, to->ops, fresh);
	if (!ret)
		active = to;
	percpu_up_write(&core_sem);
	unlock_gpus();
	if (pinned)
		module_put(ret ? to->owner : from->owner);
out:
	for (i = 0; i < CGPU_MAX_GPUS; i++)
		kfree(fresh[i]);
	kfree(fresh);
	return ret;
}

int ckm_core_switch(const char *version)
{
	struct core_entry *entry;
	int ret = -ENOENT;

	mutex_lock(&ckm_lock);
	list_for_each_entry(entry, &cores, node)
		if (!strcmp(entry->ops->version, version)) {
			ret = entry == active ? 0 : switch_to(entry);
			break;
		}
	mutex_unlock(&ckm_lock);
	if (!ret)
		pr_info("core %s is active\n", version);
	return ret;
}
