// SPDX-License-Identifier: MIT
/* For the recorder's own test on a machine without a GPU, preloaded after it: nodes that are memory files, and a driver that
 * says NV_OK to everything and knows one GPU. Behaves as a driver only as far as a recorder can see.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FILES 256

#define NV_MAJOR	195
#define UVM_MAJOR	511
#define UTIL_SAMPLES	0x20802096
#define UTIL_STRIDE	776
#define UTIL_PID	144
#define SLOTS		4	/* of the ring of samples that are filled */

static const char *const names[] = { "nvidiactl", "nvidia0", "nvidia-uvm" };
static struct { ino_t inode; int name; } files[FILES];
static int count;
static uint32_t next_handle;

static int name_of(int fd)
{
	struct stat st;
	int i;

	if (syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) < 0)
		return -1;
	for (i = 0; i < count; i++)
		if (files[i].inode == st.st_ino)
			return files[i].name;
	return -1;
}

int openat(int dir, const char *path, int flags, ...)
{
	const char *last = strrchr(path, '/');
	struct stat st;
	va_list args;
	int fd, i, mode;

	va_start(args, flags);
	mode = va_arg(args, int);
	va_end(args);
	for (i = 0; last && i < 3; i++) {
		if (strcmp(last + 1, names[i]) || count == FILES)
			continue;
		fd = memfd_create(names[i], flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
		if (fd < 0 || ftruncate(fd, 1 << 20) < 0 || syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) < 0)
			abort();
		files[count].inode = st.st_ino;
		files[count++].name = i;
		return fd;
	}
	return syscall(SYS_openat, dir, path, flags, mode);
}

/* Without the recorder programs come here themselves. */
#define OPEN(name)							\
	int name(const char *path, int flags, ...)			\
	{								\
		va_list args;						\
		int mode;						\
									\
		va_start(args, flags);					\
		mode = va_arg(args, int);				\
		va_end(args);						\
		return openat(AT_FDCWD, path, flags, mode);		\
	}
OPEN(open)
OPEN(open64)

int fstat(int fd, struct stat *st)
{
	int name = name_of(fd);
	int ret = syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH);

	if (name >= 0) {
		st->st_mode = S_IFCHR | 0666;
		st->st_rdev = name == 2 ? makedev(UVM_MAJOR, 0) : makedev(NV_MAJOR, name ? 0 : 255);
	}
	return ret;
}

/* The uvm node's major is in /proc/devices. */
ssize_t read(int fd, void *into, size_t size)
{
	static const char head[] = "Character devices:\n", line[] = "511 nvidia-uvm\n";
	ssize_t got = syscall(SYS_read, fd, into, size);
	char *at = (char *)into + sizeof(head) - 1;

	if (got < (ssize_t)sizeof(head) || memcmp(into, head, sizeof(head) - 1) || got + sizeof(line) > size)
		return got;
	memmove(at + sizeof(line) - 1, at, got - (sizeof(head) - 1));
	memcpy(at, line, sizeof(line) - 1);
	return got + sizeof(line) - 1;
}

ssize_t readlink(const char *path, char *into, size_t size)
{
	int fd = -1, name;

	if (sscanf(path, "/proc/self/fd/%d", &fd) == 1 && (name = name_of(fd)) >= 0)
		return snprintf(into, size, "/dev/%s", names[name]);
	return syscall(SYS_readlink, path, into, size);
}

static void put32(void *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const void *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

/* As on the card: the tracker names the newest sample, the oldest is behind it. */
static void samples(unsigned char *params)
{
	put32(params + 12, 1);
	for (uint32_t i = 0; i < SLOTS; i++) {
		uint64_t at = 1000000000 + (i + 2) % SLOTS * 200000000ull;

		memcpy(params + 16 + i * UTIL_STRIDE, &at, sizeof(at));
		put32(params + 16 + i * UTIL_STRIDE + UTIL_PID, 100 + i);
	}
}

static void control(unsigned char *arg)
{
	unsigned char *params;

	memcpy(&params, arg + 16, sizeof(params));
	switch (get32(arg + 8)) {
	case 0x201:
		memset(params, 0xff, 128);
		put32(params, 0x4100);
		break;
	case 0x2080014a:
		memset(params + 12, 0xab, 16);
		break;
	case UTIL_SAMPLES:
		samples(params);
		break;
	case 0xc36f0108:
		put32(params, 7);
		break;
	case 0x20800110:
		strcpy((char *)params + 4, "Fake");
		break;
	case 0x800292:
		put32(params, 4);
		memcpy(params + 4, (uint32_t[]) { 0xc46f, 0xc461, 0xc5c0, 0xc5b5 }, 16);
		break;
	default:
		break;
	}
	put32(arg + 28, 0);
}

static int driver(unsigned int nr, unsigned char *arg)
{
	switch (nr) {
	case 0x2a:
		control(arg);
		return 0;
	case 0x2b:
		if (!get32(arg + 8))		/* no two processes have the same */
			put32(arg + 8, 0xc0000000 + ((uint32_t)getpid() << 8) + ++next_handle);
		if (!get32(arg))
			put32(arg, get32(arg + 8));
		return 0;
	case 200:
		arg[0] = 1;
		put32(arg + 16, 0x4100);
		put32(arg + 20, 0x10);	/* its interrupt; with the id before it an address that clients like */
		return 0;
	case 0x41:
		errno = EINVAL;
		return -1;
	default:
		return 0;
	}
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;
	int name = name_of(fd);

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (name < 0)
		return syscall(SYS_ioctl, fd, request, arg);
	return name == 2 ? 0 : driver(_IOC_NR(request), arg);
}
