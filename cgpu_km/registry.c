// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Owns ckm_lock and the lists of containers and GPUs. Takes no lock. */
#include <linux/cred.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/user_namespace.h>

#include "registry.h"

DEFINE_MUTEX(ckm_lock);
LIST_HEAD(ckm_containers);
LIST_HEAD(ckm_ended);
LIST_HEAD(ckm_gpus);
const struct ckm_observer *ckm_observer;

bool ckm_from_outside(void)
{
	return task_active_pid_ns(current) != &init_pid_ns ||
	       current_user_ns() != &init_user_ns;
}
