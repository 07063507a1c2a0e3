/* SPDX-License-Identifier: MIT */
/* cgpud's records of containers, as files. */
#ifndef CGPU_RUNTIME_RECORDS_H
#define CGPU_RUNTIME_RECORDS_H

#ifndef CGPU_STATE_PATH
#define CGPU_STATE_PATH "/run/cgpu/state"	/* a JSON file per container */
#endif

enum found { NO, YES, FAILED };

/*
 * Has cgpud a record of the container? Rootless engines have no access to the directory,
 * and no slices. FAILED: reported.
 */
enum found has_record(const char *id);

#endif
