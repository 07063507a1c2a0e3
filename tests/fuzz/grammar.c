// SPDX-License-Identifier: MIT
/* The rows of the module's call table that hold for this driver, in one list. */
#include "fuzz.h"

struct row rows[MAX_ROWS];
int row_count;

static int first_of[ROW_KINDS + 1];

static void add(struct row row)
{
	if (row_count < MAX_ROWS)
		rows[row_count++] = row;
}

/* A row that differs by branch has no name: its name is that of the row before it, of the same number. */
static const char *name_of(const char *name)
{
	static const char *last;

	last = name ? name : last;
	return last;
}

static void add_controls(uint32_t branch)
{
	for (int t = 0; t < CGPU_CONTROL_TABLES; t++)
		for (uint32_t i = 0; i < cgpu_control_tables[t]->count; i++) {
			const struct cgpu_control *r = &cgpu_control_tables[t]->row[i];
			const char *name = name_of(r->doc.name);

			if (cgpu_call_control(branch, r->cmd) == r)
				add((struct row) { ROW_CONTROL, r->cmd, r->params_size, r->verdict, 0, 0,
						   r->fd_at, r->fd_kind, r->copied_in, name });
		}
}

void grammar_load(const char *driver_version)
{
	uint32_t branch = cgpu_call_branch(driver_version), i;

	for (i = 0; i < cgpu_escapes.count; i++) {
		const struct cgpu_escape *r = &cgpu_escapes.row[i];
		const char *name = name_of(r->doc.name);

		if (cgpu_call_escape(branch, r->nr, r->size, r->nodes) == r)
			add((struct row) { ROW_ESCAPE, r->nr, r->size, r->verdict, r->status_at, r->nodes,
					   r->fd_at, r->fd_kind, true, name });
	}
	first_of[ROW_CONTROL] = row_count;
	add_controls(branch);
	first_of[ROW_CLASS] = row_count;
	for (i = 0; i < cgpu_classes.count; i++) {
		const struct cgpu_class *r = &cgpu_classes.row[i];
		const char *name = name_of(r->doc.name);

		if (cgpu_call_class(branch, r->cls) == r)
			add((struct row) { ROW_CLASS, r->cls, r->params_size, r->kind, 0, 0, 0, 0, r->copied_in,
					   name });
	}
	first_of[ROW_UVM] = row_count;
	for (i = 0; i < cgpu_uvm_calls.count; i++) {
		const struct cgpu_uvm_call *r = &cgpu_uvm_calls.row[i];
		const char *name = name_of(r->doc.name);

		if (cgpu_call_uvm(branch, r->nr) == r)
			add((struct row) { ROW_UVM, r->nr, r->size, r->verdict, r->status_at, CGPU_NODE_UVM,
					   r->fd_at, r->fd_kind, false, name });
	}
	first_of[ROW_KINDS] = row_count;
}

int row_find(enum row_kind kind, uint32_t number, uint32_t size)
{
	for (int i = first_of[kind]; i < first_of[kind + 1]; i++)
		if (rows[i].number == number && (!size || !rows[i].size || rows[i].size == size))
			return i;
	return -1;
}

int row_pick(struct rng *r, enum row_kind kind, bool refused_too)
{
	int i, tries = 64;

	do {
		i = first_of[kind] + rng_below(r, first_of[kind + 1] - first_of[kind]);
	} while (!refused_too && rows[i].verdict == CGPU_REFUSE && --tries);
	return i;
}
