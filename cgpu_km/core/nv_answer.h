/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Answers in place of the driver's, and arguments that are checked before they pass. */
#ifndef CGPU_CORE_NV_ANSWER_H
#define CGPU_CORE_NV_ANSWER_H

#include "env.h"

/* Fill in what a driver answers where there is no peer, no NVLink and no fabric. False
 * for a control that is none of those, or of another size: nothing changed.
 */
bool cgpu_call_not_there(u32 cmd, u8 *params, u32 size);

/* True if a list of thermal instructions only reads, as far as the driver will read it. */
bool cgpu_call_thermal_reads(const u8 *params, u32 size);

/* The most preemptible mode for compute, whatever mode was requested. */
void cgpu_call_force_cilp(u8 *params);

/* True if a share policy (its type) reaches processes of the same user or the same
 * process only.
 */
bool cgpu_call_share_stays(u16 type);

#endif
