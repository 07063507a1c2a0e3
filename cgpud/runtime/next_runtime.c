// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "next_runtime.h"
#include "report.h"
#include "runtime_conf.h"
#include "text.h"

bool is_this_program(const char *path)
{
	/* AT_EXECFN first: /proc/self/exe costs more, and /proc is not mounted everywhere. */
	const char *own = (const char *)getauxval(AT_EXECFN);
	struct stat a, b;

	if (stat(path, &a) || ((!own || stat(own, &b)) && stat("/proc/self/exe", &b)))
		return false;
	return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static const char *find_program(const char *name)
{
	static char found[PATH_MAX];
	const char *dirs = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	const char *lists[2] = { getenv("PATH"), dirs };
	size_t size = strlen(name) + 1;

	if (strchr(name, '/'))
		return !access(name, X_OK) && !is_this_program(name) ? name : NULL;
	for (int i = 0; i < 2; i++) {
		for (const char *p = lists[i]; p && *p; p += *p == ':') {
			const char *dir = p;
			size_t n = strcspn(p, ":");

			p += n;
			if (*dir != '/' || n + 1 + size > sizeof(found))
				continue;
			memcpy(found, dir, n);
			found[n] = '/';
			memcpy(found + n + 1, name, size);
			if (!access(found, X_OK) && !is_this_program(found))
				return found;
		}
	}
	return NULL;
}

#define PID_MARK "CGPU_RUNTIME_PID="

/*
 * Has this process executed cgpu-runtime before? exec keeps the pid, so a mark with
 * our own pid means that the next runtime executes us again, as does
 * nvidia-container-runtime if cgpu-runtime is in its list of runtimes. If not, fill
 * @env (of @size) with the environment and the mark.
 */
static bool exec_loop_detected(char **env, size_t size)
{
	static char mark[sizeof(PID_MARK) + 12];
	unsigned int pid = getpid();
	size_t n = 0, at = sizeof(mark) - 1;

	do
		mark[--at] = '0' + pid % 10;
	while (pid /= 10);
	at -= strlen(PID_MARK);
	memcpy(mark + at, PID_MARK, strlen(PID_MARK));
	for (char **e = environ; *e && n + 2 <= size; e++) {
		if (!strcmp(*e, mark + at))
			return true;
		if (!starts_with(*e, PID_MARK))
			env[n++] = *e;
	}
	env[n++] = mark + at;
	env[n] = NULL;
	return false;
}

const char *next_runtime(const char **wanted)
{
	const char *by_env = getenv("CGPU_RUNTIME_NEXT"), *conf = conf_get("next");
	const char *named = by_env && *by_env ? by_env : conf, *path;

	if (named && *named) {
		*wanted = named;
		return find_program(named);
	}
	*wanted = "runc or crun";
	path = find_program("runc");
	return path ? path : find_program("crun");
}

int exec_next(char **argv)
{
	const char *wanted, *path = next_runtime(&wanted);
	size_t n = 2;

	for (char **e = environ; *e; e++)
		n++;

	char *env[n];

	if (exec_loop_detected(env, n)) {
		report_error("the runtime after cgpu-runtime, %s, calls cgpu-runtime again: "
			     "name runc or crun instead", path ? path : wanted);
		return 1;
	}
	if (!path) {
		report_error("no runtime to execute after cgpu-runtime: cannot find %s", wanted);
		return 1;
	}
	argv[0] = (char *)path;
	execve(path, argv, env);
	report_error("cannot execute %s: %s", path, strerror(errno));
	return 1;
}
