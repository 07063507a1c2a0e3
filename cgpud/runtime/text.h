/* SPDX-License-Identifier: MIT */
/* A growing string, always NUL-terminated. The program aborts when memory runs out. */
#ifndef CGPU_RUNTIME_TEXT_H
#define CGPU_RUNTIME_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct buf {
	char *p;
	size_t len, cap;
};

void buf_append(struct buf *b, const char *s, size_t n);
void buf_puts(struct buf *b, const char *s);

/* Append s as a JSON string. Bytes that are not ASCII are copied unchanged. */
void buf_put_json(struct buf *b, const char *s);

/*
 * Append a member of a JSON object. The first member also opens the object; the
 * caller appends the closing brace.
 */
void buf_put_member(struct buf *b, const char *key, const char *value);

struct capability {
	const char *name;
	unsigned long number;
};

/*
 * The name of the entry of @list, which ends with a NULL, that a runtime may take @s for, or
 * NULL. crun's library takes names in any case, numbers as strtoul() reads them, and ignores
 * what follows. cgpud/oci.py has the same.
 */
const char *capability_in(const struct capability *list, const char *s);

static inline bool starts_with(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

#endif
