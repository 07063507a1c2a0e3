/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Kernels that delay their preemption, and the driver's slow calls. Inside the core only. */
#ifndef CGPU_CORE_SCHED_RESIST_H
#define CGPU_CORE_SCHED_RESIST_H

#include "env.h"
#include "sched_gpu.h"

/* A thaw of @started was acknowledged, after @took_ns for each list of channels. */
void cgpu_resist_note_thaw(struct cgpu_sched *t, u32 started, u64 took_ns);

/* The same of a freeze. */
void cgpu_resist_note(struct cgpu_sched *t, u32 stopped, u64 took_ns);

/* Are the freezes of @s slow more often than the driver's tail makes them? */
bool cgpu_resist_is_slow(const struct cgpu_sched *t, const struct cgpu_sched_entity *s);

/* Do its kernels delay most of them, by however little? */
bool cgpu_resist_delays(const struct cgpu_sched *t, const struct cgpu_sched_entity *s);

/* Is this freeze taken to be delayed by kernels of @stopped, which ran until its end? */
bool cgpu_resist_is_late(const struct cgpu_sched *t, u32 stopped, u64 took_ns);

/* How long until @slot, which runs beside others, is frozen to see that. */
u64 cgpu_resist_probe_ns(const struct cgpu_sched *t, u32 slot);

/* How long before its end a freeze that took so long had its effect. */
u64 cgpu_resist_rest_ns(const struct cgpu_sched *t, u32 stopped, u64 took_ns);

#endif
