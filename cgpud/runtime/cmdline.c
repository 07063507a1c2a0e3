// SPDX-License-Identifier: MIT
#include <stdlib.h>
#include <string.h>

#include "cmdline.h"

static bool in_list(const char *word, size_t n, const char *const *list)
{
	for (; *list; list++)
		if (strlen(*list) == n && !strncmp(word, *list, n))
			return true;
	return false;
}

/*
 * Options of runc and crun. crun takes short ones in one word, with a value right
 * behind its letter.
 */
struct grammar {
	const char *const *with_value;	/* the value is the next argument, if not behind a '=' */
	const char *flags;		/* letters without a value, of which a word may have several */
	const char *letters;		/* letters with a value */
	const char *const *words;	/* whole names without a value; NULL: others are taken for such */
};

static const char *const start_options[] = {
	"root", "log", "log-format", "log-level", "criu", "rootless", "cgroup-manager",
	"bundle", "b", "console-socket", "pidfd-socket", "pid-file", "preserve-fds", "config", "f",
	"image-path", "work-path", "parent-path", "manage-cgroups-mode", "empty-ns",
	"lsm-profile", "lsm-mount-context", "status-fd", "tcp-skip-in-flight", NULL,
};
static const char *const exec_options[] = {
	"console-socket", "cwd", "env", "e", "user", "u", "additional-gids", "g", "process", "p",
	"pid-file", "pidfd-socket", "process-label", "apparmor", "cap", "c", "preserve-fds", "cgroup",
	NULL,
};
static const char *const exec_words[] = {
	"tty", "t", "detach", "d", "no-new-privs", "ignore-paused", "help", "h", "usage", "version", NULL,
};
/* The first ones: crun takes abbreviations. */
static const char *const update_options[] = {
	"r", "re", "res", "reso", "resou", "resour", "resourc", "resource", "resources",
	"blkio-weight", "cpu-burst", "cpu-idle", "cpu-period", "cpu-quota", "cpu-rt-period", "cpu-rt-runtime",
	"cpu-share", "cpu-shares", "cpuset-cpus", "cpuset-mems", "kernel-memory", "kernel-memory-tcp",
	"l3-cache-schema", "mem-bw-schema", "memory", "memory-reservation", "memory-swap", "pids-limit", NULL,
};
static const char *const update_words[] = { "help", "h", "usage", "version", NULL };
static const struct grammar start_grammar = { start_options, "d", "bf", NULL };
static const struct grammar exec_grammar = { exec_options, "dt", "ceugp", exec_words };
static const struct grammar update_grammar = { update_options, "", "r", update_words };
static const char *const admitted_verbs[] = { "create", "run", "restore", NULL };
static const char *const other_verbs[] = {
	"checkpoint", "delete", "events", "features", "help", "h", "init", "kill", "list",
	"mounts", "pause", "ps", "resume", "spec", "start", "state", "version", NULL,
};

static bool is_option(const char *name, size_t n, const char *wanted)
{
	return strlen(wanted) == n && !strncmp(name, wanted, n);
}

/*
 * The option at argv[*i]: its name of *n bytes and, as the result, its value or NULL.
 * Skips the value if that is a word of its own.
 */
static const char *next_option(const struct grammar *g, int argc, char **argv, int *i,
			       const char **name, size_t *n)
{
	const char *a = argv[*i] + 1;
	bool is_long = *a == '-';

	a += is_long;
	*name = a;
	*n = strcspn(a, "=");
	if (!is_long && !in_list(a, *n, g->with_value)) {
		a += strspn(a, g->flags);
		if (*a && strchr(g->letters, *a)) {
			*name = a;
			*n = 1;
			if (a[1])
				return a + 1 + (a[1] == '=');
		}
	}
	if ((*name)[*n] == '=')
		return *name + *n + 1;
	if (in_list(*name, *n, g->with_value) && *i + 1 < argc)
		return argv[++*i];
	return NULL;
}

/*
 * Is the option one of those that the grammar lists? Of another one it is not known
 * whether the next word is its value. crun takes abbreviations of long names, too.
 */
static bool is_listed(const struct grammar *g, const char *option)
{
	const char *a = option + 1;
	bool is_long = *a == '-';
	size_t n;

	if (!g->words || !strcmp(option, "--"))
		return true;
	a += is_long;
	n = strcspn(a, "=");
	if (in_list(a, n, g->with_value) || in_list(a, n, g->words))
		return true;
	if (is_long)
		return false;
	a += strspn(a, g->flags);
	return !*a || strchr(g->letters, *a);
}

static void add_capability(struct command *c, const char *name, int argc)
{
	if (!c->capabilities)
		c->capabilities = calloc(argc, sizeof(*c->capabilities));
	if (!c->capabilities)
		abort();
	c->capabilities[c->capability_count++] = name;
}

static void add_resources(struct command *c, const char *value, char **word)
{
	c->resources = value;
	c->resources_word = word;
	c->resources_count++;
}

void parse_command(int argc, char **argv, struct command *c)
{
	const struct grammar *grammar = &start_grammar;
	const char *verb = NULL;

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *name, *value;
		size_t n;

		if (*a != '-' || !a[1]) {
			if (c->is_exec) {
				c->id = a;
				c->ids = 1;
				return;		/* the command to execute is behind it */
			}
			if (!verb) {
				verb = a;
				if (in_list(a, strlen(a), other_verbs))
					return;
				if (in_list(a, strlen(a), admitted_verbs))
					c->verb = a;
				c->is_exec = !strcmp(a, "exec");
				c->is_update = !strcmp(a, "update");
				if (c->is_exec)
					grammar = &exec_grammar;
				else if (c->is_update)
					grammar = &update_grammar;
			} else if (!c->verb && !c->is_update && in_list(a, strlen(a), admitted_verbs)) {
				c->verb = a;	/* the first was an unknown option's value */
			} else {
				c->id = a;
				c->ids++;
			}
			continue;
		}
		if (!is_listed(grammar, a)) {
			c->unknown = a;
			c->rest = argv + i + 1;
			return;
		}
		value = next_option(grammar, argc, argv, &i, &name, &n);
		if (!value)
			continue;
		if (c->is_exec && (is_option(name, n, "process") || is_option(name, n, "p")))
			c->process = value;
		else if (c->is_exec && (is_option(name, n, "cap") || is_option(name, n, "c")))
			add_capability(c, value, argc);
		else if (c->is_update && *name == 'r')
			add_resources(c, value, &argv[i]);
		else if (is_option(name, n, "bundle") || is_option(name, n, "b"))
			c->bundle = value;
		else if (is_option(name, n, "config") || is_option(name, n, "f"))
			c->config = value;
		else if (is_option(name, n, "log"))
			c->log_path = value;
		else if (is_option(name, n, "log-format"))
			c->log_json = !strcmp(value, "json");
	}
}
