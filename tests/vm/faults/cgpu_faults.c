// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Makes the nth allocation, or copy to or from user space, of one module fail. Debian's kernels have
 * no failslab, CONFIG_FAIL_FUNCTION knows no caller, and the kernel's own fault injection looks at
 * the callers on x86-64 from 6.2 on only.
 *
 * A kprobe at the entry of each function looks at the return address, which tells the caller. A call
 * that is to fail returns at once from there. Functions that this kernel does not have, or inlines,
 * are left out; `probes` says how many are there.
 *
 * Kind 2 are all allocations in a call of the module: allocators ask the two functions of the
 * kernel's fault injection, which are there without it too, and the stack tells whether the module is
 * among the callers.
 */
#include <linux/err.h>
#include <linux/gfp.h>
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/module.h>
#include <linux/objtool.h>
#include <linux/sched.h>
#include <linux/stacktrace.h>

#ifndef ANNOTATE_NOENDBR	/* before 5.18 */
#define ANNOTATE_NOENDBR ""
#endif

static ulong from, to;
module_param(from, ulong, 0444);
module_param(to, ulong, 0444);
MODULE_PARM_DESC(from, "where the text of the module begins whose calls are counted (/proc/modules)");
static int task;
module_param(task, int, 0644);
MODULE_PARM_DESC(task, "only calls made by this process count; 0: all, and those of kernel threads");
static int nth;
module_param(nth, int, 0644);
MODULE_PARM_DESC(nth, "the nth of its calls from now on fails; counts down, 0: none");
static uint kind;
module_param(kind, uint, 0644);
MODULE_PARM_DESC(kind, "0: allocations, 1: copies, 2: allocations in its calls, of other functions too");
static uint probes[3];
module_param_array(probes, uint, NULL, 0444);
MODULE_PARM_DESC(probes, "functions that are probed, by kind");
static char last[160];
module_param_string(last, last, sizeof(last), 0444);
MODULE_PARM_DESC(last, "the function that failed last, for kind 2 the one that the module called, and the offset of its call");

/* Returns to the caller of the probed function: the stack is as at its entry. */
asm(".pushsection .text\n"
    ".type cgpu_faults_return, @function\n"
    "cgpu_faults_return:\n"
    ANNOTATE_NOENDBR "\n"
    ASM_RET
    ".size cgpu_faults_return, .-cgpu_faults_return\n"
    ".popsection\n");
extern void cgpu_faults_return(void);

#define BELOW		2
#define CALLERS		64
/* The caller does without, or cannot fail. */
#define NOT_NEEDED	(__GFP_NORETRY | __GFP_NOFAIL)

struct fault {
	struct kprobe probe;
	uint kind;
	bool is_copy;		/* fails with what it did not copy: all of it */
	u8 flags_arg;		/* BELOW: 1 or 2, the argument with the flags */
	unsigned long result;
	bool there;
};

static bool is_ours(unsigned long address)
{
	return address >= from && address < to;
}

/* The call of the module below which this is, 0: none. @called: in which function it is. */
static unsigned long find_caller(unsigned long *called)
{
	unsigned long callers[CALLERS];
	unsigned int count = stack_trace_save(callers, CALLERS, 0), i;

	for (i = 1; i < count; i++)
		if (is_ours(callers[i])) {
			*called = callers[i - 1];
			return callers[i];
		}
	return 0;
}

/* Code that runs in place of the task. A breakpoint counts as an NMI in a hard interrupt. */
static bool interrupts(void)
{
	return in_serving_softirq() || hardirq_count() > (in_nmi() ? HARDIRQ_OFFSET : 0);
}

static int enter(struct kprobe *p, struct pt_regs *regs)
{
	struct fault *fault = container_of(p, struct fault, probe);
	unsigned long caller = *(unsigned long *)regs->sp, called = 0, flags;
	int left = READ_ONCE(nth);

	if (left <= 0 || fault->kind != kind)
		return 0;
	if (READ_ONCE(task) && current->tgid != task)
		return 0;
	if (kind == BELOW) {
		flags = fault->flags_arg == 1 ? regs->di : regs->si;
		if ((flags & (__force ulong)NOT_NEEDED) || interrupts())
			return 0;
		caller = find_caller(&called);
	}
	if (!is_ours(caller))
		return 0;
	if (fault->is_copy && !regs->dx)	/* no byte can fail */
		return 0;
	if (!try_cmpxchg(&nth, &left, left - 1) || left != 1)
		return 0;
	if (called)
		scnprintf(last, sizeof(last), "%ps from 0x%lx", (void *)called, caller - from);
	else
		scnprintf(last, sizeof(last), "%s from 0x%lx", p->symbol_name, caller - from);
	regs->ax = fault->is_copy ? regs->dx : fault->result;
	regs->ip = (unsigned long)cgpu_faults_return;
	return 1;
}

/* With a post handler the probe is neither optimised nor without leave to change the ip. */
static void leave(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
}

#define FAULT(name, ...) { .probe = { .symbol_name = name, .pre_handler = enter, .post_handler = leave }, __VA_ARGS__ }
#define NO_MEMORY ((unsigned long)-ENOMEM)

static struct fault faults[] = {
	FAULT("__kmalloc"),			/* 6.1 */
	FAULT("kmalloc_trace"),
	FAULT("kmem_cache_alloc"),
	FAULT("kmem_cache_alloc_trace"),	/* until 6.0 */
	FAULT("kvmalloc_node"),
	FAULT("__kmalloc_noprof"),		/* 6.12 */
	FAULT("__kmalloc_cache_noprof"),
	FAULT("kmem_cache_alloc_noprof"),
	FAULT("__kvmalloc_node_noprof"),
	FAULT("alloc_pages"),
	FAULT("alloc_pages_noprof"),
	FAULT("__alloc_skb"),
	FAULT("proc_create_data"),
	FAULT("kmemdup"),
	FAULT("kmemdup_noprof"),
	FAULT("memdup_user", .result = NO_MEMORY),
	FAULT("memdup_user_nul", .result = NO_MEMORY),
	FAULT("idr_alloc_cyclic", .result = NO_MEMORY),
	FAULT("dentry_open", .result = NO_MEMORY),
	FAULT("rhashtable_init", .result = NO_MEMORY),
	FAULT("rhashtable_init_noprof", .result = NO_MEMORY),
	FAULT("kthread_create_on_node", .result = NO_MEMORY),
	FAULT("filp_open", .result = NO_MEMORY),
	FAULT("_copy_from_user", .kind = 1, .is_copy = true),
	FAULT("_copy_to_user", .kind = 1, .is_copy = true),
	FAULT("should_failslab", .kind = BELOW, .flags_arg = 2, .result = NO_MEMORY),
	FAULT("should_fail_alloc_page", .kind = BELOW, .flags_arg = 1, .result = true),
};

static int __init cgpu_faults_init(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(faults); i++) {
		faults[i].there = !register_kprobe(&faults[i].probe);
		probes[faults[i].kind] += faults[i].there;
	}
	pr_info("cgpu_faults: %u allocations, %u copies, %u below\n", probes[0], probes[1], probes[2]);
	return 0;
}

static void __exit cgpu_faults_exit(void)
{
	size_t i;

	nth = 0;
	for (i = 0; i < ARRAY_SIZE(faults); i++)
		if (faults[i].there)
			unregister_kprobe(&faults[i].probe);
}

module_init(cgpu_faults_init);
module_exit(cgpu_faults_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Makes calls of one module fail, for tests");
