/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Redirection of functions for ARCH=um, which has neither ftrace nor kprobes: the part of both interfaces that
 * cgpu_km uses. scripts/build-uml puts this file and cgpu_redirect.c into the kernel's sources; modules get the
 * names of ftrace and kprobes for it from tests/uml/shim.
 *
 * A function can be redirected if it begins with CGPU_SITE_BYTES one-byte NOPs (-fpatchable-function-entry).
 */
#ifndef CGPU_REDIRECT_H
#define CGPU_REDIRECT_H

#include <linux/kprobes.h>
#include <linux/types.h>

struct pt_regs;

#define CGPU_SITE_BYTES		16
#define CGPU_SITE_OPCODE	0x49	/* of a site in effect: movabs $entry, %r11 */

/* As struct ftrace_ops: @func runs at each hit of a site that was added, in an RCU reader, and
 * may change the instruction pointer.
 */
struct cgpu_site_ops {
	void (*func)(unsigned long ip, unsigned long parent, struct cgpu_site_ops *ops, struct pt_regs *regs);
	unsigned long flags;
	bool registered;
};

int cgpu_site_filter(struct cgpu_site_ops *ops, unsigned long ip, int remove, int reset);
int cgpu_site_register(struct cgpu_site_ops *ops);
int cgpu_site_unregister(struct cgpu_site_ops *ops);

int cgpu_probe_find(struct kprobe *probe);
int cgpu_probes_find(struct kprobe **probes, int count);

#endif
