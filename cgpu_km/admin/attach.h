/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * GPUs: discovered once a driver and a core are loaded, kept with their settings while no
 * container exists, and attached (driver pinned, scheduler thread running) from the first
 * container to the last.
 */
#ifndef CKM_ATTACH_H
#define CKM_ATTACH_H

/* Update the list of GPUs from the driver; no-op while attached. Called when a core or
 * a driver appears, and before the first container. Caller holds ckm_lock.
 */
void ckm_gpus_scan(void);

/* Scan again if the UUID of a GPU is not known yet; may replace the list. Caller holds
 * ckm_lock.
 */
void ckm_gpus_ask_again(void);

/**
 * ckm_gpus_attach() - pin core and driver, open each GPU and start its thread
 * @why: on an error, the cause in words
 *
 * For the first container; 0 if attached already. ckm_gpus_detach() undoes it after the
 * last container.
 *
 * Context: Process. Caller holds ckm_lock; sleeps, and calls the driver.
 * Return: 0; -ENODEV without a core or driver; -EOPNOTSUPP for another driver version;
 * -ENOENT if a function of the driver is missing; -EIO if a GPU cannot be opened;
 * -ENOMEM. After an error nothing is pinned.
 */
int ckm_gpus_attach(const char **why);
void ckm_gpus_detach(void);

/* Remove all GPUs with their settings: without a core they have no scheduler state.
 * Only while detached. Caller holds ckm_lock.
 */
void ckm_gpus_forget(void);

/* The notifier for drivers that come and go: 0 or -errno. The exit takes ckm_lock. */
int ckm_gpus_init(void);
void ckm_gpus_exit(void);

#endif
