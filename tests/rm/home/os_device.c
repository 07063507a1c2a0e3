// SPDX-License-Identifier: MIT
/* RM's operating system layer: the cards, their PCI space, device nodes and who calls. */
#include "home.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bus addresses, which are also where the memory is mapped; a card each 256 GiB. */
#define BARS 0x10000000000ull
#define STRIDE 0x4000000000ull
#define BAR1_OFFSET 0x1000000000ull
#define BAR2_OFFSET 0x800000000ull
#define BAR0_BYTES (16ull << 20)
#define BAR2_BYTES (32ull << 20)

struct home_card *cards[GSP_CARDS];
unsigned int cards_nr;
nv_state_t control_nv;
struct home_file files[FILES];

NvBool os_dma_buf_enabled;
NvBool os_imex_channel_is_supported;
NvBool os_cc_enabled, os_cc_tdx_enabled, os_cc_sev_snp_enabled, os_cc_snp_vtom_enabled, os_cc_sme_enabled;
nv_cap_t *nvidia_caps_root;
nv_parm_t nv_parms[] = { { NULL, NULL } };

static void map(NvU64 address, NvU64 bytes)
{
	if (mmap((void *)address, bytes, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
		home_die("no memory for a card at %llx", (unsigned long long)address);
}

static void config32(struct home_card *h, unsigned int at, NvU32 value)
{
	memcpy(h->config + at, &value, 4);
}

static NvU64 power_of_two(NvU64 bytes)
{
	NvU64 n = 1;

	while (n < bytes)
		n <<= 1;
	return n;
}

static void aperture(nv_aperture_t *a, NvU64 address, NvU64 bytes)
{
	a->cpu_address = address;
	a->size = bytes;
}

/* A display controller with a PCIe capability, and nothing else that RM would look for. */
static void configure(struct home_card *h)
{
	config32(h, 0x00, h->card.chip->device_id);
	config32(h, 0x04, 0x00100007);
	config32(h, 0x08, 0x030200a1);
	config32(h, 0x10, (NvU32)h->card.bar0);
	config32(h, 0x2c, h->card.chip->subsystem_id);
	config32(h, 0x34, 0x60);
	config32(h, 0x60, 0x00020010);
}

static void describe(struct home_card *h)
{
	nv_state_t *nv = &h->nv;

	nv->pci_info.bus = (NvU8)(h->card.index + 1);
	nv->pci_info.vendor_id = (NvU16)h->card.chip->device_id;
	nv->pci_info.device_id = (NvU16)(h->card.chip->device_id >> 16);
	nv->subsystem_vendor = (NvU16)h->card.chip->subsystem_id;
	nv->subsystem_id = (NvU16)(h->card.chip->subsystem_id >> 16);
	nv->handle = h->config;
	aperture(&nv->bars[0], h->card.bar0, BAR0_BYTES);
	aperture(&nv->bars[1], h->card.bar1, h->card.bar1_bytes);
	aperture(&nv->bars[2], h->card.bar2, BAR2_BYTES);
	nv->regs = &nv->bars[0];
	nv->fb = &nv->bars[1];
	nv->os_state = nv;
#if RM_BRANCH >= 550
	nv->cpu_numa_node_id = -1;
#endif
}

struct home_card *home_card_new(const char *chip)
{
	struct home_card *h = calloc(1, sizeof(*h));
	struct gsp_card *c;

	if (!h || cards_nr == GSP_CARDS)
		home_die("no room for another card");
	c = &h->card;
	c->chip = gsp_chip_by_name(chip);
	if (!c->chip)
		home_die("there is no chip %s", chip);
	c->index = cards_nr;
	c->bar0 = BARS + STRIDE * c->index;
	c->bar1 = c->bar0 + BAR1_OFFSET;
	c->bar2 = c->bar0 + BAR2_OFFSET;
	c->fb_bytes = (NvU64)c->chip->fb_mib << 20;
	c->bar1_bytes = power_of_two(c->fb_bytes);
	map(c->bar0, BAR0_BYTES);
	map(c->bar1, c->bar1_bytes);
	map(c->bar2, BAR2_BYTES);
	c->regs = (void *)c->bar0;
	c->fb = (void *)c->bar1;
	configure(h);
	describe(h);
	cards[cards_nr++] = h;
	return h;
}

/* As nv_pci_probe() and the first open of the device node do. */
bool home_card_start(struct home_card *h)
{
	nv_state_t *nv = &h->nv;

	gsp_card_reset(&h->card);
	if (!nv->priv && (!rm_init_private_state(NULL, nv) || !rm_init_event_locks(NULL, nv)))
		return false;
	rm_set_rm_firmware_requested(NULL, nv);
	nv->allow_fallback_to_monolithic_rm = NV_FALSE;
	nv->flags |= NV_FLAG_OPEN;
	h->ready = rm_init_adapter(NULL, nv);
	home_run_work();
	return h->ready;
}

void home_card_stop(struct home_card *h)
{
	home_run_work();
	rm_disable_adapter(NULL, &h->nv);
	rm_shutdown_adapter(NULL, &h->nv);
	h->nv.flags &= ~NV_FLAG_OPEN;
	h->ready = false;
}

/* The line leads nowhere: RM's interrupt service is never called here. */
void gsp_host_interrupt(struct gsp_card *card)
{
	(void)card;
}

struct gsp_card *gsp_host_card(gsp_u64 bar0)
{
	unsigned int i;

	for (i = 0; i < cards_nr; i++)
		if (cards[i]->card.bar0 == bar0)
			return &cards[i]->card;
	return NULL;
}

void *gsp_host_sysmem(gsp_u64 address, gsp_u64 bytes)
{
	(void)bytes;
	return (void *)address;
}

void *gsp_host_alloc(gsp_u64 bytes)
{
	return calloc(1, bytes);
}

void gsp_host_free(void *memory)
{
	free(memory);
}

/* ---- files ---- */

int home_open(struct home_card *card)
{
	int fd;

	for (fd = 1; fd < FILES; fd++)
		if (!files[fd].open) {
			memset(&files[fd], 0, sizeof(files[fd]));
			files[fd].open = true;
			files[fd].card = card;
			return fd;
		}
	return -1;
}

void home_close(int fd)
{
	struct home_file *f = &files[fd];

	rm_cleanup_file_private(NULL, f->card ? &f->card->nv : &control_nv, &f->rm);
	f->open = false;
	home_run_work();
}

nv_file_private_t *nv_get_file_private(NvS32 fd, NvBool control, void **private)
{
	*private = NULL;
	if (fd <= 0 || fd >= FILES || !files[fd].open || control != !files[fd].card)
		return NULL;
	return &files[fd].rm;
}

/* Video memory and registers by bus address, system memory by its pages. */
NV_STATUS nv_add_mapping_context_to_file(nv_state_t *nv, nv_usermap_access_params_t *u, NvU32 protection,
					 void *pages, NvU64 index, NvU32 fd)
{
	struct home_file *f;
	NvU64 address = 0;

	(void)protection;
	if (!fd || fd >= FILES || !files[fd].open)
		return NV_ERR_INVALID_ARGUMENT;
	f = &files[fd];
	if (nv != (f->card ? &f->card->nv : &control_nv))
		return NV_ERR_INVALID_ARGUMENT;
	if (f->map)
		return NV_ERR_STATE_IN_USE;
	if (pages)
		nv_alloc_user_mapping(nv, pages, index, 0, u->size, 0, &address, &(void *){ NULL });
	else
		address = u->addr;
	f->map = (void *)address;
	f->map_bytes = u->size;
	return NV_OK;
}

/* ---- who calls: one process, root, in the first name space ---- */

NvU32 os_get_current_process(void)
{
	return (NvU32)getpid();
}

void os_get_current_process_name(char *name, NvU32 bytes)
{
	snprintf(name, bytes, "client");
}

NV_STATUS os_get_current_thread(NvU64 *thread)
{
	*thread = 1;
	return NV_OK;
}

NV_STATUS os_get_euid(NvU32 *uid)
{
	*uid = 0;
	return NV_OK;
}

NvBool nv_match_gpu_os_info(nv_state_t *nv, void *info)
{
	return nv == info;
}
