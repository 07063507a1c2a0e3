/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* While the system sleeps no container is frozen, and the driver gets no calls of ours. */
#ifndef CKM_SLEEP_H
#define CKM_SLEEP_H

/* The notifiers of the system's sleep: 0 or -errno. The exit waits for one that runs. */
int ckm_sleep_init(void);
void ckm_sleep_exit(void);

#endif
