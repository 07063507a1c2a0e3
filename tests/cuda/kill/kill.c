// SPDX-License-Identifier: MIT
/*
 * A preload library that ends a program at one of its calls into the driver, or counts them.
 *
 * KILL_AT=n: SIGKILL before the n-th ioctl of an NVIDIA node; KILL_US=t: t microseconds after it was entered instead, so
 * that it ends within or after the call. KILL_COUNT=file: how many there were, when the program ends by itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static atomic_long calls;

static long number(const char *name)
{
	const char *text = getenv(name);

	return text ? atol(text) : 0;
}

static int is_nvidia(int fd)
{
	char link[40], path[64];
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return 0;
	path[length] = 0;
	return !!strstr(path, "/nvidia");
}

/* SIGALRM is not handled: it ends the process in whatever call it is. */
static void end_soon(void)
{
	struct itimerval in = { .it_value.tv_usec = number("KILL_US") };

	if (!in.it_value.tv_usec)
		kill(getpid(), SIGKILL);
	signal(SIGALRM, SIG_DFL);
	setitimer(ITIMER_REAL, &in, NULL);
}

int ioctl(int fd, unsigned long request, ...)
{
	static int (*real)(int, unsigned long, void *);
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (!real)
		real = (int (*)(int, unsigned long, void *))dlsym(RTLD_NEXT, "ioctl");
	if (is_nvidia(fd) && atomic_fetch_add(&calls, 1) + 1 == number("KILL_AT"))
		end_soon();
	return real(fd, request, arg);
}

__attribute__((destructor)) static void write_count(void)
{
	const char *path = getenv("KILL_COUNT");
	FILE *file = path ? fopen(path, "w") : NULL;

	if (!file)
		return;
	fprintf(file, "%ld\n", atomic_load(&calls));
	fclose(file);
}
