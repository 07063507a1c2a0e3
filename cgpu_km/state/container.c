// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns references, ipc names and workqueues of containers. Takes ipc_lock. */
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "pure/text_parse.h"
#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"

/* No work item that a tenant can delay: those are on queues of its container. */
static struct workqueue_struct *end_queue;

/* Work items of one container at a time. */
#define ACTIVE_MAX	16

struct ckm_container *ckm_container_find(const char *id)
{
	struct ckm_container *ct;

	lockdep_assert_held(&ckm_lock);
	list_for_each_entry(ct, &ckm_containers, node)
		if (!strcmp(ct->id, id))
			return ct;
	return NULL;
}

void ckm_container_get(struct ckm_container *ct)
{
	kref_get(&ct->ref);
}

static void after_last_ref(struct kref *ref)
{
	struct ckm_container *ct = container_of(ref, struct ckm_container, ref);

	/* The last reference may be dropped in any context, but the end of a container
	 * removes proc files and takes ckm_lock: leave it to a work item.
	 */
	queue_work(end_queue, &ct->gone);
}

int ckm_container_init_queues(struct ckm_container *ct)
{
	ct->queue = alloc_workqueue("cgpu_%s", WQ_UNBOUND, ACTIVE_MAX, ct->dir);
	if (!ct->queue)
		return -ENOMEM;
	ct->ends = alloc_workqueue("cgpu_end_%s", WQ_UNBOUND, ACTIVE_MAX, ct->dir);
	if (!ct->ends) {
		destroy_workqueue(ct->queue);
		return -ENOMEM;
	}
	return 0;
}

void ckm_container_exit_queues(struct ckm_container *ct)
{
	destroy_workqueue(ct->ends);
	destroy_workqueue(ct->queue);
}

void ckm_container_put(struct ckm_container *ct)
{
	kref_put(&ct->ref, after_last_ref);
}

void ckm_container_use(struct ckm_container *ct)
{
	kref_get(&ct->users);
}

/* Takes over the caller's reference. */
static void queue_end(struct ckm_container *ct)
{
	if (!queue_work(ct->ends, &ct->end))
		ckm_container_put(ct);
}

static void after_last_user(struct kref *users)
{
	queue_end(container_of(users, struct ckm_container, users));
}

void ckm_container_unuse(struct ckm_container *ct)
{
	kref_put(&ct->users, after_last_user);
}

void ckm_container_end_again(struct ckm_container *ct)
{
	if (kref_read(&ct->users))
		return;
	ckm_container_get(ct);
	queue_end(ct);
}

struct ckm_slot *ckm_container_slot_of(struct ckm_container *ct, u32 index)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		if (ct->slot[i].gpu->index == index)
			return &ct->slot[i];
	return NULL;
}

bool ckm_container_has_gpu_id(const struct ckm_container *ct, u32 gpu_id)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		if (ct->slot[i].gpu->desc.gpu_id == gpu_id)
			return true;
	return false;
}

void ckm_mem_ops_begin(struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++) {
		atomic_inc(&ct->slot[i].gpu->mem_ops_inflight);
		atomic_inc(&ct->slot[i].gpu->mem_ops_seq);
	}
}

void ckm_mem_ops_end(struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++)
		atomic_dec(&ct->slot[i].gpu->mem_ops_inflight);
}

/* ---- sharing of exported memory ---- */

static DEFINE_SPINLOCK(ipc_lock);	/* ckm_container.ipc */

bool ckm_container_shares(struct ckm_container *a, struct ckm_container *b)
{
	bool same;

	spin_lock(&ipc_lock);
	same = a->ipc[0] && !strcmp(a->ipc, b->ipc);
	spin_unlock(&ipc_lock);
	return same;
}

int ckm_container_set_ipc(struct ckm_container *ct, const char *name, size_t len)
{
	int ret = len ? cgpu_parse_check_id(name, len) : 0;

	if (ret)
		return ret;
	spin_lock(&ipc_lock);
	memcpy(ct->ipc, name, len);
	ct->ipc[len] = 0;
	spin_unlock(&ipc_lock);
	return 0;
}

void ckm_container_ipc(struct ckm_container *ct, char *name)
{
	spin_lock(&ipc_lock);
	strscpy(name, ct->ipc, sizeof(ct->ipc));
	spin_unlock(&ipc_lock);
}

int ckm_containers_init(void)
{
	end_queue = alloc_workqueue("cgpu_end", WQ_UNBOUND, 0);
	return end_queue ? 0 : -ENOMEM;
}

void ckm_containers_exit(void)
{
	destroy_workqueue(end_queue);	/* waits for the last gone_work() */
}
