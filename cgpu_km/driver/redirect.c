// SPDX-License-Identifier: MIT OR GPL-2.0
/* Redirects functions of the driver by kprobes. Callers of attach and detach hold ckm_lock. */
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/objtool.h>
#include <linux/string.h>

#include "call.h"
#include "driver/redirect.h"
#include "registry.h"

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

void *ckm_redirect_original(struct ckm_call *call, const struct ckm_redirection *row)
{
	call->aside = row;
	return row->probe.addr;
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

/* Probe context: must not sleep, takes no lock. */
static int redirect(struct kprobe *p, struct pt_regs *regs)
{
	const struct ckm_redirection *row = container_of(p, struct ckm_redirection, probe);

	if (!(row->wants ? row->wants(regs) : wants_call(row)))
		return 0;
	instruction_pointer_set(regs, (unsigned long)row->replacement);
	return 1;
}

/* A post handler keeps kprobes from optimising the probe into a jump, which would ignore
 * the changed instruction pointer.
 */
static void keep_unoptimised(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
}

int ckm_redirect_attach(struct ckm_redirection *rows, u32 count, const char *module,
			const char *without)
{
	u32 i;
	int ret;

	lockdep_assert_held(&ckm_lock);
	for (i = 0; i < count; i++) {
		memset(&rows[i].probe, 0, sizeof(rows[i].probe));
		rows[i].probe.symbol_name = rows[i].symbol;
		rows[i].probe.pre_handler = redirect;
		rows[i].probe.post_handler = keep_unoptimised;
		ret = register_kprobe(&rows[i].probe);
		if (ret) {
			rows[i].probe.symbol_name = NULL;
			pr_err("%s of %s cannot be redirected (%d): %s\n", rows[i].symbol, module,
			       ret, without);
			ckm_redirect_detach(rows, i);
			return ret;
		}
	}
	return 0;
}

void ckm_redirect_detach(struct ckm_redirection *rows, u32 count)
{
	lockdep_assert_held(&ckm_lock);
	while (count--) {
		struct kprobe *probe = &rows[count].probe;

		if (!probe->symbol_name)
			continue;
		if (probe->nmissed)
			pr_warn("%s: %lu redirections were missed\n", rows[count].symbol,
				probe->nmissed);
		unregister_kprobe(probe);
		probe->symbol_name = NULL;
	}
}
