// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "next_runtime.h"
#include "nvidia_cli.h"
#include "report.h"
#include "runtime_conf.h"

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
	if (!is_this_program(real))
		execv(real, out);
	report_error("cannot execute %s: %s", real, strerror(errno));
	return 1;
}
