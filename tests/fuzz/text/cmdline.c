// SPDX-License-Identifier: MIT
/* cgpu-runtime's command line: words of any bytes, separated by NUL. */
#include <string.h>

#include "cmdline.h"
#include "target.h"

#define WORDS_MAX	64

/* A value is one of the words, or the end of one. */
static bool is_within(const char *value, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (value >= argv[i] && value <= argv[i] + strlen(argv[i]))
			return true;
	return !value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *argv[WORDS_MAX + 1] = { "cgpu-runtime" };
	struct command c = { 0 };
	int argc = 1;
	size_t n;

	for (; size && argc < WORDS_MAX; data += n, size -= n) {
		n = strnlen((const char *)data, size);
		argv[argc++] = strndup((const char *)data, n);
		n += n < size;
	}
	parse_command(argc, argv, &c);
	HOLDS(is_within(c.verb, argc, argv) && is_within(c.bundle, argc, argv));
	HOLDS(is_within(c.id, argc, argv) && is_within(c.config, argc, argv));
	HOLDS(is_within(c.log_path, argc, argv) && is_within(c.process, argc, argv));
	HOLDS(is_within(c.resources, argc, argv) && (c.resources != NULL) == (c.resources_count > 0));
	HOLDS(!c.resources || (c.is_update && c.resources >= *c.resources_word &&
			       c.resources <= *c.resources_word + strlen(*c.resources_word)));
	HOLDS(c.capability_count >= 0 && c.capability_count < argc);
	for (int i = 0; i < c.capability_count; i++)
		HOLDS(c.capabilities[i] && is_within(c.capabilities[i], argc, argv));
	HOLDS(c.is_exec ? !c.verb && c.ids <= 1 : !c.process && !c.capability_count);
	HOLDS(!c.verb || !strcmp(c.verb, "create") || !strcmp(c.verb, "run") || !strcmp(c.verb, "restore"));
	HOLDS(c.ids >= 0 && c.ids < argc && (c.ids > 0) == (c.id != NULL));
	free(c.capabilities);
	while (argc > 1)
		free(argv[--argc]);
	return 0;
}
