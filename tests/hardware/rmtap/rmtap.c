// SPDX-License-Identifier: MIT
/* The calls of libc that are watched. What is not of an NVIDIA node goes through untouched; what is goes through too, and
 * is written down. Which it is says the file itself (fstat), so files that came over a socket or from a fork count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "rmtap.h"

#define NODES_MAX	64
#define MAPS_MAX	4096
#define NAME_LEN	24

static uint32_t branch;
static __thread int busy;	/* what we do ourselves, and what a signal does to us meanwhile, is not watched */

static int (*real_ioctl)(int, unsigned long, ...);
static int (*real_close)(int);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_munmap)(void *, size_t);
static int (*real_dup)(int);
static int (*real_dup2)(int, int);
static int (*real_dup3)(int, int, int);
static int (*real_fcntl)(int, int, ...);
static int (*real_openat)(int, const char *, int, ...);

/* Device numbers that were seen, with the node's name; empty: none of ours. Only grows. */
static struct {
	dev_t rdev;
	char name[NAME_LEN];
} nodes[NODES_MAX];
static int node_count;

static struct {
	uintptr_t base, end;
} maps[MAPS_MAX];
static int map_count;

static void *find(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found) {
		dprintf(2, "rmtap: no %s to pass on to\n", name);
		_exit(127);
	}
	return found;
}

static void before_fork(void)
{
	rmtap_lock();
	rmtap_forking();
}

static void in_parent(void)
{
	rmtap_unlock();
}

static void in_child(void)
{
	rmtap_unlock();
	rmtap_forked();
}

static void resolve(void)
{
	if (real_ioctl)
		return;
	real_close = find("close");
	real_mmap = find("mmap");
	real_munmap = find("munmap");
	real_dup = find("dup");
	real_dup2 = find("dup2");
	real_dup3 = find("dup3");
	real_fcntl = find("fcntl");
	real_openat = find("openat");
	real_ioctl = find("ioctl");
}

__attribute__((constructor)) static void start(void)
{
	int err = errno;

	resolve();
	busy = 1;
	branch = rmtap_open_log();
	if (rmtap_on())
		pthread_atfork(before_fork, in_parent, in_child);
	busy = 0;
	errno = err;
}

/* The last part of the path that the file was opened by: nothing else of it is kept. */
static void learn_name(int fd, char *name)
{
	char link[32], path[256], *last;
	ssize_t size;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	size = readlink(link, path, sizeof(path) - 1);
	path[size < 0 ? 0 : size] = 0;
	last = strrchr(path, '/');
	last = last ? last + 1 : path;
	if (strcmp(last, "nvidiactl") == 0 || strcmp(last, "nvidia-uvm") == 0 ||
	    (strncmp(last, "nvidia", 6) == 0 && last[6] && strspn(last + 6, "0123456789") == strlen(last + 6)))
		snprintf(name, NAME_LEN, "%.*s", NAME_LEN - 1, last);
}

/* The node's name, or NULL. Leaves errno alone. */
static const char *node_of(int fd)
{
	const char *name = NULL;
	int err = errno, i;
	struct stat st;

	if (busy || !rmtap_on() || fd < 0)
		return NULL;
	if (fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode)) {
		errno = err;
		return NULL;
	}
	busy = 1;
	rmtap_lock();
	for (i = 0; i < node_count && nodes[i].rdev != st.st_rdev; i++)
		;
	if (i == node_count && i < NODES_MAX) {
		nodes[i].rdev = st.st_rdev;
		learn_name(fd, nodes[i].name);
		node_count++;
	}
	if (i < node_count && nodes[i].name[0])
		name = nodes[i].name;
	rmtap_unlock();
	busy = 0;
	errno = err;
	return name;
}

#define NOTE(...) do {			\
	busy = 1;			\
	rmtap_note(__VA_ARGS__);	\
	busy = 0;			\
} while (0)

static int opened(int fd, int flags)
{
	const char *node = fd >= 0 ? node_of(fd) : NULL;

	if (node)
		NOTE("open %d %s %x", fd, node, flags);
	return fd;
}

/* A mode is only there where a file may be made. */
#define MODE(flags) ({						\
	unsigned int mode_ = 0;					\
								\
	if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
		va_list args_;					\
								\
		va_start(args_, flags);				\
		mode_ = va_arg(args_, unsigned int);		\
		va_end(args_);					\
	}							\
	mode_;							\
})

int openat(int dir, const char *path, int flags, ...)
{
	resolve();
	return opened(real_openat(dir, path, flags, MODE(flags)), flags);
}

int openat64(int dir, const char *path, int flags, ...)
{
	resolve();
	return opened(real_openat(dir, path, flags | O_LARGEFILE, MODE(flags)), flags);
}

int open(const char *path, int flags, ...)
{
	resolve();
	return opened(real_openat(AT_FDCWD, path, flags, MODE(flags)), flags);
}

int open64(const char *path, int flags, ...)
{
	resolve();
	return opened(real_openat(AT_FDCWD, path, flags | O_LARGEFILE, MODE(flags)), flags);
}

/* What open becomes under _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags)
{
	resolve();
	return opened(real_openat(AT_FDCWD, path, flags), flags);
}

int __open64_2(const char *path, int flags)
{
	resolve();
	return opened(real_openat(AT_FDCWD, path, flags | O_LARGEFILE), flags);
}

int close(int fd)
{
	const char *node;

	resolve();
	node = node_of(fd);
	if (node)
		NOTE("close %d %s", fd, node);
	return real_close(fd);
}

static int duped(int fd, int new)
{
	const char *node = new >= 0 && new != fd ? node_of(new) : NULL;

	if (node)
		NOTE("dup %d %d %s", fd, new, node);
	return new;
}

int dup(int fd)
{
	resolve();
	return duped(fd, real_dup(fd));
}

/* What was @new before is closed by it. */
static void replaced(int fd, int new)
{
	const char *node = fd != new ? node_of(new) : NULL;

	if (node)
		NOTE("close %d %s", new, node);
}

int dup2(int fd, int new)
{
	resolve();
	replaced(fd, new);
	return duped(fd, real_dup2(fd, new));
}

int dup3(int fd, int new, int flags)
{
	resolve();
	replaced(fd, new);
	return duped(fd, real_dup3(fd, new, flags));
}

static int control_file(int fd, int cmd, void *arg)
{
	int ret = real_fcntl(fd, cmd, arg);

	return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC ? duped(fd, ret) : ret;
}

int fcntl(int fd, int cmd, ...)
{
	va_list args;
	void *arg;

	resolve();
	va_start(args, cmd);
	arg = va_arg(args, void *);
	va_end(args);
	return control_file(fd, cmd, arg);
}

int fcntl64(int fd, int cmd, ...)
{
	va_list args;
	void *arg;

	resolve();
	va_start(args, cmd);
	arg = va_arg(args, void *);
	va_end(args);
	return control_file(fd, cmd, arg);
}

int ioctl(int fd, unsigned long request, ...)
{
	const char *node;
	struct call call;
	va_list args;
	int ret, err;
	void *arg;

	resolve();
	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	node = node_of(fd);
	if (!node)
		return real_ioctl(fd, request, arg);
	err = errno;
	busy = 1;
	rmtap_before(&call, node, request, arg, branch);
	busy = 0;
	errno = err;
	ret = real_ioctl(fd, request, arg);
	err = errno;
	busy = 1;
	rmtap_after(&call);
	rmtap_note_call(&call, fd, node, request, ret, err);
	rmtap_done(&call);
	busy = 0;
	errno = err;
	return ret;
}

static void remember_map(uintptr_t base, size_t length)
{
	rmtap_lock();
	if (map_count < MAPS_MAX) {
		maps[map_count].base = base;
		maps[map_count++].end = base + length;
	}
	rmtap_unlock();
}

/* True if a mapping of ours begins in it; forgets those. */
static bool forget_maps(uintptr_t base, size_t length)
{
	bool found = false;
	int i;

	rmtap_lock();
	for (i = map_count; i-- > 0;) {
		if (maps[i].base < base || maps[i].base >= base + length)
			continue;
		found = true;
		maps[i] = maps[--map_count];
	}
	rmtap_unlock();
	return found;
}

static void note_unmapped(void *base, size_t length)
{
	if (!busy && rmtap_on() && map_count && forget_maps((uintptr_t)base, length))
		NOTE("munmap %lx %lx", (unsigned long)base, (unsigned long)length);
}

void *mmap(void *want, size_t length, int prot, int flags, int fd, off_t offset)
{
	const char *node;
	void *got;
	int err;

	resolve();
	got = real_mmap(want, length, prot, flags, fd, offset);
	err = errno;
	/* libcuda puts its reservation back over a mapping. */
	if (got != MAP_FAILED && flags & MAP_FIXED)
		note_unmapped(got, length);
	node = flags & MAP_ANONYMOUS ? NULL : node_of(fd);
	if (node) {
		if (got != MAP_FAILED)
			remember_map((uintptr_t)got, length);
		NOTE("mmap %d %s %lx %lx %x %x %lx %d", fd, node, (unsigned long)(got == MAP_FAILED ? 0 : got),
		     (unsigned long)length, prot, flags, (unsigned long)offset, got == MAP_FAILED ? err : 0);
	}
	errno = err;
	return got;
}

void *mmap64(void *want, size_t length, int prot, int flags, int fd, off_t offset)
{
	return mmap(want, length, prot, flags, fd, offset);
}

int munmap(void *base, size_t length)
{
	resolve();
	note_unmapped(base, length);
	return real_munmap(base, length);
}
