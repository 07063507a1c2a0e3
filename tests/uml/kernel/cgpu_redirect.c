// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* See cgpu_redirect.h.
 *
 * A site, once prepared, is
 *	jmp over, or movabs $cgpu_site_entry, %r11	the first two bytes decide
 *	call *%r11
 *	nop (3)
 * so that one aligned store of two bytes switches it: a task that was preempted between the two instructions calls
 * the entry once more, which finds no row and returns. The call works at any distance: modules lie behind the RAM,
 * more than 2 GiB from the kernel's text. %r11 is free at the start of a function.
 */
#include <linux/kallsyms.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>
#include <linux/stop_machine.h>
#include <linux/string.h>
#include <os.h>

#include "cgpu_redirect.h"

#define SITES_MAX	64
#define CALL_END	13	/* the return address of the site's call, from its start */

#define JMP_OVER	0x0eeb	/* jmp .+16, little endian */
#define MOVABS_R11	0xbb49

/* Which ops wants which site. Written under site_lock; read by hits, RCU readers: a row is complete before its
 * @ops is set.
 */
static struct {
	struct cgpu_site_ops *ops;
	unsigned long ip;
} rows[SITES_MAX];
static DEFINE_MUTEX(site_lock);

void cgpu_site_entry(void);
void cgpu_site_hit(struct pt_regs *regs);

__used __visible void cgpu_site_hit(struct pt_regs *regs)
{
	unsigned long ip = PT_REGS_IP(regs) - CALL_END, parent = *(unsigned long *)PT_REGS_SP(regs);
	struct cgpu_site_ops *ops;
	unsigned int i;

	rcu_read_lock();
	for (i = 0; i < SITES_MAX; i++) {
		ops = smp_load_acquire(&rows[i].ops);	/* pairs with add_row() */
		if (ops && READ_ONCE(ops->registered) && READ_ONCE(rows[i].ip) == ip)
			ops->func(ip, parent, ops, regs);
	}
	rcu_read_unlock();
}

/* Registers into struct pt_regs, cgpu_site_hit(), and back; then to where its instruction pointer leads. The general
 * registers are the first member of struct pt_regs. The kernel uses no other kind.
 */
static void __used entry_text(void)
{
	asm volatile(".pushsection .text\n"
	"	.balign 16\n"
	"	.globl cgpu_site_entry\n"
	"	.type cgpu_site_entry, @function\n"
	"cgpu_site_entry:\n"
	"	pushfq\n"
	"	push %%rbp\n"
	"	mov %%rsp, %%rbp\n"
	"	sub %[size], %%rsp\n"
	"	and $-16, %%rsp\n"
	"	mov %%rdi, %c[di](%%rsp)\n"
	"	mov %%rsi, %c[si](%%rsp)\n"
	"	mov %%rdx, %c[dx](%%rsp)\n"
	"	mov %%rcx, %c[cx](%%rsp)\n"
	"	mov %%r8, %c[r8](%%rsp)\n"
	"	mov %%r9, %c[r9](%%rsp)\n"
	"	mov %%rax, %c[ax](%%rsp)\n"
	"	mov %%r10, %c[r10](%%rsp)\n"
	"	mov 16(%%rbp), %%rax\n"
	"	mov %%rax, %c[ip](%%rsp)\n"
	"	lea 24(%%rbp), %%rax\n"
	"	mov %%rax, %c[sp](%%rsp)\n"
	"	mov %%rsp, %%rdi\n"
	"	call cgpu_site_hit\n"
	"	mov %c[ip](%%rsp), %%rax\n"
	"	mov %%rax, 16(%%rbp)\n"
	"	mov %c[di](%%rsp), %%rdi\n"
	"	mov %c[si](%%rsp), %%rsi\n"
	"	mov %c[dx](%%rsp), %%rdx\n"
	"	mov %c[cx](%%rsp), %%rcx\n"
	"	mov %c[r8](%%rsp), %%r8\n"
	"	mov %c[r9](%%rsp), %%r9\n"
	"	mov %c[ax](%%rsp), %%rax\n"
	"	mov %c[r10](%%rsp), %%r10\n"
	"	mov %%rbp, %%rsp\n"
	"	pop %%rbp\n"
	"	popfq\n"
	"	ret\n"
	"	.size cgpu_site_entry, . - cgpu_site_entry\n"
	".popsection\n"
	:: [size] "i" (sizeof(struct pt_regs) + 16), [di] "i" (HOST_DI * 8), [si] "i" (HOST_SI * 8),
	   [dx] "i" (HOST_DX * 8), [cx] "i" (HOST_CX * 8), [r8] "i" (HOST_R8 * 8), [r9] "i" (HOST_R9 * 8),
	   [ax] "i" (HOST_AX * 8), [r10] "i" (HOST_R10 * 8), [ip] "i" (HOST_IP * 8), [sp] "i" (HOST_SP * 8));
}

static bool is_prepared(const u8 *at)
{
	u16 first = READ_ONCE(*(const u16 *)at);
	unsigned long entry;

	memcpy(&entry, at + 2, sizeof(entry));
	return (first == JMP_OVER || first == MOVABS_R11) && entry == (unsigned long)cgpu_site_entry;
}

static bool is_blank(const u8 *at)
{
	return !memchr_inv(at, 0x90, CGPU_SITE_BYTES);
}

static bool is_site(unsigned long ip)
{
	return !(ip & 1) && (is_prepared((const u8 *)ip) || is_blank((const u8 *)ip));
}

/* With no other processor at work: the NOPs are 16 instructions. */
static int prepare(void *data)
{
	unsigned long entry = (unsigned long)cgpu_site_entry;
	static const u8 call[] = { 0x41, 0xff, 0xd3, 0x90, 0x90, 0x90 };
	u8 *at = data;

	memcpy(at + 2, &entry, sizeof(entry));
	memcpy(at + 2 + sizeof(entry), call, sizeof(call));
	WRITE_ONCE(*(u16 *)at, JMP_OVER);
	return 0;
}

static unsigned int wanted(unsigned long ip)
{
	unsigned int i, n = 0;

	for (i = 0; i < SITES_MAX; i++)
		n += rows[i].ops && rows[i].ops->registered && rows[i].ip == ip;
	return n;
}

static int update(unsigned long ip)
{
	lockdep_assert_held(&site_lock);
	if (!is_prepared((const u8 *)ip)) {
		/* The text of the kernel is r-x in the host process, that of modules rwx. */
		int ret = os_protect_memory((void *)(ip & PAGE_MASK), 2 * PAGE_SIZE, 1, 1, 1);

		if (ret)
			return ret;
		stop_machine(prepare, (void *)ip, NULL);
	}
	WRITE_ONCE(*(u16 *)ip, wanted(ip) ? MOVABS_R11 : JMP_OVER);
	return 0;
}

static int add_row(struct cgpu_site_ops *ops, unsigned long ip)
{
	unsigned int i;

	for (i = 0; i < SITES_MAX; i++)
		if (!rows[i].ops) {
			WRITE_ONCE(rows[i].ip, ip);
			smp_store_release(&rows[i].ops, ops);	/* pairs with cgpu_site_hit() */
			return 0;
		}
	return -ENOSPC;
}

static void drop_row(struct cgpu_site_ops *ops, unsigned long ip)
{
	unsigned int i;

	for (i = 0; i < SITES_MAX; i++)
		if (rows[i].ops == ops && rows[i].ip == ip)
			WRITE_ONCE(rows[i].ops, NULL);
	synchronize_rcu();	/* hits have left @ops, and the row may be used again */
}

/**
 * cgpu_site_filter() - ftrace_set_filter_ip()
 *
 * Return: 0, -EINVAL if @ip is no site, -ENOSPC.
 */
int cgpu_site_filter(struct cgpu_site_ops *ops, unsigned long ip, int remove, int reset)
{
	int ret = 0;

	mutex_lock(&site_lock);
	if (remove) {
		drop_row(ops, ip);
	} else {
		ret = is_site(ip) ? add_row(ops, ip) : -EINVAL;
	}
	if (!ret)
		ret = update(ip);
	mutex_unlock(&site_lock);
	return ret;
}
EXPORT_SYMBOL_GPL(cgpu_site_filter);

static int set_registered(struct cgpu_site_ops *ops, bool registered)
{
	unsigned int i;
	int ret = 0;

	mutex_lock(&site_lock);
	WRITE_ONCE(ops->registered, registered);
	for (i = 0; i < SITES_MAX && !ret; i++)
		if (rows[i].ops == ops)
			ret = update(rows[i].ip);
	mutex_unlock(&site_lock);
	if (!registered)
		synchronize_rcu();	/* as ftrace: hits have left @ops */
	return ret;
}

/** cgpu_site_register() - register_ftrace_function() */
int cgpu_site_register(struct cgpu_site_ops *ops)
{
	return set_registered(ops, true);
}
EXPORT_SYMBOL_GPL(cgpu_site_register);

/** cgpu_site_unregister() - unregister_ftrace_function() */
int cgpu_site_unregister(struct cgpu_site_ops *ops)
{
	return set_registered(ops, false);
}
EXPORT_SYMBOL_GPL(cgpu_site_unregister);

/**
 * cgpu_probe_find() - register_kprobe() of a disabled probe: its address, and whether it is a site
 *
 * Return: 0, -ENOENT, -EOPNOTSUPP for a probe that is to be armed.
 */
int cgpu_probe_find(struct kprobe *probe)
{
	probe->addr = (void *)kallsyms_lookup_name(probe->symbol_name);
	if (!probe->addr)
		return -ENOENT;
	if (!(probe->flags & KPROBE_FLAG_DISABLED))
		return -EOPNOTSUPP;
	if (is_site((unsigned long)probe->addr))
		probe->flags |= KPROBE_FLAG_FTRACE;
	return 0;
}
EXPORT_SYMBOL_GPL(cgpu_probe_find);

/** cgpu_probes_find() - the same for several */
int cgpu_probes_find(struct kprobe **probes, int count)
{
	int i, ret = 0;

	for (i = 0; i < count && !ret; i++)
		ret = cgpu_probe_find(probes[i]);
	return ret;
}
EXPORT_SYMBOL_GPL(cgpu_probes_find);

#ifndef __OPTIMIZE__
/* What -Og calls and other compilers find unreachable: the end of a lock's states, and a description of types that is off. */
void __scoped_seqlock_bug(void);
extern char __start_BTF[], __stop_BTF[];
char __start_BTF[1], __stop_BTF[1];

void __scoped_seqlock_bug(void)
{
	BUG();
}
#endif
