/* SPDX-License-Identifier: MIT */
/* Between the files of the user-space home of NVIDIA's resource manager (RM). */
#ifndef RM_HOME_H
#define RM_HOME_H

#define NVRM
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvtypes.h"
#include "nv-ioctl.h"
#include "nv.h"
#include "os-interface.h"

#include "../../simgpu/gsp/chip.h"

/* A simulated card with what RM's operating system layer keeps of it. */
struct home_card {
	struct gsp_card card;
	nv_state_t nv;
	NvU8 config[4096];		/* PCI configuration space */
	bool ready;			/* RmInitAdapter has succeeded */
};

/* An open file of a device node; 0 in @card is the control node. */
struct home_file {
	nv_file_private_t rm;
	struct home_card *card;
	bool open;
	/* what an mmap() of it would show, after NV_ESC_RM_MAP_MEMORY */
	unsigned char *map;
	uint64_t map_bytes;
};

#define FILES 4096

extern struct home_file files[FILES];
extern struct home_card *cards[GSP_CARDS];
extern unsigned int cards_nr;
extern nv_state_t control_nv;

/* os_device.c */
struct home_card *home_card_new(const char *chip);
bool home_card_start(struct home_card *h);
void home_card_stop(struct home_card *h);
int home_open(struct home_card *card);
void home_close(int fd);

/* os_memory.c: system memory that RM holds */
struct home_memory {
	uint64_t blocks, bytes;		/* by os_alloc_mem() */
	uint64_t pages;			/* by nv_alloc_pages() */
};

extern struct home_memory home_memory;

/* os_sync.c */
void home_run_work(void);

/* seen.c: what reached the GSP since the last time it was read */
struct home_seen {
	uint32_t card, request, client, parent, object, number, bytes, offset;
};

size_t home_seen_nr(void);
const struct home_seen *home_seen(void);
const unsigned char *home_seen_params(size_t *bytes);
void home_seen_clear(void);

/* stubs.c, generated: functions that nothing here implements, by name, if RM called them */
void home_stub(const char *name);
const char *const *home_stubs_called(unsigned int *nr);

/* A state that must not be: one line, and the process ends. */
void home_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
