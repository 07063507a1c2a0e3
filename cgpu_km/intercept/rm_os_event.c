// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the records of OS events. Takes os_event_lock, rm_lock. */
#include <linux/slab.h>

#include "call.h"
#include "core/nv_struct.h"
#include "driver/driver.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_os_event.h"
#include "state/container.h"
#include "state/listed.h"
#include "state/rm_object.h"

/* One in the driver's list. It goes by FREE_OS_EVENT, with the file it was made on, or with its client: the driver
 * frees those of a client that RM_FREE names, and the module those of a client that goes otherwise, as long as the
 * handle is that client's.
 */
struct os_event {
	struct list_head node;		/* rm_lock; in ct->os_events */
	u64 file;			/* ckm_backing.id of the file that it was made on */
	u32 client, fd;			/* its name; the driver only compares the number */
	bool live;			/* rm_lock; the driver has it */
};
static_assert(sizeof(struct os_event) <= 40);	/* docs/develop/bounds.md */

static void drop_locked(struct ckm_container *ct, struct os_event *event)
{
	lockdep_assert_held(&ct->rm_lock);
	list_del(&event->node);
	ckm_listed_give_locked(ct, CKM_OS_EVENTS);
	kfree(event);
}

/* One that is being made. */
struct making {
	struct os_event *event;		/* NULL: settled */
	const struct ckm_obj *client;	/* pinned */
};

/* The client's file is released while this call is on another one. */
static bool may_alloc(struct ckm_call *call, u8 *arg)
{
	const struct making *m = call->post_data;

	lockdep_assert_held(&call->backing->ct->os_event_lock);
	if (m->client->ends)
		put32(arg, AT(nv_os_event, Status), NV_ERR_INVALID_CLIENT);
	return !m->client->ends;
}

/* In effect in the driver, or refused by it. os_event_lock is held since before the driver was
 * called, so the records change in the order in which its list does.
 */
static void post_alloc(struct ckm_call *call, u8 *arg)
{
	struct ckm_container *ct = call->backing->ct;
	struct making *m = call->post_data;

	mutex_lock(&ct->rm_lock);
	if (get32(arg, AT(nv_os_event, Status)) == NV_OK)
		m->event->live = true;
	else
		drop_locked(ct, m->event);
	mutex_unlock(&ct->rm_lock);
	m->event = NULL;
}

static void post_free(struct ckm_call *call, u8 *arg)
{
	u32 client = get32(arg, AT(nv_os_event, hClient)), fd = get32(arg, AT(nv_os_event, fd));
	struct ckm_container *ct = call->backing->ct;
	struct os_event *event;

	if (get32(arg, AT(nv_os_event, Status)) != NV_OK)
		return;
	mutex_lock(&ct->rm_lock);
	list_for_each_entry(event, &ct->os_events, node)
		if (event->live && event->client == client && event->fd == fd) {
			drop_locked(ct, event);
			break;
		}
	mutex_unlock(&ct->rm_lock);
}

/* NULL: no memory, or the container has as many as it may have. */
static struct os_event *add_pending(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	struct os_event *event = kzalloc(sizeof(*event), GFP_KERNEL_ACCOUNT);
	bool room;

	if (!event)
		return NULL;
	event->file = rc->call->backing->id;
	event->client = get32(rc->call->top, AT(nv_os_event, hClient));
	event->fd = get32(rc->call->top, AT(nv_os_event, fd));
	mutex_lock(&ct->rm_lock);
	room = ckm_listed_has_room_locked(ct, CKM_OS_EVENTS);
	if (room) {
		ckm_listed_take_locked(ct, CKM_OS_EVENTS);
		list_add(&event->node, &ct->os_events);
	}
	mutex_unlock(&ct->rm_lock);
	if (room)
		return event;
	kfree(event);
	ckm_call_denied(rc->call, ckm_listed_refusal(CKM_OS_EVENTS),
			get32(rc->call->top, AT(nv_os_event, fd)));
	return NULL;
}

static long alloc(struct ckm_rm_call *rc, struct cgpu_obj *client)
{
	struct making m = { .event = add_pending(rc), .client = container_of(client, struct ckm_obj, core) };
	struct ckm_container *ct = rc->call->backing->ct;
	long ret;

	if (!m.event)	/* the driver's answer, too */
		return ckm_rm_answer(rc, NV_ERR_INSUFFICIENT_RESOURCES);
	rc->call->may = may_alloc;
	rc->call->post = post_alloc;
	rc->call->post_data = &m;
	ret = ckm_rm_forward(rc);
	if (m.event) {	/* the driver's rm_ioctl() was not redirected, or not called */
		mutex_lock(&ct->rm_lock);
		if (rc->call->unseen)
			m.event->live = true;
		else
			drop_locked(ct, m.event);
		mutex_unlock(&ct->rm_lock);
	}
	return ret;
}

/* The driver makes and frees it for any client. Accept the container's clients only. */
long ckm_rm_run_os_event(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	u32 handle = get32(rc->call->top, AT(nv_os_event, hClient));
	struct cgpu_obj *client = ckm_obj_pin(ct, handle, handle);
	long ret;

	if (!client) {
		ckm_call_denied(rc->call, "OS event of client", handle);
		return ckm_rm_answer(rc, NV_ERR_INVALID_CLIENT);
	}
	rc->call->serial = &ct->os_event_lock;
	if (rc->row.nr == NV_ESC_ALLOC_OS_EVENT) {
		ret = alloc(rc, client);
	} else {
		rc->call->post = post_free;
		ret = ckm_rm_forward(rc);
	}
	ckm_obj_unpin(ct, client);
	return ret;
}

/* ---- the end of a client or a file ---- */

/* One that is being made is its call's. */
static void drop_all_locked(struct ckm_container *ct, u32 client)
{
	struct os_event *event, *next;

	lockdep_assert_held(&ct->rm_lock);
	list_for_each_entry_safe(event, next, &ct->os_events, node)
		if (event->live && event->client == client)
			drop_locked(ct, event);
}

/* Nothing is added for a client that is being freed. */
void ckm_os_events_of_client(struct ckm_container *ct, u32 client)
{
	mutex_lock(&ct->rm_lock);
	drop_all_locked(ct, client);
	mutex_unlock(&ct->rm_lock);
}

static bool has_some(struct ckm_container *ct, u32 client)
{
	const struct os_event *event;
	bool found = false;

	mutex_lock(&ct->rm_lock);
	list_for_each_entry(event, &ct->os_events, node)
		if (event->live && event->client == client) {
			found = true;
			break;
		}
	mutex_unlock(&ct->rm_lock);
	return found;
}

void ckm_os_events_client_ends(struct ckm_container *ct, u32 client)
{
	mutex_lock(&ct->os_event_lock);
	if (has_some(ct, client) && ckm_drv_free_os_events(client))
		ckm_os_events_of_client(ct, client);
	mutex_unlock(&ct->os_event_lock);
}

/* A client of @file that has an OS event, on whichever file; 0: none. */
static u32 client_with_some_locked(struct ckm_container *ct, const struct ckm_backing *file)
{
	const struct os_event *event;
	const struct cgpu_obj *client;

	lockdep_assert_held(&ct->rm_lock);
	list_for_each_entry(event, &ct->os_events, node) {
		client = event->live ? ckm_obj_find_locked(ct, event->client, event->client) : NULL;
		if (client && client->owner == file->id)
			return event->client;
	}
	return 0;
}

void ckm_os_events_file_ends(struct ckm_backing *file)
{
	struct ckm_container *ct = file->ct;
	struct ckm_obj *client;
	u32 handle;

	mutex_lock(&ct->os_event_lock);
	mutex_lock(&ct->rm_lock);
	list_for_each_entry(client, &file->clients, bound)
		client->ends = true;
	while ((handle = client_with_some_locked(ct, file))) {
		mutex_unlock(&ct->rm_lock);
		if (!ckm_drv_free_os_events(handle))
			goto out;
		cond_resched();
		mutex_lock(&ct->rm_lock);
		drop_all_locked(ct, handle);
	}
	mutex_unlock(&ct->rm_lock);
out:
	mutex_unlock(&ct->os_event_lock);
}

/* Nothing is added for a file that is gone. */
void ckm_os_events_of_file(struct ckm_backing *backing)
{
	struct ckm_container *ct = backing->ct;
	struct os_event *event, *next;

	mutex_lock(&ct->rm_lock);
	list_for_each_entry_safe(event, next, &ct->os_events, node)
		if (event->file == backing->id)
			drop_locked(ct, event);
	mutex_unlock(&ct->rm_lock);
}
