// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Redirects functions of the driver, by ftrace or by kprobes. Takes redirect_lock. */
#include <linux/ftrace.h>
#include <linux/hashtable.h>
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/objtool.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <asm/text-patching.h>

#include "call.h"
#include "compat.h"
#include "driver/redirect.h"

/* Attach and detach of rows. The notifier of a module that is being unloaded takes it, so
 * the text of an attached row stays while it is held.
 */
static DEFINE_MUTEX(redirect_lock);

/* The attached tables of each module. Written under redirect_lock; read without by calls,
 * which run only while their module's tables stay.
 */
#define TABLES_MAX	4
static struct {
	struct ckm_redirection *rows[TABLES_MAX];
	u32 rows_count[TABLES_MAX];
	u32 count;
} tables[CKM_REDIRECT_MODULES];

/* What each call looks at: where the rows of those tables are, and the opcode that leads to us.
 * Written and read as the tables.
 */
#define SITES_MAX	16
static struct {
	const u8 *at[SITES_MAX];
	u8 opcode[SITES_MAX];
	u32 count;
} sites[CKM_REDIRECT_MODULES];

/* From 5.18 on the address of a probe lies behind the function's ENDBR. With
 * CONFIG_X86_KERNEL_IBT an indirect branch to that address is fatal. A return is not an
 * indirect branch: push the target and return to it.
 */
asm(".pushsection .text\n"
    "	.balign 16\n"
    "	.globl ckm_call_original\n"
    "	.type ckm_call_original, @function\n"
    "ckm_call_original:\n"
    "	pushq 8(%rsp)\n"
    "	" ASM_RET
    "	.size ckm_call_original, . - ckm_call_original\n"
    ".popsection\n");
STACK_FRAME_NON_STANDARD(ckm_call_original);	/* returns to the pushed target */

void *ckm_redirect_address(const struct ckm_redirection *row)
{
	/* Behind the call to ftrace: not redirected again. Where it was found is where the site is. */
	return (void *)(row->traced ? row->found + MCOUNT_INSN_SIZE : row->found);
}

void *ckm_redirect_original(struct ckm_call *call, const struct ckm_redirection *row)
{
	if (!row->traced)
		call->aside = row;
	return ckm_redirect_address(row);
}

/* True for a hit in an intercepted call, except the one ckm_redirect_original() exempted. */
static bool wants_call(const struct ckm_redirection *row)
{
	struct ckm_call *call = ckm_call_mine();

	if (!call)
		return false;
	if (call->aside != row)
		return true;
	call->aside = NULL;
	return false;
}

/* Must not sleep, takes no lock. */
static bool redirect(const struct ckm_redirection *row, struct pt_regs *regs)
{
	if (!(row->wants ? row->wants(regs) : wants_call(row)))
		return false;
	instruction_pointer_set(regs, (unsigned long)row->replacement);
	return true;
}

/* ---- by a kprobe ---- */

static int probed(struct kprobe *p, struct pt_regs *regs)
{
	return redirect(container_of(p, struct ckm_redirection, probe), regs);
}

/* A post handler keeps kprobes from optimising the probe into a jump, which would ignore
 * the changed instruction pointer.
 */
static void keep_unoptimised(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
}

static int probe_row(struct ckm_redirection *row)
{
	int ret;

	memset(&row->probe, 0, sizeof(row->probe));
	row->probe.symbol_name = row->symbol;
	row->probe.pre_handler = probed;
	row->probe.post_handler = keep_unoptimised;
	ret = register_kprobe(&row->probe);
	if (!ret)
		row->site = (unsigned long)row->probe.addr;
	return ret;
}

/* ---- by ftrace ---- */

#ifdef CONFIG_DYNAMIC_FTRACE_WITH_REGS

static DEFINE_HASHTABLE(traced_rows, 6);	/* redirect_lock; readers use RCU */

static void trace_hit(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
		      CKM_FTRACE_REGS *fregs)
{
	struct pt_regs *regs = ckm_ftrace_regs(fregs);
	struct ckm_redirection *row;

	if (!regs)
		return;
	rcu_read_lock();
	hash_for_each_possible_rcu(traced_rows, row, node, ip)
		if (row->site == ip) {
			redirect(row, regs);
			break;
		}
	rcu_read_unlock();
}

/* PERMANENT: while one is registered, kernel.ftrace_enabled cannot be set to 0. IPMODIFY
 * excludes live patches of the function: not where we only observe. trace_hit() calls none
 * of the functions, so it needs no protection against recursion, which could skip a hit.
 */
#define OPS_FLAGS (FTRACE_OPS_FL_SAVE_REGS | FTRACE_OPS_FL_PERMANENT | CKM_FTRACE_UNPROTECTED)

static struct ftrace_ops redirecting = {
	.func	= trace_hit,
	.flags	= OPS_FLAGS | FTRACE_OPS_FL_IPMODIFY,
};
static struct ftrace_ops observing = {
	.func	= trace_hit,
	.flags	= OPS_FLAGS,
};
static u32 redirecting_count, observing_count;	/* redirect_lock */

/* An ftrace_ops without a function would trace all of them: it is registered with its first
 * function and unregistered before its last one is removed.
 */
static int trace_row(struct ckm_redirection *row)
{
	struct ftrace_ops *ops = row->replacement ? &redirecting : &observing;
	u32 *count = row->replacement ? &redirecting_count : &observing_count;
	int ret;

	row->site = row->found;
	hash_add_rcu(traced_rows, &row->node, row->site);
	ret = ftrace_set_filter_ip(ops, row->site, 0, 0);
	if (ret)
		goto err_row;
	if (!*count)
		ret = register_ftrace_function(ops);
	if (ret)
		goto err_filter;
	++*count;
	return 0;

err_filter:
	ftrace_set_filter_ip(ops, row->site, 1, 0);
err_row:
	hash_del_rcu(&row->node);
	row->site = 0;
	return ret;
}

static void untrace_row(struct ckm_redirection *row)
{
	struct ftrace_ops *ops = row->replacement ? &redirecting : &observing;
	u32 *count = row->replacement ? &redirecting_count : &observing_count;

	if (!--*count)
		unregister_ftrace_function(ops);
	ftrace_set_filter_ip(ops, row->site, 1, 0);
	hash_del_rcu(&row->node);
}

#else

static int trace_row(struct ckm_redirection *row)
{
	return -EOPNOTSUPP;
}

static void untrace_row(struct ckm_redirection *row)
{
}

#endif

/* ---- rows ---- */

static u8 opcode_of(const struct ckm_redirection *row)
{
	return row->traced ? CALL_INSN_OPCODE : INT3_INSN_OPCODE;
}

/* The kernel puts a breakpoint there too, while it changes ftrace's call. */
static bool leads_to_us(const u8 *site, u8 opcode)
{
	u8 now = READ_ONCE(*site);

	return likely(now == opcode) || now == INT3_INSN_OPCODE;
}

static bool in_effect(const struct ckm_redirection *row)
{
	const u8 *site = (const u8 *)READ_ONCE(row->site);

	return site && leads_to_us(site, opcode_of(row));
}

/* kallsyms_lookup_name() is not exported to modules, so the addresses are taken from
 * kprobes that are registered disabled and never armed. They show too whether ftrace has
 * the address. @done: number of rows found.
 */
static int find_rows(struct ckm_redirection *rows, u32 count, u32 *done)
{
	struct kprobe **probes = kcalloc(count, sizeof(*probes), GFP_KERNEL);
	int ret = 0;
	u32 i;

	*done = 0;
	if (!probes)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		probes[i] = &rows[i].probe;
		memset(probes[i], 0, sizeof(*probes[i]));
		probes[i]->symbol_name = rows[i].symbol;
		probes[i]->flags = KPROBE_FLAG_DISABLED;
		ret = register_kprobe(probes[i]);
		if (ret)
			break;
		rows[i].found = (unsigned long)probes[i]->addr;
		rows[i].traced = IS_ENABLED(CONFIG_DYNAMIC_FTRACE_WITH_REGS) &&
				 (probes[i]->flags & KPROBE_FLAG_FTRACE);
	}
	*done = i;
	unregister_kprobes(probes, i);
	kfree(probes);
	return ret;
}

static void detach_row(struct ckm_redirection *row)
{
	lockdep_assert_held(&redirect_lock);
	if (!row->site)
		return;
	if (row->traced) {
		untrace_row(row);
	} else {
		if (row->probe.nmissed)
			pr_warn("%s: %lu redirections were missed\n", row->symbol,
				row->probe.nmissed);
		unregister_kprobe(&row->probe);
	}
	WRITE_ONCE(row->site, 0);
}

static int attach_row(struct ckm_redirection *row)
{
	int ret;

	lockdep_assert_held(&redirect_lock);
	ret = row->traced ? trace_row(row) : probe_row(row);
	if (ret)
		return ret;
	if (in_effect(row))
		return 0;
	detach_row(row);
	return -ENODEV;
}

static const char *reason(int ret)
{
	switch (ret) {
	case -ENODEV:
		return "kprobes are switched off";
	case -EBUSY:
		return "ftrace is switched off, or the function is live-patched";
	case -ENOENT:
		return "no such function";
	case -ENOMEM:
		return "no memory";
	}
	return "are kprobes enabled?";
}

static void detach_rows(struct ckm_redirection *rows, u32 count)
{
	while (count--)
		detach_row(&rows[count]);
	synchronize_rcu();	/* a row may be attached again: trace_hit() must have left it */
}

/* On error @at is the row that failed. */
static int attach_rows(struct ckm_redirection *rows, u32 count, u32 *at)
{
	int ret = find_rows(rows, count, at);

	if (ret)
		return ret;
	for (*at = 0; *at < count; ++*at) {
		ret = attach_row(&rows[*at]);
		if (ret) {
			detach_rows(rows, *at);
			return ret;
		}
	}
	return 0;
}

/* The sites of @module's tables anew. None while they change: no call passes. */
static void list_sites(u32 module)
{
	const struct ckm_redirection *row;
	u32 table, i, n = 0;

	lockdep_assert_held(&redirect_lock);
	WRITE_ONCE(sites[module].count, 0);
	for (table = 0; table < tables[module].count; table++)
		for (i = 0; i < tables[module].rows_count[table]; i++) {
			row = &tables[module].rows[table][i];
			sites[module].at[n] = (const u8 *)row->site;
			sites[module].opcode[n++] = opcode_of(row);
		}
	/* Readers of the count, ckm_redirect_in_effect(), see the sites. */
	smp_store_release(&sites[module].count, n);
}

int ckm_redirect_attach(struct ckm_redirection *rows, u32 count,
			enum ckm_redirect_module module, const char *without)
{
	static const char * const names[] = { "nvidia.ko", "nvidia-uvm.ko" };
	u32 at = 0, table;
	bool room;
	int ret;

	mutex_lock(&redirect_lock);
	table = tables[module].count;
	room = table < TABLES_MAX && sites[module].count + count <= SITES_MAX;
	ret = room ? attach_rows(rows, count, &at) : -ENOSPC;
	if (!ret) {
		tables[module].rows[table] = rows;
		tables[module].rows_count[table] = count;
		/* Readers of the count, row_off(), see the table. */
		smp_store_release(&tables[module].count, table + 1);
		list_sites(module);
	}
	mutex_unlock(&redirect_lock);
	if (ret && !room)
		pr_err("no room to redirect %u more functions of %s (tables of %u and %u)%s%s\n",
		       count, names[module], TABLES_MAX, SITES_MAX, without ? ": " : "", without ?: "");
	else if (ret && without)
		pr_err("%s of %s cannot be redirected (%d, %s): %s\n", rows[at].symbol,
		       names[module], ret, reason(ret), without);
	return ret;
}

static void detach_table(u32 module, u32 table)
{
	struct ckm_redirection *rows = tables[module].rows[table];
	u32 count = tables[module].rows_count[table], last = tables[module].count - 1;

	lockdep_assert_held(&redirect_lock);
	tables[module].rows[table] = tables[module].rows[last];
	tables[module].rows_count[table] = tables[module].rows_count[last];
	/* As in ckm_redirect_attach(). */
	smp_store_release(&tables[module].count, last);
	list_sites(module);
	detach_rows(rows, count);
}

void ckm_redirect_detach(const struct ckm_redirection *rows)
{
	u32 module, table;

	mutex_lock(&redirect_lock);
	for (module = 0; module < CKM_REDIRECT_MODULES; module++)
		for (table = tables[module].count; table--;)
			if (tables[module].rows[table] == rows)
				detach_table(module, table);
	mutex_unlock(&redirect_lock);
}

bool ckm_redirect_attached(enum ckm_redirect_module module)
{
	/* What follows an attach is seen, too. */
	return smp_load_acquire(&tables[module].count);
}

/* The first row of @module that is not in effect. */
static const struct ckm_redirection *row_off(enum ckm_redirect_module module)
{
	/* Pairs with ckm_redirect_attach(). */
	u32 table = smp_load_acquire(&tables[module].count), row;

	while (table--)
		for (row = 0; row < tables[module].rows_count[table]; row++)
			if (!in_effect(&tables[module].rows[table][row]))
				return &tables[module].rows[table][row];
	return NULL;
}

bool ckm_redirect_in_effect(enum ckm_redirect_module module)
{
	/* Pairs with list_sites(). */
	u32 count = smp_load_acquire(&sites[module].count), i;

	for (i = 0; i < count; i++)
		if (!leads_to_us(sites[module].at[i], sites[module].opcode[i]))
			return false;
	return count;
}

const char *ckm_redirect_off(void)
{
	const struct ckm_redirection *off;

	mutex_lock(&redirect_lock);
	off = row_off(CKM_NVIDIA) ?: row_off(CKM_NVIDIA_UVM);
	mutex_unlock(&redirect_lock);
	return off ? off->symbol : NULL;
}

void ckm_redirect_exit(void)
{
	/* A replacement that runs outside of our calls (uvm_charge.c, dmabuf.c) may drop the
	 * last reference to a container, after which the module can be unloaded, and then
	 * returns. It does not sleep in between.
	 */
	synchronize_rcu_tasks();
}
