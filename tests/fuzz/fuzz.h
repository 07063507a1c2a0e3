/* SPDX-License-Identifier: MIT */
/*
 * abifuzz: calls of the driver's ABI, well formed and not, from many threads
 * and processes at once. The calls come from the module's own call table. Each
 * thread keeps its objects in a model, so that most calls name real objects and
 * have one or two wrong words.
 *
 * main.c      options, processes, quiet points, the report
 * worker.c    a thread's life: steps, children, the disturbing thread
 * grammar.c   the rows of the call table for this driver
 * call.c      one call: laid out where it can be disturbed, issued, counted
 * mutate.c    mutations of a call
 * ops_*.c     operations of a step
 * coverage.c  which instructions of the module were reached
 * guide.c     chance, and steps that reached something new, played again with changes
 * rewrite.c   another use of the grammar: rewrite each word in flight
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "guide.h"
#include "nv_call.h"
#include "nv_table.h"
#include "rm.h"

#define MAX_PROCESSES	8
#define MAX_THREADS	8
#define MAX_SEATS	160
#define MAX_ROWS	640
#define MAX_WRONG	12
#define MODULE_MAX	(4u << 20)	/* bytes of the module's text */
#define EDGES		(1u << 20)	/* of a hash of two addresses */
#define SAMPLES		240
#define FIRST_KEPT_FD	900	/* numbers that no thread closes or replaces */

/* ---- the rows ---- */

enum row_kind { ROW_ESCAPE, ROW_CONTROL, ROW_CLASS, ROW_UVM, ROW_KINDS };

struct row {
	enum row_kind kind;
	uint32_t number, size, verdict, status_at, nodes, fd_at, fd_kind;
	bool copied_in;
	const char *name;
};

extern struct row rows[MAX_ROWS];
extern int row_count;

void grammar_load(const char *driver_version);
int row_find(enum row_kind kind, uint32_t number, uint32_t size);	/* -1: none; size 0: any */
int row_pick(struct rng *r, enum row_kind kind, bool refused_too);

/* ---- shared by all processes ---- */

enum count {
	COUNT_CALLS, COUNT_MUTATED, COUNT_ALLOCS, COUNT_MAPS, COUNT_GPU_MAPS, COUNT_CHANNELS,
	COUNT_WORKS, COUNT_DUPS, COUNT_EXPORTS, COUNT_IMPORTS, COUNT_FREES, COUNT_FORKS,
	COUNT_KILLS, COUNT_DISTURBED, COUNT_FILES, COUNT_CLOSED, COUNTS
};
extern const char *const count_names[COUNTS];

enum seat_state { SEAT_FREE, SEAT_RUNS, SEAT_PAUSED };

struct seat {
	atomic_int state;
	atomic_int pid;
	atomic_ulong step;
	atomic_int row;		/* of the call it is in, -1: none */
};

struct shared {
	atomic_bool pause, stop;
	struct seat seat[MAX_SEATS];
	atomic_ulong count[COUNTS];
	atomic_ulong hit[MAX_ROWS][3];	/* answered with success, with a status, failed */
	atomic_ulong names[256];	/* client << 32 | handle, of any process */
	atomic_uint next_name;
	atomic_ushort reached[MODULE_MAX];	/* by offset from options.module_begin: the edges to it */
	atomic_uchar edge[EDGES];
	atomic_uint addresses, edges;	/* how many of either were reached */
	struct corpus corpus;
};
extern struct shared *shared;

static inline void count_one(enum count c)
{
	atomic_fetch_add_explicit(&shared->count[c], 1, memory_order_relaxed);
}

struct options {
	const char *dir, *wrong_dir[4], *log;
	int wrong_dirs;
	uint64_t seed, steps;
	double seconds, quiet_s;
	int processes, threads, only_process, only_thread;
	bool rewrite, disturb, forks, contexts, guided;
	const char *corpus;	/* a file */
	uint64_t module_begin, module_end;	/* addresses of the module's text; 0, 0: no coverage */
};
extern struct options opt;

/* Facts found before the start. */
struct card {
	uint32_t minor, device_instance, sub_device_instance;
	uint8_t uuid[16];
	const struct rm_arch *arch;
};
extern struct card card;
extern int wrong_fd[MAX_WRONG];	/* real ones that are none of this container's, and of other kinds */
extern int wrong_fds;

/* Take what the calling thread has reached since the last time, if coverage is wanted and the kernel has it.
 * True: some of it was reached by no thread before.
 */
bool coverage_collect(void);
/* For "over_time" of the report; kept are as many as are spread over the run. */
void coverage_sample(double seconds);
/* The members of the report: addresses with how many edges lead there, and how many there were at which time. */
void coverage_report(void);

/* ---- a thread's model ---- */

enum object_kind {
	OBJ_CLIENT, OBJ_DEVICE, OBJ_SUBDEVICE, OBJ_VASPACE, OBJ_VIDMEM, OBJ_SYSMEM, OBJ_TSG,
	OBJ_CHANNEL, OBJ_ENGINE, OBJ_USERMODE, OBJ_OTHER, OBJ_KINDS
};

struct object {
	enum object_kind kind;
	int ctl;
	uint32_t client, parent, handle;
	uint64_t size, va;
};

enum file_kind { FILE_CTL, FILE_GPU, FILE_UVM };

struct file {
	enum file_kind kind;
	int fd;
};

struct mapping {
	void *at;
	size_t length;
};

struct ring {		/* a channel that can be given work */
	struct object channel;
	char *cpu;
	uint64_t va;
	volatile uint32_t *doorbell;
	uint32_t token, queued;
};

#define MAX_OBJECTS	160
#define MAX_FILES	48
#define MAX_MAPPINGS	24
#define MAX_RANGES	24
#define MAX_RINGS	4

#define ARENA_TOP	0
#define ARENA_XFER	0x10000
#define ARENA_NESTED	0x11000
#define ARENA_SIZE	0x31000
#define NESTED_MAX	0x18000

/*
 * One memory mapped three times: ours to write, the driver's that may vanish, and one it cannot
 * write.
 */
struct arena {
	char *ours, *given, *frozen;
	int memfd;
};

struct thread {
	int process, number, generation;
	uint64_t step;
	struct rng rng;
	struct guide guide;
	struct seat *seat;
	struct arena arena;
	struct process *home;
	int mutate_percent;
	bool calm;		/* the base of an epoch is made without faults */
	pid_t child;
	struct seat *child_seat;
	int log;
	uint32_t next_handle;
	uint64_t next_va;
	struct object object[MAX_OBJECTS];
	int objects;
	struct file file[MAX_FILES];
	int files;
	struct mapping mapping[MAX_MAPPINGS];
	int mappings;
	void *building;		/* mapped for a ring that is no ring yet */
	struct { int uvm; uint64_t base, length; } range[MAX_RANGES];
	int ranges;
	struct ring ring[MAX_RINGS];
	int rings;
	struct { uint32_t client, handle; } stale[16];
	int stales;
};

struct process {
	int number, generation;
	struct thread *thread[MAX_THREADS];
};

/* ---- one call ---- */

struct call {
	int fd;
	unsigned long request;
	int row, inner;			/* of the node's call; of the control or class, -1 */
	uint32_t top_size, nested_size;
	int status_at, pointer_at, size_at;	/* -1: none */
	int list_at[2];			/* in nested: pointers to lists, -1 */
	int fd_at;			/* -1: none */
	bool fd_nested;
	int handle_at[5];		/* in top, -1 ends */
	uint64_t top[9344 / 8];
	uint8_t *nested;		/* NESTED_MAX bytes of the thread's */
	/* mutated: */
	bool xfer, top_frozen, nested_frozen;
	uint64_t pointer;		/* instead of where nested is; valid if pointer_set */
	bool pointer_set;
	const char *wrong[3];
	int wrongs;
};

struct call *call_begin(struct thread *t, int fd, enum row_kind kind, uint32_t number, uint32_t size);
/* 0: done with status NV_OK. The structs as the driver left them are in call->top and ->nested. */
int call_issue(struct thread *t, struct call *c);
void call_mutate(struct thread *t, struct call *c);
bool arena_make(struct arena *a);

static inline void set32(struct call *c, int at, uint32_t value)
{
	memcpy((char *)c->top + at, &value, 4);
}
static inline void set64(struct call *c, int at, uint64_t value)
{
	memcpy((char *)c->top + at, &value, 8);
}
static inline uint32_t top32(const struct call *c, int at)
{
	uint32_t value;

	memcpy(&value, (const char *)c->top + at, 4);
	return value;
}

/* ---- the model's own calls ---- */

uint32_t new_handle(struct thread *t);
uint64_t some_size(struct thread *t);
struct object *object_pick(struct thread *t, enum object_kind kind);
struct object *object_any(struct thread *t);
struct object *object_add(struct thread *t, const struct object *o);
void object_forget(struct thread *t, struct object *o);
int file_pick(struct thread *t, enum file_kind kind);
int file_open(struct thread *t, enum file_kind kind);
void file_close(struct thread *t, int fd);
void mapping_add(struct thread *t, void *at, size_t length);
void *map_cpu(struct thread *t, const struct object *memory, uint32_t device, uint64_t length, bool system);

/* NULL or the new object, filed in the model. */
struct object *alloc_object(struct thread *t, const struct object *client, uint32_t parent,
			    uint32_t class_id, enum object_kind kind, const void *params,
			    uint32_t size);
int control(struct thread *t, const struct object *o, uint32_t cmd, void *params, uint32_t size);
struct object *alloc_vidmem(struct thread *t, uint64_t size);
struct object *alloc_sysmem(struct thread *t, uint64_t size);
void free_object(struct thread *t, struct object *o);
uint64_t map_gpu(struct thread *t, const struct object *memory, uint64_t length);
int register_fd(struct thread *t, int gpu, int ctl);

void escape_row(struct thread *t, const struct row *row);
void uvm_row(struct thread *t, const struct row *row);
void make_base(struct thread *t);
void drop_all(struct thread *t);

struct op {
	const char *name;
	int weight;
	void (*run)(struct thread *t);
};
extern const struct op ops_rm[], ops_call[], ops_context[], ops_uvm[], ops_file[];	/* a NULL name ends */

/* worker.c */
int worker_main(int process, int generation);
struct seat *seat_take(pid_t pid);
void seat_leave(pid_t pid);
void thread_step(struct thread *t);
struct thread *make_thread(struct process *p, int number);
void thread_log(struct thread *t, const char *form, ...) __attribute__((format(printf, 2, 3)));
void op_fork(struct thread *t);
void child_end(struct thread *t);

/* rewrite.c */
int rewrite_main(void);
int rewrite_ioctl(struct call *c, const struct arena *a);
extern uint32_t rewritten[MAX_ROWS];	/* distinct words, in the row's own argument or parameters */
extern uint32_t rewritable[MAX_ROWS];
void quiet_point(void);
void report(void);

#endif
