// SPDX-License-Identifier: MIT
/* The module's call table applied in this process: what the module would refuse is refused, what
 * it would answer is answered, with the same status. What it checks against its own records
 * (owners, charges, limits) is not in here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rmlever.h"

#include "nv_struct.h"
#include "nv_answer.h"
#include "nv_call.h"

#define LIST_MAX	64
#define TIMESLICE_US	1024

static bool on, managed;
static bool watching;	/* what would be refused is noted, and everything is forwarded unchanged */
static uint32_t allowed[LIST_MAX], empty[LIST_MAX];	/* numbers of controls and classes; classes */
static unsigned int allowed_count, empty_count;
static uint64_t space_flags;	/* added to those of UVM_INITIALIZE */
static uint32_t mm_status;	/* of UVM_MM_INITIALIZE */

/* Objects of an empty class, and files on which one was mapped: at most a few of each. */
static struct {
	uint32_t client, handle;
} empty_objects[LIST_MAX];
static int empty_files[LIST_MAX];
static unsigned int empty_object_count, empty_file_count;

static bool in_list(const uint32_t *list, unsigned int count, uint32_t number)
{
	for (unsigned int i = 0; i < count; i++)
		if (list[i] == number)
			return true;
	return false;
}

static uint32_t number(const char *name, uint32_t otherwise)
{
	const char *text = getenv(name);

	return text ? strtoul(text, NULL, 16) : otherwise;
}

void table_init(void)
{
	const char *table = getenv("RMLEVER_TABLE");

	on = table;
	watching = table && strcmp(table, "watch") == 0;
	managed = table && strcmp(table, "account") == 0;
	space_flags = number("RMLEVER_SPACE_FLAGS",
			     UVM_INIT_FLAGS_DISABLE_HMM | UVM_INIT_FLAGS_MULTI_PROCESS_SHARING_MODE);
	mm_status = number("RMLEVER_MM_STATUS", NV_WARN_NOTHING_TO_DO);
	allowed_count = hex_list(getenv("RMLEVER_ALLOW"), allowed, LIST_MAX);
	empty_count = hex_list(getenv("RMLEVER_EMPTY"), empty, LIST_MAX);
}

uint32_t table_branch(void)
{
	char version[16];

	snprintf(version, sizeof(version), "%u.0", driver_branch ? driver_branch : 580);
	return cgpu_call_branch(version);
}

static int refuse(const char *what, uint32_t number)
{
	answer_note("table refuses pid=%d %s=0x%x\n", getpid(), what, number);
	return watching ? FORWARD : ANSWERED;
}

static void set_status(unsigned char *arg, uint32_t at, uint32_t status)
{
	memcpy(arg + at, &status, sizeof(status));
}

/* ---- controls ---- */

static int answer_control(const struct call *call, uint32_t cmd, uint32_t status)
{
	set_status(call->arg, AT(nvos54, status), status);
	return status ? refuse("control", cmd) : ANSWERED;
}

static int no_pids(const struct call *call, uint32_t cmd, unsigned char *params, uint32_t size)
{
	uint32_t count = word_at(params);

	if (cmd == NV2080_CTRL_CMD_GPU_GET_PIDS)
		memset(params + 8, 0, size - 8);
	else
		for (uint32_t i = 0; i < count && i < 200; i++)
			memset(params + 8 + i * 72 + 16, 0, 56);
	return answer_control(call, cmd, 0);
}

static int control(const struct call *call)
{
	uint32_t cmd = word_at(call->arg + AT(nvos54, cmd)), size = word_at(call->arg + AT(nvos54, paramsSize));
	unsigned char *params = (unsigned char *)(uintptr_t)long_at(call->arg + AT(nvos54, params));
	const struct cgpu_control *row = cgpu_call_control(table_branch(), cmd);
	uint64_t us = TIMESLICE_US;

	if (in_list(allowed, allowed_count, cmd))
		return FORWARD;
	if (watching)
		return row && row->verdict != CGPU_REFUSE ? FORWARD : refuse("control", cmd);
	switch (row ? row->verdict : CGPU_REFUSE) {
	case CGPU_REFUSE:
		return answer_control(call, cmd, NV_ERR_NOT_SUPPORTED);
	case CGPU_ANSWER_OK:
	case CGPU_SET_TIMESLICE:
	case CGPU_OWN_CHANNELS:
		return answer_control(call, cmd, 0);
	case CGPU_GET_TIMESLICE:
		memcpy(params, &us, sizeof(us));
		return answer_control(call, cmd, 0);
	case CGPU_NO_PIDS:
		return no_pids(call, cmd, params, size);
	case CGPU_NOT_THERE:
	case CGPU_PEERS:	/* one GPU */
		return answer_control(call, cmd, cgpu_call_not_there(cmd, params, size) ? 0 : NV_ERR_NOT_SUPPORTED);
	case CGPU_SHARE_POLICY:
		return cgpu_call_share_stays(word_at(params + AT(nv_share_policy, type)) & 0xffff) ?
			FORWARD : answer_control(call, cmd, 0);
	case CGPU_READ_THERMAL:
		return cgpu_call_thermal_reads(params, size) ? FORWARD :
			answer_control(call, cmd, NV_ERR_NOT_SUPPORTED);
	case CGPU_FORCE_CILP:
		cgpu_call_force_cilp(params);
		return FORWARD;
	default:
		return FORWARD;
	}
}

/* ---- the other calls ---- */

static int alloc(const struct call *call)
{
	uint32_t cls = word_at(call->arg + 12);
	const struct cgpu_class *row = cgpu_call_class(table_branch(), cls);

	if ((row && row->kind != CGPU_KIND_REFUSED) || in_list(allowed, allowed_count, cls) ||
	    in_list(empty, empty_count, cls))
		return FORWARD;
	if (!watching)
		set_status(call->arg, alloc_status_at(call->size), NV_ERR_INVALID_CLASS);
	return refuse("class", cls);
}

static int uvm(const struct call *call)
{
	const struct cgpu_uvm_call *row = cgpu_call_uvm(table_branch(), call->nr);
	uint32_t verdict = row ? row->verdict : CGPU_REFUSE;

	if (in_list(allowed, allowed_count, call->nr))
		return FORWARD;
	if (call->nr == UVM_INITIALIZE && !watching) {
		uint64_t flags = long_at(call->arg) | space_flags;

		memcpy(call->arg, &flags, sizeof(flags));
	}
	if ((verdict == CGPU_ANSWER_OK || verdict == CGPU_ANSWER_NOTHING) && !watching) {
		set_status(call->arg, row->status_at, verdict == CGPU_ANSWER_OK ? 0 : mm_status);
		return ANSWERED;
	}
	if (verdict != CGPU_REFUSE && (verdict != CGPU_UVM_MANAGED || managed))
		return FORWARD;
	return refuse("uvm", call->nr) == FORWARD ? FORWARD : -EINVAL;
}

int table_before(const struct call *call)
{
	const struct cgpu_escape *row;

	if (!on)
		return FORWARD;
	if (call->uvm)
		return uvm(call);
	row = cgpu_call_escape(table_branch(), call->nr, call->size, call->ctl ? CGPU_NODE_CTL : CGPU_NODE_GPU);
	if ((!row || row->verdict == CGPU_REFUSE) && !in_list(allowed, allowed_count, call->nr)) {
		if (refuse("escape", call->nr) != FORWARD)
			return -EINVAL;
	}
	if (call->nr == NV_ESC_RM_CONTROL && call->size >= 32)
		return control(call);
	return call->nr == NV_ESC_RM_ALLOC && call->size >= 32 ? alloc(call) : FORWARD;
}

/* ---- classes whose mappings show zeros ---- */

/* The module does not forward shared data at all; here the driver has the object, and its page is not seen. */
static bool shows_zeros(uint32_t cls)
{
	const struct cgpu_class *row = cgpu_call_class(table_branch(), cls);

	return in_list(empty, empty_count, cls) || (row && row->kind == CGPU_KIND_SHARED_DATA);
}

void table_after(const struct call *call)
{
	uint32_t client, handle;

	if (!on || watching || call->uvm)
		return;
	if (call->nr == NV_ESC_RM_ALLOC && call->size >= 32 && !word_at(call->arg + alloc_status_at(call->size)) &&
	    shows_zeros(word_at(call->arg + 12)) && empty_object_count < LIST_MAX) {
		empty_objects[empty_object_count].client = word_at(call->arg);
		empty_objects[empty_object_count++].handle = word_at(call->arg + 8);
	}
	if (call->nr != NV_ESC_RM_MAP_MEMORY || call->size < 56 || word_at(call->arg + 40))
		return;
	client = word_at(call->arg);
	handle = word_at(call->arg + 8);
	for (unsigned int i = 0; i < empty_object_count && empty_file_count < LIST_MAX; i++)
		if (empty_objects[i].client == client && empty_objects[i].handle == handle)
			empty_files[empty_file_count++] = word_at(call->arg + 48);
}

/* A mapping of such an object is taken once from its file. */
bool table_is_empty(int fd)
{
	for (unsigned int i = 0; i < empty_file_count; i++)
		if (empty_files[i] == fd) {
			empty_files[i] = empty_files[--empty_file_count];
			answer_note("zeros pid=%d\n", getpid());
			return true;
		}
	return false;
}
