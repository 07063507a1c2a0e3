/* SPDX-License-Identifier: MIT */
/* What the ways share: calls that must succeed, phases at which the charge is read, memory that holds a pattern. */
#ifndef WAYS_H
#define WAYS_H

#include <stdbool.h>
#include <sys/types.h>

#include "../walk/calls.h"

#define MIB			(1024ull * 1024)
#define PIECE			(16 * MIB)
#define LEFT_OVER		(4 * MIB)	/* less than any way takes at once */

#define CU_HANDLE_NONE		0
#define CU_HANDLE_WIN32		2
#define CU_HANDLE_FABRIC	8
#define CU_LOCATION_HOST_NUMA	3
#define CU_GRAPH_MEMORY_RESERVED 2
#define CU_POOL_THRESHOLD	4
#define CU_MULTICAST_SUPPORTED	132
#define CU_RESOURCE_SM		1
#define CU_GREEN_DEFAULT_STREAM	1
#define CU_LOADING_EAGER	1
#define CU_LOADING_LAZY		2
#define CU_DECOMPRESS_ALGORITHMS 136
#define CU_DEFLATE		1
#define CU_PROCESS_RUNS		0
#define CU_PROCESS_LOCKED	1
#define CU_PROCESS_SUSPENDED	2
#define HELD			(4 * PIECE)	/* by a process that is suspended */

typedef struct cu_green_st *cu_green;
typedef struct cu_description_st *cu_description;

struct cu_allocation_node {
	struct cu_pool_properties pool;
	const struct cu_access *access;
	size_t accesses, size;
	cu_pointer at;
};

struct cu_pool_pointer {
	unsigned char reserved[64];
};

struct cu_multicast {
	unsigned int devices;
	size_t size;
	unsigned long long handle_types, flags;
};

struct cu_resource {
	int type;
	unsigned char padding[92];
	union {
		unsigned int sms;
		unsigned char room[48];
	};
};

struct cu_decompression {
	size_t size, wanted;
	cu_pointer count, from, to;
	int algorithm;
	unsigned char padding[20];
};

#define WAYS_CALLS(X)										\
	X(cuDeviceGetGraphMemAttribute, cu_device, int, void *)					\
	X(cuDeviceGraphMemTrim, cu_device)							\
	X(cuGraphAddMemAllocNode, cu_node *, cu_graph, const cu_node *, size_t, struct cu_allocation_node *) \
	X(cuGraphAddMemFreeNode, cu_node *, cu_graph, const cu_node *, size_t, cu_pointer)	\
	X(cuMemPoolSetAttribute, cu_pool, int, void *)						\
	X(cuMemPoolSetAccess, cu_pool, const struct cu_access *, size_t)			\
	X(cuMemPoolExportToShareableHandle, void *, cu_pool, int, unsigned long long)		\
	X(cuMemPoolImportFromShareableHandle, cu_pool *, void *, int, unsigned long long)	\
	X(cuMemPoolExportPointer, struct cu_pool_pointer *, cu_pointer)				\
	X(cuMemPoolImportPointer, cu_pointer *, cu_pool, struct cu_pool_pointer *)		\
	X(cuMulticastCreate, cu_handle *, const struct cu_multicast *)				\
	X(cuDeviceGetDevResource, cu_device, struct cu_resource *, int)				\
	X(cuDevSmResourceSplitByCount, struct cu_resource *, unsigned int *, const struct cu_resource *, \
	  struct cu_resource *, unsigned int, unsigned int)					\
	X(cuDevResourceGenerateDesc, cu_description *, struct cu_resource *, unsigned int)	\
	X(cuGreenCtxCreate, cu_green *, cu_description, cu_device, unsigned int)		\
	X(cuCtxFromGreenCtx, cu_context *, cu_green)						\
	X(cuGreenCtxDestroy, cu_green)								\
	X(cuModuleGetLoadingMode, int *)							\
	X(cuMemBatchDecompressAsync, struct cu_decompression *, size_t, unsigned int, size_t *, cu_stream) \
	X(cuCheckpointProcessLock, int, void *)							\
	X(cuCheckpointProcessCheckpoint, int, void *)						\
	X(cuCheckpointProcessRestore, int, void *)						\
	X(cuCheckpointProcessUnlock, int, void *)						\
	X(cuCheckpointProcessGetState, int, int *)

#define WAYS_TYPE(name, ...) typedef cu_result name##_fn(__VA_ARGS__);
WAYS_CALLS(WAYS_TYPE)
#undef WAYS_TYPE

/* ---- ways.c ---- */

/* The call itself. A libcuda without it ends the program: {"missing": NAME}, exit status 4. */
void *ways_symbol(const char *name);
/* Ends the program with {"failed": WHAT} and exit status 1 if a result is not the wanted one. */
void ways_want(const char *name, cu_result got, cu_result wanted);
void ways_must_hold(const char *what, bool held);

#define CALL(name, ...) (((name##_fn *)ways_symbol(#name))(__VA_ARGS__))
#define WANT(wanted, name, ...) ways_want(#name, CALL(name, ##__VA_ARGS__), wanted)
#define MUST(name, ...) WANT(0, name, ##__VA_ARGS__)

/*
 * Prints {"phase": NAME, "bytes": BYTES} and waits for a line, which says how much is charged: BYTES must be by how much
 * that exceeds the charge of the first phase. Returns the excess. A peer's phases are not printed.
 */
uint64_t phase(const char *name, uint64_t bytes);
/* The same without a claim: {"phase": NAME}. */
uint64_t phase_any(const char *name);
/* The same where nothing at all may be charged, not even what was in the first phase: "bytes" is null. */
void phase_without(const char *name);
/* A result that is to be the same without cgpu: {"result": NAME, "is": N}. */
void tell(const char *name, long long is);

/* The memory of the slice as CUDA reports it, in whole pages of 2 MiB: with a context in it, more than is left. */
size_t total(void);
/* Writes PIECE bytes that tell where they belong, and whether they are there. */
void put(cu_pointer at, unsigned int seed);
bool holds(cu_pointer at, unsigned int seed);
/* Takes all of the slice but LEFT_OVER bytes; *size is what it took. */
cu_pointer fill_slice(size_t *size);

/*
 * The same program again, as the peer of this way: libcuda does not survive a fork. *end is this end of a socket between
 * both.
 */
pid_t start_peer(const char *way, int *end);
void wait_for_peer(pid_t peer);
void send_word(int to, char word);
void take_word(int from, char word);
void send_bytes(int to, const void *bytes, size_t size);
void take_bytes(int from, void *bytes, size_t size);
void send_file(int to, int fd);
int take_file(int from);

/* A process that holds HELD bytes of the GPU and waits; its end, after it has compared them. */
pid_t start_tenant(const char *way, int *end);
void end_tenant(pid_t peer, int end);

extern const struct cu_allocation pinned;
extern const struct cu_access readwrite;

/* ---- the ways: with a context, or none; what the peer does; what there is to do before cuInit ---- */

void graph_memory(void);
void graph_capture(void);
void map_none(void);
void map_kept_address(void);
void map_file(void);
void map_file_peer(int parent);
void map_refused(void);
void map_host(void);
void pool(void);
void pool_ipc(void);
void pool_ipc_peer(int parent);
void green(void);
void module_lazy(void);
void module_eager(void);
void checkpoint(void);
void checkpoint_peer(int parent);
void checkpoint_full(void);
void checkpoint_calls(void);
void decompress(void);

#endif
