// SPDX-License-Identifier: MIT
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "runtime_conf.h"

bool conf_unreadable;

/* All of runtime.conf, read once, without malloc; empty without a file or if conf_unreadable. */
static const char *conf_text(void)
{
	static char text[CONF_MAX + 2];
	static bool known;
	size_t got = 0;
	ssize_t n = 1;
	int fd;

	if (known)
		return text;
	known = true;
	fd = open(CGPU_CONF_PATH, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		conf_unreadable = errno != ENOENT && errno != ENOTDIR;
		return text;
	}
	while (n > 0 && got <= CONF_MAX) {
		n = read(fd, text + got, CONF_MAX + 1 - got);
		if (n > 0)
			got += n;
		else if (n < 0 && errno == EINTR)
			n = 1;
	}
	close(fd);
	conf_unreadable = n < 0 || got > CONF_MAX;
	text[conf_unreadable ? 0 : got] = 0;
	return text;
}

char *conf_get(const char *key)
{
	static char value[PATH_MAX];
	size_t n;

	for (const char *line = conf_text(); *line; line += n, line += *line == '\n') {
		const char *k = line + strspn(line, " \t");
		size_t len = strcspn(k, " \t=\r\n");

		n = strcspn(line, "\n");
		if (*k == '#' || len != strlen(key) || strncmp(k, key, len))
			continue;
		k += len;
		k += strspn(k, " \t=\"");
		len = strcspn(k, "\"\r\n");
		while (len && isspace((unsigned char)k[len - 1]))
			len--;
		if (len >= sizeof(value))
			len = sizeof(value) - 1;	/* too long for a path or a number */
		memcpy(value, k, len);
		value[len] = 0;
		return value;
	}
	return NULL;
}
