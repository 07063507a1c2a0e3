/* SPDX-License-Identifier: MIT */
/*
 * Device numbers that a container must not be able to open, as a list
 * MAJOR:FIRST-LAST,… from cgpud. What decides is the container's device cgroup, not
 * the entries of config.json: a hook of the engine may have opened it after cgpud's
 * edit. access(2) has the kernel ask the cgroup, and does not open the device.
 *
 * Each function returns true, or false with a message in @why.
 */
#ifndef CGPU_RUNTIME_CLOSED_H
#define CGPU_RUNTIME_CLOSED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Make the host's nodes by which the checks ask. To be called outside of the container's cgroup. */
bool closed_ready(const char *list, char *why, size_t size);

/* Is every number closed to this process? */
bool closed_here(const char *list, char *why, size_t size);

/* Is every number closed in the cgroup of process @pid? One that has ended opens nothing. */
bool closed_for(pid_t pid, const char *list, char *why, size_t size);

/*
 * End process @pid, which @pidfd refers to, and the processes of its cgroup, unless that
 * is the cgroup of this process, too.
 */
void kill_container(pid_t pid, int pidfd);

#endif
