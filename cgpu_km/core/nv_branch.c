// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The branches of the driver: which have rows, which are accepted, and what differs between them
 * beside the rows of the call table. A new branch is a number here, a line where one of these values differs, and
 * its rows in nv_table_*.c; make abi-diff prints them.
 */
#include "nv_call.h"
#include "nv_table.h"

const u32 cgpu_branches[] = {
	535, 545, 550, 555, 560, 565, 570, 575, 580, 590, 595, 610, 615,
};

const u32 cgpu_branch_count = sizeof(cgpu_branches) / sizeof(cgpu_branches[0]);

/* The last branch of which every row was compared with NVIDIA's sources. The rows of later ones are
 * compared in part, so those are accepted with any_driver=1 only: a struct that grew unseen would
 * be checked at the wrong place.
 */
#define CGPU_BRANCH_COMPARED	595

/* Oldest first; each line holds until the next one. */
static const struct cgpu_abi abi[] = {
	/* since, op: params_size, status, dmabuf_handles, util: stride, pid, reset_aware,
	 * channel: h_userd, engine, h_ecc
	 */
	{ CGPU_BRANCH_FIRST, 24, 28, 32, 472, 132, 0, 32, 128, 140 },
	{ 550, 24, 28, 32, 704, 132, 0, 32, 128, 140 },
	{ 570, 24, 28, 36, 776, 144, 0, 32, 128, 140 },
	{ 575, 32, 40, 36, 776, 144, 0, 32, 128, 140 },
	{ 595, 32, 40, 36, 776, 144, 1, 32, 128, 140 },
	{ 610, 32, 40, 36, 776, 144, 1, 36, 136, 148 },
};

const struct cgpu_abi *cgpu_call_abi(u32 branch)
{
	u32 i = sizeof(abi) / sizeof(abi[0]);

	while (--i && abi[i].since > branch)
		;
	return &abi[i];
}

/* "580" of "580.105.08"; 0 if there is no such thing. */
static u32 branch_of(const char *version)
{
	size_t len = strlen(version), i;
	u32 branch = 0;

	for (i = 0; i < len && version[i] >= '0' && version[i] <= '9' && i < 6; i++)
		branch = branch * 10 + (u32)(version[i] - '0');
	return i && i < len && version[i] == '.' ? branch : 0;
}

u32 cgpu_call_branch(const char *version)
{
	u32 branch = branch_of(version), i = cgpu_branch_count;

	while (--i && cgpu_branches[i] > branch)
		;
	return cgpu_branches[i];
}

bool cgpu_call_knows_driver(const char *version)
{
	u32 branch = branch_of(version);

	return branch && branch <= CGPU_BRANCH_COMPARED && cgpu_call_branch(version) == branch;
}

