// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Searches the call table for a call, by number, size, node and driver branch. */
#include "nv_call.h"
#include "nv_abi.h"
#include "nv_table.h"

#define KIB	1024ull

/* Controls whose number has this bit go to the firmware unseen by the driver. */
#define GSS_LEGACY	0x8000u

/* The first branch with numbers for copy engines that decompress. */
#define BRANCH_DECOMP	560

const struct cgpu_control_table *const cgpu_control_tables[CGPU_CONTROL_TABLES] = {
	&cgpu_controls_client, &cgpu_controls_device, &cgpu_controls_gpu,
	&cgpu_controls_engine, &cgpu_controls_object,
};

/* How every row begins. */
struct head {
	u32 number, since;
};

static struct head head_of(const void *rows, u32 i, size_t stride)
{
	struct head head;

	memcpy(&head, (const u8 *)rows + i * stride, sizeof(head));
	return head;
}

/* Index of the first row of @number in @branch: of those not younger than @branch the youngest.
 * @count if there is none.
 */
static u32 find(const void *rows, u32 count, size_t stride, u32 branch, u32 number)
{
	u32 low = 0, high = count, middle, found = count, since = 0;
	struct head head;

	while (low < high) {
		middle = low + (high - low) / 2;
		if (head_of(rows, middle, stride).number < number)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < count; low++) {
		head = head_of(rows, low, stride);
		if (head.number != number || head.since > branch)
			break;
		if (head.since > since) {
			since = head.since;
			found = low;
		}
	}
	return found;
}

const struct cgpu_escape *cgpu_call_escape(u32 branch, u32 nr, u32 size, u32 node)
{
	const struct cgpu_escape_table *t = &cgpu_escapes;
	u32 i = find(t->row, t->count, sizeof(*t->row), branch, nr);
	u32 since = i < t->count ? t->row[i].since : 0;

	for (; i < t->count && t->row[i].nr == nr && t->row[i].since == since; i++)
		if (t->row[i].verdict != CGPU_GONE && (t->row[i].nodes & node) &&
		    (!t->row[i].size || t->row[i].size == size))
			return &t->row[i];
	return NULL;
}

/* One row for all of a kind: the number does not show what the control does. */
static const struct cgpu_control *opaque_control(u32 cmd)
{
	if (cmd >> 16 == NV2081_BINAPI)
		return &cgpu_controls_opaque.row[1];
	return cmd & GSS_LEGACY ? &cgpu_controls_opaque.row[0] : NULL;
}

const struct cgpu_control *cgpu_call_control(u32 branch, u32 cmd)
{
	const struct cgpu_control_table *t = cgpu_control_tables[0];
	u32 i;

	for (i = 1; i < CGPU_CONTROL_TABLES && cmd >= cgpu_control_tables[i]->first; i++)
		t = cgpu_control_tables[i];
	i = find(t->row, t->count, sizeof(*t->row), branch, cmd);
	if (i == t->count || t->row[i].verdict == CGPU_GONE)
		return opaque_control(cmd);
	return &t->row[i];
}

const struct cgpu_class *cgpu_call_class(u32 branch, u32 cls)
{
	const struct cgpu_class_table *t = &cgpu_classes;
	u32 i = find(t->row, t->count, sizeof(*t->row), branch, cls);

	if (i == t->count || t->row[i].kind == CGPU_KIND_GONE)
		return NULL;
	return &t->row[i];
}

const struct cgpu_uvm_call *cgpu_call_uvm(u32 branch, u32 nr)
{
	const struct cgpu_uvm_table *t = &cgpu_uvm_calls;
	u32 i = find(t->row, t->count, sizeof(*t->row), branch, nr);

	if (i == t->count || t->row[i].verdict == CGPU_GONE)
		return NULL;
	return &t->row[i];
}

/* A copy engine of graphics' runlist (GRCE) is no asynchronous one: its channels take turns with kernels. */
u64 cgpu_call_async_copies(const u8 *caps, u32 size)
{
	u32 engines = size * 8 / (8 * NV2080_CTRL_CE_CAPS_TBL_SIZE + 1), n;
	u64 async = 0;

	for (n = 0; n < engines; n++)
		if (caps[engines * NV2080_CTRL_CE_CAPS_TBL_SIZE + n / 8] >> n % 8 & 1 &&
		    !(caps[n * NV2080_CTRL_CE_CAPS_TBL_SIZE] & NV_CE_CAPS_GRCE))
			async |= 1ull << n;
	return async;
}

/* The bit of a copy engine in what cgpu_call_async_copies() returns; 0: another engine. Drivers before 560 have no
 * decompressing ones: on Turing they put a channel with such a number on the runlist of graphics.
 */
static u64 copy_bit(u32 branch, u32 type)
{
	if (type >= NV2080_ENGINE_TYPE_COMP_DECOMP_COPY0 && type <= NV2080_ENGINE_TYPE_COMP_DECOMP_COPY19)
		return branch < BRANCH_DECOMP ? 0 : 1ull << (type - NV2080_ENGINE_TYPE_COMP_DECOMP_COPY0);
	if (type >= NV2080_ENGINE_TYPE_COPY0 && type <= NV2080_ENGINE_TYPE_COPY9)
		return 1ull << (type - NV2080_ENGINE_TYPE_COPY0);
	if (type >= NV2080_ENGINE_TYPE_COPY10 && type <= NV2080_ENGINE_TYPE_COPY19)
		return 1ull << (type - NV2080_ENGINE_TYPE_COPY10 + 10);
	return 0;
}

/* Others may have a runlist of their own: SEC2, and copies if which are asynchronous is not known. */
bool cgpu_call_on_graphics(u32 branch, u32 type, u64 async_copies)
{
	u64 copy = copy_bit(branch, type);

	return type <= NV2080_ENGINE_TYPE_GR7 || (async_copies && copy && !(copy & async_copies));
}

/* The driver puts a channel of an engine that the chip lacks on the runlist of graphics (kfifoGetDefaultRunlist()). */
u32 cgpu_call_engine(u32 branch, u32 type, u64 async_copies)
{
	if (type <= NV2080_ENGINE_TYPE_GR7)
		return CGPU_ENGINE_GR;
	if (type >= NV2080_ENGINE_TYPE_NVDEC0 && type <= NV2080_ENGINE_TYPE_NVDEC7)
		return CGPU_ENGINE_NVDEC;
	if ((type >= NV2080_ENGINE_TYPE_NVENC0 && type <= NV2080_ENGINE_TYPE_NVENC2) ||
	    type == NV2080_ENGINE_TYPE_NVENC3)
		return CGPU_ENGINE_NVENC;
	if (type >= NV2080_ENGINE_TYPE_NVJPEG0 && type <= NV2080_ENGINE_TYPE_NVJPEG7)
		return CGPU_ENGINE_NVJPG;
	if (type == NV2080_ENGINE_TYPE_OFA0 || type == NV2080_ENGINE_TYPE_OFA1)
		return CGPU_ENGINE_OFA;
	return copy_bit(branch, type) & async_copies ? CGPU_ENGINE_OTHER : CGPU_ENGINE_GR;
}

u32 cgpu_call_engine_of_kind(u32 kind)
{
	if (kind < CGPU_KIND_NVDEC || kind > CGPU_KIND_OFA)
		return CGPU_ENGINE_OTHER;
	return kind - CGPU_KIND_NVDEC + CGPU_ENGINE_NVDEC;
}

bool cgpu_call_is_vidmem(u32 attr, u32 flags)
{
	return ((attr >> NVOS32_ATTR_LOCATION_SHIFT) & 3) == NVOS32_ATTR_LOCATION_VIDMEM &&
	       !(flags & NVOS32_ALLOC_FLAGS_VIRTUAL);
}

/* GA100 was the first with pages of 512 MiB (g_kern_gmmu_nvoc.c, bPageSize512mbSupported).
 * Without them 535 leaves a video memory allocation holding the GPU's lock
 * (_vidmemPmaAllocate() of video_mem.c). No driver does so with pages of 256 GiB.
 */
bool cgpu_call_has_page_size(u32 arch, u32 attr, u32 attr2)
{
	return arch >= NV2080_CTRL_MC_ARCH_INFO_ARCHITECTURE_GA100 ||
	       ((attr >> NVOS32_ATTR_PAGE_SIZE_SHIFT) & 3) != NVOS32_ATTR_PAGE_SIZE_HUGE ||
	       ((attr2 >> NVOS32_ATTR2_HUGE_SHIFT) & 3) != NVOS32_ATTR2_PAGE_SIZE_HUGE_512MB;
}

static u32 to_kib(u64 bytes)
{
	u64 kib = bytes / KIB;

	return kib > 0xffffffffull ? 0xffffffffu : (u32)kib;
}

u32 cgpu_call_fb_info(u32 index, u32 real_kib, u64 limit_bytes, u64 used_bytes, u64 bar1_used,
		      u64 bar1_left)
{
	u32 limit = to_kib(limit_bytes);
	u32 left = used_bytes >= limit_bytes ? 0 : to_kib(limit_bytes - used_bytes);

	switch (index) {
	case NV2080_CTRL_FB_INFO_INDEX_BAR1_SIZE:
		return to_kib(bar1_used + bar1_left);
	case NV2080_CTRL_FB_INFO_INDEX_BAR1_AVAIL_SIZE:
	case NV2080_CTRL_FB_INFO_INDEX_BAR1_MAX_CONTIGUOUS_AVAIL_SIZE:
		return to_kib(bar1_left);
	case NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE:
	case NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE:
	case NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE:
	case NV2080_CTRL_FB_INFO_INDEX_USABLE_RAM_SIZE:
		return limit;
	case NV2080_CTRL_FB_INFO_INDEX_MAPPABLE_HEAP_SIZE:
	case NV2080_CTRL_FB_INFO_INDEX_PROTECTED_MEM_SIZE_TOTAL_KB:
		return real_kib < limit ? real_kib : limit;
	case NV2080_CTRL_FB_INFO_INDEX_PROTECTED_MEM_SIZE_FREE_KB:
		return real_kib ? left : 0;	/* without confidential computing there is none */
	case NV2080_CTRL_FB_INFO_INDEX_LARGEST_FREE_REGION_SIZE_KB:
	case NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE:
		/* The slice has its limit. Admission checks what the card has
		 * left; showing that here would show the neighbours' use.
		 */
		return left;
	case NV2080_CTRL_FB_INFO_INDEX_LARGEST_FREE_REGION_BASE_KB:	/* would show the layout of other containers' memory */
	case NV2080_CTRL_FB_INFO_INDEX_FB_TAX_SIZE_KB:		/* the card's own reserve is no part of the slice */
	case NV2080_CTRL_FB_INFO_INDEX_VISTA_RESERVED_HEAP_SIZE:
	case NV2080_CTRL_FB_INFO_INDEX_HEAP_RECLAIMABLE:	/* of what neighbours hold above a soft limit */
		return 0;
	default:
		return real_kib;
	}
}
