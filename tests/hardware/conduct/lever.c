// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lever.h"

int lever_connect(struct lever *lever, const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	lever->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (lever->fd < 0 || connect(lever->fd, (struct sockaddr *)&to, sizeof(to)) < 0)
		return -errno;
	lever->in = fdopen(lever->fd, "r");
	return lever->in ? 0 : -errno;
}

static int number_after(const char *line, const char *name, long long *value)
{
	const char *at = strstr(line, name);

	return at && sscanf(at + strlen(name), "%lld", value) == 1 ? 0 : -EPROTO;
}

int lever_ask(struct lever *lever, const char *request, struct answer *answer)
{
	static char line[65536];
	long long begin, end, calls, failed;
	size_t size = strlen(request);

	if (send(lever->fd, request, size, MSG_NOSIGNAL) != (ssize_t)size || !fgets(line, sizeof(line), lever->in))
		return -EPIPE;
	if (number_after(line, "\"calls\":", &calls) || number_after(line, "\"failed\":", &failed) ||
	    number_after(line, "\"status\":", &answer->status) || number_after(line, "\"begin_ns\":", &begin) ||
	    number_after(line, "\"end_ns\":", &end))
		return -EPROTO;
	answer->begin_ns = begin;
	answer->end_ns = end;
	answer->calls = calls;
	answer->failed = failed;
	return 0;
}
