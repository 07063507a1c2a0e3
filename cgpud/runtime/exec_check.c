// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon_client.h"
#include "exec_check.h"
#include "json_scan.h"
#include "read_file.h"
#include "report.h"
#include "text.h"

#define ID_SIZE		512
#define RECORD_MAX	(64u << 10)

/* With each of these root can change a device cgroup, or the kernel: cgpud/oci.py has the same list. */
static const struct capability undoing_capabilities[] = {
	{ "CAP_SYS_ADMIN", 21 }, { "CAP_SYS_MODULE", 16 }, { "CAP_SYS_RAWIO", 17 }, { "CAP_BPF", 39 },
	{ NULL, 0 },
};

enum found { NO, YES, FAILED };

/* Is the file at @path the record of the container? One that has gone meanwhile is not. FAILED: reported. */
static enum found is_record_of(const char *path, const char *id)
{
	char its_id[ID_SIZE];
	enum found found = NO;
	size_t len;
	char *text;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT)
		return NO;
	text = fd < 0 ? NULL : read_all(fd, RECORD_MAX, &len);
	if (fd >= 0)
		close(fd);
	if (!text) {
		report_error("%s cannot be read, so it is not known whether the container has a slice", path);
		return FAILED;
	}
	if (json_top_value(text, len, "id", its_id, sizeof(its_id)) == '"' && !strcmp(its_id, id))
		found = YES;
	free(text);
	return found;
}

/*
 * Has cgpud a record of the container? Rootless engines have no access to the directory,
 * and no slices. FAILED: reported.
 */
static enum found has_record(const char *id)
{
	char path[sizeof(CGPU_STATE_PATH) + NAME_MAX + 1];
	enum found found = NO;
	struct dirent *entry;
	DIR *dir = opendir(CGPU_STATE_PATH);

	if (!dir && (errno == ENOENT || errno == EACCES))
		return NO;
	if (!dir) {
		report_error("%s cannot be read, so it is not known whether the container has a slice: %s",
			     CGPU_STATE_PATH, strerror(errno));
		return FAILED;
	}
	while (found == NO && (entry = readdir(dir))) {
		const char *end = strrchr(entry->d_name, '.');

		if (!end || strcmp(end, ".json"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", CGPU_STATE_PATH, entry->d_name);
		found = is_record_of(path, id);
	}
	closedir(dir);
	return found;
}

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

bool exec_is_allowed(const struct command *c)
{
	const char *capability = NULL;
	char subject[128];
	struct buf req = { 0 };
	enum found wanted, sliced;

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
