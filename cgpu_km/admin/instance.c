// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the start and the end of containers. Callers hold ckm_lock; the end takes it in a work. */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "admin/attach.h"
#include "admin/bars.h"
#include "admin/instance.h"
#include "intercept/front_file.h"
#include "intercept/rm_free.h"
#include "pure/text_parse.h"
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

/* How long a container's end waits for files that the driver is releasing, before it lists what they hold
 * as held by a destroyed container.
 */
#define RELEASE_MS	200

/* How long a command waits for the end of the container that it destroyed. */
#define REMOVAL_WAIT	(2 * HZ)

static u64 last_serial;			/* ckm_lock */
static DECLARE_WAIT_QUEUE_HEAD(removals);

/* Detach when no container is listed and nothing is held of destroyed ones: what is held needs the driver. */
static void detach_if_last(void)
{
	lockdep_assert_held(&ckm_lock);
	if (list_empty(&ckm_containers) && list_empty(&ckm_ended))
		ckm_gpus_detach();
}

/* Take ckm_lock while neither the system nor the driver sleeps: removing the last container detaches from the driver. */
static void lock_awake(void)
{
	ckm_sched_stay_awake();
	mutex_lock(&ckm_lock);
}

static void unlock_awake(void)
{
	mutex_unlock(&ckm_lock);
	ckm_sched_may_sleep();
}

/* No reference is left. Drop the remaining charges first: detach_if_last() unpins the core, which that needs. */
static void unlist(struct ckm_container *ct)
{
	u32 i;

	lockdep_assert_held(&ckm_lock);
	for (i = 0; i < ct->slot_count; i++)
		ckm_slot_mems_end(&ct->slot[i]);
	list_del_init(&ct->node);
	detach_if_last();
}

/* Give slots, name, minors and /proc back. Nothing of the container is in the scheduler: it has no objects. */
static void remove_container(struct ckm_container *ct)
{
	u32 i;

	ckm_observer->container_removed(ct);
	lock_awake();
	for (i = 0; i < ct->slot_count; i++) {
		ckm_events_flush(&ct->slot[i]);
		ckm_slot_remove(&ct->slot[i]);
	}
	ct->removed = true;
	list_move_tail(&ct->node, &ckm_ended);
	ckm_netlink_event(ct, CGPU_EVENT_GONE);
	if (kref_read(&ct->ref) == 1)	/* the caller's, and no other can be taken */
		unlist(ct);
	unlock_awake();
	ckm_minors_remove(ct);
	wake_up_all(&removals);
}

/* No call of the container runs or can begin. Mappings keep its files, and so its clients in the driver: free these
 * clients. A client that the driver refuses to free, or whose file is being released, ends with that file.
 */
static void end_work(struct work_struct *work)
{
	struct ckm_container *ct = container_of(work, struct ckm_container, end);
	u32 ms;

	if (!ct->removed && ckm_clients_end(ct)) {
		for (ms = 0; ms < RELEASE_MS && kref_read(&ct->ref) > 1; ms += 10)
			msleep(10);
		remove_container(ct);
	}
	ckm_container_put(ct);
}

static void gone_work(struct work_struct *work)
{
	struct ckm_container *ct = container_of(work, struct ckm_container, gone);

	if (!ct->removed)
		remove_container(ct);
	lock_awake();
	if (!list_empty(&ct->node))
		unlist(ct);
	unlock_awake();
	WARN_ON(ct->tree.objects || !list_empty(&ct->os_events));
	ckm_container_exit_queues(ct);	/* one of its work items may have dropped the last reference */
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
	const struct ckm_container *ct;
	u32 i, j;

	*why = "an id is 1 to 128 printable characters without blanks, '/' and '=', and not . or ..";
	if (cgpu_parse_check_id(req->id, strlen(req->id)))
		return -EINVAL;
	ct = ckm_container_find(req->id);
	*why = ct && ct->dying ? "the container with this id ends when its last call has returned: repeat it then"
			       : "a container with this id is there";
	if (ct)
		return ct->dying ? -EBUSY : -EEXIST;
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
	u32 i;

	if (!ct)
		return NULL;
	if (ckm_objs_init_names(ct)) {
		kvfree(ct);
		return NULL;
	}
	kref_init(&ct->ref);
	kref_init(&ct->users);
	INIT_LIST_HEAD(&ct->node);
	mutex_init(&ct->rm_lock);
	mutex_init(&ct->os_event_lock);
	mutex_init(&ct->view_lock);
	mutex_init(&ct->end_lock);
	INIT_LIST_HEAD(&ct->ctl_files);
	INIT_LIST_HEAD(&ct->views);
	INIT_LIST_HEAD(&ct->os_events);
	ratelimit_state_init(&ct->said, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);
	ratelimit_state_init(&ct->limits, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);
	ratelimit_state_init(&ct->alarms, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);
	ckm_fronts_init(ct);
	INIT_WORK(&ct->end, end_work);
	INIT_WORK(&ct->gone, gone_work);
	init_waitqueue_head(&ct->recounted);
	strscpy(ct->id, req->id, sizeof(ct->id));
	cgpu_parse_dir(ct->id, strlen(ct->id), false, ct->dir);
	if (dir_taken(ct->dir))
		cgpu_parse_dir(ct->id, strlen(ct->id), true, ct->dir);
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
	ret = ckm_container_init_queues(ct);
	if (ret)
		goto err_free;
	ret = add_slots(ct, req, why);
	if (ret)
		goto err_queues;
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
	for (i = 0; i < ct->slot_count; i++) {
		/* At each start: an mmap that began before the claim may have ended after the last time. */
		ckm_bars_revoke(ct->slot[i].gpu);
		ckm_gpu_kick(ct->slot[i].gpu);
	}
	ckm_netlink_event(ct, CGPU_EVENT_CREATED);
	return ct;

err_nodes:
	ckm_nodes_remove(ct);
err_minors:
	ckm_minors_remove(ct);
err_slots:
	for (i = 0; i < ct->slot_count; i++)
		ckm_slot_remove(&ct->slot[i]);
err_queues:
	ckm_container_exit_queues(ct);
err_free:
	ckm_objs_exit_names(ct);
	kvfree(ct);
err_detach:
	detach_if_last();
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
	ckm_container_unuse(ct);
	return 0;
}

static bool is_dying(const char *id, u64 serial)
{
	const struct ckm_container *ct;
	bool dying;

	mutex_lock(&ckm_lock);
	ct = ckm_container_find(id);
	dying = ct && ct->dying && ct->serial <= serial;
	mutex_unlock(&ckm_lock);
	return dying;
}

void ckm_container_wait_removed(const char *id)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	long left = REMOVAL_WAIT;
	u64 serial;

	mutex_lock(&ckm_lock);
	serial = last_serial;	/* one that is made and destroyed meanwhile is not waited for */
	mutex_unlock(&ckm_lock);
	add_wait_queue(&removals, &wait);
	while (left && is_dying(id, serial) && !fatal_signal_pending(current))
		left = wait_woken(&wait, TASK_KILLABLE, left);
	remove_wait_queue(&removals, &wait);
}
