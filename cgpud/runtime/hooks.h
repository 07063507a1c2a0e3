/* SPDX-License-Identifier: MIT */
/* The OCI hooks that cgpud puts into config.json. Each returns an exit status. */
#ifndef CGPU_RUNTIME_HOOKS_H
#define CGPU_RUNTIME_HOOKS_H

/*
 * The createContainer hook: runs in the container's mount namespace, before
 * pivot_root. @root is root.path of config.json.
 */
int run_as_params_hook(const char *root);

/* The hooks "bind" (createRuntime) and "release" (poststop). */
int run_as_hook(const char *which, const char *cookie);

#endif
