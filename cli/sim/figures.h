/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Histograms and time lines of the simulated engine. */
#ifndef CGPU_SIM_FIGURES_H
#define CGPU_SIM_FIGURES_H

#include "timeline.h"

struct cgpu_sim_trace_log {
	u64 from_ns, to_ns, merge_ns;
	u32 n, room, most, pad;
	struct cgpu_sim_stretch *stretch;
};

void cgpu_sim_trace_add(struct cgpu_sim_trace_log *log, u32 client, u64 from_ns, u64 to_ns);

#endif
