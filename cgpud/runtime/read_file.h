/* SPDX-License-Identifier: MIT */
#ifndef CGPU_RUNTIME_READ_FILE_H
#define CGPU_RUNTIME_READ_FILE_H

#include <stddef.h>

#define FILE_MAX	(16u << 20)	/* largest config.json or process file read */

/*
 * Read all of a file; the result is NUL-terminated. NULL if a read fails or the
 * file is longer than @max.
 */
char *read_all(int fd, size_t max, size_t *len);

#endif
