/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * OS events. The driver names one by client and number, keeps all of them in one list of the host
 * and walks it under a spinlock, so they are counted.
 */
#ifndef CKM_RM_OS_EVENT_H
#define CKM_RM_OS_EVENT_H

#include <linux/types.h>

struct ckm_backing;
struct ckm_container;
struct ckm_rm_call;

/* Handler of ALLOC_OS_EVENT and FREE_OS_EVENT: rm_call.h. Takes rm_lock. */
long ckm_rm_run_os_event(struct ckm_rm_call *rc);

/* A client goes, but not by RM_FREE of it: nothing is added for it any more. Free its OS events in the driver, which
 * leaves them to the files that they were made on. Sleeps; takes os_event_lock, rm_lock.
 */
void ckm_os_events_client_ends(struct ckm_container *ct, u32 client);
/* The same for all clients of a control file, before the driver releases it. Calls on other files may name them. */
void ckm_os_events_file_ends(struct ckm_backing *file);

/* The driver has freed the events of a client that RM_FREE named, or of a file that it released.
 * Both sleep and take rm_lock, for a walk of max_os_events.
 */
void ckm_os_events_of_client(struct ckm_container *ct, u32 client);
void ckm_os_events_of_file(struct ckm_backing *backing);

#endif
