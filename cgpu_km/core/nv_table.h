/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The rows of the call table. Each table is sorted by number, rows of one number by branch
 * and size; tests/unit/core/test_table.py holds them to it.
 */
#ifndef CGPU_CORE_NV_TABLE_H
#define CGPU_CORE_NV_TABLE_H

#include "nv_abi.h"
#include "nv_row.h"

/* struct cgpu_doc of a row. A difference without one has that of the row before it. */
#ifdef CGPU_DOC
#define DOC(...)	{ __VA_ARGS__ }
#else
#define DOC(...)	{ }
#endif

/* The file descriptor in a call's struct: its offset, and a cgpu_fd_kind. */
#define FD(at, kind)	.fd_at = (at), .fd_kind = CGPU_FD_##kind

/* { number, branch, GONE }: the driver has the call no more. */
#define GONE		.verdict = CGPU_GONE

struct cgpu_escape_table {
	u32 count;
	const struct cgpu_escape *row;
};

struct cgpu_control_table {
	u32 first;		/* the lowest number that belongs here */
	u32 count;
	const struct cgpu_control *row;
};

struct cgpu_class_table {
	u32 count;
	const struct cgpu_class *row;
};

struct cgpu_uvm_table {
	u32 count;
	const struct cgpu_uvm_call *row;
};

extern const struct cgpu_escape_table cgpu_escapes;
extern const struct cgpu_control_table cgpu_controls_client;
extern const struct cgpu_control_table cgpu_controls_device;
extern const struct cgpu_control_table cgpu_controls_gpu;
extern const struct cgpu_control_table cgpu_controls_engine;
extern const struct cgpu_control_table cgpu_controls_object;
extern const struct cgpu_control_table cgpu_controls_opaque;
extern const struct cgpu_class_table cgpu_classes;
extern const struct cgpu_uvm_table cgpu_uvm_calls;

/* The five tables of controls, in order. */
#define CGPU_CONTROL_TABLES	5
extern const struct cgpu_control_table *const cgpu_control_tables[CGPU_CONTROL_TABLES];

/* The branches that are accepted, ascending. */
extern const u32 cgpu_branches[];
extern const u32 cgpu_branch_count;

#endif
