/* SPDX-License-Identifier: MIT */
/* Errors and warnings, to stderr and to the log file of the container engine. */
#ifndef CGPU_RUNTIME_REPORT_H
#define CGPU_RUNTIME_REPORT_H

#include <stdbool.h>

#define SENTENCE_MAX	2048		/* longest message, with its NUL */

/* Set the log file of the container engine (--log) and its format (--log-format). */
void report_to(const char *path, bool json);

void report_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* For a container that starts with less than its variables request. */
void report_warning(const char *text);

#endif
