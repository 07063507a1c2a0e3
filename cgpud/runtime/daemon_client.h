/* SPDX-License-Identifier: MIT */
/* Requests to cgpud. */
#ifndef CGPU_RUNTIME_DAEMON_CLIENT_H
#define CGPU_RUNTIME_DAEMON_CLIENT_H

#include <stdbool.h>

#include "text.h"

#ifndef CGPU_SOCKET_PATH
#define CGPU_SOCKET_PATH "/run/cgpu/cgpud.sock"
#endif

#define DIR_MAX		128	/* a directory's name in an answer, with its NUL */

/*
 * Send a request that a container's start depends on, with descriptor @passed
 * unless it is -1. While no daemon listens, retry for wait_s of runtime.conf: it
 * may be restarting. Requests are idempotent, so one that a dying daemon has
 * already handled may be repeated.
 *
 * True if the daemon accepts; otherwise an error has been reported. @subject is
 * what cannot start, for the message. @dir, unless NULL, receives the name of the
 * directory of the container's nodes, "" if it gets no slice.
 */
bool request(const struct buf *message, int passed, const char *subject, char dir[DIR_MAX]);

/*
 * Send a request once, without waiting for a daemon: a daemon that starts later
 * finds the end of the container by itself.
 */
void notify(const struct buf *message);

#endif
