// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "admission.h"
#include "closed.h"
#include "cmdline.h"
#include "daemon_client.h"
#include "exec_check.h"
#include "json_scan.h"
#include "next_runtime.h"
#include "nodes.h"
#include "read_file.h"
#include "report.h"
#include "runtime_conf.h"
#include "text.h"
#include "update_check.h"

/*
 * Does the container with the config.json at @path need cgpud's admission? 1: yes,
 * 0: execute the next runtime, -1: an error has been reported.
 */
static int needs_admission(const char *path, const char **subject)
{
	const char *always = conf_get("ask");
	bool mentioned;
	size_t len = 0;
	char *text;
	int fd;

	if (conf_unreadable) {
		report_error("%s cannot be read or is larger than %u KiB", CGPU_CONF_PATH,
			     CONF_MAX >> 10);
		return -1;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return 0;			/* the next runtime has the better message */
	if (fd < 0) {				/* and might read what could not be read here */
		report_error("%s cannot be read: %s", path, strerror(errno));
		return -1;
	}
	text = read_all(fd, FILE_MAX, &len);
	close(fd);
	if (!text) {
		report_error("%s cannot be read or is larger than %u MiB", path, FILE_MAX >> 20);
		return -1;
	}
	mentioned = json_mentions_cgpu(text, len);
	free(text);
	if (mentioned || !always || strcmp(always, "always"))
		return mentioned;
	*subject = "a container (ask = always in runtime.conf)";
	return 1;
}

/* Is @config, the value of crun's --config, another file than @own, the bundle's config.json? */
static bool is_another_file(const char *config, const char *own)
{
	struct stat a, b;

	if (!config || !strcmp(config, "config.json"))	/* crun's default: that of the bundle */
		return false;
	return stat(config, &a) || stat(own, &b) || a.st_dev != b.st_dev || a.st_ino != b.st_ino;
}

int run_as_runtime(int argc, char **argv)
{
	struct command c = { 0 };
	const char *subject = "a container with cGPU variables or NVIDIA's memory limit";
	char bundle[PATH_MAX + 16], self[PATH_MAX] = "", why[SENTENCE_MAX];
	struct grant grant = { 0 };
	struct buf req = { 0 };
	size_t len;
	int needed;
	bool other;

	parse_command(argc, argv, &c);
	report_to(c.log_path, c.log_json);
	if (c.is_exec)
		return exec_is_allowed(&c) ? exec_next(argv) : 1;
	if (c.is_update)
		return update_is_ready(&c) ? exec_next(argv) : 1;
	if (!c.verb || !realpath(c.bundle ? c.bundle : ".", bundle))
		return exec_next(argv);
	len = strlen(bundle);
	strcpy(bundle + len, "/config.json");
	other = is_another_file(c.config, bundle);
	needed = needs_admission(other ? c.config : bundle, &subject);
	bundle[len] = 0;
	if (needed <= 0)
		return needed ? 1 : exec_next(argv);
	if (other) {
		report_error("%s cannot start from %s: cgpud edits config.json of the bundle only, "
			     "so start it without -f (--config)", subject, c.config);
		return 1;
	}
	if (c.ids != 1) {
		report_error("cannot find the id of the container in the arguments of %s", c.verb);
		return 1;
	}
	if (!realpath("/proc/self/exe", self))
		self[0] = 0;
	buf_put_member(&req, "op", "prepare");
	buf_put_member(&req, "id", c.id);
	buf_put_member(&req, "bundle", bundle);
	buf_put_member(&req, "verb", c.verb);
	buf_put_member(&req, "runtime", self);	/* for the hooks */
	buf_puts(&req, "}");
	if (!request(&req, -1, subject, &grant))
		return 1;
	/* In this mount namespace: the next runtime inherits it and bind-mounts the nodes. */
	if ((*grant.dir && !nodes_ready(grant.dir, why, sizeof(why))) ||
	    !closed_ready(grant.closed, why, sizeof(why))) {
		report_error("%s", why);
		return 1;
	}
	return exec_next(argv);
}
