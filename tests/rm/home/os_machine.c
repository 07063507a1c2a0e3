// SPDX-License-Identifier: MIT
/*
 * RM's operating system layer: PCI, firmware, processors, and what a machine without them answers.
 */
#include "home.h"

#include <stdlib.h>
#include <string.h>

static struct home_card *by_bus(NvU32 domain, NvU8 bus, NvU8 slot)
{
	return !domain && bus && bus <= cards_nr && !slot ? cards[bus - 1] : NULL;
}

nv_state_t *nv_get_adapter_state(NvU32 domain, NvU8 bus, NvU8 slot)
{
	struct home_card *h = by_bus(domain, bus, slot);

	return h ? &h->nv : NULL;
}

nv_state_t *nv_get_ctl_state(void)
{
	return &control_nv;
}

void *os_pci_init_handle(NvU32 domain, NvU8 bus, NvU8 slot, NvU8 function, NvU16 *vendor, NvU16 *device)
{
	struct home_card *h = function ? NULL : by_bus(domain, bus, slot);

	if (!h)
		return NULL;
	if (vendor)
		*vendor = h->nv.pci_info.vendor_id;
	if (device)
		*device = h->nv.pci_info.device_id;
	return h->config;
}

static NV_STATUS read_config(void *handle, NvU32 at, void *to, unsigned int bytes)
{
	if (!handle || at > 4096 - bytes) {
		memset(to, 0xff, bytes);
		return NV_ERR_NOT_SUPPORTED;
	}
	memcpy(to, (NvU8 *)handle + at, bytes);
	return NV_OK;
}

static NV_STATUS write_config(void *handle, NvU32 at, const void *from, unsigned int bytes)
{
	if (!handle || at > 4096 - bytes)
		return NV_ERR_NOT_SUPPORTED;
	memcpy((NvU8 *)handle + at, from, bytes);
	return NV_OK;
}

NV_STATUS os_pci_read_byte(void *handle, NvU32 at, NvU8 *v)
{
	return read_config(handle, at, v, 1);
}

NV_STATUS os_pci_read_word(void *handle, NvU32 at, NvU16 *v)
{
	return read_config(handle, at, v, 2);
}

NV_STATUS os_pci_read_dword(void *handle, NvU32 at, NvU32 *v)
{
	return read_config(handle, at, v, 4);
}

NV_STATUS os_pci_write_byte(void *handle, NvU32 at, NvU8 v)
{
	return write_config(handle, at, &v, 1);
}

NV_STATUS os_pci_write_word(void *handle, NvU32 at, NvU16 v)
{
	return write_config(handle, at, &v, 2);
}

NV_STATUS os_pci_write_dword(void *handle, NvU32 at, NvU32 v)
{
	return write_config(handle, at, &v, 4);
}

/* Nobody reads the firmware; RM wants a file. */
const void *nv_get_firmware(nv_state_t *nv, nv_firmware_type_t type, nv_firmware_chip_family_t family,
			    const void **buffer, NvU32 *bytes)
{
	static char nothing[4096];

	(void)nv, (void)type, (void)family;
	*buffer = nothing;
	*bytes = sizeof(nothing);
	return nothing;
}

NvU64 os_get_max_user_va(void)
{
	return 0x7fffffffffffull;
}

NvU64 os_get_num_phys_pages(void)
{
	return 4ull << 18;
}

NV_STATUS os_get_version_info(os_version_info *info)
{
	memset(info, 0, sizeof(*info));
	return NV_OK;
}

/* Always the same numbers, so that a run can be repeated. */
NV_STATUS os_get_random_bytes(NvU8 *to, NvU16 bytes)
{
	static unsigned int state = 1;

	while (bytes--) {
		state = state * 1103515245 + 12345;
		*to++ = (NvU8)(state >> 16);
	}
	return NV_OK;
}

nv_cap_t *os_nv_cap_create_dir_entry(nv_cap_t *parent, const char *name, int mode)
{
	(void)parent, (void)name, (void)mode;
	return calloc(1, 16);
}
