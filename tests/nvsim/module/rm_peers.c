// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Peers over PCIe: which GPUs can be, NV50_P2P, and the numbers that two GPUs have for each other (p2p_api.c, p2p_caps.c). */
#include <linux/slab.h>

#include "nvsim.h"

#define IDS_MAX 32
#define GROUP_MAX 8
#define NUMBERS 8
#define NO_NUMBER 0xffffffff

/* Writes, reads, mailboxes, PCIe; and of a GPU with itself the loopback, as RM has it of a TU104 (tests/rm/test_other_gpu.py). */
#define CAPS_PAIR 0x47
#define CAPS_SELF 0x67
/* p2pCapsStatus: read, write, NVLink, atomics, PROP, loopback, PCI, C2C, BAR1 */
static const u8 status_pair[] = { 0, 0, 5, 5, 0, 5, 0, 5, 5 };
static const u8 status_self[] = { 0, 0, 5, 5, 0, 0, 0, 5, 5 };
static const u8 status_none[] = { 5, 5, 5, 5, 5, 5, 5, 5, 5 };

struct nvpeers {
	struct nvdep deps[2];
	struct nvgpu *gpu[2];
};

/* Peer objects of tenants and of UVM; under peers_lock. A pair keeps its numbers as long as one is there. */
static DEFINE_MUTEX(peers_lock);
static u32 refs[NVSIM_MAX_GPUS][NVSIM_MAX_GPUS];
static u32 number[NVSIM_MAX_GPUS][NVSIM_MAX_GPUS];

static u32 unused_number(u32 gpu)
{
	u32 other, n;
	bool used;

	for (n = 0; n < NUMBERS; n++) {
		used = false;
		for (other = 0; other < NVSIM_MAX_GPUS; other++)
			used |= refs[gpu][other] && number[gpu][other] == n;
		if (!used)
			return n;
	}
	return NO_NUMBER;
}

/* Of another architecture than the first GPU. */
bool nvsim_is_other(const struct nvgpu *gpu)
{
	return READ_ONCE(nvsim.mixed) && gpu->index;
}

/* p2p_caps.c: RM makes no peers of two architectures. */
static bool no_peers(const struct nvgpu *a, const struct nvgpu *b)
{
	return nvsim_is_other(a) != nvsim_is_other(b);
}

NV_STATUS nvsim_peers_get(struct nvgpu *a, struct nvgpu *b)
{
	NV_STATUS st = NV_OK;
	u32 na, nb;

	if (no_peers(a, b))
		return NV_ERR_NOT_SUPPORTED;
	mutex_lock(&peers_lock);
	na = unused_number(a->index);
	nb = unused_number(b->index);
	if (!refs[a->index][b->index] && (na == NO_NUMBER || nb == NO_NUMBER)) {
		st = NV_ERR_INSUFFICIENT_RESOURCES;
	} else {
		if (!refs[a->index][b->index]) {
			number[a->index][b->index] = na;
			number[b->index][a->index] = nb;
		}
		refs[a->index][b->index]++;
		if (a != b)
			refs[b->index][a->index]++;
	}
	mutex_unlock(&peers_lock);
	return st;
}

void nvsim_peers_put(struct nvgpu *a, struct nvgpu *b)
{
	mutex_lock(&peers_lock);
	refs[a->index][b->index]--;
	if (a != b)
		refs[b->index][a->index]--;
	mutex_unlock(&peers_lock);
}

static u32 number_of(const struct nvgpu *of, const struct nvgpu *peer)
{
	u32 n;

	mutex_lock(&peers_lock);
	n = refs[of->index][peer->index] ? number[of->index][peer->index] : NO_NUMBER;
	mutex_unlock(&peers_lock);
	return n;
}

/* Masks of numbers are taken where they are free, and else others are (kern_bus_gm200.c): here others always. */
NV_STATUS nvsim_peers_create(struct nvobj *o, const u32 *p)
{
	struct nvobj *sub[2];
	struct nvpeers *peers;
	NV_STATUS st;
	int i;

	for (i = 0; i < 2; i++) {
		sub[i] = nvsim_obj_find_type(o->client, p[i], NVT_BIT(NVT_SUBDEVICE));
		if (!sub[i])
			return NV_ERR_INVALID_ARGUMENT;
	}
	if (hweight32(p[2]) > 1 || hweight32(p[3]) > 1)
		return NV_ERR_INVALID_ARGUMENT;
	peers = kzalloc(sizeof(*peers), GFP_KERNEL);
	if (!peers)
		return NV_ERR_NO_MEMORY;
	st = nvsim_peers_get(sub[0]->gpu, sub[1]->gpu);
	if (st != NV_OK) {
		kfree(peers);
		return st;
	}
	for (i = 0; i < 2; i++)
		peers->gpu[i] = sub[i]->gpu;
	nvsim_dep_add(&peers->deps[0], sub[0], o);
	if (sub[1] != sub[0])
		nvsim_dep_add(&peers->deps[1], sub[1], o);
	else
		INIT_LIST_HEAD(&peers->deps[1].link);
	o->peers = peers;
	return NV_OK;
}

void nvsim_peers_destroy(struct nvpeers *peers)
{
	nvsim_peers_put(peers->gpu[0], peers->gpu[1]);
	list_del(&peers->deps[0].link);
	list_del(&peers->deps[1].link);
	kfree(peers);
}

/* ---- controls ---- */

/* {gpuIds[32], count, caps, read engines, write engines, status[9] @144} and what is behind, which differs */
static NV_STATUS caps(u32 *p)
{
	u32 n = p[IDS_MAX], i;
	bool pair = false, none = false;

	if (!n || n > IDS_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < n; i++) {
		if (!nvsim_gpu_by_id(p[i]))
			return NV_ERR_INVALID_ARGUMENT;
		pair |= p[i] != p[0];
		none |= no_peers(nvsim_gpu_by_id(p[i]), nvsim_gpu_by_id(p[0]));
	}
	p[IDS_MAX + 1] = none ? 0 : pair ? CAPS_PAIR : CAPS_SELF;
	p[IDS_MAX + 2] = 0;
	p[IDS_MAX + 3] = 0;
	memcpy(p + IDS_MAX + 4, none ? status_none : pair ? status_pair : status_self, sizeof(status_pair));
	return NV_OK;
}

static void numbers(const u32 *ids, u32 n, u32 *out)
{
	u32 i, k;

	for (i = 0; i < n; i++)
		for (k = 0; k < n; k++)
			out[i * n + k] = number_of(nvsim_gpu_by_id(ids[i]), nvsim_gpu_by_id(ids[k]));
}

/* In no public header; an H100's firmware answers it, and libcuda takes an error for GPUs that cannot be peers. */
static NV_STATUS ctl_unnamed(struct nvctl *c)
{
	return NV_OK;
}

static NV_STATUS ctl_caps(struct nvctl *c)
{
	return caps(c->params);
}

/* The list of numbers is behind a pointer. */
static NV_STATUS after_caps(struct nvctl *c)
{
	u32 *p = c->params, *list, n = p[IDS_MAX];
	u64 to = ((u64 *)c->params)[20];
	NV_STATUS st;

	if (!to)
		return NV_OK;
	list = kcalloc(n * n, sizeof(*list), GFP_KERNEL);
	if (!list)
		return NV_ERR_NO_MEMORY;
	numbers(p, n, list);
	st = nvsim_param_out(c->sec, to, list, n * n * sizeof(*list));
	kfree(list);
	return st;
}

static NV_STATUS ctl_caps_v2(struct nvctl *c)
{
	u32 *p = c->params;
	NV_STATUS st = caps(p);

	if (st != NV_OK)
		return st;
	memset(p + 39, 0, c->size - 39 * sizeof(*p));
	numbers(p, p[IDS_MAX], p + 39);
	return NV_OK;
}

/* {countA, countB, idsA[8], idsB[8], matrices of 8 times 8}: the first has the capabilities; no B: A among each other */
static NV_STATUS ctl_matrix(struct nvctl *c)
{
	u32 *p = c->params, *a = p + 2, *b = p + 2 + GROUP_MAX, *out = p + 2 + 2 * GROUP_MAX, n = p[1] ?: p[0], i, k;

	if (!p[0] || p[0] > GROUP_MAX || p[1] > GROUP_MAX)
		return NV_ERR_INVALID_ARGUMENT;
	if (!p[1])
		b = a;
	for (i = 0; i < p[0] || i < n; i++)
		if ((i < p[0] && !nvsim_gpu_by_id(a[i])) || (i < n && !nvsim_gpu_by_id(b[i])))
			return NV_ERR_INVALID_ARGUMENT;
	memset(out, 0, c->size - (2 + 2 * GROUP_MAX) * sizeof(*p));
	for (i = 0; i < p[0]; i++)
		for (k = 0; k < n; k++)
			if (!no_peers(nvsim_gpu_by_id(a[i]), nvsim_gpu_by_id(b[k])))
				out[i * GROUP_MAX + k] = a[i] == b[k] ? CAPS_SELF : CAPS_PAIR;
	return NV_OK;
}

#define CLIENT NVT_BIT(NVT_CLIENT)

/* ctrl0000system.h */
const struct nvctl_entry nvsim_ctrl_peers[] = {
	{ 0x127, 168, CLIENT, 0, ctl_caps, after_caps, .before = 550 },
	{ 0x127, 176, CLIENT, 0, ctl_caps, after_caps, .since = 550 },
	{ 0x12b, 4252, CLIENT, 0, ctl_caps_v2, .before = 550 },
	{ 0x12b, 8348, CLIENT, 0, ctl_caps_v2, .since = 550 },
	{ 0x13a, 1352, CLIENT, 0, ctl_matrix },
	{ 0x20808162, 1, NVT_BIT(NVT_SUBDEVICE), 0, ctl_unnamed, .since = 550 },
	{}
};
