// SPDX-License-Identifier: MIT
/* The calls of libc that are watched. Only those of an NVIDIA node are looked at; which that is says the file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "rmlever.h"

#define UVM_MINOR	0

unsigned int driver_branch;
static dev_t uvm_device;

/* The next library's: our own calls must not come back to us, but the recorder may be behind us. */
static int (*next_ioctl)(int, unsigned long, ...);
static int (*next_close)(int);

static void resolve(void)
{
	if (next_ioctl)
		return;
	next_close = (int (*)(int))dlsym(RTLD_NEXT, "close");
	next_ioctl = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
}

int real_ioctl(int fd, unsigned long request, void *arg)
{
	resolve();
	return next_ioctl(fd, request, arg);
}

int real_close(int fd)
{
	resolve();
	return next_close(fd);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static size_t read_file(const char *path, char *text, size_t size)
{
	int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	ssize_t got = fd < 0 ? 0 : read(fd, text, size - 1);

	if (fd >= 0)
		real_close(fd);
	text[got < 0 ? 0 : got] = 0;
	return got < 0 ? 0 : got;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  ..." */
static unsigned int read_branch(void)
{
	char text[512], *at, *end;

	read_file("/proc/driver/nvidia/version", text, sizeof(text));
	for (at = text; (at = strchr(at, ' ')); at++) {
		unsigned long n = strtoul(at + 1, &end, 10);

		if (end - at == 4 && *end == '.')
			return n;
	}
	return 0;
}

static dev_t read_uvm_device(void)
{
	char text[8192], *at;

	read_file("/proc/devices", text, sizeof(text));
	at = strstr(text, " nvidia-uvm\n");
	if (!at)
		return 0;
	while (at > text && at[-1] >= '0' && at[-1] <= '9')
		at--;
	return makedev(strtoul(at, NULL, 10), UVM_MINOR);
}

static bool is_node(int fd, bool *uvm, bool *ctl)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode))
		return false;
	*uvm = uvm_device && st.st_rdev == uvm_device;
	*ctl = st.st_rdev == makedev(NV_MAJOR_DEVICE_NUMBER, NV_MINOR_DEVICE_NUMBER_CONTROL_DEVICE);
	return *uvm || major(st.st_rdev) == NV_MAJOR_DEVICE_NUMBER;
}

static struct call unwrap(int fd, bool uvm, bool ctl, unsigned long request, void *arg)
{
	struct call call = { .fd = fd, .uvm = uvm, .ctl = ctl, .arg = arg };

	call.nr = uvm ? request : _IOC_NR(request);
	call.size = uvm ? 0 : _IOC_SIZE(request);
	if (!uvm && call.nr == NV_ESC_IOCTL_XFER_CMD && call.size >= 16) {
		call.nr = word_at(call.arg);
		call.size = word_at(call.arg + 4);
		call.arg = (unsigned char *)(uintptr_t)long_at(call.arg + 8);
	}
	return call;
}

/* The parent's clients are not the child's: it has none, and no call is made in it. */
static void in_child(void)
{
	control_forked();
	objects_forget();
}

__attribute__((constructor)) static void start(void)
{
	int err = errno;

	driver_branch = read_branch();
	uvm_device = read_uvm_device();
	answers_init();
	pthread_atfork(NULL, NULL, in_child);
	errno = err;
}

__attribute__((destructor)) static void end(void)
{
	control_end();
}

int ioctl(int fd, unsigned long request, ...)
{
	struct call call;
	va_list args;
	int ret, err;
	bool uvm, ctl;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	err = errno;
	if (!is_node(fd, &uvm, &ctl)) {
		errno = err;
		return real_ioctl(fd, request, arg);
	}
	call = unwrap(fd, uvm, ctl, request, arg);
	ret = answer_before(&call);
	if (ret != FORWARD) {
		errno = ret < 0 ? -ret : err;
		return ret < 0 ? -1 : 0;
	}
	ret = real_ioctl(fd, request, arg);
	err = errno;
	if (ret == 0 && !uvm) {
		if (call.nr == NV_ESC_RM_ALLOC)
			objects_alloc(fd, call.arg, call.size);
		else if (call.nr == NV_ESC_RM_FREE)
			objects_free(call.arg);
		answer_after(&call);
	}
	errno = err;
	return ret;
}

int close(int fd)
{
	int err = errno;
	bool uvm, ctl;

	if (is_node(fd, &uvm, &ctl) && !uvm)
		objects_close(fd);
	errno = err;
	return real_close(fd);
}

static void *map(const char *next, void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	void *(*real)(void *, size_t, int, int, int, off_t) =
		(void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, next);

	if (!(flags & MAP_ANONYMOUS) && table_is_empty(fd)) {
		flags = (flags & ~MAP_SHARED) | MAP_PRIVATE | MAP_ANONYMOUS;
		fd = -1;
		offset = 0;
	}
	return real(at, size, prot, flags, fd, offset);
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	return map("mmap", at, size, prot, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	return map("mmap64", at, size, prot, flags, fd, offset);
}
