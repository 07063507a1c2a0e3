/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * simgpu.ko: the kernel home of the simulated card. It makes the PCI device that NVIDIA's driver
 * binds, and runs the engines; the GSP itself (tests/simgpu/gsp) is linked into nvidia.ko and calls
 * the functions that are exported here.
 *
 * Lock order: RM's locks -> simgpu.lock -> engine.lock.
 */
#ifndef SIMGPU_H
#define SIMGPU_H

#include <linux/irq_work.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/types.h>

#include "engine/engine.h"
#include "gsp/chip.h"
#include "gsp/engine.h"
#include "gsp/host.h"

#define SIMGPU_CARDS 4
#define SIMGPU_COPIES 4			/* no chip has more with a runlist of their own */
#define SIMGPU_ENGINES (1 + SIMGPU_COPIES)	/* GR0, COPY0 to COPY3: those of the GSP's tables */
#define SIMGPU_REGS_BYTES (16u << 20)
#define SIMGPU_INST_BYTES (32u << 20)
#define SIMGPU_CONFIG_BYTES 4096

struct simgpu {
	struct gsp_card gsp;
	struct engine_card card;
	struct engine eng[SIMGPU_ENGINES];
	struct mutex lock;		/* tsgs and what hangs on them */
	struct list_head tsgs;		/* struct sim_tsg */
	/* pci.c */
	u8 config[SIMGPU_CONFIG_BYTES];
	struct pci_sysdata sysdata;
	struct pci_bus *bus;
	struct resource busn, window[3];
	int irq;
	struct irq_work line;		/* raises irq outside the engine's lock */
};

extern struct simgpu *simgpu_card[SIMGPU_CARDS];
extern struct engine_rules simgpu_rules;

/* pci.c */
int simgpu_pci_add(struct simgpu *g);
void simgpu_pci_remove(struct simgpu *g);

/* work.c */
void simgpu_engines_init(struct simgpu *g);
void simgpu_engines_exit(struct simgpu *g);

static inline struct simgpu *simgpu_of(struct gsp_card *card)
{
	return container_of(card, struct simgpu, gsp);
}

#endif
