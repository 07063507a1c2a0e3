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

/* Of the branches behind it, as make test-abi counts them; tests/unit/core/test_ogkm.py holds these numbers to it. */
static const struct cgpu_branch_part parts[] = {
	{ 610, 8, 462 },
	{ 615, 142, 470 },
};

/* The first minor of a branch that the rows hold for. Earlier releases of 535 export nothing to GPL modules, and
 * nvidia-uvm of 550.40.07 has the structs of 545.
 */
static const struct {
	u32 branch, minor;
} least[] = {
	{ 535, 146 },
	{ 550, 54 },
};

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

/* The number at @text, of at most six digits, and what follows it; 0 if there is none. */
static u32 number(const char *text, const char **end)
{
	u32 value = 0, i;

	for (i = 0; text[i] >= '0' && text[i] <= '9' && i < 6; i++)
		value = value * 10 + (u32)(text[i] - '0');
	*end = text + i;
	return value;
}

/* "580" of "580.105.08"; 0 if there is no such thing, or if no row holds for that release. */
static u32 branch_of(const char *version)
{
	const char *rest;
	u32 branch = number(version, &rest), minor, i;

	if (*rest != '.')
		return 0;
	minor = number(rest + 1, &rest);
	for (i = 0; i < sizeof(least) / sizeof(least[0]); i++)
		if (branch == least[i].branch && minor < least[i].minor)
			return 0;
	return branch;
}

u32 cgpu_call_branch(const char *version)
{
	u32 branch = branch_of(version), i = cgpu_branch_count;

	while (i && cgpu_branches[i - 1] > branch)
		i--;
	return i ? cgpu_branches[i - 1] : 0;
}

bool cgpu_call_knows_driver(const char *version)
{
	u32 branch = branch_of(version);

	return branch && branch <= CGPU_BRANCH_COMPARED && cgpu_call_branch(version) == branch;
}

const struct cgpu_branch_part *cgpu_call_part(u32 branch)
{
	u32 i;

	for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (parts[i].branch == branch)
			return &parts[i];
	return NULL;
}
