/* SPDX-License-Identifier: MIT */
/* The role of an OCI runtime. */
#ifndef CGPU_RUNTIME_ADMISSION_H
#define CGPU_RUNTIME_ADMISSION_H

/* Request admission where needed, then execute the next runtime. Returns on errors. */
int run_as_runtime(int argc, char **argv);

#endif
