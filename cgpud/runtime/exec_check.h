/* SPDX-License-Identifier: MIT */
/* A process that an administrator starts in a running container. */
#ifndef CGPU_RUNTIME_EXEC_CHECK_H
#define CGPU_RUNTIME_EXEC_CHECK_H

#include <stdbool.h>

#include "cmdline.h"

/*
 * May the next runtime execute the process? Not if cgpud refuses a capability that
 * would undo the container's slice; an error has been reported then. cgpud is
 * contacted only for such a capability in a container of which there is a record: a
 * probe of any other container does not depend on it.
 */
bool exec_is_allowed(const struct command *c);

#endif
