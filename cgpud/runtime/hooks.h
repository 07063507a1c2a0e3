/* SPDX-License-Identifier: MIT */
/* The hooks that cgpud puts into config.json. */
#ifndef CGPU_RUNTIME_HOOKS_H
#define CGPU_RUNTIME_HOOKS_H

/*
 * The hook of this name, with the @words behind it, a list that ends with NULL, and the
 * container's state on standard input. Returns the exit status.
 */
int run_as_hook(const char *name, char **words);

#endif
