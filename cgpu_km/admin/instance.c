// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the start and the end of containers. Callers hold ckm_lock; the end takes it in a work. */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>

#include "admin/attach.h"
#include "admin/instance.h"
#include "core_ref.h"
#include "intercept/front_file.h"
#include "registry.h"
#include "sched/sched_thread.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/memory.h"
#include "state/minor.h"
#include "state/nodefs.h"
#include "state/notify.h"
#include "state/rm_object.h"
#include "state/slot.h"

static u64 last_serial;			/* ckm_lock */

static void gone_work(struct work_struct *work)
{
	struct ckm_container *ct = container_of(work, struct ckm_container, gone);
	struct ckm_mem *mem, *next;
	u32 i;

	ckm_observer->container_removed(ct);
	mutex_lock(&ckm_lock);
	for (i = 0; i < ct->slot_count; i++) {
		ckm_events_flush(&ct->slot[i]);
		ckm_slot_remove(&ct->slot[i]);
	}
	list_del(&ct->node);
	ckm_netlink_event(ct, CGPU_EVENT_GONE);
	if (list_empty(&ckm_containers))
		ckm_gpus_detach();
	mutex_unlock(&ckm_lock);
	ckm_minors_remove(ct);
	WARN_ON(ct->tree.objects || !list_empty(&ct->os_events));
	for (i = 0; i < ct->slot_count; i++)
		list_for_each_entry_safe(mem, next, &ct->slot[i].mems, node)
			kfree(mem);	/* the driver did not free it */
	destroy_workqueue(ct->queue);	/* one of its work items may have dropped the last reference */
	ckm_objs_exit_names(ct);
	kvfree(ct);
	module_put(THIS_MODULE);
}

static bool dir_taken(const char *dir)
{
	struct ckm_container *ct;

	list_for_each_entry(ct, &ckm_containers, node)
		if (!strcmp(ct->dir, dir))
			return true;
	return false;
}

static int check_request(const struct ckm_create *req, const char **why)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	u32 i, j;
	int ret;

	*why = "no core module (cgpu_core) is loaded";
	if (!core)
		return -ENODEV;
	ret = core->text.parse_check_id(req->id, strlen(req->id));
	ckm_core_leave();
	*why = "an id is 1 to 128 printable characters without blanks, '/' and '=', and not . or ..";
	if (ret)
		return ret;
	*why = "a container with this id is there";
	if (ckm_container_find(req->id))
		return -EEXIST;
	*why = "a container needs 1 to 32 GPUs, each once";
	if (!req->slots || req->slots > CGPU_MAX_GPUS)
		return -EINVAL;
	for (i = 0; i < req->slots; i++)
		for (j = 0; j < i; j++)
			if (req->slot[i].gpu == req->slot[j].gpu)
				return -EINVAL;
	return 0;
}

static struct ckm_container *alloc_container(const struct ckm_create *req)
{
	struct ckm_container *ct = kvzalloc(struct_size(ct, slot, req->slots),
					    GFP_KERNEL_ACCOUNT);
	const struct cgpu_core_ops *core;
	u32 i;

	if (!ct)
		return NULL;
	if (ckm_objs_init_names(ct)) {
		kvfree(ct);
		return NULL;
	}
	kref_init(&ct->ref);
	INIT_LIST_HEAD(&ct->node);
	mutex_init(&ct->rm_lock);
	mutex_init(&ct->os_event_lock);
	mutex_init(&ct->view_lock);
	INIT_LIST_HEAD(&ct->views);
	INIT_LIST_HEAD(&ct->os_events);
	ratelimit_state_init(&ct->said, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);
	ratelimit_state_init(&ct->alarms, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);
	ckm_fronts_init(ct);
	INIT_WORK(&ct->gone, gone_work);
	init_waitqueue_head(&ct->recounted);
	strscpy(ct->id, req->id, sizeof(ct->id));
	core = ckm_core_enter();
	core->text.parse_dir(ct->id, strlen(ct->id), false, ct->dir);
	if (dir_taken(ct->dir))
		core->text.parse_dir(ct->id, strlen(ct->id), true, ct->dir);
	ckm_core_leave();
	ct->cookie = req->cookie;
	while (!ct->cookie)	/* never cgpud's, marked in the upper 16 bits */
		ct->cookie = get_random_u64() >> 16;
	ct->slot_count = req->slots;
	for (i = 0; i < req->slots; i++) {
		ct->slot[i].ct = ct;
		ct->slot[i].gpu = ckm_gpu_by_index(req->slot[i].gpu);
		mutex_init(&ct->slot[i].enable_lock);
		INIT_LIST_HEAD(&ct->slot[i].channels);
		INIT_LIST_HEAD(&ct->slot[i].tsgs);
		INIT_LIST_HEAD(&ct->slot[i].mems);
		ckm_events_init_slot(&ct->slot[i]);
	}
	return ct;
}

static int add_slots(struct ckm_container *ct, const struct ckm_create *req, const char **why)
{
	u32 i;
	int ret;

	for (i = 0; i < ct->slot_count; i++) {
		*why = "no such GPU";
		ret = ct->slot[i].gpu ? ckm_slot_add(&ct->slot[i], &req->slot[i], ct->cookie, why)
				      : -ENODEV;
		if (ret) {
			while (i--)
				ckm_slot_remove(&ct->slot[i]);
			return ret;
		}
	}
	return 0;
}

struct ckm_container *ckm_container_create(const struct ckm_create *req, const char **why)
{
	struct ckm_container *ct;
	u32 i;
	int ret;

	lockdep_assert_held(&ckm_lock);
	ret = check_request(req, why);
	if (ret)
		return ERR_PTR(ret);
	/* A GPU that is opened now would wait in the driver with ckm_lock held. */
	*why = "the system or the NVIDIA driver sleeps: repeat it when both are awake";
	if (ckm_sched_asleep())
		return ERR_PTR(-EBUSY);
	ret = ckm_gpus_attach(why);
	if (ret)
		return ERR_PTR(ret);
	*why = "out of memory";
	ret = -ENOMEM;
	ct = alloc_container(req);
	if (!ct)
		goto err_detach;
	*why = "its directory name is taken twice over";
	ret = -EEXIST;
	if (dir_taken(ct->dir))
		goto err_free;
	*why = "out of memory";
	ret = ckm_container_init_queue(ct);
	if (ret)
		goto err_free;
	ret = add_slots(ct, req, why);
	if (ret)
		goto err_queue;
	*why = "out of device minors";
	ret = ckm_minors_add(ct);
	if (ret)
		goto err_slots;
	*why = "its device nodes cannot be made";
	ret = ckm_nodes_add(ct);
	if (ret)
		goto err_minors;
	*why = "its proc directory cannot be made";
	ret = ckm_observer->container_added(ct);
	if (ret)
		goto err_nodes;
	ct->serial = ++last_serial;
	list_add_tail(&ct->node, &ckm_containers);
	__module_get(THIS_MODULE);
	for (i = 0; i < ct->slot_count; i++)
		ckm_gpu_kick(ct->slot[i].gpu);
	ckm_netlink_event(ct, CGPU_EVENT_CREATED);
	return ct;

err_nodes:
	ckm_nodes_remove(ct);
err_minors:
	ckm_minors_remove(ct);
err_slots:
	for (i = 0; i < ct->slot_count; i++)
		ckm_slot_remove(&ct->slot[i]);
err_queue:
	destroy_workqueue(ct->queue);
err_free:
	ckm_objs_exit_names(ct);
	kvfree(ct);
err_detach:
	if (list_empty(&ckm_containers))
		ckm_gpus_detach();
	return ERR_PTR(ret);
}

int ckm_container_destroy(const char *id, u64 cookie)
{
	struct ckm_container *ct;
	u32 i;

	lockdep_assert_held(&ckm_lock);
	ct = ckm_container_find(id);
	if (!ct || (cookie && cookie != ct->cookie))
		return -ENOENT;
	if (ct->dying)
		return 0;
	WRITE_ONCE(ct->dying, true);
	ckm_nodes_remove(ct);
	for (i = 0; i < ct->slot_count; i++)
		ckm_slot_end(&ct->slot[i]);
	if (kref_read(&ct->ref) > 1)
		ckm_netlink_event(ct, CGPU_EVENT_DYING);
	ckm_fronts_end(ct);
	ckm_container_put(ct);
	return 0;
}
