/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Between the GSP and what executes work: the engine's side of a channel. The engine finds work by
 * GP_PUT in USERD; RM's doorbell is a plain store that no simulated register sees.
 *
 * Calls from the GSP come with RM's locks held, and may sleep; the engine has its own lock.
 */
#ifndef GSP_ENGINE_H
#define GSP_ENGINE_H

#include "host.h"

enum gsp_space { GSP_FB, GSP_SYSMEM, GSP_PEER };

struct gsp_phys {
	enum gsp_space space;
	gsp_u64 address;
	gsp_u32 peer;			/* of GSP_PEER: its number */
};

struct gsp_channel {
	gsp_u32 client, parent, handle;	/* parent: its TSG, or the device */
	gsp_u32 class, engine;		/* NV2080_ENGINE_TYPE_* as RM numbers them */
	gsp_u32 id;			/* on its runlist */
	int privileged;			/* of RM itself or UVM: may use physical addresses */
	gsp_u64 gpfifo;			/* GPU address */
	gsp_u32 entries;
	struct gsp_phys userd, instance;
};

/* ---- given by the engine ---- */

void gsp_engine_start(struct gsp_card *card);
void gsp_engine_stop(struct gsp_card *card);
/* False: no memory. */
int gsp_engine_channel(struct gsp_card *card, const struct gsp_channel *channel);
/* @object: a channel, a TSG, or a client with all it has. */
void gsp_engine_free(struct gsp_card *card, gsp_u32 client, gsp_u32 object);
/* @object: a channel or a TSG. */
void gsp_engine_schedule(struct gsp_card *card, gsp_u32 client, gsp_u32 object, int on);
void gsp_engine_disable(struct gsp_card *card, gsp_u32 client, gsp_u32 channel, int off);
void gsp_engine_timeslice(struct gsp_card *card, gsp_u32 client, gsp_u32 tsg, gsp_u64 us);
void gsp_engine_preempt(struct gsp_card *card, gsp_u32 client, gsp_u32 object);
void gsp_engine_restart(struct gsp_card *card, gsp_u32 client, gsp_u32 channel);
/* Executes what is due. */
void gsp_engine_poll(struct gsp_card *card);

/* ---- given by the card, for the engine ---- */

/*
 * The page directory of a channel's address space, from RM's own object: false until the channel is
 * complete. The first call for a channel with RM's locks held; @space keeps the object. In
 * gsp_card.calls, for an engine that is not linked with RM.
 */
struct gsp_calls {
	int (*space)(struct gsp_card *card, gsp_u32 client, gsp_u32 channel, void **space);
	int (*directory)(struct gsp_card *card, void *space, struct gsp_phys *directory);
};

/* interrupts.c, which needs nothing of RM: */
/* A vector of the first leaf, by the table of tables.c, is pending. Any context. */
void gsp_interrupt(struct gsp_card *card, gsp_u32 vector);
/* RM's access to a register of the tree; false: it is none. */
int gsp_interrupt_load(struct gsp_card *card, gsp_u32 reg, gsp_u32 *value);
int gsp_interrupt_store(struct gsp_card *card, gsp_u32 reg, gsp_u32 value);
/* Of GR0 and the copy engines: what clients wait for; as in the table of tables.c. */
enum { GSP_VECTOR_GR0, GSP_VECTOR_COPY0 };

/* walk.c, which needs nothing of RM: */
/* Physical address of @va and the bytes to the end of its page; false: not mapped. */
int gsp_walk(struct gsp_card *card, struct gsp_phys directory, gsp_u64 va, struct gsp_phys *phys,
	     gsp_u64 *left);
/* CPU address of @bytes of video memory, or NULL where the card has less. */
void *gsp_fb(struct gsp_card *card, gsp_u64 address, gsp_u64 bytes);
/* CPU address, or NULL. */
void *gsp_cpu(struct gsp_card *card, struct gsp_phys phys, gsp_u64 bytes);

#endif
