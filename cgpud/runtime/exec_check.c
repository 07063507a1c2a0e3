// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon_client.h"
#include "exec_check.h"
#include "json_scan.h"
#include "read_file.h"
#include "records.h"
#include "report.h"
#include "text.h"

/* With each of these root can change a device cgroup, or the kernel: cgpud/oci.py has the same list. */
static const struct capability undoing_capabilities[] = {
	{ "CAP_SYS_ADMIN", 21 }, { "CAP_SYS_MODULE", 16 }, { "CAP_SYS_RAWIO", 17 }, { "CAP_BPF", 39 },
	{ "CAP_DAC_READ_SEARCH", 2 },
	{ NULL, 0 },
};

/* By the arguments, or the file, which the next runtime reads again. FAILED: not known, and not reported. */
static enum found wants_capability(const struct command *c, const char **name)
{
	enum found found = NO;
	struct stat st;
	size_t len;
	char *text;
	int fd;

	for (int i = 0; i < c->capability_count && !*name; i++)
		*name = capability_in(undoing_capabilities, c->capabilities[i]);
	if (*name)
		return YES;
	if (!c->process)
		return NO;
	fd = open(c->process, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? NO : FAILED;	/* for the next runtime to report */
	/* What is read from a pipe here, the next runtime would not get. */
	text = fstat(fd, &st) || !S_ISREG(st.st_mode) ? NULL : read_all(fd, FILE_MAX, &len);
	close(fd);
	if (!text)
		return FAILED;
	*name = json_capability(text, len, undoing_capabilities);
	found = *name ? YES : NO;
	free(text);
	return found;
}

/*
 * An option that is not known may give a capability, and the word behind it may be its
 * value or the id: refused where any of the words is a container with a slice.
 */
static bool unknown_is_allowed(const struct command *c)
{
	for (char **word = c->rest; *word; word++) {
		enum found found = has_record(*word);

		if (found == YES)
			report_error("exec has the option %.64s, which is not known here, so it is not known whether "
				     "the process could undo the slice of container %.64s", c->unknown, *word);
		if (found != NO)
			return false;
	}
	return true;
}

bool exec_is_allowed(const struct command *c)
{
	const char *capability = NULL;
	char subject[128];
	struct buf req = { 0 };
	enum found wanted, sliced;

	if (c->unknown && !access(CGPU_STATE_PATH, F_OK))
		return unknown_is_allowed(c);
	if (!c->id || access(CGPU_STATE_PATH, F_OK))
		return true;
	wanted = wants_capability(c, &capability);
	sliced = wanted == NO ? NO : has_record(c->id);
	if (sliced != YES)
		return sliced == NO;
	if (wanted == FAILED) {
		report_error("%s cannot be read, or is no regular file, so it is not known whether the process "
			     "could undo the slice of the container", c->process);
		return false;
	}
	snprintf(subject, sizeof(subject), "a process with %s in a container with a slice", capability);
	buf_put_member(&req, "op", "exec");
	buf_put_member(&req, "id", c->id);
	buf_put_member(&req, "capability", capability);
	buf_puts(&req, "}");
	return request(&req, -1, subject, NULL);
}
