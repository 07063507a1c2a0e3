// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "closed.h"
#include "read_file.h"
#include "report.h"

#ifndef CGPU_CLOSED_PATH
#define CGPU_CLOSED_PATH "/run/cgpu/numbers"
#endif
#ifndef CGPU_CGROUP_PATH
#define CGPU_CGROUP_PATH "/sys/fs/cgroup"
#endif
#define NUMBERS_MAX	4096		/* of one list */
#define NAME_SIZE	32
#define PROC_FILE_MAX	(64u << 10)
#define NV_MAJOR	195		/* the driver's, fixed */
#define NV_CTL		255
#define KILL_ROUNDS	100		/* 10 ms apart */

typedef bool visit_fn(int dir, unsigned int major, unsigned int minor, char *why, size_t size);

static void name_of(char *name, unsigned int major, unsigned int minor)
{
	snprintf(name, NAME_SIZE, "%u:%u", major, minor);
}

/* Call @visit for each number of the list, until it returns false. */
static bool for_each_number(int dir, const char *list, visit_fn *visit, char *why, size_t size)
{
	unsigned int count = 0;

	for (const char *p = list; *p;) {
		unsigned int major, first, last;
		int n = 0;

		if (sscanf(p, "%u:%u-%u%n", &major, &first, &last, &n) != 3 || !n ||
		    (p[n] && p[n] != ',') || first > last || last - first >= NUMBERS_MAX - count) {
			snprintf(why, size, "the list of device numbers from cgpud is invalid");
			return false;
		}
		p += n + (p[n] == ',');
		count += last - first + 1;
		for (unsigned int minor = first; minor <= last; minor++)
			if (!visit(dir, major, minor, why, size))
				return false;
	}
	return true;
}

static bool make_node(int dir, unsigned int major, unsigned int minor, char *why, size_t size)
{
	char name[NAME_SIZE];

	name_of(name, major, minor);
	if (!mknodat(dir, name, S_IFCHR | 0600, makedev(major, minor)) || errno == EEXIST)
		return true;
	snprintf(why, size, CGPU_CLOSED_PATH "/%s cannot be made, so it cannot be checked whether a container "
		 "may open that device: %s", name, strerror(errno));
	return false;
}

static void describe(unsigned int major, unsigned int minor, char *text, size_t size)
{
	if (major != NV_MAJOR)
		snprintf(text, size, "the GPU device %u:%u", major, minor);
	else if (minor == NV_CTL)
		snprintf(text, size, "the driver's own /dev/nvidiactl (%u:%u)", major, minor);
	else
		snprintf(text, size, "a whole GPU, the driver's own /dev/nvidia%u (%u:%u)", minor, major, minor);
}

static bool is_closed(int dir, unsigned int major, unsigned int minor, char *why, size_t size)
{
	static const int modes[] = { R_OK, W_OK };
	char name[NAME_SIZE], what[128];
	struct stat st;

	name_of(name, major, minor);
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISCHR(st.st_mode) ||
	    st.st_rdev != makedev(major, minor)) {
		snprintf(why, size, CGPU_CLOSED_PATH "/%s is missing or another file, so it cannot be checked "
			 "whether the container may open that device", name);
		return false;
	}
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		/* EPERM is the cgroup's answer; another one leaves open whether the cgroup permits it. */
		if (faccessat(dir, name, modes[i], 0) && errno == EPERM)
			continue;
		describe(major, minor, what, sizeof(what));
		snprintf(why, size, "the container may open %s, which config.json does not give it: a hook of "
			 "the engine does, such as that of --gpus, or the runtime makes no device rules "
			 "(--cgroups=disabled); start it without", what);
		return false;
	}
	return true;
}

static bool with_directory(const char *list, visit_fn *visit, char *why, size_t size)
{
	bool done;
	int dir;

	if (!*list)
		return true;
	dir = open(CGPU_CLOSED_PATH, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0) {
		snprintf(why, size, CGPU_CLOSED_PATH " cannot be opened, so it cannot be checked which devices a "
			 "container may open: %s", strerror(errno));
		return false;
	}
	done = for_each_number(dir, list, visit, why, size);
	close(dir);
	return done;
}

bool closed_ready(const char *list, char *why, size_t size)
{
	mkdir(CGPU_CLOSED_PATH, 0700);		/* if this fails, so does the next open() */
	return with_directory(list, make_node, why, size);
}

bool closed_here(const char *list, char *why, size_t size)
{
	return with_directory(list, is_closed, why, size);
}

/* ---- the cgroup of another process ---- */

/* Is the controller in this list, as /proc/PID/cgroup has it? */
static bool has_devices(const char *controllers)
{
	const char *name = "devices";
	size_t n;

	for (; *controllers; controllers += n, controllers += *controllers == ',') {
		n = strcspn(controllers, ",");
		if (n == strlen(name) && !strncmp(controllers, name, n))
			return true;
	}
	return false;
}

/*
 * The file cgroup.procs of the cgroup that decides about the devices of process @pid:
 * that of the v1 hierarchy "devices", else of v2. False, with errno: ESRCH if it has ended.
 */
static bool procs_file(pid_t pid, char path[PATH_MAX])
{
	char name[64], *text, *line, *next;
	const char *v2 = NULL, *v1 = NULL, *group;
	size_t len;
	int fd, n;

	snprintf(name, sizeof(name), "/proc/%d/cgroup", (int)pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		errno = ESRCH;
	if (fd < 0)
		return false;
	text = read_all(fd, PROC_FILE_MAX, &len);
	close(fd);
	if (!text)
		return false;			/* ESRCH from read() */
	for (line = text; *line; line = next) {
		char *controllers = strchr(line, ':'), *where;

		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = 0;
		where = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!where)
			continue;
		*where++ = 0;
		if (has_devices(controllers + 1))
			v1 = where;
		else if (!strcmp(line, "0:"))
			v2 = where;
	}
	group = v1 ? v1 : v2;
	n = group ? snprintf(path, PATH_MAX, CGPU_CGROUP_PATH "%s%s/cgroup.procs", v1 ? "/devices" : "", group) : -1;
	free(text);
	errno = ENAMETOOLONG;
	return n > 0 && n < PATH_MAX;
}

static bool join(const char *procs)
{
	int fd = open(procs, O_WRONLY | O_CLOEXEC);
	bool joined = fd >= 0 && write(fd, "0", 1) == 1;

	if (fd >= 0)
		close(fd);
	return joined;
}

struct result {
	bool closed;
	char why[SENTENCE_MAX];
};

/* In a child that joins the cgroup, so that this process stays where the engine accounts for it. */
static bool check_in(const char *procs, const char *list, struct result *result)
{
	int status;
	pid_t child = fork();

	if (!child) {
		if (join(procs))
			result->closed = closed_here(list, result->why, sizeof(result->why));
		else
			snprintf(result->why, sizeof(result->why), "%s cannot be joined, so it cannot be checked "
				 "which devices the container may open: %s", procs, strerror(errno));
		_exit(0);
	}
	if (child < 0) {
		snprintf(result->why, sizeof(result->why), "fork: %s", strerror(errno));
		return false;
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return false;
	return WIFEXITED(status) && !WEXITSTATUS(status) && result->closed;
}

bool closed_for(pid_t pid, const char *list, char *why, size_t size)
{
	char procs[PATH_MAX];
	struct result *result;
	bool closed;

	if (!procs_file(pid, procs)) {
		snprintf(why, size, "the cgroup of process %d cannot be read: %s", (int)pid, strerror(errno));
		return errno == ESRCH;
	}
	result = mmap(NULL, sizeof(*result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (result == MAP_FAILED) {
		snprintf(why, size, "mmap: %s", strerror(errno));
		return false;
	}
	closed = check_in(procs, list, result);
	snprintf(why, size, "%s", *result->why ? result->why : "the check of the container's devices was ended");
	munmap(result, sizeof(*result));
	return closed;
}

/* The file of a hierarchy's root, /proc/PID/cgroup having "/"? */
static bool is_root(const char *procs)
{
	const char *end = "//cgroup.procs";

	return strlen(procs) > strlen(end) && !strcmp(procs + strlen(procs) - strlen(end), end);
}

/* Send SIGKILL to each process of a cgroup. Returns whether there was one. */
static bool kill_members(const char *procs)
{
	bool found = false;
	int fd = open(procs, O_RDONLY | O_CLOEXEC);
	char *text = NULL, *end;
	size_t len;

	if (fd >= 0) {
		text = read_all(fd, FILE_MAX, &len);
		close(fd);
	}
	for (char *p = text; p && *p; p = *end ? end + 1 : end) {
		long pid = strtol(p, &end, 10);

		if (pid > 0)
			found |= !kill((pid_t)pid, SIGKILL);
		end += strcspn(end, "\n");
	}
	free(text);
	return found;
}

void kill_container(pid_t pid, int pidfd)
{
	const struct timespec nap = { .tv_nsec = 10000000 };
	char procs[PATH_MAX], own[PATH_MAX];
	bool is_own = procs_file(pid, procs) && !is_root(procs) && procs_file(getpid(), own) &&
		      strcmp(procs, own);

	syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	/* Those remain only where the container has no pid namespace of its own. Never a cgroup of the engine. */
	for (int i = 0; is_own && i < KILL_ROUNDS && kill_members(procs); i++)
		nanosleep(&nap, NULL);
}
