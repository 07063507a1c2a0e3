// SPDX-License-Identifier: MIT
/* cuMemCreate and cuMemMap, with each type of handle. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ways.h"

#define PIECES	4

static cu_pointer reserve(size_t size)
{
	cu_pointer at;

	MUST(cuMemAddressReserve, &at, size, 0, 0, 0);
	return at;
}

static void map(cu_pointer at, cu_handle memory)
{
	MUST(cuMemMap, at, PIECE, 0, memory, 0);
	MUST(cuMemSetAccess, at, PIECE, &readwrite, 1);
}

static cu_handle create(int handle_types)
{
	struct cu_allocation wanted = pinned;
	cu_handle memory;

	wanted.handle_types = handle_types;
	MUST(cuMemCreate, &memory, PIECE, &wanted, 0);
	return memory;
}

static void unmap(cu_pointer at)
{
	MUST(cuMemUnmap, at, PIECE);
}

/* A range that grows to the limit. */
void map_none(void)
{
	cu_pointer at = reserve(PIECES * PIECE);
	cu_handle memory[PIECES], over;

	phase("before", 0);
	for (int i = 0; i < PIECES; i++) {
		memory[i] = create(CU_HANDLE_NONE);
		map(at + i * PIECE, memory[i]);
		put(at + i * PIECE, i);
	}
	phase("held", PIECES * PIECE);
	WANT(CU_OUT_OF_MEMORY, cuMemCreate, &over, total(), &pinned, 0);
	phase("over", PIECES * PIECE);
	for (int i = 0; i < PIECES; i++) {
		ways_must_hold("each piece holds its own", holds(at + i * PIECE, i));
		MUST(cuMemRelease, memory[i]);
	}
	phase("released, still mapped", PIECES * PIECE);
	for (int i = 0; i < PIECES; i++)
		unmap(at + i * PIECE);
	phase("after", 0);
	MUST(cuMemAddressFree, at, PIECES * PIECE);
}

/* A model that sleeps (vLLM, expandable segments of PyTorch): memory goes, addresses stay. */
void map_kept_address(void)
{
	cu_pointer at = reserve(PIECE);
	cu_handle memory;

	phase("before", 0);
	for (unsigned int round = 0; round < 3; round++) {
		memory = create(CU_HANDLE_NONE);
		map(at, memory);
		MUST(cuMemRelease, memory);
		put(at, round);
		phase("awake", PIECE);
		ways_must_hold("the memory holds what is written", holds(at, round));
		unmap(at);
		phase("asleep", 0);
	}
	WANT(CU_OUT_OF_MEMORY, cuMemCreate, &memory, total(), &pinned, 0);
	phase("over", 0);
	MUST(cuMemAddressFree, at, PIECE);
	phase("after", 0);
}

/* Another process imports: the memory is charged once, and for as long as one of both has it. */
void map_file(void)
{
	cu_pointer at = reserve(PIECE);
	int end, fd = -1;
	cu_handle memory;
	pid_t peer = start_peer("cuMemMap, file descriptor", &end);

	take_word(end, 'c');	/* it has a context */
	phase("before", 0);
	memory = create(CU_HANDLE_FD);
	map(at, memory);
	put(at, 61);
	MUST(cuMemExportToShareableHandle, &fd, memory, CU_HANDLE_FD, 0);
	phase("held", PIECE);
	send_file(end, fd);
	close(fd);
	take_word(end, 'm');
	phase("imported", PIECE);
	ways_must_hold("what the peer writes is seen", holds(at, 62));
	unmap(at);
	MUST(cuMemRelease, memory);
	phase("released by its owner", PIECE);
	send_word(end, 'g');
	take_word(end, 'r');
	phase("after", 0);
	send_word(end, 'e');
	wait_for_peer(peer);
	MUST(cuMemAddressFree, at, PIECE);
}

void map_file_peer(int parent)
{
	cu_pointer at = reserve(PIECE);
	cu_handle memory, over;
	int fd;

	send_word(parent, 'c');
	fd = take_file(parent);
	MUST(cuMemImportFromShareableHandle, &memory, (void *)(intptr_t)fd, CU_HANDLE_FD);
	close(fd);
	map(at, memory);
	ways_must_hold("what the owner writes is seen", holds(at, 61));
	put(at, 62);
	WANT(CU_OUT_OF_MEMORY, cuMemCreate, &over, total(), &pinned, 0);
	send_word(parent, 'm');
	take_word(parent, 'g');
	ways_must_hold("the memory outlives its owner's handle", holds(at, 62));
	unmap(at);
	MUST(cuMemRelease, memory);
	send_word(parent, 'r');
	take_word(parent, 'e');
	MUST(cuMemAddressFree, at, PIECE);
}

/* Handles that a card like this has not: refused as without cgpu, and nothing is charged for the attempt. */
void map_refused(void)
{
	struct cu_multicast group = { .devices = 1, .size = 2 * PIECE, .handle_types = CU_HANDLE_FD };
	struct cu_allocation wanted = pinned;
	cu_handle memory;
	cu_result result;
	int value;

	phase("before", 0);
	wanted.handle_types = CU_HANDLE_FABRIC;
	result = CALL(cuMemCreate, &memory, PIECE, &wanted, 0);
	tell("cuMemCreate of a fabric handle", result);
	if (!result)	/* 535 does not know the type, and makes a handle of none */
		MUST(cuMemRelease, memory);
	wanted.handle_types = CU_HANDLE_WIN32;
	tell("cuMemCreate of a Windows handle", CALL(cuMemCreate, &memory, PIECE, &wanted, 0));
	MUST(cuDeviceGetAttribute, &value, CU_MULTICAST_SUPPORTED, 0);
	tell("multicast supported", value);
	tell("cuMulticastCreate", CALL(cuMulticastCreate, &memory, &group));
	phase("refused", 0);
	memory = create(CU_HANDLE_NONE);
	phase("held", PIECE);
	MUST(cuMemRelease, memory);
	phase("after", 0);
}

/* Memory of the host costs the slice nothing. */
void map_host(void)
{
	struct cu_allocation wanted = { .type = CU_ALLOC_PINNED, .location = { CU_LOCATION_HOST_NUMA, 0 } };
	cu_pointer at = reserve(PIECE);
	cu_handle memory;

	phase("before", 0);
	MUST(cuMemCreate, &memory, PIECE, &wanted, 0);
	map(at, memory);
	put(at, 67);
	phase("held", 0);
	ways_must_hold("the memory holds what is written", holds(at, 67));
	unmap(at);
	MUST(cuMemRelease, memory);
	MUST(cuMemAddressFree, at, PIECE);
	phase("after", 0);
}
