// SPDX-License-Identifier: MIT
/* cgpu-runtime's JSON scanner: a config.json of any bytes, and an answer on the daemon's socket. */
#include <string.h>

#include "json_scan.h"
#include "target.h"

/* Scans a copy without a byte behind it, so that a read beyond the end is seen. */
static int value_of(const uint8_t *data, size_t size, const char *key, char *out, size_t room)
{
	char *text = malloc(size ? size : 1);
	int kind;

	memcpy(text, data, size);
	memset(out, 'z', room);
	kind = json_top_value(text, size, key, out, room);
	free(text);
	HOLDS(kind == 0 || kind == '"' || kind == 'x');
	HOLDS(kind ? memchr(out, 0, room) != NULL : out[0] == 'z');
	return kind;
}

/* In a copy without a byte behind it, and behind a blank. */
static void look_for_capabilities(const uint8_t *data, size_t size, const char *spaced)
{
	static const struct capability names[] = { { "CAP_SYS_ADMIN", 21 }, { "CAP_BPF", 39 }, { NULL, 0 } };
	char *text = malloc(size ? size : 1);
	const char *found;

	memcpy(text, data, size);
	found = json_capability(text, size, names);
	free(text);
	HOLDS(!found || found == names[0].name || found == names[1].name);
	HOLDS(found == json_capability(spaced, size + 1, names));
}

/* What is left is not more than there was, and has no such member any more. */
static void take_out(const uint8_t *data, size_t size)
{
	char *text = malloc(size ? size : 1);
	struct buf left = { 0 }, again = { 0 };

	memcpy(text, data, size);
	json_put_without(&left, text, size, "ok");
	HOLDS(left.len <= size && left.p[left.len] == 0);
	json_put_without(&again, left.p, left.len, "ok");
	HOLDS(again.len == left.len && !memcmp(again.p, left.p, left.len));
	free(left.p);
	free(again.p);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const keys[] = { "ok", "dir", "warning", "error", "pid" };
	char small[8], large[4096], *spaced = malloc(size + 3);
	bool found;
	size_t i;

	for (i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		int kind = value_of(data, size, keys[i], small, sizeof(small));

		/* What fits into little room is the same in much. */
		if (kind) {
			HOLDS(kind == value_of(data, size, keys[i], large, sizeof(large)));
			HOLDS(!strcmp(small, large));
		}
	}
	/* Blanks around a document change nothing. */
	spaced[0] = ' ';
	memcpy(spaced + 1, data, size);
	memcpy(spaced + 1 + size, "\n ", 2);
	found = json_mentions_cgpu(spaced + 1, size);
	HOLDS(found == json_mentions_cgpu(spaced, size + 1));
	HOLDS(!found || json_mentions_cgpu(spaced, size + 3));
	look_for_capabilities(data, size, spaced);
	take_out(data, size);
	free(spaced);
	return 0;
}
