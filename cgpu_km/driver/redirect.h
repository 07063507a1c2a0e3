/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Entry redirection of the driver's functions: while a task is in an intercepted call, a
 * replacement runs instead of the driver's function. The callers' tables list the
 * functions and their replacements.
 *
 * Kretprobes are not used: the kernel can miss one, and the call then passes unchecked.
 */
#ifndef CKM_REDIRECT_H
#define CKM_REDIRECT_H

#include <linux/kprobes.h>
#include <linux/types.h>

struct ckm_call;

#define ARG(x) ((unsigned long)(x))	/* argument of ckm_call_original() */

struct ckm_redirection {
	const char *symbol;
	void *replacement;	/* of the same type; NULL: @wants only observes */
	/* Whether to redirect this hit; NULL: every hit in an intercepted call. Probe context. */
	bool (*wants)(struct pt_regs *regs);
	struct kprobe probe;	/* symbol_name NULL: not registered */
};

/**
 * ckm_redirect_attach() - register the probes of a table: all rows, or none
 * @rows: the table
 * @count: number of rows
 * @module: name of the module that has the functions, for the log
 * @without: what does not work if this fails, for the log
 *
 * Caller holds ckm_lock. Sleeps.
 *
 * Return: 0, or the error of register_kprobe(), with the row's symbol in the log;
 * -ENOENT: the module has no such function.
 */
int ckm_redirect_attach(struct ckm_redirection *rows, u32 count, const char *module,
			const char *without);
/* No-op for a row that is not attached. Caller holds ckm_lock. Sleeps. */
void ckm_redirect_detach(struct ckm_redirection *rows, u32 count);

/* Address of the function that @row redirects. The next hit of @row in @call is not
 * redirected, so the caller must call the function exactly once.
 */
void *ckm_redirect_original(struct ckm_call *call, const struct ckm_redirection *row);

/* Call @target, the address of a probed function or of any other function of the driver.
 * The address may lie behind the function's ENDBR.
 */
unsigned long ckm_call_original(unsigned long a, unsigned long b, unsigned long c,
				unsigned long d, unsigned long e, unsigned long f,
				void *target);

#endif
