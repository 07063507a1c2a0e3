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

/* Options of runc and crun whose value is the next argument, if it is not behind a '='. */
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

static bool is_option(const char *name, size_t n, const char *wanted)
{
	return strlen(wanted) == n && !strncmp(name, wanted, n);
}

/*
 * The option at argv[*i]: its name of *n bytes and, as the result, its value or NULL.
 * Skips the value if that is a word of its own.
 */
static const char *next_option(int argc, char **argv, int *i, const char **name, size_t *n)
{
	const char *a = argv[*i] + 1;
	bool is_long = *a == '-';

	a += is_long;
	*name = a;
	*n = strcspn(a, "=");
	if (!is_long && !in_list(a, *n, options_with_value)) {
		/* crun takes short options in one word, and a value behind the letter. */
		a += strspn(a, "d");
		if (*a == 'b' || *a == 'f') {
			*name = a;
			*n = 1;
			if (a[1])
				return a + 1 + (a[1] == '=');
		}
	}
	if ((*name)[*n] == '=')
		return *name + *n + 1;
	if (in_list(*name, *n, options_with_value) && *i + 1 < argc)
		return argv[++*i];
	return NULL;
}

void parse_command(int argc, char **argv, struct command *c)
{
	const char *verb = NULL;

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *name, *value;
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
		value = next_option(argc, argv, &i, &name, &n);
		if (!value)
			continue;
		if (is_option(name, n, "bundle") || is_option(name, n, "b"))
			c->bundle = value;
		else if (is_option(name, n, "config") || is_option(name, n, "f"))
			c->config = value;
		else if (is_option(name, n, "log"))
			c->log_path = value;
		else if (is_option(name, n, "log-format"))
			c->log_json = !strcmp(value, "json");
	}
}
