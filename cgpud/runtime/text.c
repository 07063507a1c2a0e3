// SPDX-License-Identifier: MIT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text.h"

void buf_append(struct buf *b, const char *s, size_t n)
{
	if (b->len + n + 1 > b->cap) {
		b->cap = (b->len + n + 1) * 2;
		b->p = realloc(b->p, b->cap);
		if (!b->p)
			abort();
	}
	memcpy(b->p + b->len, s, n);
	b->len += n;
	b->p[b->len] = 0;
}

void buf_puts(struct buf *b, const char *s)
{
	buf_append(b, s, strlen(s));
}

/* Append s as a JSON string. Bytes that are not ASCII go through as they are. */
void buf_put_json(struct buf *b, const char *s)
{
	char esc[8];

	buf_puts(b, "\"");
	for (; *s; s++) {
		unsigned char c = *s;

		if (c == '"' || c == '\\' || c < 0x20) {
			snprintf(esc, sizeof(esc), "\\u%04x", c);
			buf_puts(b, esc);
		} else {
			buf_append(b, s, 1);
		}
	}
	buf_puts(b, "\"");
}

void buf_put_member(struct buf *b, const char *key, const char *value)
{
	buf_puts(b, b->len ? "," : "{");
	buf_put_json(b, key);
	buf_puts(b, ":");
	buf_put_json(b, value);
}

static bool same_word(const char *word, const char *s, size_t n)
{
	return strlen(word) == n && !strncasecmp(word, s, n);
}

const char *capability_in(const struct capability *list, const char *s)
{
	size_t n;

	s += strspn(s, " \t\r\n\v\f");
	n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_");
	for (; list->name; list++)
		if (same_word(list->name, s, n) ||
		    (*s >= '0' && *s <= '9' && strtoul(s, NULL, 0) == list->number))
			return list->name;
	return NULL;
}
