// SPDX-License-Identifier: MIT
/*
 * cgpu-runtime: the OCI low-level runtime that stands in front of runc or crun.
 *
 * It makes no decision. For create, run and restore of a bundle whose config.json
 * contains a cGPU variable it sends a request to cgpud, which admits the container
 * and edits the file. An exec with a capability that would undo a slice needs cgpud's
 * permission. From the limits of an update of a container with a slice it takes the
 * device rules. Then, and for every other command at once, it executes the next runtime
 * with unchanged arguments. Further roles of the same binary:
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
#include "next_runtime.h"
#include "nvidia_cli.h"
#include "runtime_conf.h"

/*
 * A version or a help alone has a word of ours before it. On stderr: engines parse the next
 * runtime's answer, which is on stdout.
 */
static void introduce(const char *word)
{
	static const char *const helps[] = { "--help", "-h", "help", "h", NULL };
	const char *wanted, *path;

	if (!strcmp(word, "--version") || !strcmp(word, "-v")) {
		fprintf(stderr, "cgpu-runtime %s, which executes:\n", CGPU_VERSION);
		return;
	}
	for (const char *const *h = helps; *h; h++) {
		if (strcmp(word, *h))
			continue;
		path = next_runtime(&wanted);
		fprintf(stderr,
			"cgpu-runtime %s: has cgpud admit a container that asks for a slice (settings: %s;\n"
			"cgpu-runtime(8)), then hands the unchanged arguments over to %s, whose help follows:\n",
			CGPU_VERSION, CGPU_CONF_PATH, path ? path : wanted);
	}
}

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
	if (argc == 2)
		introduce(argv[1]);
	return run_as_runtime(argc, argv);
}
