// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the records of OS events. Takes os_event_lock, rm_lock. */
#include <linux/slab.h>

#include "call.h"
#include "core/nv_abi.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/rm_call.h"
#include "intercept/rm_os_event.h"
#include "state/container.h"
#include "state/listed.h"
#include "state/rm_object.h"

/* One in the driver's list. It goes by FREE_OS_EVENT, with the file it was made on, or when RM_FREE
 * names its client; not when the client goes with another file (free_os_events() of osapi.c).
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

/* In effect in the driver, or refused by it. os_event_lock is held since before the driver was
 * called, so the records change in the order in which its list does.
 */
static void post_alloc(struct ckm_call *call, u8 *arg)
{
	struct ckm_container *ct = call->backing->ct;
	struct os_event *event = call->post_data;

	mutex_lock(&ct->rm_lock);
	if (get32(arg, NV_OS_EVENT_STATUS) == NV_OK)
		event->live = true;
	else
		drop_locked(ct, event);
	mutex_unlock(&ct->rm_lock);
	call->post_data = NULL;
}

static void post_free(struct ckm_call *call, u8 *arg)
{
	u32 client = get32(arg, NV_OS_EVENT_H_CLIENT), fd = get32(arg, NV_OS_EVENT_FD);
	struct ckm_container *ct = call->backing->ct;
	struct os_event *event;

	if (get32(arg, NV_OS_EVENT_STATUS) != NV_OK)
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
	event->client = get32(rc->call->top, NV_OS_EVENT_H_CLIENT);
	event->fd = get32(rc->call->top, NV_OS_EVENT_FD);
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
			get32(rc->call->top, NV_OS_EVENT_FD));
	return NULL;
}

static long alloc(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	struct os_event *event = add_pending(rc);
	long ret;

	if (!event)	/* the driver's answer, too */
		return ckm_rm_answer(rc, NV_ERR_RESOURCES);
	rc->call->post = post_alloc;
	rc->call->post_data = event;
	ret = ckm_rm_forward(rc);
	if (rc->call->post_data) {	/* the driver's rm_ioctl() was not redirected, or not called */
		mutex_lock(&ct->rm_lock);
		if (rc->call->unseen)
			event->live = true;
		else
			drop_locked(ct, event);
		mutex_unlock(&ct->rm_lock);
	}
	return ret;
}

/* The driver makes and frees it for any client. Accept the container's clients only. */
long ckm_rm_run_os_event(struct ckm_rm_call *rc)
{
	struct ckm_container *ct = rc->call->backing->ct;
	u32 handle = get32(rc->call->top, NV_OS_EVENT_H_CLIENT);
	struct cgpu_obj *client = ckm_obj_pin(ct, handle, handle);
	long ret;

	if (!client) {
		ckm_call_denied(rc->call, "OS event of client", handle);
		return ckm_rm_answer(rc, NV_ERR_CLIENT);
	}
	rc->call->serial = &ct->os_event_lock;
	if (rc->row.nr == NV_ESC_ALLOC_OS_EVENT) {
		ret = alloc(rc);
	} else {
		rc->call->post = post_free;
		ret = ckm_rm_forward(rc);
	}
	ckm_obj_unpin(ct, client);
	return ret;
}

/* Nothing is added for a client that is being freed, or a file that is gone. */
void ckm_os_events_of_client(struct ckm_container *ct, u32 client)
{
	struct os_event *event, *next;

	mutex_lock(&ct->rm_lock);
	list_for_each_entry_safe(event, next, &ct->os_events, node)
		if (event->client == client)
			drop_locked(ct, event);
	mutex_unlock(&ct->rm_lock);
}

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
