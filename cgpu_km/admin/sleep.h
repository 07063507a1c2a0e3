/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* While the system or the driver sleeps no container is frozen, and the driver gets no calls of ours. */
#ifndef CKM_SLEEP_H
#define CKM_SLEEP_H

/* The notifiers of the system's sleep: 0 or -errno. The exit waits for one that runs. */
int ckm_sleep_init(void);
void ckm_sleep_exit(void);

/* The driver's own suspend: while attached. attach returns 0 or an error of ckm_redirect_attach(),
 * logged; all but -ENOMEM only mean that containers are not thawed before it. Detach after the last
 * GPU is closed. Caller holds ckm_lock.
 */
int ckm_sleep_attach(void);
void ckm_sleep_detach(void);

#endif
