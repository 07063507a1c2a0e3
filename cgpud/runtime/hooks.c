// SPDX-License-Identifier: MIT
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon_client.h"
#include "hooks.h"
#include "json_scan.h"
#include "nodes.h"
#include "read_file.h"
#include "report.h"
#include "text.h"

int run_as_params_hook(const char *root)
{
	char bundle[PATH_MAX], path[2 * PATH_MAX], why[SENTENCE_MAX];
	size_t len = 0;
	char *state = read_all(STDIN_FILENO, FILE_MAX, &len);

	if (!state || json_top_value(state, len, "bundle", bundle, sizeof(bundle)) != '"') {
		report_error("the runtime gave the hook no container state");
		return 1;
	}
	snprintf(path, sizeof(path), "%s%s%s", *root == '/' ? "" : bundle, *root == '/' ? "" : "/",
		 root);
	if (mask_params(path, why, sizeof(why)))
		return 0;
	report_error("%s", why);
	return 1;
}

int run_as_hook(const char *which, const char *cookie)
{
	char id[512], pid[16];
	struct buf req = { 0 };
	bool bind = !strcmp(which, "bind");
	int pidfd = -1;
	size_t len = 0;
	char *state = read_all(STDIN_FILENO, FILE_MAX, &len);

	if (!bind && strcmp(which, "release")) {
		report_error("hook %s is not one of bind, params, release", which);
		return 1;
	}
	if (!state || json_top_value(state, len, "id", id, sizeof(id)) != '"') {
		report_error("the runtime gave the hook no container state");
		return 1;
	}
	if (bind) {
		if (json_top_value(state, len, "pid", pid, sizeof(pid)) != 'x' || atoi(pid) <= 0) {
			report_error("the runtime gave the hook no pid");
			return 1;
		}
		/* No pid reuse here: the runtime is the parent and waits for this hook. */
		pidfd = syscall(SYS_pidfd_open, atoi(pid), 0);
		if (pidfd < 0) {
			report_error("pidfd_open of %s: %s", pid, strerror(errno));
			return 1;
		}
	}
	buf_put_member(&req, "op", which);
	buf_put_member(&req, "id", id);
	buf_put_member(&req, "cookie", cookie);
	buf_puts(&req, "}");
	if (bind)
		return request(&req, pidfd, "a container with cGPU variables", NULL) ? 0 : 1;
	notify(&req);
	return 0;
}
