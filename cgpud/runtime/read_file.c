// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "read_file.h"

char *read_all(int fd, size_t max, size_t *len)
{
	size_t cap = 4096, got = 0;
	char *text = NULL;
	struct stat st;
	ssize_t n = 1;

	if (!fstat(fd, &st) && st.st_size > 0 && (size_t)st.st_size <= max)
		cap = st.st_size + 2;	/* read() at the end needs one byte more */
	while (n) {
		if (!text || got + 1 == cap) {
			cap *= text ? 2 : 1;
			text = realloc(text, cap);
			if (!text)
				abort();
		}
		n = read(fd, text + got, cap - got - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 || got + n > max) {
			free(text);
			return NULL;
		}
		got += n;
	}
	text[got] = 0;
	*len = got;
	return text;
}
