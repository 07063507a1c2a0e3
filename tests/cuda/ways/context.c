// SPDX-License-Identifier: MIT
/* Parts of a GPU's multiprocessors, code that is loaded when it is used, and a process that is suspended. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ways.h"

#define SPLIT_SMS	8
#define MODULE_SIZE	(32 * MIB)

void green(void)
{
	struct cu_resource whole, part, rest;
	unsigned int groups = 1;
	cu_description description;
	cu_context context;
	cu_stream stream;
	cu_pointer at, over;
	uint64_t context_bytes;
	cu_green made;

	phase("before", 0);
	MUST(cuDeviceGetDevResource, 0, &whole, CU_RESOURCE_SM);
	MUST(cuDevSmResourceSplitByCount, &part, &groups, &whole, &rest, 0, SPLIT_SMS);
	ways_must_hold("the parts are as wanted", part.sms == SPLIT_SMS && rest.sms == whole.sms - SPLIT_SMS);
	MUST(cuDevResourceGenerateDesc, &description, &part, 1);
	MUST(cuGreenCtxCreate, &made, description, 0, CU_GREEN_DEFAULT_STREAM);
	MUST(cuCtxFromGreenCtx, &context, made);
	MUST(cuCtxPushCurrent_v2, context);
	MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	context_bytes = phase_any("made");
	ways_must_hold("a context of its own takes memory", context_bytes);
	MUST(cuMemAlloc_v2, &at, PIECE);
	put(at, 91);
	phase("held", context_bytes + PIECE);
	WANT(CU_OUT_OF_MEMORY, cuMemAlloc_v2, &over, total());
	phase("over", context_bytes + PIECE);
	ways_must_hold("the memory holds what is written", holds(at, 91));
	MUST(cuMemFree_v2, at);
	MUST(cuStreamDestroy_v2, stream);
	MUST(cuCtxPopCurrent_v2, &context);
	MUST(cuGreenCtxDestroy, made);
	phase("after", 0);
}

/* ---- modules ---- */

static const char ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .global .align 4 .b8 big[33554432];\n"
	".visible .entry touch()\n"
	"{\n"
	"	.reg .u32 %r<2>;\n"
	"	mov.u32 %r1, 0;\n"
	"	st.global.u32 [big], %r1;\n"
	"	ret;\n"
	"}\n";

static void load(int mode)
{
	cu_function function;
	cu_module module;
	cu_pointer at, filled;
	int loading;
	size_t size;

	MUST(cuModuleGetLoadingMode, &loading);
	ways_must_hold("modules are loaded as CUDA_MODULE_LOADING says", loading == mode);
	phase("before", 0);
	MUST(cuModuleLoadData, &module, ptx);
	phase("loaded", MODULE_SIZE);
	MUST(cuModuleGetFunction, &function, module, "touch");
	MUST(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	MUST(cuCtxSynchronize);
	MUST(cuModuleGetGlobal_v2, &at, &size, module, "big");
	put(at, 95);
	ways_must_hold("the variable holds what is written", holds(at, 95));
	phase("used", MODULE_SIZE);
	MUST(cuModuleUnload, module);
	phase("unloaded", 0);
	filled = fill_slice(&size);
	WANT(CU_OUT_OF_MEMORY, cuModuleLoadData, &module, ptx);
	phase("over", size);
	MUST(cuMemFree_v2, filled);
	MUST(cuModuleLoadData, &module, ptx);
	phase("again", MODULE_SIZE);
	MUST(cuModuleUnload, module);
	phase("after", 0);
}

void module_lazy(void)
{
	load(CU_LOADING_LAZY);
}

void module_eager(void)
{
	load(CU_LOADING_EAGER);
}

/* ---- cuda-checkpoint ---- */

/* NVIDIA's program of that name, from 550 on: it suspends a process, or resumes it. Its status. */
static int toggle(pid_t process)
{
	const char *utility = getenv("CUDA_CHECKPOINT");
	int status = -1;
	char number[16];
	pid_t child;

	ways_must_hold("CUDA_CHECKPOINT names the program", utility);
	snprintf(number, sizeof(number), "%d", process);
	fflush(stdout);
	child = fork();
	if (!child) {
		execl(utility, "cuda-checkpoint", "--toggle", "--pid", number, NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);
	return status;
}

pid_t start_tenant(const char *way, int *end)
{
	pid_t peer = start_peer(way, end);

	take_word(*end, 'c');
	phase("before", 0);
	send_word(*end, 'a');
	take_word(*end, 'd');
	phase("held", HELD);
	return peer;
}

void end_tenant(pid_t peer, int end)
{
	send_word(end, 'v');
	take_word(end, 'f');
	phase("after", 0);
	send_word(end, 'e');
	wait_for_peer(peer);
}

void checkpoint(void)
{
	int end;
	pid_t peer = start_tenant("cuda-checkpoint", &end);

	for (int round = 0; round < 2; round++) {
		ways_must_hold("the process is suspended", !toggle(peer));
		phase_without("suspended");
		ways_must_hold("the process is resumed", !toggle(peer));
		phase("resumed", HELD);
	}
	end_tenant(peer, end);
}

/*
 * Another process has taken the memory. With cgpu or without, libcuda 550 keeps a page of what it got, and does not resume
 * that process any more.
 */
void checkpoint_full(void)
{
	cu_context context;
	cu_pointer filled;
	uint64_t full;
	size_t size;
	int end;
	pid_t peer = start_tenant("cuda-checkpoint, slice full", &end);

	ways_must_hold("the process is suspended", !toggle(peer));
	phase_without("suspended");
	MUST(cuInit, 0);
	MUST(cuCtxCreate_v2, &context, 0, 0);
	filled = fill_slice(&size);
	put(filled, 97);
	full = phase_any("full");
	ways_must_hold("the process is not resumed where its memory does not fit", toggle(peer));
	ways_must_hold("a page at most is left of what was resumed", phase_any("refused") <= full + 2 * MIB);
	ways_must_hold("the other process keeps its memory", holds(filled, 97));
	MUST(cuMemFree_v2, filled);
	MUST(cuCtxDestroy_v2, context);
	tell("resuming it after that", toggle(peer));
	phase_any("not resumed");
	kill(peer, SIGKILL);
	waitpid(peer, NULL, 0);
	phase_without("killed");
}

/* The process that is suspended and resumed; it does nothing meanwhile. */
void checkpoint_peer(int parent)
{
	cu_context context;
	cu_pointer at[HELD / PIECE];

	MUST(cuInit, 0);
	MUST(cuCtxCreate_v2, &context, 0, 0);
	send_word(parent, 'c');
	take_word(parent, 'a');
	for (unsigned int i = 0; i < HELD / PIECE; i++) {
		MUST(cuMemAlloc_v2, &at[i], PIECE);
		put(at[i], i);
	}
	send_word(parent, 'd');
	take_word(parent, 'v');
	for (unsigned int i = 0; i < HELD / PIECE; i++) {
		ways_must_hold("each piece is back at its address", holds(at[i], i));
		MUST(cuMemFree_v2, at[i]);
	}
	send_word(parent, 'f');
	take_word(parent, 'e');
	MUST(cuCtxDestroy_v2, context);
}
