/* SPDX-License-Identifier: MIT */
/* rmlever: lever calls of a process on its own RM objects, by its own files (../README.md). */
#ifndef RMLEVER_H
#define RMLEVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "rm_abi.h"

/* An ioctl on a node of the driver, taken out of its wrapper. */
struct call {
	int fd;
	bool uvm, ctl;
	uint32_t nr, size;
	unsigned char *arg;
};

static inline uint32_t word_at(const unsigned char *at)
{
	uint32_t value;

	__builtin_memcpy(&value, at, sizeof(value));
	return value;
}

static inline uint64_t long_at(const unsigned char *at)
{
	uint64_t value;

	__builtin_memcpy(&value, at, sizeof(value));
	return value;
}

/* rmlever.c */
extern unsigned int driver_branch;	/* 580; 0: not known, taken as the newest */
int real_ioctl(int fd, unsigned long request, void *arg);
int real_close(int fd);
uint64_t now_ns(void);

/* objects.c: what this process has of the driver. Each takes the lock itself. */
struct object {
	uint32_t client, handle, parent, class_id;
	uint32_t engine;	/* of a TSG or channel: 0 not said, 1..8 graphics, 9.. copy */
	uint32_t tsg;		/* of a channel */
	int fd;			/* of a client: the file that it belongs to */
};

enum kind { CLIENT, DEVICE, SUBDEVICE, TSG, CHANNEL, OTHER };

enum kind object_kind(const struct object *o);
bool object_is_graphics(const struct object *o);
void objects_alloc(int fd, const unsigned char *arg, uint32_t size);
void objects_free(const unsigned char *arg);
void objects_close(int fd);
void objects_forget(void);
/* Up to @max of that kind, in the order in which they were made. */
unsigned int objects_list(enum kind kind, struct object *out, unsigned int max);
/* The file that @client belongs to, or -1. */
int objects_fd(uint32_t client);
/* A subdevice of the device that @of is under; if it has none, any. One GPU is used. */
bool objects_subdevice(const struct object *of, struct object *out);
uint32_t alloc_status_at(uint32_t size);

/* answer.c: what is refused or answered in the driver's place */
enum { FORWARD = 0, ANSWERED = 1 };

void answers_init(void);
/* Hexadecimal numbers with commas between them, @text NULL: none. Returns their count, at most @max. */
unsigned int hex_list(const char *text, uint32_t *list, unsigned int max);
/* FORWARD, ANSWERED, or -errno: the last two are not forwarded. */
int answer_before(const struct call *call);
void answer_after(const struct call *call);
/* A line in RMLEVER_LOG. */
void answer_note(const char *format, ...);

/* table.c: the module's call table, in the same way */
void table_init(void);
int table_before(const struct call *call);
void table_after(const struct call *call);
/* True if zeros must be mapped in place of what the file stands for. */
bool table_is_empty(int fd);
/* The branch of the call table for this driver. */
uint32_t table_branch(void);

/* levers.c */
struct outcome {
	int64_t status;		/* RM's, or -errno */
	uint64_t begin_ns, end_ns;
};

struct channel_name {
	uint32_t client, handle;
};
#define CHANNELS_MAX 512
#define DISABLE_MAX 64

struct outcome lever_timeslice(const struct object *tsg, uint64_t us);
struct outcome lever_get_timeslice(const struct object *tsg, uint64_t *us);
struct outcome lever_preempt(const struct object *tsg, bool wait, uint32_t timeout_us);
struct outcome lever_restart(const struct object *channel, bool force, bool bypass);
/* At most DISABLE_MAX of them, anybody's; the call is made by way of @by, an object of ours. */
struct outcome lever_disable(const struct object *by, const struct channel_name *list, uint32_t count, bool disable,
			     bool only_scheduling);
/* The driver's utilisation samples: the process on the engine, and when. At most @max, oldest first. */
struct util_sample {
	uint64_t ns;
	uint32_t pid;
};
#define SAMPLES_MAX 128
struct outcome lever_samples(const struct object *by, struct util_sample *out, unsigned int max, unsigned int *count);
struct outcome lever_heap(const struct object *by, uint64_t *total_bytes, uint64_t *free_bytes);

/* requests.c: until the other side hangs up */
void requests_serve(FILE *in, FILE *out);

/* control.c */
void control_start(void);
void control_forked(void);
void control_end(void);

#endif
