/* SPDX-License-Identifier: MIT */
/* What the steps of the walk share. */
#ifndef WALK_H
#define WALK_H

#include <stdbool.h>

#include "calls.h"

#define KIB	1024ull
#define MIB	(1024ull * 1024)
#define GIB	(1024ull * MIB)
#define MISSING	(-1)		/* this libcuda has no such call */

/* What a step has at hand: a context of its own, current, and the kernels in it. */
struct walk {
	cu_device device;
	cu_context context;
	cu_module module;
	cu_function fill, wait;
	size_t total;
};

/* walk.c */
void *walk_symbol(const char *name);
/* Under "<step>/<name>"; of several the first that is not 0 stays. Returns it. */
cu_result walk_note(const char *name, cu_result result);
/* A claim about data: 0 where it holds, 1 where not. */
bool walk_check(const char *what, bool held);
/* A number that is no result, and may differ from card to card. */
void walk_seen(const char *name, double value);
void walk_seen_text(const char *name, const char *value);

/*
 * CALL makes one call and notes its result, AS under another name. RAW neither notes nor minds that it is missing:
 * for what is called very often.
 */
#define RAW(name, ...)								\
	({									\
		void *found_ = walk_symbol(#name);				\
		found_ ? ((name##_fn *)found_)(__VA_ARGS__) : MISSING;		\
	})
#define AS(label, name, ...) walk_note(label, RAW(name, ##__VA_ARGS__))
#define CALL(name, ...) AS(#name, name, ##__VA_ARGS__)

/* steps_*.c: a step goes on as far as it makes sense without what failed. */
void step_init(struct walk *w);
void step_context(struct walk *w);
void step_memory(struct walk *w);
void step_host(struct walk *w);
void step_module(struct walk *w);
void step_launch(struct walk *w);
void step_streams(struct walk *w);
void step_events(struct walk *w);
void step_graph(struct walk *w);
void step_graph_by_hand(struct walk *w);
void step_vmm(struct walk *w);
void step_export(struct walk *w);
void step_pools(struct walk *w);
void step_ipc(struct walk *w);
void step_managed(struct walk *w);
void step_over(struct walk *w);
void step_primary(struct walk *w);
void step_contexts(struct walk *w);
int ipc_child(void);

/* Bytes that tell where they belong. */
void pattern(void *at, size_t size, unsigned int seed);
bool same(const void *at, size_t size, unsigned int seed);

extern const char walk_ptx[];

#endif
