/* SPDX-License-Identifier: MIT */
/* rmtap: what a process asks of the NVIDIA nodes, written down (README.md). */
#ifndef RMTAP_H
#define RMTAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RMTAP_BLOCKS	8	/* the struct, its parameters, what they point to */
#define RMTAP_TOP_MAX	16384	/* of a struct: 14 bits of an ioctl's number, or XFER's limit */
#define RMTAP_BLOCK_MAX	65536	/* of parameters: the driver takes no more either */

/* Some of the caller's memory before and after the call. */
struct block {
	int parent;		/* index of the block that points here; -1: the struct itself */
	uint32_t at;		/* where in the parent the pointer is */
	uint32_t size;
	uint64_t address;
	unsigned char *before, *after;
	bool payload;		/* behind a pointer in parameters */
};

struct call {
	int count;
	struct block block[RMTAP_BLOCKS];
};

/* capture.c */
void rmtap_before(struct call *call, const char *node, unsigned long request, void *arg,
		  uint32_t branch);
void rmtap_after(struct call *call);
void rmtap_done(struct call *call);
bool rmtap_readable(void);

/* record.c: each is one line, written at once */
uint32_t rmtap_open_log(void);		/* the driver's branch */
bool rmtap_on(void);
void rmtap_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void rmtap_note_call(const struct call *call, int fd, const char *node, unsigned long request,
		     int ret, int err);
void rmtap_lock(void);
void rmtap_unlock(void);
void rmtap_forking(void);
void rmtap_forked(void);

#endif
