/* SPDX-License-Identifier: MIT */
/* The configuration file of this program. */
#ifndef CGPU_RUNTIME_RUNTIME_CONF_H
#define CGPU_RUNTIME_RUNTIME_CONF_H

#include <stdbool.h>

#ifndef CGPU_CONF_PATH
#define CGPU_CONF_PATH "/etc/cgpu/runtime.conf"
#endif
#define CONF_MAX	(64u << 10)

/* Set by the first conf_get(): the file exists but cannot be read or exceeds CONF_MAX. */
extern bool conf_unreadable;

/* Value of "key = value" in runtime.conf, or NULL. A comment line begins with '#'. */
char *conf_get(const char *key);

#endif
