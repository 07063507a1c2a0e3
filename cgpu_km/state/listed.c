// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the limits of what the driver keeps in lists of the host or a card. Takes no lock. */
#include <linux/bug.h>
#include <linux/lockdep.h>
#include <linux/moduleparam.h>

#include "core/nv_abi.h"
#include "core/nv_row.h"
#include "pure/mem_tree.h"
#include "state/listed.h"

/* A process with CUDA has up to three clients, a device of each GPU in each, eight OS events and
 * as many event objects (traces of an H100 in tests/abi/replay), so these are enough for some
 * hundred processes in a container.
 */
static unsigned int max_clients = 1024;
module_param(max_clients, uint, 0644);
MODULE_PARM_DESC(max_clients, "RM clients that a container may have at once (default 1024)");

static unsigned int max_devices = 8192;
module_param(max_devices, uint, 0644);
MODULE_PARM_DESC(max_devices, "RM devices that a container may have at once (default 8192)");

static unsigned int max_events = 1024;
module_param(max_events, uint, 0644);
MODULE_PARM_DESC(max_events, "event objects that a container may have at once (default 1024)");

static unsigned int max_os_events = 1024;
module_param(max_os_events, uint, 0644);
MODULE_PARM_DESC(max_os_events, "OS events that a container may have at once (default 1024)");

static const struct {
	const char *name, *refusal;
	const unsigned int *max;
} kinds[CKM_LISTED_KINDS] = {
	[CKM_CLIENTS]	= { "clients", "one more than max_clients, of class", &max_clients },
	[CKM_DEVICES]	= { "devices", "one more than max_devices, of class", &max_devices },
	[CKM_EVENTS]	= { "events", "one more than max_events, of class", &max_events },
	[CKM_OS_EVENTS]	= { "os_events", "one more than max_os_events, number", &max_os_events },
};

enum ckm_listed ckm_listed_kind(const struct cgpu_obj *obj)
{
	if (obj->kind == CGPU_KIND_CLIENT)
		return CKM_CLIENTS;
	if (obj->kind == CGPU_KIND_DEVICE)
		return CKM_DEVICES;
	if (obj->cls == NV01_EVENT || obj->cls == NV01_EVENT_OS_EVENT)
		return CKM_EVENTS;
	return CKM_LISTED_KINDS;
}

u32 ckm_listed_max(enum ckm_listed kind)
{
	return READ_ONCE(*kinds[kind].max);
}

const char *ckm_listed_name(enum ckm_listed kind)
{
	return kinds[kind].name;
}

const char *ckm_listed_refusal(enum ckm_listed kind)
{
	return kinds[kind].refusal;
}

bool ckm_listed_has_room_locked(const struct ckm_container *ct, enum ckm_listed kind)
{
	lockdep_assert_held(&ct->rm_lock);
	return kind == CKM_LISTED_KINDS || ct->listed[kind] < ckm_listed_max(kind);
}

void ckm_listed_take_locked(struct ckm_container *ct, enum ckm_listed kind)
{
	lockdep_assert_held(&ct->rm_lock);
	if (kind != CKM_LISTED_KINDS)
		ct->listed[kind]++;
}

void ckm_listed_give_locked(struct ckm_container *ct, enum ckm_listed kind)
{
	lockdep_assert_held(&ct->rm_lock);
	if (kind != CKM_LISTED_KINDS && !WARN_ON_ONCE(!ct->listed[kind]))
		ct->listed[kind]--;
}
