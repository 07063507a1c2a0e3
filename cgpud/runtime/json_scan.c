// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "json_scan.h"
#include "text.h"

struct scan {
	const char *p, *end;
	int depth;
	struct buf str;			/* the last string, unescaped */
};

static int hex4(const char *p, const char *end)
{
	int v = 0;

	if (end - p < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		if (!isxdigit((unsigned char)p[i]))
			return -1;
		v = v * 16 + (isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
	}
	return v;
}

/* On entry s->p is behind the opening quote, on return behind the closing one. */
static void scan_string(struct scan *s)
{
	s->str.len = 0;
	buf_append(&s->str, "", 0);
	while (s->p < s->end && *s->p != '"') {
		char c = *s->p++;

		if (c == '\\' && s->p < s->end) {
			c = *s->p++;
			switch (c) {
			case 'n': c = '\n'; break;
			case 't': c = '\t'; break;
			case 'r': c = '\r'; break;
			case 'b': c = '\b'; break;
			case 'f': c = '\f'; break;
			case 'u': {
				int v = hex4(s->p, s->end);

				if (v < 0)
					continue;
				s->p += 4;
				/* All strings compared here are ASCII. */
				c = v > 0 && v < 0x80 ? (char)v : '?';
				break;
			}
			}
		}
		buf_append(&s->str, &c, 1);
	}
	if (s->p < s->end)
		s->p++;
}

/* Next token: '"' (in s->str), one of {}[]:, or 'x' for a bare word; 0 at the end. */
static int scan_next(struct scan *s)
{
	while (s->p < s->end && (isspace((unsigned char)*s->p) || !*s->p))
		s->p++;
	if (s->p >= s->end)
		return 0;
	switch (*s->p) {
	case '"':
		s->p++;
		scan_string(s);
		return '"';
	case '{': case '[':
		s->depth++;
		return *s->p++;
	case '}': case ']':
		s->depth--;
		return *s->p++;
	case ':': case ',':
		return *s->p++;
	}
	s->str.len = 0;
	buf_append(&s->str, "", 0);
	while (s->p < s->end && !strchr("\"{}[]:, \t\r\n", *s->p))
		buf_append(&s->str, s->p++, 1);
	return 'x';
}

bool json_mentions_cgpu(const char *text, size_t len)
{
	struct scan s = { .p = text, .end = text + len };
	bool found = false;
	int t;

	/* Fast path: every variable's name contains "GPU_", unless escapes hide it. */
	if (!memchr(text, '\\', len) && !memmem(text, len, "GPU_", 4))
		return false;
	while (!found && (t = scan_next(&s)))
		found = t == '"' && strchr(s.str.p, '=') &&
			(starts_with(s.str.p, "ALIYUN_COM_GPU_") ||
			 starts_with(s.str.p, "NVIDIA_GPU_MEMORY_") ||
			 starts_with(s.str.p, "CGPU_DISABLE="));
	free(s.str.p);
	return found;
}

int json_top_value(const char *text, size_t len, const char *key, char *out, size_t size)
{
	struct scan s = { .p = text, .end = text + len };
	int t, prev = 0, kind = 0;

	while ((t = scan_next(&s))) {
		if (t == '"' && s.depth == 1 && (prev == '{' || prev == ',') &&
		    !strcmp(s.str.p, key)) {
			if (scan_next(&s) != ':')
				break;
			t = scan_next(&s);
			if ((t == '"' || t == 'x') && s.str.len < size) {
				strcpy(out, s.str.p);
				kind = t;
			}
			break;
		}
		prev = t;
	}
	free(s.str.p);
	return kind;
}

void json_put_without(struct buf *out, const char *text, size_t len, const char *key)
{
	struct scan s = { .p = text, .end = text + len };
	const char *kept = text, *from = text;	/* the first byte that is not in @out; the member's first */
	int t, prev = 0;

	buf_append(out, "", 0);
	while ((t = scan_next(&s))) {
		if (t != '"' || s.depth != 1 || (prev != '{' && prev != ',') || strcasecmp(s.str.p, key)) {
			prev = t;
			from = s.p;
			continue;
		}
		buf_append(out, kept, from - kept);
		do
			t = scan_next(&s);
		while (t && s.depth > 0 && (t != ',' || s.depth > 1));
		if (t != ',' && prev == ',' && out->len)
			out->p[--out->len] = 0;		/* the last member: its comma goes with it */
		from = kept = t == '}' || t == ']' ? s.p - 1 : s.p;
	}
	buf_append(out, kept, s.end - kept);
	free(s.str.p);
}

const char *json_capability(const char *text, size_t len, const struct capability *list)
{
	struct scan s = { .p = text, .end = text + len };
	const char *found = NULL;
	bool inside = false;
	int t, prev = 0;

	while (!found && (t = scan_next(&s))) {
		if (t == '"' && s.depth == 1 && (prev == '{' || prev == ','))
			inside = !strcasecmp(s.str.p, "capabilities");
		else if (t == '"' && inside)
			found = capability_in(list, s.str.p);
		prev = t;
	}
	free(s.str.p);
	return found;
}
