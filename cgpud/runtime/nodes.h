/* SPDX-License-Identifier: MIT */
/*
 * The device nodes of a container, and the driver parameter that controls whether
 * its libraries make nodes. Each function returns true, or false with a message
 * in @why.
 */
#ifndef CGPU_RUNTIME_NODES_H
#define CGPU_RUNTIME_NODES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Make the directory @dir of the file system "cgpu" visible to a runtime executed
 * from this process: mount the file system unless it is mounted.
 */
bool nodes_ready(const char *dir, char *why, size_t size);

/*
 * Make ModifyDeviceFiles 0 in /proc/driver/nvidia/params of the container with the
 * root directory @root, so that no library there makes device nodes. To be called
 * in the container's mount namespace. Does nothing if the file is missing or has
 * the value already.
 */
bool mask_params(const char *root, char *why, size_t size);

#endif
