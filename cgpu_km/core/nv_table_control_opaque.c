// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Controls that the driver passes to the firmware without interpreting them. The
 * public driver names none of them: one row for all of a kind.
 */
#include "nv_table.h"

static const struct cgpu_control rows[] = {
	{ 0x00008000, 535, 0, CGPU_REFUSE, DOC("RM_GSS_LEGACY_MASK",
	  "src/nvidia/inc/kernel/rmapi/control.h",
	  "those with a row of their own apart: what the others do is not known") },
	{ 0x20810000, 535, 0, CGPU_REFUSE, DOC("NV2081_BINAPI", "class/cl2081.h",
	  "what they do is not known; libcuda goes on without") },
};

const struct cgpu_control_table cgpu_controls_opaque = {
	.count = sizeof(rows) / sizeof(rows[0]),
	.row = rows,
};
