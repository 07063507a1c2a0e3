/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Whether the redirections of seal.h, uvm_charge.h, dmabuf.h and uvm.h are in effect. The
 * administrator can switch kprobes off while containers run; a call that then reached the
 * driver would run unchecked.
 */
#ifndef CKM_WITNESS_H
#define CKM_WITNESS_H

#include <linux/types.h>

struct ckm_backing;

/* Whether a call on @backing may reach the driver: each redirection that it may need is in
 * effect, and the file was not given up. Before the call, and after it for what marks no
 * call. Any context.
 */
bool ckm_witness(struct ckm_backing *backing);

/* Between attach and detach of the redirections: an event and a line in the log when one
 * is switched off, and when all are in effect again, within a second. Stop waits for the
 * work item. Caller holds ckm_lock.
 */
void ckm_witness_start(void);
void ckm_witness_stop(void);

/* "none": no container exists; "on"; "off": one is not in effect. Sleeps. */
const char *ckm_witness_text(void);

#endif
