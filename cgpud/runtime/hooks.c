// SPDX-License-Identifier: MIT
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "closed.h"
#include "daemon_client.h"
#include "hooks.h"
#include "json_scan.h"
#include "nodes.h"
#include "read_file.h"
#include "report.h"
#include "text.h"

/* What a hook gets: the words behind its name, and the container's state on standard input. */
struct hook {
	const char *name;
	const char *cookie;		/* of the container's life; "0" */
	const char *root;		/* of its file system, as config.json has it; NULL */
	const char *closed;		/* what must be closed to it: closed.h; "" */
	char *state;
	size_t len;
};

static bool state_value(const struct hook *h, const char *key, int kind, char *out, size_t size)
{
	if (h->state && json_top_value(h->state, h->len, key, out, size) == kind)
		return true;
	report_error("the runtime gave the hook no container state");
	errno = EINVAL;
	return false;
}

/* The init process, and a pidfd of it; -1: reported. */
static int open_init(const struct hook *h, pid_t *pid)
{
	char text[16];
	int pidfd;

	if (!state_value(h, "pid", 'x', text, sizeof(text)))
		return -1;
	*pid = atoi(text);
	if (*pid <= 0) {
		report_error("the runtime gave the hook no pid");
		errno = EINVAL;
		return -1;
	}
	pidfd = syscall(SYS_pidfd_open, *pid, 0);
	if (pidfd < 0) {
		int err = errno;

		report_error("pidfd_open of %d: %s", (int)*pid, strerror(err));
		errno = err;
	}
	return pidfd;
}

static bool is_closed_here(const struct hook *h)
{
	char why[SENTENCE_MAX];

	if (closed_here(h->closed, why, sizeof(why)))
		return true;
	report_error("%s", why);
	return false;
}

/* In the container's mount namespace and cgroup; its root is still the host's. */
static bool params(const struct hook *h)
{
	char bundle[PATH_MAX], path[2 * PATH_MAX], why[SENTENCE_MAX];

	if (!h->root || !state_value(h, "bundle", '"', bundle, sizeof(bundle)))
		return false;
	snprintf(path, sizeof(path), "%s%s%s", *h->root == '/' ? "" : bundle, *h->root == '/' ? "" : "/",
		 h->root);
	if (mask_params(path, why, sizeof(why)))
		return is_closed_here(h);
	report_error("%s", why);
	return false;
}

/* The container runs already, and a runtime may ignore that this hook fails. */
static bool confirm(const struct hook *h)
{
	char why[SENTENCE_MAX];
	bool closed = false;
	pid_t pid;
	int pidfd;

	pidfd = open_init(h, &pid);
	if (pidfd < 0)
		return errno == ESRCH;		/* it has ended */
	closed = closed_for(pid, h->closed, why, sizeof(why));
	if (!closed) {
		kill_container(pid, pidfd);
		report_error("%s; the container was killed", why);
	}
	close(pidfd);
	return closed;
}

static void put_report(struct buf *req, const struct hook *h, const char *id)
{
	buf_put_member(req, "op", h->name);
	buf_put_member(req, "id", id);
	buf_put_member(req, "cookie", h->cookie);
	buf_puts(req, "}");
}

static bool bind_init(const struct hook *h)
{
	char id[512], why[SENTENCE_MAX];
	struct buf req = { 0 };
	pid_t pid;
	int pidfd;

	if (!state_value(h, "id", '"', id, sizeof(id)))
		return false;
	/* No pid reuse here: the runtime is the parent and waits for this hook. */
	pidfd = open_init(h, &pid);
	if (pidfd < 0)
		return false;
	if (*h->closed && !closed_for(pid, h->closed, why, sizeof(why))) {
		report_error("%s", why);
		return false;
	}
	put_report(&req, h, id);
	return request(&req, pidfd, "a container with cGPU variables", NULL);
}

static bool release(const struct hook *h)
{
	struct buf req = { 0 };
	char id[512];

	if (!state_value(h, "id", '"', id, sizeof(id)))
		return false;
	put_report(&req, h, id);
	notify(&req);
	return true;
}

static const struct {
	const char *name;
	bool (*run)(const struct hook *h);
} hooks[] = {
	{ "bind", bind_init }, { "check", is_closed_here }, { "confirm", confirm }, { "params", params },
	{ "release", release },
};

int run_as_hook(const char *name, char **words)
{
	struct hook h = { .name = name, .cookie = "0", .closed = "" };

	for (; *words; words++) {
		if (starts_with(*words, "--cookie="))
			h.cookie = *words + strlen("--cookie=");
		else if (starts_with(*words, "--root="))
			h.root = *words + strlen("--root=");
		else if (starts_with(*words, "--closed="))
			h.closed = *words + strlen("--closed=");
		else
			name = "";		/* fails below: an option may not be lost */
	}
	for (size_t i = 0; i < sizeof(hooks) / sizeof(*hooks); i++) {
		if (strcmp(name, hooks[i].name))
			continue;
		h.state = read_all(STDIN_FILENO, FILE_MAX, &h.len);
		return hooks[i].run(&h) ? 0 : 1;
	}
	report_error("hook %s is not one of bind, check, confirm, params, release", name);
	return 1;
}
