/* SPDX-License-Identifier: MIT */
/* The command line of runc and crun. */
#ifndef CGPU_RUNTIME_CMDLINE_H
#define CGPU_RUNTIME_CMDLINE_H

#include <stdbool.h>

struct command {
	const char *verb;		/* create, run, restore or NULL */
	const char *bundle, *id;
	const char *config;		/* crun's --config: another file than config.json */
	int ids;			/* number of ids found; only the last one is in id */
	const char *log_path;		/* --log */
	bool log_json;			/* --log-format json */
	bool is_exec;			/* exec, with id and the next three */
	const char *process;		/* --process: the file that describes the process */
	const char **capabilities;	/* of every --cap */
	int capability_count;
};

/*
 * Everything that admission and the check of an exec need; other commands are left
 * half parsed. @c is zeroed; its strings are those of @argv.
 */
void parse_command(int argc, char **argv, struct command *c);

#endif
