/* SPDX-License-Identifier: MIT */
/* Between rm.c and rm_context.c. */
#ifndef RM_INTERNAL_H
#define RM_INTERNAL_H

#include "rm.h"

/* Keep the first failure of the client; hand the status on. */
rm_status rm_note(struct rm *rm, rm_status status, const char *call);
rm_status rm_note_errno(struct rm *rm, const char *call);

int rm_open_node(struct rm *rm, const char *name);
rm_status rm_note_open(struct rm *rm, const char *name);

#endif
