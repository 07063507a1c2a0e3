/* SPDX-License-Identifier: MIT */
/* The OCI runtime behind this one. */
#ifndef CGPU_RUNTIME_NEXT_RUNTIME_H
#define CGPU_RUNTIME_NEXT_RUNTIME_H

#include <stdbool.h>

/* Is @path the executable of this process? */
bool is_this_program(const char *path);

/*
 * The path of the next runtime: of the environment's CGPU_RUNTIME_NEXT, else of runtime.conf's
 * next, else runc or crun in PATH. NULL: there is none. @wanted: the name that was looked for.
 */
const char *next_runtime(const char **wanted);

/* Execute the next runtime with @argv. On failure: report an error, return an exit status. */
int exec_next(char **argv);

#endif
