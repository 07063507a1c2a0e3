/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Entry redirection of the driver's functions: while a task is in an intercepted call, a
 * replacement runs instead of the driver's function. The callers' tables list the
 * functions and their replacements.
 *
 * A function that the kernel can trace is redirected by ftrace, permanently: while it is,
 * kernel.ftrace_enabled cannot be set to 0, and the function cannot be live-patched. A
 * function without a call to ftrace (rm_ioctl, from NVIDIA's object file) is redirected by
 * a kprobe, which debugfs' kprobes/enabled switches off. Hence the callers check before
 * each call that the redirections are in effect (ckm_redirect_in_effect()), and the
 * replacements mark the call that they ran in. See docs/decisions/0019.
 *
 * Kretprobes are not used: the kernel can miss one, and the call then passes unchecked.
 */
#ifndef CKM_REDIRECT_H
#define CKM_REDIRECT_H

#include <linux/kprobes.h>
#include <linux/types.h>

struct ckm_call;

#define ARG(x) ((unsigned long)(x))	/* argument of ckm_call_original() */

/* The modules of the driver. */
enum ckm_redirect_module { CKM_NVIDIA, CKM_NVIDIA_UVM, CKM_REDIRECT_MODULES };

struct ckm_redirection {
	const char *symbol;
	void *replacement;	/* of the same type; NULL: @wants only observes */
	/* Whether to redirect this hit; NULL: every hit in an intercepted call. Runs where the
	 * function is called, in a handler that must not sleep.
	 */
	bool (*wants)(struct pt_regs *regs);

	/* Written by attach and detach. */
	unsigned long found;	/* address of that instruction, looked up by attach */
	unsigned long site;	/* the same once it leads to us; 0: not attached */
	bool traced;		/* by ftrace; false: by @probe */
	struct hlist_node node;	/* of the rows redirected by ftrace, by @site; RCU */
	struct kprobe probe;
};

/**
 * ckm_redirect_attach() - redirect the functions of a table: all rows, or none
 * @rows: the table
 * @count: number of rows
 * @module: has the functions
 * @without: what does not work if this fails, for the log; NULL: an error is not logged
 *
 * Sleeps. The module must stay until detach; for a module that is being unloaded, detach
 * must be called by its MODULE_STATE_GOING notifier. No call that checks the module's
 * redirections may be in flight.
 *
 * Return: 0, or an error, in the log with the row's symbol. -ENOENT: the module has no such
 * function. -EBUSY: ftrace is switched off, or the function is live-patched. -ENODEV:
 * kprobes are switched off.
 */
int ckm_redirect_attach(struct ckm_redirection *rows, u32 count,
			enum ckm_redirect_module module, const char *without);
/* No-op for a table that is not attached. Sleeps. The caller needs no lock. */
void ckm_redirect_detach(const struct ckm_redirection *rows);

/* Whether a table of functions of @module is attached. Any context. */
bool ckm_redirect_attached(enum ckm_redirect_module module);

/* Whether the code at the site of each row of @module's tables leads to us now. False
 * without a table. Any context; the caller keeps the module, by a file of it.
 */
bool ckm_redirect_in_effect(enum ckm_redirect_module module);

/* The symbol of an attached row that is not in effect, NULL: none. Waits for attach and
 * detach, so the caller need not keep the module. Sleeps.
 */
const char *ckm_redirect_off(void);

/* Address of the function that @row redirects. If it is redirected by a kprobe, the next
 * hit of @row in @call is not redirected, so the caller must call the function exactly
 * once.
 */
void *ckm_redirect_original(struct ckm_call *call, const struct ckm_redirection *row);
/* The same for a row whose @wants does not redirect the hit. Valid while the module stays, also
 * after a detach.
 */
void *ckm_redirect_address(const struct ckm_redirection *row);

/* Call @target, the address of a redirected function or of any other function of the
 * driver. The address may lie behind the function's ENDBR.
 */
unsigned long ckm_call_original(unsigned long a, unsigned long b, unsigned long c,
				unsigned long d, unsigned long e, unsigned long f,
				void *target);

/* At module exit: wait until no task is in a replacement, or returns from one. Sleeps. */
void ckm_redirect_exit(void);

#endif
