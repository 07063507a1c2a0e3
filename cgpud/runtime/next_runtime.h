/* SPDX-License-Identifier: MIT */
/* The OCI runtime behind this one. */
#ifndef CGPU_RUNTIME_NEXT_RUNTIME_H
#define CGPU_RUNTIME_NEXT_RUNTIME_H

#include <stdbool.h>

/* Is @path the executable of this process? */
bool is_this_program(const char *path);

/* Execute the next runtime with @argv. On failure: report an error, return an exit status. */
int exec_next(char **argv);

#endif
