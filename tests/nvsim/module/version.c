// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The release of the simulated driver: its branch determines sizes and layouts. */
#include <linux/string.h>

#include "nvsim.h"

/* The tables were checked with the headers of these releases. */
static const struct {
	const char *version;
	u32 branch;
} releases[] = {
	{ "535.261.03", 535 },
	{ "550.163.01", 550 },
	{ "555.58.02", 555 },
	{ NVSIM_VERSION_DEFAULT, 580 },
	{ "595.45.04", 595 },
	{ "615.71.09", 615 },
};

u32 nvsim_branch = 580;

/* The release that callers are given: of a driver that no table has, its name alone. */
const char *nvsim_release(void)
{
	return nvsim.called ?: nvsim.version;
}

/* Refuses a release that the tables do not have. */
int nvsim_version_init(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(releases); i++) {
		if (strcmp(releases[i].version, nvsim.version))
			continue;
		nvsim_branch = releases[i].branch;
		return 0;
	}
	return -EINVAL;
}
