/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Text of /proc writes -> typed values. Input need not be NUL terminated. */
#ifndef CGPU_PURE_TEXT_PARSE_H
#define CGPU_PURE_TEXT_PARSE_H

#include "../core/env.h"

#define CGPU_PARSE_ID_MAX	128
#define CGPU_PARSE_GPUS		32

enum cgpu_verb { CGPU_VERB_CREATE = 1, CGPU_VERB_DESTROY = 2 };

/* inst_ctl: create <id> gpu=N[,N...] memsize=B[,B...] [weight=W[,W...]]
 *           [ceiling=C[,C...]] [highprio=0|1] [cookie=C]   |   destroy <id> [cookie=C]
 * The last value of a shorter list repeats; more values than GPUs is -EINVAL.
 */
struct cgpu_inst_cmd {
	u32 verb;
	u32 gpus;			/* entries used below */
	char id[CGPU_PARSE_ID_MAX + 1];
	u32 gpu[CGPU_PARSE_GPUS];
	u64 memsize[CGPU_PARSE_GPUS];
	u32 weight[CGPU_PARSE_GPUS];	/* default 1 */
	u32 ceiling[CGPU_PARSE_GPUS];	/* default 0: none */
	u32 highprio;
	u64 cookie;			/* 0: not given; decimal or 0x hex */
};

/* One unsigned decimal, at most one trailing newline, nothing else (no sign,
 * no blanks). -EINVAL otherwise, -ERANGE if it does not fit 64 bits.
 */
int cgpu_parse_u64(const char *text, size_t len, u64 *value);

/* -EINVAL: *@at is the offset of the byte that was wrong. */
int cgpu_parse_inst(const char *text, size_t len, struct cgpu_inst_cmd *cmd, size_t *at);

/* An id may hold printable ASCII without blanks, '/' and '=': 0 or -EINVAL. */
int cgpu_parse_check_id(const char *id, size_t len);

/* Directory name of an id: its first 12 characters if those are hex digits
 * (lower-cased) and @collides is false, else 12 hex of SHA-256(id).
 * @dir holds 13 bytes.
 */
void cgpu_parse_dir(const char *id, size_t len, bool collides, char *dir);

#endif
