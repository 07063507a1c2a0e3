// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "json_scan.h"
#include "read_file.h"
#include "records.h"
#include "report.h"
#include "text.h"
#include "update_check.h"

#define STDIN_PATH	"/dev/stdin"	/* both runtimes take "-", too, and crun opens this path for it */

/* Make standard input a file with this text. */
static bool becomes_stdin(const struct buf *text)
{
	int fd = memfd_create("resources", 0);	/* it may be number 0 already */
	size_t done = 0;
	ssize_t n = 1;

	while (fd >= 0 && done < text->len && n > 0) {
		n = write(fd, text->p + done, text->len - done);
		done += n > 0 ? n : 0;
	}
	if (fd >= 0 && done == text->len && !lseek(fd, 0, SEEK_SET) && dup2(fd, STDIN_FILENO) == STDIN_FILENO) {
		if (fd != STDIN_FILENO)
			close(fd);
		return true;
	}
	report_error("the limits without device rules cannot be handed over: %s", strerror(errno));
	return false;
}

/* The word with the file's name names standard input. */
static void name_stdin(const struct command *c)
{
	struct buf word = { 0 };

	buf_append(&word, *c->resources_word, c->resources - *c->resources_word);
	buf_puts(&word, STDIN_PATH);
	*c->resources_word = word.p;
}

static bool without_devices(const struct command *c)
{
	bool is_stdin = !strcmp(c->resources, "-"), done;
	int fd = is_stdin ? STDIN_FILENO : open(c->resources, O_RDONLY | O_CLOEXEC);
	struct buf kept = { 0 };
	size_t len;
	char *text;

	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
		return true;			/* for the next runtime to report */
	text = fd < 0 ? NULL : read_all(fd, FILE_MAX, &len);
	if (fd > STDIN_FILENO)
		close(fd);
	if (!text) {
		report_error("%s, the new limits of a container with a slice, cannot be read or is larger than %u MiB",
			     c->resources, FILE_MAX >> 20);
		return false;
	}
	json_put_without(&kept, text, len, "devices");
	free(text);
	done = becomes_stdin(&kept);
	free(kept.p);
	if (done && !is_stdin)
		name_stdin(c);
	return done;
}

/* Of an option that is not known it is not known either whether the next word is its value, or the id. */
static bool unknown_is_allowed(const struct command *c)
{
	for (char **word = c->rest; *word; word++) {
		enum found found = has_record(*word);

		if (found == YES)
			report_error("update has the option %.64s, which is not known here, so it is not known whether "
				     "it changes the device rules of container %.64s, which has a slice", c->unknown, *word);
		if (found != NO)
			return false;
	}
	return true;
}

bool update_is_ready(const struct command *c)
{
	enum found found;

	if (access(CGPU_STATE_PATH, F_OK))
		return true;
	if (c->unknown)
		return unknown_is_allowed(c);
	if (!c->resources || !c->id)
		return true;
	found = has_record(c->id);
	if (found != YES)
		return found == NO;
	if (c->resources_count > 1) {
		report_error("update has --resources %d times for container %.64s, which has a slice; give it once",
			     c->resources_count, c->id);
		return false;
	}
	return without_devices(c);
}
