/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* While the system or the driver sleeps no container is frozen, and the driver gets no calls of ours. */
#ifndef CKM_SLEEP_H
#define CKM_SLEEP_H

/* The notifiers of the system's sleep: 0 or -errno. The exit waits for one that runs. */
int ckm_sleep_init(void);
void ckm_sleep_exit(void);

/* The driver's own suspend: while attached. A driver without the function is no error; detach after
 * the last GPU is closed. Caller holds ckm_lock.
 */
void ckm_sleep_attach(void);
void ckm_sleep_detach(void);

#endif
