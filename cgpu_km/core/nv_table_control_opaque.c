// SPDX-License-Identifier: MIT OR GPL-2.0
/* Controls that the driver hands to the firmware without knowing what they do. The
 * public driver names none of them: one row for all of a kind.
 */
#include "nv_table.h"

static const struct cgpu_control rows[] = {
	{ 0x00008000, 0, 515, 595, CGPU_REFUSE, "RM_GSS_LEGACY_MASK",
	  "src/nvidia/inc/kernel/rmapi/control.h",
	  "needs a list of those that only read (clocks, power, temperature)" },
	{ 0x20810000, 0, 515, 595, CGPU_REFUSE, "NV2081_BINAPI", "class/cl2081.h",
	  "needs a list of those that only read" },
};

const struct cgpu_control_table cgpu_controls_opaque = {
	.count = sizeof(rows) / sizeof(rows[0]),
	.row = rows,
};
