// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns the list of processes whose channels are gone. Callers hold gpu->lock. */
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/minmax.h>

#include "state/container.h"
#include "state/gone.h"
#include "state/gpu.h"

/* A sample's clock may be off by so much. */
#define CLOCKS_NS	(5 * NSEC_PER_MSEC)

/* Keyed: a tenant cannot choose which processes of others have a place of its own. */
static u32 place_of(const struct ckm_gpu *gpu, u32 pid)
{
	return hash_32(pid ^ (u32)gpu->born_ns, CKM_GONE_LOST_BITS);
}

void ckm_gone_note_locked(struct ckm_slot *slot, u32 pid)
{
	struct ckm_gone *gone = &slot->gpu->gone[slot->sched_id];
	struct cgpu_sched_entity_view view;
	u32 i, at = 0;
	u64 *lost;

	lockdep_assert_held(&slot->gpu->lock);
	for (i = 0; i < CKM_GONE_PIDS; i++) {
		if (gone->last[i].at_ns && gone->last[i].pid == pid) {
			at = i;
			break;
		}
		if (gone->last[i].at_ns < gone->last[at].at_ns)
			at = i;
	}
	/* Of two slots the one may forget a process that went long before what the other has forgotten. */
	lost = &slot->gpu->gone_lost_ns[gone->last[at].high][place_of(slot->gpu, gone->last[at].pid)];
	if (gone->last[at].pid != pid)
		*lost = max(*lost, gone->last[at].at_ns);
	ckm_gpu_slot_view_locked(slot->gpu, slot->sched_id, &view);
	gone->last[at].at_ns = ktime_get_ns();
	gone->last[at].pid = pid;
	gone->last[at].high = view.highprio;
}

u32 ckm_gone_look_locked(const struct ckm_gpu *gpu, u32 pid, u64 at_ns, u32 but)
{
	u32 found = 0, place = place_of(gpu, pid), slot, i;

	lockdep_assert_held(&gpu->lock);
	for (slot = 0; slot < CGPU_SLOTS; slot++)
		for (i = 0; slot != but && i < CKM_GONE_PIDS; i++)
			if (gpu->gone[slot].last[i].pid == pid &&
			    gpu->gone[slot].last[i].at_ns + CLOCKS_NS >= at_ns)
				found |= gpu->gone[slot].last[i].high ? CKM_GONE_HIGH : CKM_GONE_LOW;
	if (gpu->gone_lost_ns[true][place] + CLOCKS_NS >= at_ns)
		found |= CKM_GONE_HIGH;
	if (!found && but == CGPU_NO_SLOT && gpu->gone_lost_ns[false][place] + CLOCKS_NS >= at_ns)
		found |= CKM_GONE_LOW;
	return found;
}
