/* SPDX-License-Identifier: MIT */
/* Requests to cgpud. */
#ifndef CGPU_RUNTIME_DAEMON_CLIENT_H
#define CGPU_RUNTIME_DAEMON_CLIENT_H

#include <stdbool.h>

#include "text.h"

#ifndef CGPU_SOCKET_PATH
#define CGPU_SOCKET_PATH "/run/cgpu/cgpud.sock"
#endif

/* What an answer to "prepare" gives the container. */
struct grant {
	char dir[128];		/* the name of the directory of its nodes; "": it gets no slice */
	char closed[512];	/* the device numbers that its hooks check, as closed.h has them; "": none */
};

/*
 * Send a request that a container's start depends on, with descriptor @passed
 * unless it is -1. While no daemon listens, retry for wait_s of runtime.conf: it
 * may be restarting. Requests are idempotent, so one that a dying daemon has
 * already handled may be repeated.
 *
 * True if the daemon accepts; otherwise an error has been reported. @subject is
 * what cannot start, for the message. @grant may be NULL.
 */
bool request(const struct buf *message, int passed, const char *subject, struct grant *grant);

/*
 * Send a request once, without waiting for a daemon: a daemon that starts later
 * finds the end of the container by itself.
 */
void notify(const struct buf *message);

#endif
