/* SPDX-License-Identifier: MIT */
/* NVIDIA's legacy command line tool without the device nodes and the sockets of services. */
#ifndef CGPU_RUNTIME_NVIDIA_CLI_H
#define CGPU_RUNTIME_NVIDIA_CLI_H

/* Execute nvidia-container-cli with options that leave libraries only. Returns on errors. */
int run_as_nvidia_cli(int argc, char **argv);

#endif
