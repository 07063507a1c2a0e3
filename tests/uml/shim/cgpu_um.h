/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Force-included in each file of the modules that is compiled for ARCH=um: what x86-64 has there and um has not.
 * Redirection is that of tests/uml/kernel.
 */
#ifndef CGPU_UM_H
#define CGPU_UM_H

#include <linux/ftrace.h>
#include <linux/io.h>
#include <linux/kprobes.h>
#include <linux/ptrace.h>
#include <linux/rcupdate.h>

#include "cgpu_redirect.h"

/* ---- registers ---- */

#ifndef ASM_RET
#define ASM_RET	"ret\n\t"
#endif

static inline void cgpu_um_set_ip(struct pt_regs *regs, unsigned long ip)
{
	PT_REGS_IP(regs) = ip;
}

#define instruction_pointer_set	cgpu_um_set_ip

static inline unsigned long cgpu_um_argument(struct pt_regs *regs, unsigned int n)
{
	const unsigned long arguments[] = {
		PT_REGS_DI(regs), PT_REGS_SI(regs), PT_REGS_DX(regs),
		PT_REGS_CX(regs), PT_REGS_R8(regs), PT_REGS_R9(regs),
	};

	return n < ARRAY_SIZE(arguments) ? arguments[n] : 0;
}

#define regs_get_kernel_argument	cgpu_um_argument

/* ---- ftrace ---- */

#define CONFIG_DYNAMIC_FTRACE_WITH_REGS	1
#undef MCOUNT_INSN_SIZE
#define MCOUNT_INSN_SIZE	CGPU_SITE_BYTES
#undef FTRACE_OPS_FL_SAVE_REGS
#undef FTRACE_OPS_FL_PERMANENT
#undef FTRACE_OPS_FL_IPMODIFY
#define FTRACE_OPS_FL_SAVE_REGS	1
#define FTRACE_OPS_FL_PERMANENT	2
#define FTRACE_OPS_FL_IPMODIFY	4
#undef ftrace_set_filter_ip
#undef register_ftrace_function
#undef unregister_ftrace_function
#define ftrace_ops		cgpu_site_ops
#define ftrace_set_filter_ip	cgpu_site_filter
#define register_ftrace_function	cgpu_site_register
#define unregister_ftrace_function	cgpu_site_unregister

/* ---- kprobes: only their look-up ---- */

static inline void cgpu_um_no_probe(struct kprobe *probe)
{
}

static inline void cgpu_um_no_probes(struct kprobe **probes, int count)
{
}

#define register_kprobe		cgpu_probe_find
#define register_kprobes	cgpu_probes_find
#define unregister_kprobe	cgpu_um_no_probe
#define unregister_kprobes	cgpu_um_no_probes

/* A site in effect begins with another instruction than ftrace's call. */
#include <asm/text-patching.h>
#undef CALL_INSN_OPCODE
#define CALL_INSN_OPCODE	CGPU_SITE_OPCODE

/* ---- memory of devices ---- */

/* The simulated card's registers and channel memory are ordinary memory here; um's own readl() looks for an emulated
 * device.
 */
#undef readl
#undef writel
#define readl(at)		READ_ONCE(*(const u32 __force *)(at))
#define writel(value, at)	WRITE_ONCE(*(u32 __force *)(at), (value))

#endif
