// SPDX-License-Identifier: MIT
/*
 * cgpud/runtime/json_scan.c behind a pipe, for test_json_scan.py.
 *
 * A request is two words (native u32), the lengths of a key and of a document, then
 * both. The document lies in a buffer of exactly its length, so that a read beyond its
 * end is one the sanitizer sees. The answer is one byte for json_mentions_cgpu(), one
 * for the kind json_top_value() returns, the u32 length of the value, and the value.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_scan.h"

#define VALUE_SIZE 64

static char *read_bytes(uint32_t len, uint32_t spare)
{
	char *p = malloc(len + spare ? len + spare : 1);

	if (!p || fread(p, 1, len, stdin) != len)
		exit(1);
	return p;
}

int main(void)
{
	uint32_t head[2];

	while (fread(head, sizeof(head), 1, stdin) == 1) {
		char *key = read_bytes(head[0], 1), *text = read_bytes(head[1], 0);
		char *value = calloc(1, VALUE_SIZE);
		unsigned char answer[2];
		uint32_t len;

		if (!value)
			return 1;
		key[head[0]] = 0;
		answer[0] = json_mentions_cgpu(text, head[1]);
		answer[1] = json_top_value(text, head[1], key, value, VALUE_SIZE);
		len = strlen(value);
		fwrite(answer, 1, sizeof(answer), stdout);
		fwrite(&len, sizeof(len), 1, stdout);
		fwrite(value, 1, len, stdout);
		fflush(stdout);
		free(key);
		free(text);
		free(value);
	}
	return 0;
}
