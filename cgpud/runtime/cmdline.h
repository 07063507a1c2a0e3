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
};

/* Everything that admission needs; other commands are left half parsed. */
void parse_command(int argc, char **argv, struct command *c);

#endif
