// SPDX-License-Identifier: MIT
/*
 * cgpu-runtime: the OCI low-level runtime that stands in front of runc or crun.
 *
 * It makes no decision. For create, run and restore of a bundle whose config.json
 * contains a cGPU variable it sends a request to cgpud, which admits the container
 * and edits the file. An exec with a capability that would undo a slice needs cgpud's
 * permission. Then, and for every other command at once, it executes the
 * next runtime with unchanged arguments. Further roles of the same binary:
 *
 *   cgpu-runtime hook bind     createRuntime: sends a pidfd of the init process
 *   cgpu-runtime hook params   createContainer: keeps libraries from making nodes
 *   cgpu-runtime hook check    createContainer: the driver is closed to the container
 *   cgpu-runtime hook confirm  poststart: it still is, else the container is killed
 *   cgpu-runtime hook release  poststop: the container has ended
 *   nvidia-container-cli-cgpu  (by argv[0]) NVIDIA's legacy CLI without devices
 *
 * The container does not start if no daemon answers within wait_s (it may be
 * restarting), or if the answer is invalid.
 */
#include <stdio.h>
#include <string.h>

#include "admission.h"
#include "hooks.h"
#include "nvidia_cli.h"

int main(int argc, char **argv)
{
	const char *name;

	if (argc < 1 || !argv[0])
		return 1;
	name = strrchr(argv[0], '/');
	name = name ? name + 1 : argv[0];
	if (!strcmp(name, "nvidia-container-cli-cgpu"))
		return run_as_nvidia_cli(argc, argv);
	if (argc >= 3 && !strcmp(argv[1], "hook"))
		return run_as_hook(argv[2], argv + 3);
	/* On stderr: engines parse the next runtime's answer, which is on stdout. */
	if (argc == 2 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-v")))
		fprintf(stderr, "cgpu-runtime %s, which executes:\n", CGPU_VERSION);
	return run_as_runtime(argc, argv);
}
