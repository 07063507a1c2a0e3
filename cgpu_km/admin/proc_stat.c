// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The proc files with many figures. Takes rm_lock, gpu->lock. */
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "admin/proc_stat.h"
#include "core_ref.h"
#include "intercept/uvm_late.h"
#include "intercept/witness.h"
#include "pure/mem_ledger.h"
#include "pure/text_format.h"
#include "sched/run_state.h"
#include "sched/runlist.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/listed.h"
#include "state/memory.h"
#include "state/quota.h"
#include "state/slot.h"

static const char *control_name(u32 controls)
{
	static const char * const names[] = { "none", "freeze", "timeslice", "freeze,timeslice" };

	return names[controls & (CGPU_CTRL_FREEZE | CGPU_CTRL_TIMESLICE)];
}

static const char *check_name(enum ckm_check_state state)
{
	static const char * const names[] = { "idle", "watching", "holding", "blind" };

	return names[state];
}

/* For readers of stat the run state is read for no more than this part of the time: up to 256 words of the card, with
 * gpu->lock held.
 */
#define SHOWN_PARTS	5
#define SHOWN_COST_MAX_NS	(20 * NSEC_PER_MSEC)

struct run_state {
	const char *source;
	u32 known, busy;
	u64 errors;
};

/* The scheduler thread reads only while a plan depends on it. */
static void read_run_state_locked(struct ckm_gpu *gpu, struct run_state *run)
{
	struct ckm_run_state *has = &gpu->run;
	const struct cgpu_core_ops *core;
	u64 now = ktime_get_ns();

	lockdep_assert_held(&gpu->lock);
	if (now - has->shown_ns >= SHOWN_PARTS * has->shown_cost_ns || has->words != has->shown_words) {
		core = ckm_core_enter();
		has->shown_known = 0;
		has->shown_busy = 0;
		ckm_run_state_read_locked(gpu, core, &has->shown_known, &has->shown_busy, NULL);
		ckm_core_leave();
		has->shown_ns = ktime_get_ns();
		/* The processor may have been taken away meanwhile. */
		has->shown_cost_ns = min_t(u64, has->shown_ns - now, SHOWN_COST_MAX_NS);
		has->shown_words = has->words;
	}
	run->known = ckm_run_state_usable_locked(gpu) ? has->shown_known : 0;
	run->busy = has->shown_busy & run->known;
	run->source = ckm_run_state_source_locked(gpu);
	run->errors = gpu->run.errors;
}

/* Those of nvidia-uvm can be missing while the others are in effect. */
static const char *redirections(void)
{
	const char *text = ckm_witness_text();

	return !strcmp(text, "on") && ckm_uvm_is_late() ? "no_uvm" : text;
}

int ckm_proc_show_gpu_stat(struct seq_file *m, void *obj, u32 attr)
{
	struct ckm_gpu *gpu = obj;
	u64 used, limits, ended, cpu = 0, driver, free;
	u32 i, instances = 0, seen;
	struct ckm_ctrl_figures ctrl;
	struct ckm_switch_cost cost = ckm_ctrl_switch_cost(gpu);
	struct cgpu_sched_view view;
	enum ckm_check_state check;
	struct run_state run;

	if (!ckm_gpu_heap_if_open(gpu, &driver, &free))
		driver = 0;
	ckm_ctrl_figures(gpu, &ctrl);
	spin_lock(&gpu->lock);
	if (gpu->thread)
		cpu = gpu->thread->se.sum_exec_runtime;
	limits = gpu->limits_bytes;
	ckm_gpu_view_locked(gpu, &view);
	seen = gpu->check->seen;
	check = gpu->check_state;
	read_run_state_locked(gpu, &run);
	used = ckm_slots_used_locked(gpu);
	ended = gpu->ended_bytes;
	for (i = 0; i < CGPU_SLOTS; i++)
		instances += gpu->slot[i] != NULL;
	spin_unlock(&gpu->lock);

	seq_printf(m, "total_bytes %llu\nlimits_bytes %llu\nused_bytes %llu\ninstances %u\n",
		   gpu->total_bytes, limits, used, instances);
	seq_printf(m, "control %s\ncontrol_p50_us %u\ncontrol_p99_us %u\ncontrol_max_us %llu\n",
		   control_name(view.controls), ctrl.p50_us, ctrl.p99_us, ctrl.max_us);
	seq_printf(m, "control_freeze_us %u\ncontrol_thaw_us %u\ncontrol_restart_us %u\n",
		   ctrl.usual_us[CKM_CTRL_OF_FREEZE], ctrl.usual_us[CKM_CTRL_OF_THAW],
		   ctrl.usual_us[CKM_CTRL_OF_RESTART]);
	seq_printf(m, "control_timeslice_us %u\ndefault_timeslice_us %u\nswitch_us %u\nswitch_source %s\n",
		   ctrl.usual_us[CKM_CTRL_OF_TIMESLICE], ctrl.timeslice_us ?: CGPU_TIMESLICE_US,
		   cost.us, cost.source);
	seq_printf(m, "control_calls %llu\ncontrol_failed %llu\nturns %llu\nthread_cpu_ns %llu\n",
		   ctrl.calls, ctrl.failed, READ_ONCE(gpu->turns), cpu);
	seq_printf(m, "context_bytes %llu\ndriver_used_bytes %llu\nunattributed_bytes %llu\n",
		   ckm_gpu_context_bytes(gpu, CGPU_ENGINE_GR), driver, driver > used ? driver - used : 0);
	seq_printf(m, "control_seen %s\ncontrol_ineffective %s\neffect_check %s\n",
		   control_name(seen), control_name(view.ineffective), check_name(check));
	seq_printf(m, "run_state_source %s\nrun_state_known %u\nrun_state_busy %u\nrun_state_errors %llu\n",
		   run.source, hweight32(run.known), hweight32(run.busy), run.errors);
	seq_printf(m, "redirections %s\nended_bytes %llu\n", redirections(), ended);
	return 0;
}

int ckm_proc_show_meminfo(struct seq_file *m, void *obj, u32 attr)
{
	struct ckm_slot *slot = obj;
	struct cgpu_pid_mem *pids;
	u64 left;
	u32 count = 0, room = 0;
	struct ckm_mem *mem;
	size_t size;
	char *text;
	int len = -ENOMEM;

	mutex_lock(&slot->ct->rm_lock);
	list_for_each_entry(mem, &slot->mems, node)
		room++;
	pids = kvcalloc(room + 1, sizeof(*pids), GFP_KERNEL);
	if (pids)
		list_for_each_entry(mem, &slot->mems, node) {
			if (!mem->core.bytes)	/* an id */
				continue;
			pids[count].pid = ckm_mem_pid_locked(mem);
			pids[count++].bytes = mem->core.bytes;
		}
	spin_lock(&slot->gpu->lock);
	left = cgpu_ledger_free(&slot->ledger);
	spin_unlock(&slot->gpu->lock);
	mutex_unlock(&slot->ct->rm_lock);

	size = 64 + count * 48;
	text = kvmalloc(size, GFP_KERNEL);
	if (pids && text) {
		count = cgpu_format_merge_pids(pids, count);
		len = cgpu_format_meminfo(text, size, left, pids, count);
	}
	if (len > 0)
		seq_write(m, text, len);
	kvfree(text);
	kvfree(pids);
	return len < 0 ? len : 0;
}

static void show_quota(struct seq_file *m, struct ckm_slot *slot, enum cgpu_quota_kind kind)
{
	const char *name = ckm_quota_name(kind);
	struct cgpu_quota_view view;
	u64 has = ckm_quota_view(slot, kind, &view);

	seq_printf(m, "%s %llu\n%s_floor %llu\n%s_left %llu\n", name, has, name, view.floor,
		   name, view.left);
}

static void show_kinds(struct seq_file *m, const u64 *used)
{
	static const char *const names[CKM_MEM_KINDS] = {
		[CKM_MEM_DATA] = "data",
		[CKM_MEM_CONTEXT] = "context",
		[CKM_MEM_MANAGED] = "managed",
		[CKM_MEM_IMPORTED] = "imported",
		[CKM_MEM_TABLES] = "tables",
	};
	u32 kind;

	for (kind = 0; kind < CKM_MEM_KINDS; kind++)
		seq_printf(m, "used_%s_bytes %llu\n", names[kind], used[kind]);
}

static void show_listed(struct seq_file *m, struct ckm_container *ct)
{
	enum ckm_listed kind;
	u32 has, max;

	for (kind = 0; kind < CKM_LISTED_KINDS; kind++) {
		has = READ_ONCE(ct->listed[kind]);
		max = ckm_listed_max(kind);
		seq_printf(m, "%s %u\n%s_left %u\n", ckm_listed_name(kind), has,
			   ckm_listed_name(kind), max > has ? max - has : 0);
	}
}

/* Too large for the stack of a kernel with KASAN. */
struct slot_stat {
	struct cgpu_sched_stat st;
	struct cgpu_ledger led;
	u64 used_by[CKM_MEM_KINDS];
	char text[512], waits[1024];
	int len, waits_len;
};

/* Takes gpu->lock. */
static int format_slot_stat(struct ckm_slot *slot, struct slot_stat *s)
{
	spin_lock(&slot->gpu->lock);
	ckm_core_call(sched.stat(slot->gpu->sched, slot->sched_id, ktime_get_ns(), &s->st));
	s->led = slot->ledger;
	memcpy(s->used_by, slot->used_by, sizeof(s->used_by));
	spin_unlock(&slot->gpu->lock);
	s->len = cgpu_format_slot_stat(s->text, sizeof(s->text), &s->led, &s->st,
				       atomic64_read(&slot->refused_calls));
	s->waits_len = cgpu_format_slot_waits(s->waits, sizeof(s->waits), &s->st);
	return s->len < 0 ? s->len : min(s->waits_len, 0);
}

int ckm_proc_show_slot_stat(struct seq_file *m, void *obj, u32 attr)
{
	struct slot_stat *s = kzalloc(sizeof(*s), GFP_KERNEL);
	struct ckm_slot *slot = obj;
	enum cgpu_quota_kind kind;
	int ret;

	if (!s)
		return -ENOMEM;
	ret = format_slot_stat(slot, s);
	if (ret)
		goto out;
	seq_write(m, s->text, s->len);
	for (kind = 0; kind <= CGPU_QUOTA_BAR1; kind++)
		show_quota(m, slot, kind);
	seq_write(m, s->waits, s->waits_len);
	show_listed(m, slot->ct);
	seq_printf(m, "host_limit_bytes %llu\nhost_used_bytes %llu\nhost_refused_allocs %llu\n",
		   READ_ONCE(slot->ct->host_limit), ckm_host_used(slot->ct),
		   READ_ONCE(slot->ct->host_refused));
	show_kinds(m, s->used_by);
	for (; kind < CGPU_QUOTAS; kind++)
		show_quota(m, slot, kind);
out:
	kfree(s);
	return ret;
}
