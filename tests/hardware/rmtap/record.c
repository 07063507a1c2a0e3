// SPDX-License-Identifier: MIT
/* The log: one file per process, one line per event, one write per line. A line is written before the event could have
 * an effect on another thread's (close, munmap) or after it has its result (open, ioctl, mmap), so that the order of
 * lines is an order in which the events could have happened.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "rmtap.h"

#define HEAD_MAX 512
#define ZEROS_MIN 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static bool on, keep_payload = true;
static char version[32];
static pid_t parent;		/* of a fork whose child has not written yet */
static unsigned long long forked_ns;

static unsigned long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* The calls themselves, not their names: those are ours. */
static int sys_open(const char *path, int flags)
{
	return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600);
}

/* Where a container hides the file, RMTAP_DRIVER says it. */
static void read_version(void)
{
	const char *given = getenv("RMTAP_DRIVER");
	char text[256], *at = text;
	int fd = sys_open("/proc/driver/nvidia/version", O_RDONLY);
	ssize_t got = fd < 0 ? 0 : syscall(SYS_read, fd, text, sizeof(text) - 1);
	size_t used;

	if (fd >= 0)
		syscall(SYS_close, fd);
	text[got < 0 ? 0 : got] = 0;
	if (given)
		snprintf(text, sizeof(text), "%s", given);
	/* The first number of at least three digits with a point after it, at a blank: 580.105.08 */
	for (; *at; at++) {
		if (at != text && at[-1] != ' ')
			continue;
		used = strspn(at, "0123456789");
		if (used >= 3 && at[used] == '.') {
			used = strspn(at, "0123456789.");
			snprintf(version, sizeof(version), "%.*s", (int)used, at);
			return;
		}
	}
}

uint32_t rmtap_open_log(void)
{
	const char *payload = getenv("RMTAP_PAYLOAD");

	if (!getenv("RMTAP_DIR"))
		return 0;
	on = rmtap_readable();
	if (!on)
		dprintf(2, "rmtap: cannot read this process's memory (process_vm_readv): nothing is recorded\n");
	keep_payload = !payload || strcmp(payload, "0") != 0;
	read_version();
	return version[0] ? strtoul(version, NULL, 10) : UINT32_MAX;
}

bool rmtap_on(void)
{
	return on;
}

void rmtap_lock(void)
{
	pthread_mutex_lock(&lock);
}

void rmtap_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* With the lock held, in the parent: what it opens from now on the child does not have. */
void rmtap_forking(void)
{
	forked_ns = now_ns();
}

void rmtap_forked(void)
{
	if (log_fd >= 0)
		syscall(SYS_close, log_fd);
	log_fd = -1;
	parent = getppid();
}

static void put(const char *text, size_t size)
{
	while (size) {
		ssize_t done = syscall(SYS_write, log_fd, text, size);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0) {
			on = false;	/* a log with a hole would be taken for a whole one */
			dprintf(2, "rmtap: cannot write: nothing more is recorded\n");
			return;
		}
		text += done;
		size -= done;
	}
}

/* With the lock held. */
static bool have_log(void)
{
	char path[4096], head[256];
	int n, size;

	for (n = 0; on && log_fd < 0 && n < 1000; n++) {
		snprintf(path, sizeof(path), "%s/rmtap-%d-%d.raw", getenv("RMTAP_DIR"), getpid(), n);
		log_fd = sys_open(path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL);
		if (log_fd < 0 && errno != EEXIST) {
			on = false;
			dprintf(2, "rmtap: cannot create %s\n", path);
		} else if (log_fd >= 0) {
			size = snprintf(head, sizeof(head), "rmtap 1 %d %s\n", getpid(),
					version[0] ? version : "unknown");
			put(head, size);
			if (parent)
				put(head, snprintf(head, sizeof(head), "%llu %d fork %d\n", forked_ns, getpid(), parent));
			parent = 0;
		}
	}
	return log_fd >= 0;
}

static int put_head(char *line, const char *format, va_list args)
{
	int size = snprintf(line, HEAD_MAX, "%llu %ld ", now_ns(), (long)syscall(SYS_gettid));

	return size + vsnprintf(line + size, HEAD_MAX - size, format, args);
}

static int head_of(char *line, const char *format, ...)
{
	va_list args;
	int size;

	va_start(args, format);
	size = put_head(line, format, args);
	va_end(args);
	return size;
}

void rmtap_note(const char *format, ...)
{
	char line[HEAD_MAX + 1];
	int err = errno, size;
	va_list args;

	va_start(args, format);
	size = put_head(line, format, args);
	va_end(args);
	line[size++] = '\n';
	rmtap_lock();
	if (have_log())
		put(line, size);
	rmtap_unlock();
	errno = err;
}

/* Hex; a long run of zeros as its length: _9216_ */
static char *put_hex(char *out, const unsigned char *data, uint32_t size)
{
	static const char digits[] = "0123456789abcdef";
	uint32_t i, run;

	for (i = 0; i < size; i += run ? run : 1) {
		for (run = 0; i + run < size && !data[i + run]; run++)
			;
		if (run >= ZEROS_MIN) {
			out += sprintf(out, "_%u_", run);
			continue;
		}
		run = 0;
		*out++ = digits[data[i] >> 4];
		*out++ = digits[data[i] & 15];
	}
	return out;
}

static char *put_block(char *out, const struct block *b)
{
	if (b->payload && !keep_payload) {
		memset(b->before, 0, b->size);
		memset(b->after, 0, b->size);
	}
	out += sprintf(out, " %d:%u:%u:", b->parent, b->at, b->size);
	out = put_hex(out, b->before, b->size);
	*out++ = ':';
	if (memcmp(b->before, b->after, b->size) == 0)
		*out++ = '=';
	else
		out = put_hex(out, b->after, b->size);
	return out;
}

void rmtap_note_call(const struct call *call, int fd, const char *node, unsigned long request,
		     int ret, int err)
{
	size_t size = HEAD_MAX;
	char *line, *out;
	int i;

	for (i = 0; i < call->count; i++)
		size += 4 * (size_t)call->block[i].size + 64;
	line = malloc(size);
	if (!line)
		return;
	out = line + head_of(line, "ioctl %d %s %lx %d %d", fd, node, request, ret, ret < 0 ? err : 0);
	for (i = 0; i < call->count; i++)
		out = put_block(out, &call->block[i]);
	*out++ = '\n';
	rmtap_lock();
	if (have_log())
		put(line, out - line);
	rmtap_unlock();
	free(line);
}
