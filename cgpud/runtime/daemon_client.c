// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon_client.h"
#include "json_scan.h"
#include "report.h"
#include "runtime_conf.h"

#define REPLY_MAX	(64u << 10)
#ifndef CGPU_TIMEOUT_S		/* the tests have less */
#define CGPU_TIMEOUT_S	60
#endif
#define WAIT_S		10		/* default of wait_s in runtime.conf */
#define WAIT_MAX_S	60		/* half of the timeout of the bind hook */

/* A connected socket, or -1 with errno. EPERM: the listener is neither root's nor our user's. */
static int connect_daemon(void)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	struct timeval tv = { .tv_sec = CGPU_TIMEOUT_S };
	struct ucred peer;
	socklen_t n = sizeof(peer);
	int err, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", CGPU_SOCKET_PATH);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n))
		err = errno;
	else if (peer.uid && peer.uid != geteuid())
		err = EPERM;
	else
		return fd;
	close(fd);
	errno = err;
	return -1;
}

static bool send_request(int fd, const struct buf *b, int passed)
{
	uint32_t be = __builtin_bswap32((uint32_t)b->len);
	char ctl[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov[2] = { { &be, 4 }, { b->p, b->len } };
	struct msghdr mh = { .msg_iov = iov, .msg_iovlen = 2 };
	size_t sent, total = 4 + b->len;
	ssize_t n;

	if (passed >= 0) {
		struct cmsghdr *c;

		mh.msg_control = ctl;
		mh.msg_controllen = sizeof(ctl);
		c = CMSG_FIRSTHDR(&mh);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &passed, sizeof(int));
	}
	n = sendmsg(fd, &mh, MSG_NOSIGNAL);
	if (n < 4)
		return false;
	for (sent = n; sent < total; sent += n) {
		n = send(fd, b->p + sent - 4, total - sent, MSG_NOSIGNAL);
		if (n <= 0)
			return false;
	}
	return true;
}

static bool recv_all(int fd, void *to, size_t len)
{
	for (size_t got = 0; got < len;) {
		ssize_t n = recv(fd, (char *)to + got, len - got, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (!n)
			errno = ECONNRESET;
		if (n <= 0)
			return false;
		got += n;
	}
	return true;
}

enum answer {
	ACCEPTED,
	REJECTED,			/* an error has been reported */
	UNREACHABLE,			/* no daemon, or it ended before its answer: errno */
};

/* Does errno mean that no daemon runs, as opposed to a slow or a foreign one? */
static bool daemon_is_gone(void)
{
	return errno == ENOENT || errno == ECONNREFUSED || errno == ECONNRESET || errno == EPIPE;
}

/* A string of the reply; "" if it has none of this name. */
static void get_string(const char *reply, size_t len, const char *key, char *out, size_t size)
{
	if (json_top_value(reply, len, key, out, size) != '"')
		*out = 0;
}

/* Send @message, receive the reply. */
static enum answer request_once(const struct buf *message, int passed, struct grant *grant)
{
	char ok[16], why[SENTENCE_MAX];
	enum answer answer = REJECTED;
	char *reply = NULL;
	uint32_t len;
	int fd = connect_daemon();

	if (fd < 0)
		return UNREACHABLE;
	errno = 0;
	if (!send_request(fd, message, passed) || !recv_all(fd, &len, 4) ||
	    (len = __builtin_bswap32(len)) > REPLY_MAX || !(reply = malloc(len + 1)) ||
	    !recv_all(fd, reply, len)) {
		if (daemon_is_gone())
			answer = UNREACHABLE;
		else
			report_error("no answer from cgpud within %d s", CGPU_TIMEOUT_S);
	} else if (json_top_value(reply, len, "ok", ok, sizeof(ok)) == 'x' && !strcmp(ok, "true")) {
		answer = ACCEPTED;
		if (grant) {
			get_string(reply, len, "dir", grant->dir, sizeof(grant->dir));
			get_string(reply, len, "closed", grant->closed, sizeof(grant->closed));
		}
		if (json_top_value(reply, len, "warning", why, sizeof(why)) == '"' && *why)
			report_warning(why);
	} else if (json_top_value(reply, len, "error", why, sizeof(why)) == '"' && *why) {
		report_error("%s", why);
	} else {
		report_error("invalid answer from cgpud");
	}
	free(reply);
	close(fd);
	if (answer == UNREACHABLE)
		errno = ECONNRESET;
	return answer;
}

/* wait_s of runtime.conf, in seconds; -1: it is invalid. */
static int wait_s(void)
{
	const char *text = conf_get("wait_s");
	char *end;
	long n;

	if (!text)
		return WAIT_S;
	n = strtol(text, &end, 10);
	return *text && !*end && n >= 0 && n <= WAIT_MAX_S ? (int)n : -1;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

bool request(const struct buf *message, int passed, const char *subject, struct grant *grant)
{
	const struct timespec nap = { .tv_nsec = 100000000 };
	enum answer answer = request_once(message, passed, grant);
	double until = 0;
	int wait = 0;

	while (answer == UNREACHABLE) {
		if (!daemon_is_gone()) {
			if (errno == EACCES && geteuid())
				report_error("only root can start %s: rootless engines get no slices",
					     subject);
			else
				report_error("cannot connect to cgpud on %s: %s", CGPU_SOCKET_PATH,
					     strerror(errno));
			return false;
		}
		if (!until) {
			wait = wait_s();
			if (wait < 0) {
				report_error("wait_s in %s is not a number of seconds from 0 to %d",
					     CGPU_CONF_PATH, WAIT_MAX_S);
				return false;
			}
			until = seconds() + wait;
		}
		if (seconds() >= until) {
			report_error("cgpud does not answer on %s within %d s, so %s cannot start",
				     CGPU_SOCKET_PATH, wait, subject);
			return false;
		}
		nanosleep(&nap, NULL);
		answer = request_once(message, passed, grant);
	}
	return answer == ACCEPTED;
}

void notify(const struct buf *message)
{
	if (request_once(message, -1, NULL) == UNREACHABLE)
		report_error("cgpud does not answer on %s; it releases the slice when it runs again",
			     CGPU_SOCKET_PATH);
}
