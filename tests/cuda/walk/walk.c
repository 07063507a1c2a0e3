// SPDX-License-Identifier: MIT
/*
 * walk [-v] [-1] [STEP...]: CUDA's driver interface from cuInit to the end, one context per step, each call's result by
 * name as one object of JSON. -1: one context for all steps, which keeps a recording short.
 *
 *   {"results": {"memory/cuMemAlloc_v2": 0, ...}, "seen": {"init/total_mib": 6043, ...}, "stalled": null}
 *
 * It looks at results, at memory that was copied and at times, never at what a kernel computes: a simulated GPU
 * executes none. The exit status is 0 where the walk came to its end, whatever the calls said.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "walk.h"

#define MAX_NOTES	640
#define NAME_SIZE	80
/* An emulated machine on a busy host takes a minute for one step; WALK_STALL_S has the limit on a card. */
#define STALL_S		300

struct note {
	char name[NAME_SIZE];
	cu_result result;
};

struct seen {
	char name[NAME_SIZE], text[NAME_SIZE];
	double value;
};

static struct note notes[MAX_NOTES];
static struct seen sights[MAX_NOTES];
static unsigned int note_count, sight_count;
static const char *step_name = "";
static void *library;
static bool verbose, one_context;

const char walk_ptx[] =
	".version 6.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .global .align 4 .b8 word[4096];\n"
	".visible .entry fill(.param .u64 at, .param .u32 count)\n"
	"{\n"
	"	.reg .pred %p;\n"
	"	.reg .u32 %r<6>;\n"
	"	.reg .u64 %rd<4>;\n"
	"	ld.param.u64 %rd1, [at];\n"
	"	ld.param.u32 %r1, [count];\n"
	"	mov.u32 %r2, %ctaid.x;\n"
	"	mov.u32 %r3, %ntid.x;\n"
	"	mov.u32 %r4, %tid.x;\n"
	"	mad.lo.u32 %r5, %r2, %r3, %r4;\n"
	"	setp.ge.u32 %p, %r5, %r1;\n"
	"	@%p bra DONE;\n"
	"	mul.wide.u32 %rd2, %r5, 4;\n"
	"	add.u64 %rd3, %rd1, %rd2;\n"
	"	st.global.u32 [%rd3], %r5;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n"
	".visible .entry wait()\n"
	"{\n"
	"	.shared .align 4 .b8 held[8192];\n"
	"	.reg .u32 %r<2>;\n"
	"	mov.u32 %r1, 0;\n"
	"	st.shared.u32 [held], %r1;\n"
	"	bar.sync 0;\n"
	"	ret;\n"
	"}\n";

static const struct {
	const char *name;
	void (*run)(struct walk *w);
	bool alone;	/* without a context of the walk's */
} steps[] = {
	{ "init", step_init, true },
	{ "context", step_context, false },
	{ "memory", step_memory, false },
	{ "host", step_host, false },
	{ "module", step_module, false },
	{ "launch", step_launch, false },
	{ "streams", step_streams, false },
	{ "events", step_events, false },
	{ "graph", step_graph, false },
	{ "graph-by-hand", step_graph_by_hand, false },
	{ "vmm", step_vmm, false },
	{ "export", step_export, false },
	{ "pools", step_pools, false },
	{ "ipc", step_ipc, false },
	{ "managed", step_managed, false },
	{ "over", step_over, false },
	{ "primary", step_primary, true },
	{ "contexts", step_contexts, true },
};

#define STEPS (sizeof(steps) / sizeof(steps[0]))

void *walk_symbol(const char *name)
{
	if (verbose)
		fprintf(stderr, "walk: %s: %s\n", step_name, name);
	return dlsym(library, name);
}

cu_result walk_note(const char *name, cu_result result)
{
	char full[NAME_SIZE];

	snprintf(full, sizeof(full), "%s/%s", step_name, name);
	for (unsigned int i = 0; i < note_count; i++) {
		if (strcmp(notes[i].name, full))
			continue;
		if (!notes[i].result)
			notes[i].result = result;
		return result;
	}
	if (note_count == MAX_NOTES)
		abort();
	strcpy(notes[note_count].name, full);
	notes[note_count++].result = result;
	return result;
}

bool walk_check(const char *what, bool held)
{
	walk_note(what, !held);
	return held;
}

static struct seen *sight(const char *name)
{
	if (sight_count == MAX_NOTES)
		abort();
	snprintf(sights[sight_count].name, NAME_SIZE, "%s/%s", step_name, name);
	return &sights[sight_count++];
}

void walk_seen(const char *name, double value)
{
	sight(name)->value = value;
}

void walk_seen_text(const char *name, const char *value)
{
	snprintf(sight(name)->text, NAME_SIZE, "%s", value);
}

void pattern(void *at, size_t size, unsigned int seed)
{
	uint32_t *words = at;

	for (size_t i = 0; i < size / 4; i++)
		words[i] = (uint32_t)i * 2654435761u + seed;
}

bool same(const void *at, size_t size, unsigned int seed)
{
	const uint32_t *words = at;

	for (size_t i = 0; i < size / 4; i++)
		if (words[i] != (uint32_t)i * 2654435761u + seed)
			return false;
	return true;
}

static void print_all(bool stalled)
{
	printf("{\"results\": {");
	for (unsigned int i = 0; i < note_count; i++)
		printf("%s\"%s\": %d", i ? ", " : "", notes[i].name, notes[i].result);
	printf("}, \"seen\": {");
	for (unsigned int i = 0; i < sight_count; i++) {
		printf("%s\"%s\": ", i ? ", " : "", sights[i].name);
		if (sights[i].text[0])
			printf("\"%s\"", sights[i].text);
		else
			printf("%.9g", sights[i].value);
	}
	printf("}, \"stalled\": ");
	printf(stalled ? "\"%s\"}\n" : "null}\n", step_name);
	fflush(stdout);
}

/* A call does not come back: what is known so far is printed from here, for nothing else will. */
static void stalled(int signal)
{
	(void)signal;
	print_all(true);
	_exit(3);
}

static void begin(struct walk *w)
{
	if (CALL(cuCtxCreate_v2, &w->context, 0, w->device))
		return;
	if (CALL(cuModuleLoadData, &w->module, walk_ptx))
		return;
	CALL(cuModuleGetFunction, &w->fill, w->module, "fill");
	CALL(cuModuleGetFunction, &w->wait, w->module, "wait");
}

static void end(struct walk *w)
{
	if (w->context)
		CALL(cuCtxDestroy_v2, w->context);
	w->context = NULL;
	w->module = NULL;
	w->fill = w->wait = NULL;
}

static void run_step(struct walk *w, unsigned int n)
{
	const char *limit_s = getenv("WALK_STALL_S");

	step_name = steps[n].name;
	alarm(limit_s ? atoi(limit_s) : STALL_S);
	if (!steps[n].alone && !w->context)
		begin(w);
	if (steps[n].alone || w->wait)
		steps[n].run(w);
	if (!one_context)
		end(w);
	alarm(0);
}

static bool chosen(const char *name, char **names)
{
	if (!*names)
		return true;
	for (; *names; names++)
		if (!strcmp(*names, name))
			return true;
	return false;
}

int main(int argc, char **argv)
{
	struct walk w = { 0 };

	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "walk: %s\n", dlerror());
		return 1;
	}
	if (argc == 2 && !strcmp(argv[1], "--ipc-child"))
		return ipc_child();
	for (; argv[1] && argv[1][0] == '-'; argv++) {
		verbose |= !strcmp(argv[1], "-v");
		one_context |= !strcmp(argv[1], "-1");
	}
	signal(SIGALRM, stalled);
	run_step(&w, 0);
	for (unsigned int n = 1; n < STEPS; n++)
		if (w.total && chosen(steps[n].name, argv + 1))
			run_step(&w, n);
	end(&w);
	print_all(false);
	return 0;
}
