// SPDX-License-Identifier: MIT
/* The core's parsers of what is written to /proc/cgpu_km: inst_ctl, and one number. */
#include <stdio.h>
#include <string.h>

#include "text_parse.h"
#include "target.h"

/* Writes a command as inst_ctl takes it. */
static size_t write_command(const struct cgpu_inst_cmd *cmd, char *text, size_t room)
{
	size_t len = snprintf(text, room, "%s %s", cmd->verb == CGPU_VERB_CREATE ? "create" : "destroy", cmd->id);
	uint32_t i;

	if (cmd->verb == CGPU_VERB_CREATE) {
		for (i = 0; i < cmd->gpus; i++)
			len += snprintf(text + len, room - len, "%s%u", i ? "," : " gpu=", cmd->gpu[i]);
		for (i = 0; i < cmd->gpus; i++)
			len += snprintf(text + len, room - len, "%s%llu", i ? "," : " memsize=",
					(unsigned long long)cmd->memsize[i]);
		for (i = 0; i < cmd->gpus; i++)
			len += snprintf(text + len, room - len, "%s%u", i ? "," : " weight=", cmd->weight[i]);
		for (i = 0; i < cmd->gpus; i++)
			len += snprintf(text + len, room - len, "%s%u", i ? "," : " ceiling=", cmd->ceiling[i]);
		len += snprintf(text + len, room - len, " highprio=%u", cmd->highprio);
	}
	if (cmd->cookie)
		len += snprintf(text + len, room - len, " cookie=%llu", (unsigned long long)cmd->cookie);
	return len;
}

static void parse_number(const char *text, size_t size)
{
	u64 value = 4711, again;
	char written[32];
	int err = cgpu_parse_u64(text, size, &value);

	HOLDS(err == 0 || err == -EINVAL || err == -ERANGE);
	if (err)
		HOLDS(value == 4711);
	else
		HOLDS(!cgpu_parse_u64(written, sprintf(written, "%llu\n", (unsigned long long)value), &again) &&
		      again == value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cgpu_inst_cmd cmd, again;
	char *text = malloc(size ? size : 1), written[4096], dir[13];
	size_t at, len;

	memcpy(text, data, size);
	parse_number(text, size);
	if (cgpu_parse_inst(text, size, &cmd, &at)) {
		HOLDS(at <= size);
	} else {
		HOLDS(cmd.gpus <= CGPU_PARSE_GPUS && cmd.highprio <= 1);
		HOLDS(!cgpu_parse_check_id(cmd.id, strlen(cmd.id)));
		HOLDS((cmd.verb == CGPU_VERB_CREATE) == (cmd.gpus > 0));
		len = write_command(&cmd, written, sizeof(written));
		HOLDS(!cgpu_parse_inst(written, len, &again, &at));
		HOLDS(!memcmp(&cmd, &again, sizeof(cmd)));
	}
	if (size) {
		cgpu_parse_dir(text, size, size & 1, dir);
		HOLDS(strspn(dir, "0123456789abcdef") == 12);
	}
	free(text);
	return 0;
}
