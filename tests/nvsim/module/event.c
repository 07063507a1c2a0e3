// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* OS events: an integer the client chose, bound to the file it was announced on; signalled through poll(). */
#include <linux/slab.h>

#include "nvsim.h"

DEFINE_MUTEX(nvsim_event_lock);
static LIST_HEAD(all_events);		/* struct os_event.link: nvsim_event_lock */
static u32 all_event_count;		/* of it */

struct os_event {
	struct list_head link;
	nv_file_private_t *fp;
	u32 hclient, fd;
};

static struct os_event *find(u32 hclient, u32 fd)
{
	struct os_event *e;

	list_for_each_entry(e, &all_events, link)
		if (e->hclient == hclient && e->fd == fd)
			return e;
	return NULL;
}

u32 nvsim_event_alloc_os(u32 hclient, nv_file_private_t *nvfp, u32 fd)
{
	struct os_event *e = kzalloc(sizeof(*e), GFP_KERNEL);
	u32 st = NV_OK;

	if (!e)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	e->fp = nvfp;
	e->hclient = hclient;
	e->fd = fd;
	mutex_lock(&nvsim_event_lock);
	if (find(hclient, fd)) {
		st = NV_ERR_INSUFFICIENT_RESOURCES;
		kfree(e);
	} else {
		list_add(&e->link, &all_events);	/* as in the driver: before the others */
		all_event_count++;
	}
	mutex_unlock(&nvsim_event_lock);
	return st;
}

static void drop(struct os_event *e)
{
	list_del(&e->link);
	all_event_count--;
	kfree(e);
}

/* Of all clients and files, in the one list of the host. */
u32 nvsim_event_os_count(void)
{
	return READ_ONCE(all_event_count);
}

u32 nvsim_event_free_os(u32 hclient, u32 fd)
{
	struct os_event *e;

	mutex_lock(&nvsim_event_lock);
	e = find(hclient, fd);
	if (e)
		drop(e);
	mutex_unlock(&nvsim_event_lock);
	return e ? NV_OK : NV_ERR_INVALID_EVENT;
}

void nvsim_event_client_gone(u32 hclient)
{
	struct os_event *e, *next;

	mutex_lock(&nvsim_event_lock);
	list_for_each_entry_safe(e, next, &all_events, link)
		if (e->hclient == hclient)
			drop(e);
	mutex_unlock(&nvsim_event_lock);
}

void nvsim_event_file_gone(nv_file_private_t *nvfp)
{
	struct os_event *e, *next;

	mutex_lock(&nvsim_event_lock);
	list_for_each_entry_safe(e, next, &all_events, link)
		if (e->fp == nvfp)
			drop(e);
	mutex_unlock(&nvsim_event_lock);
}

/* The object keeps the integer only; whether an OS event is behind it is looked up again when it fires. */
NV_STATUS nvsim_event_create(struct nvobj *o, u32 index, u64 data)
{
	bool found;

	INIT_LIST_HEAD(&o->listen);
	o->event_fd = (u32)data;
	o->event_index = index & NV_EVENT_INDEX;
	mutex_lock(&nvsim_event_lock);
	found = find(o->client->obj.handle, (u32)data);
	if (found && o->parent->type == NVT_SUBDEVICE)
		list_add_tail(&o->listen, &o->gpu->listeners);
	mutex_unlock(&nvsim_event_lock);
	return found ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;	/* osUserHandleToKernelPtr() */
}

void nvsim_event_destroy(struct nvobj *o)
{
	mutex_lock(&nvsim_event_lock);
	list_del_init(&o->listen);
	mutex_unlock(&nvsim_event_lock);
}

/* nvsim_event_lock is held. */
static void signal_event(struct nvobj *event)
{
	struct os_event *e = find(event->client->obj.handle, event->event_fd);
	unsigned long flags;

	if (!e)
		return;
	spin_lock_irqsave(&e->fp->lock, flags);
	e->fp->event_pending = true;
	spin_unlock_irqrestore(&e->fp->lock, flags);
	wake_up_interruptible(&e->fp->wait);
}

void nvsim_event_signal(struct nvobj *event)
{
	mutex_lock(&nvsim_event_lock);
	signal_event(event);
	mutex_unlock(&nvsim_event_lock);
}

/* An engine's interrupt wakes all its listeners, whichever client's work raised it. */
void nvsim_event_interrupt(struct nvgpu *gpu, u32 index)
{
	struct nvobj *o;

	mutex_lock(&nvsim_event_lock);
	list_for_each_entry(o, &gpu->listeners, listen)
		if (o->event_index == index)
			signal_event(o);
	mutex_unlock(&nvsim_event_lock);
}
