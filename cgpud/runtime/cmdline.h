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
	bool is_exec;			/* exec, with id and the rest */
	const char *process;		/* --process: the file that describes the process */
	const char **capabilities;	/* of every --cap */
	int capability_count;
	bool is_update;			/* update, with id and the rest */
	const char *resources;		/* --resources: the file with the limits; "-" is standard input */
	char **resources_word;		/* the word that has it, or ends with it */
	int resources_count;
	const char *unknown;		/* an option of exec or update that no runtime is known to have; then no id */
	char **rest;			/* the words behind it */
};

/*
 * Everything that admission and the checks of exec and update need; other commands are left
 * half parsed. @c is zeroed; its strings are those of @argv.
 */
void parse_command(int argc, char **argv, struct command *c);

#endif
