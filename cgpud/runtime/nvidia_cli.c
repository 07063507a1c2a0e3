// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "next_runtime.h"
#include "nvidia_cli.h"
#include "report.h"
#include "runtime_conf.h"
#include "text.h"

#define PIPES_VARIABLE	"CUDA_MPS_PIPE_DIRECTORY"
#define NO_PIPES	"/run/cgpu/no-pipes"	/* never there */

/* Of services that take root of a container for root of the host. */
static const char *const services[] = {
	"/var/run/nvidia-persistenced", "/run/nvidia-persistenced",
	"/var/run/nvidia-fabricmanager", "/run/nvidia-fabricmanager",
};

/* The directory of the driver's files, an option before the command; "": the host's. */
static const char *driver_root(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "configure"); i++) {
		if (starts_with(argv[i], "--root="))
			return argv[i] + strlen("--root=");
		if ((!strcmp(argv[i], "--root") || !strcmp(argv[i], "-r")) && i + 1 < argc)
			return argv[i + 1];
	}
	return "";
}

/*
 * NVIDIA's tool mounts the sockets that it finds into the container, and has no option against it.
 * So it is executed in a mount namespace of its own, where their directories are empty.
 */
static bool hide_services(const char *root)
{
	char path[PATH_MAX];
	bool is_own = false;

	for (size_t i = 0; i < sizeof(services) / sizeof(*services); i++) {
		if (snprintf(path, sizeof(path), "%s%s", root, services[i]) >= (int)sizeof(path)) {
			errno = ENAMETOOLONG;
			return false;
		}
		if (access(path, F_OK)) {
			if (errno == ENOENT || errno == ENOTDIR)
				continue;
			return false;
		}
		if (!is_own && (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)))
			return false;
		is_own = true;
		if (mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
			return false;
	}
	return true;
}

int run_as_nvidia_cli(int argc, char **argv)
{
	const char *real = conf_get("nvidia-container-cli");
	char **out = calloc(argc + 3, sizeof(*out));
	bool done = false;
	int n = 0;

	if (!out)
		abort();
	if (!real)
		real = "/usr/bin/nvidia-container-cli";
	out[n++] = (char *)real;
	for (int i = 1; i < argc; i++) {
		out[n++] = argv[i];
		if (!done && !strcmp(argv[i], "configure")) {
			out[n++] = "--no-devbind";
			out[n++] = "--no-cgroups";
			done = true;
		}
	}
	if (done && (setenv(PIPES_VARIABLE, NO_PIPES, 1) || !hide_services(driver_root(argc, argv)))) {
		report_error("the sockets of NVIDIA's services cannot be kept from the container: %s",
			     strerror(errno));
		return 1;
	}
	if (!is_this_program(real))
		execv(real, out);
	report_error("cannot execute %s: %s", real, strerror(errno));
	return 1;
}
