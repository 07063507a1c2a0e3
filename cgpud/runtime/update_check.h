/* SPDX-License-Identifier: MIT */
/* New limits for a running container. */
#ifndef CGPU_RUNTIME_UPDATE_CHECK_H
#define CGPU_RUNTIME_UPDATE_CHECK_H

#include <stdbool.h>

#include "cmdline.h"

/*
 * Take the device rules out of the file of limits for a container of which cgpud has a
 * record: containerd and the kubelet hand over those from before cgpud's edit, and crun
 * replaces the container's by them. The next runtime then reads the rest on standard
 * input. False: it must not be executed; an error has been reported.
 */
bool update_is_ready(const struct command *c);

#endif
