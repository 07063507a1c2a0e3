/* SPDX-License-Identifier: MIT */
#include "absent_page.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
#define BEFORE (16 * PAGE)	/* the longest head of an argument */

static int uffd = -1;
static char *absent;
static char content[PAGE] __attribute__((aligned(PAGE)));
static void (*notify)(void);

static void *serve(void *unused)
{
	struct uffd_msg msg;

	while (read(uffd, &msg, sizeof(msg)) == sizeof(msg)) {
		struct uffdio_copy copy = {
			.dst = (uintptr_t)absent, .src = (uintptr_t)content, .len = PAGE,
		};

		if (msg.event != UFFD_EVENT_PAGEFAULT)
			continue;
		notify();
		ioctl(uffd, UFFDIO_COPY, &copy);
	}
	return unused;
}

void *fault_area(void (*on_fault)(void))
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	pthread_t thread;
	char *pages;

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) < 0)
		return NULL;
	pages = mmap(NULL, BEFORE + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return NULL;
	absent = pages + BEFORE;
	reg.range.start = (uintptr_t)absent;
	reg.range.len = PAGE;
	if (ioctl(uffd, UFFDIO_REGISTER, &reg) < 0)
		return NULL;
	notify = on_fault;
	errno = pthread_create(&thread, NULL, serve, NULL);
	return errno ? NULL : absent;
}

void fault_arm(const void *tail, size_t size)
{
	madvise(absent, PAGE, MADV_DONTNEED);
	memcpy(content, tail, size);
}
