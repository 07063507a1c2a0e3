// SPDX-License-Identifier: MIT
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json_scan.h"
#include "read_file.h"
#include "records.h"
#include "report.h"

#define ID_SIZE		512
#define RECORD_MAX	(64u << 10)

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

enum found has_record(const char *id)
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
