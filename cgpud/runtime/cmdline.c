// SPDX-License-Identifier: MIT
#include <string.h>

#include "cmdline.h"

static bool in_list(const char *word, size_t n, const char *const *list)
{
	for (; *list; list++)
		if (strlen(*list) == n && !strncmp(word, *list, n))
			return true;
	return false;
}

/* Options of runc and crun whose value is the next argument. */
static const char *const options_with_value[] = {
	"root", "log", "log-format", "log-level", "criu", "rootless", "cgroup-manager",
	"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds", "config", "f",
	"image-path", "work-path", "parent-path", "manage-cgroups-mode", "empty-ns",
	"lsm-profile", "lsm-mount-context", "status-fd", "tcp-skip-in-flight", NULL,
};
static const char *const admitted_verbs[] = { "create", "run", "restore", NULL };
static const char *const other_verbs[] = {
	"checkpoint", "delete", "events", "exec", "features", "help", "h", "init", "kill", "list",
	"mounts", "pause", "ps", "resume", "spec", "start", "state", "update", "version", NULL,
};

void parse_command(int argc, char **argv, struct command *c)
{
	const char *verb = NULL;

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *value = NULL;
		size_t n;

		if (*a != '-' || !a[1]) {
			if (!verb) {
				verb = a;
				if (in_list(a, strlen(a), other_verbs))
					return;
				if (in_list(a, strlen(a), admitted_verbs))
					c->verb = a;
			} else if (!c->verb && in_list(a, strlen(a), admitted_verbs)) {
				c->verb = a;	/* the first was an unknown option's value */
			} else {
				c->id = a;
				c->ids++;
			}
			continue;
		}
		a += 1 + (a[1] == '-');
		n = strcspn(a, "=");
		if (a[n] == '=')
			value = a + n + 1;
		else if (in_list(a, n, options_with_value) && i + 1 < argc)
			value = argv[++i];
		if (!value)
			continue;
		if ((n == 6 && !strncmp(a, "bundle", 6)) || (n == 1 && *a == 'b'))
			c->bundle = value;
		else if (n == 3 && !strncmp(a, "log", 3))
			c->log_path = value;
		else if (n == 10 && !strncmp(a, "log-format", 10))
			c->log_json = !strcmp(value, "json");
	}
}
