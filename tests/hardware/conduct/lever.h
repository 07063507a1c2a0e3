/* SPDX-License-Identifier: MIT */
/* A connection to rmlever in a process: one request, one answer. */
#ifndef LEVER_H
#define LEVER_H

#include <stdint.h>
#include <stdio.h>

struct lever {
	FILE *in;
	int fd;
};

struct answer {
	long long status;
	unsigned long long begin_ns, end_ns;
	unsigned int calls, failed;
};

/* 0, or -errno. */
int lever_connect(struct lever *lever, const char *path);
/* 0 and the answer; -errno if the process is gone or made no sense. */
int lever_ask(struct lever *lever, const char *request, struct answer *answer);

#endif
