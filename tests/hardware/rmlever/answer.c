// SPDX-License-Identifier: MIT
/* What a program is told in the driver's place, by variables of its environment. Each answer is a line in RMLEVER_LOG. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rmlever.h"

#define REFUSED_MAX 16

static uint32_t refused[REFUSED_MAX];	/* classes */
static unsigned int refused_count;
static bool answer_mm_initialize;
static uint32_t mm_status;
static uint32_t total_kib;
static const char *log_path;

unsigned int hex_list(const char *text, uint32_t *list, unsigned int max)
{
	unsigned int count = 0;
	char *end;

	while (text && *text && count < max) {
		list[count++] = strtoul(text, &end, 16);
		text = *end == ',' ? end + 1 : NULL;
	}
	return count;
}

void answers_init(void)
{
	const char *mm = getenv("RMLEVER_MM_INITIALIZE"), *total = getenv("RMLEVER_TOTAL_MIB");

	refused_count = hex_list(getenv("RMLEVER_REFUSE"), refused, REFUSED_MAX);
	answer_mm_initialize = mm;
	mm_status = mm ? strtoul(mm, NULL, 16) : 0;
	total_kib = total ? strtoul(total, NULL, 10) * 1024 : 0;
	log_path = getenv("RMLEVER_LOG");
	table_init();
}

void answer_note(const char *format, ...)
{
	char line[160];
	va_list args;
	int size, fd;

	if (!log_path)
		return;
	va_start(args, format);
	size = vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	fd = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return;
	if (write(fd, line, size) != size)
		log_path = NULL;
	real_close(fd);
}

int answer_before(const struct call *call)
{
	if (call->uvm) {
		if (!answer_mm_initialize || call->nr != UVM_MM_INITIALIZE)
			return table_before(call);
		memcpy(call->arg + 4, &mm_status, 4);	/* { int uvmFd; NV_STATUS rmStatus; } */
		answer_note("mm_initialize pid=%d status=0x%x\n", getpid(), mm_status);
		return ANSWERED;
	}
	if (call->nr != NV_ESC_RM_ALLOC || call->size < 32)
		return table_before(call);
	for (unsigned int i = 0; i < refused_count; i++) {
		uint32_t status = NV_ERR_INVALID_CLASS;

		if (word_at(call->arg + 12) != refused[i])
			continue;
		memcpy(call->arg + alloc_status_at(call->size), &status, 4);
		answer_note("refused pid=%d class=0x%x\n", getpid(), refused[i]);
		return ANSWERED;
	}
	return table_before(call);
}

/* Values are in KiB. What is said to be free is not more than there is said to be. */
static unsigned int rewrite(unsigned char *list, uint32_t entries)
{
	unsigned int changed = 0;

	for (uint32_t i = 0; i < entries && i < 128; i++, list += 8) {
		switch (word_at(list)) {
		case NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE:
		case NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE:
		case NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE:
		case NV2080_CTRL_FB_INFO_INDEX_USABLE_RAM_SIZE:
		case NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE:
		case NV2080_CTRL_FB_INFO_INDEX_LARGEST_FREE_REGION_SIZE_KB:
			if (word_at(list + 4) <= total_kib)
				continue;
			memcpy(list + 4, &total_kib, 4);
			changed++;
		}
	}
	return changed;
}

void answer_after(const struct call *call)
{
	unsigned char *params;
	unsigned int changed = 0;
	uint32_t cmd;

	table_after(call);
	if (!total_kib || call->nr != NV_ESC_RM_CONTROL || call->size < 32 || word_at(call->arg + 28))
		return;
	cmd = word_at(call->arg + 8);
	params = (unsigned char *)(uintptr_t)long_at(call->arg + 16);
	if (cmd == NV2080_CTRL_CMD_FB_GET_INFO_V2)
		changed = rewrite(params + 4, word_at(params));
	else if (cmd == NV2080_CTRL_CMD_FB_GET_INFO)
		changed = rewrite((unsigned char *)(uintptr_t)long_at(params + 8), word_at(params));
	if (changed)
		answer_note("totals pid=%d entries=%u\n", getpid(), changed);
}
