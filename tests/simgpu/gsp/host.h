/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the home of a simulated card gives it: memory, time, a lock, a log. There are two homes: a
 * user program (tests/rm) and a kernel module beside NVIDIA's. Includes nothing of either, and
 * nothing of NVIDIA's, so that both sides can include it.
 */
#ifndef GSP_HOST_H
#define GSP_HOST_H

#define GSP_CARDS 8
#define GSP_PEERS 8			/* numbers that a page-table entry can hold */

typedef unsigned int gsp_u32;
typedef unsigned long long gsp_u64;

struct gsp_chip;
struct gsp_calls;

/*
 * A card. The home fills in the first part and never moves it; gsp_card_reset() does the rest
 * before the resource manager (RM) sees the card.
 */
struct gsp_card {
	const struct gsp_chip *chip;
	unsigned int index;
	gsp_u64 bar0;			/* bus address; RM names a card by it */
	gsp_u64 bar1, bar1_bytes;	/* bus address; shows video memory one to one */
	gsp_u64 bar2;
	volatile gsp_u32 *regs;		/* 16 MiB of RAM behind BAR0 */
	unsigned char *fb;		/* video memory */
	gsp_u64 fb_bytes;

	/* of the card itself */
	gsp_u32 bar0_window;		/* PBUS_BAR0_WINDOW: what PRAMIN shows */
	void *gpu;			/* struct OBJGPU, from the start of the GSP on */
	void *message;			/* a request that came in pieces, and its answer */
	gsp_u32 message_bytes, message_at;
	gsp_u32 unknown[64], unknown_count;	/* controls that were refused, each once */
	void *engine;
	const struct gsp_calls *calls;	/* into RM: engine.h */
	/* By the number that page tables name it with. RM writes, the engine reads in any context. */
	struct gsp_card *volatile peers[GSP_PEERS];
};

/* What came to the GSP, in the order of arrival. Called with RM's locks held. */
enum gsp_request { GSP_CONTROL, GSP_ALLOC, GSP_FREE, GSP_OTHER };

struct gsp_seen {
	enum gsp_request request;
	gsp_u32 client, parent, object;
	gsp_u32 number;			/* control, class, or function of the RPC */
	gsp_u32 bytes;
	const void *params;
};

/* ---- given by the home ---- */

/* The card whose BAR0 has this bus address, or NULL. */
struct gsp_card *gsp_host_card(gsp_u64 bar0);
/* CPU address of system memory that RM has given the GPU by bus address. */
void *gsp_host_sysmem(gsp_u64 address, gsp_u64 bytes);
/* GPU time: monotonic, in ns. */
gsp_u64 gsp_host_now_ns(void);
/* Zeroed memory, or NULL. May sleep. */
void *gsp_host_alloc(gsp_u64 bytes);
void gsp_host_free(void *memory);
void gsp_host_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
void gsp_host_seen(struct gsp_card *card, const struct gsp_seen *seen);
/* Raises the card's interrupt line. Any context. */
void gsp_host_interrupt(struct gsp_card *card);

/* ---- given by the card ---- */

/* Registers and state as after power on. */
void gsp_card_reset(struct gsp_card *card);
const struct gsp_chip *gsp_chip_by_name(const char *name);

#endif
