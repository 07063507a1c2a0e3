// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* nvsim: a simulated NVIDIA driver and GPU, for tests. See docs/develop/nvsim.md. */
#include <linux/module.h>

#include "nvsim.h"

struct nvsim_params nvsim = {
	.version = NVSIM_VERSION_DEFAULT, .name = "Tesla T4", .arch = "turing", .gpus = 1, .ctx_mib = 100, .video = 1, .video_ctx_kib = 2048,
	.fb_mib = { 15109 }, .fb_mib_count = 1,
	.control_us = 300, .control_spin_us = 50, .tail_us = 5000, .tail_pct = 0, .hmm = 1, .channel_ids = 2048, .seed = 1, .fault_times = 1,
	.rules = {
		.timeslice_us = 1024, .ctxsw_us = 82, .copy_mbps = 12000, .sm_count = 40, .launch_ns = 2000, .wave_ns = 10000,
		.poll_us = 20, .idle_poll_us = 200, .commit_required = 1, .stubborn_ms = 1000, .chram_us = 200,
	},
};

#define NVSIM_PARAM(field, type, perm, text) \
	module_param_named(field, nvsim.field, type, perm); \
	MODULE_PARM_DESC(field, text)
#define NVSIM_RULE(field, perm, text) \
	module_param_named(field, nvsim.rules.field, int, perm); \
	MODULE_PARM_DESC(field, text)

NVSIM_PARAM(version, charp, 0444, "release of the driver that it is: 535.261.03, 550.163.01, 555.58.02, 580.105.08, 595.45.04 or 615.71.09");
NVSIM_PARAM(called, charp, 0444, "name of the release that callers are given in place of it");
NVSIM_PARAM(name, charp, 0444, "marketing name of the GPU");
NVSIM_PARAM(arch, charp, 0444, "turing, ampere or hopper: decides the class ids");
NVSIM_PARAM(gpus, int, 0444, "number of GPUs");
module_param_array_named(fb_mib, nvsim.fb_mib, int, &nvsim.fb_mib_count, 0444);
MODULE_PARM_DESC(fb_mib, "framebuffer as RM reports it: without what the driver keeps for itself, MiB; a list: GPU by GPU, the last for the others");
NVSIM_PARAM(ctx_mib, int, 0444, "context buffers of a graphics/compute TSG, MiB");
NVSIM_PARAM(video, int, 0444, "1: the chip's video engines are there; 0: none is");
NVSIM_PARAM(no_ce_caps, int, 0444, "1: CE_GET_ALL_CAPS fails");
NVSIM_PARAM(video_ctx_kib, int, 0644, "what the context of a video engine takes, KiB; on Turing nothing");
NVSIM_RULE(timeslice_us, 0444, "default TSG timeslice");
NVSIM_RULE(ctxsw_us, 0644, "cost of a switch between TSGs");
NVSIM_RULE(copy_mbps, 0644, "COPY speed, bytes per microsecond");
NVSIM_RULE(sm_count, 0444, "streaming multiprocessors: how many CTAs of a launch are one wave");
NVSIM_PARAM(control_us, int, 0644, "median latency of a control that goes to the GPU");
NVSIM_PARAM(control_spin_us, int, 0644, "part of it spent spinning");
NVSIM_PARAM(tail_us, int, 0644, "latency of the slow ones");
NVSIM_PARAM(tail_pct, int, 0644, "how many are slow, percent");
NVSIM_RULE(poll_us, 0644, "how often an idle engine looks at the doorbell");
NVSIM_RULE(idle_poll_us, 0644, "the same after 5 ms without work");
NVSIM_RULE(control_ineffective, 0644, "bit 0: timeslices, bit 1: DISABLE_CHANNELS: answered, without effect");
NVSIM_RULE(commit_required, 0644, "SET_TIMESLICE takes effect at RESTART_RUNLIST only");
NVSIM_PARAM(err40_pct, int, 0644, "RESTART_RUNLIST fails with 0x40 this often");
NVSIM_RULE(disable_needs_restart, 0644, "DISABLE_CHANNELS takes effect at RESTART_RUNLIST only");
NVSIM_PARAM(refuse_dead, int, 0644, "DISABLE_CHANNELS fails with 0x40 if it names a channel that faulted");
NVSIM_RULE(no_preempt, 0644, "kernels run to their end");
NVSIM_RULE(stubborn_ms, 0644, "how long a STUBBORN kernel resists preemption");
NVSIM_PARAM(hmm, int, 0644, "UVM spaces have HMM unless they say otherwise");
NVSIM_PARAM(ctx_ms, int, 0644, "a channel group takes this long to make, with no lock held");
NVSIM_PARAM(missing_ms, int, 0644, "a kernel module's DISABLE_CHANNELS begins so late, and ends so late again if a channel is not there, with no lock held");
NVSIM_PARAM(unmap_ms, int, 0644, "RM_FREE and RM_UNMAP_MEMORY of a process begin so late, with no lock held");
NVSIM_PARAM(close_ms, int, 0644, "a managed range or a dma-buf gives its memory back this long after it began to go");
NVSIM_PARAM(tables_kib, int, 0644, "video memory that each MAP_MEMORY_DMA takes for page tables, KiB");
NVSIM_RULE(launch_ns, 0644, "what a launch takes besides its waves");
NVSIM_RULE(wave_ns, 0644, "what a wave of sm_count CTAs takes");
NVSIM_RULE(chram_fault, 0644, "words of channels read 1: as ones, 2: 0xbadf5040, 3: busy for ever, 5: as zeros; 4: no address of channel RAM");
NVSIM_RULE(chram_us, 0644, "how late they show work that came while the engine is at other work");
module_param_cb(asleep, &nvsim_board_asleep, &nvsim.asleep, 0644);
MODULE_PARM_DESC(asleep, "the kernel has the boards in D3hot; their registers are as before");
NVSIM_PARAM(trace, int, 0644, "log the RM and uvm calls that fail");
NVSIM_PARAM(fault_nth, int, 0644, "the nth RM call from now on fails; counts down, 0: none");
NVSIM_PARAM(fault_times, int, 0644, "and so many in all, from that one on");
NVSIM_PARAM(fault_kind, int, 0644, "0: out of resources, 1: a timeout, 2: success, and an answer of all ones, 3: longer parameters");
NVSIM_PARAM(fault_cmd, uint, 0644, "count only this control or class, or 0x29 (free), 0x34 (dup), 0x57 (map); 0: all");
NVSIM_PARAM(gone, int, 0644, "the GPU has left the bus: every RM call fails with 0xf");
NVSIM_PARAM(mixed, int, 0644, "the GPUs but the first name another architecture: no peers of it");
NVSIM_PARAM(channel_ids, int, 0444, "ids of channels, and of groups, that a runlist has; Turing has these for all of them");
static bool uvm = true, ready;	/* the lock of the parameters */

/* As nvidia-uvm.ko, which is loaded after nvidia.ko and unloaded before it. */
static int set_uvm(const char *text, const struct kernel_param *kp)
{
	bool wanted;
	int err = kstrtobool(text, &wanted);

	if (!err && !ready)
		err = -EINVAL;
	if (err || wanted == uvm)
		return err;
	if (wanted)
		err = nvsim_uvm_init();
	else
		nvsim_uvm_exit();
	if (!err)
		uvm = wanted;
	return err;
}

static const struct kernel_param_ops uvm_ops = { .set = set_uvm, .get = param_get_bool };
module_param_cb(uvm, &uvm_ops, &uvm, 0644);
MODULE_PARM_DESC(uvm, "/dev/nvidia-uvm is there; once nvsim is loaded");
NVSIM_PARAM(seed, ulong, 0444, "of everything random");

struct nvgpu *nvsim_gpu[NVSIM_MAX_GPUS];
DECLARE_RWSEM(nvsim_api_lock);
nv_state_t nvsim_ctl;

struct nvgpu *nvsim_gpu_by_id(u32 gpu_id)
{
	int i;

	for (i = 0; i < nvsim.gpus; i++)
		if (nvsim_gpu[i]->gpu_id == gpu_id)
			return nvsim_gpu[i];
	return NULL;
}

struct nvgpu *nvsim_gpu_by_uuid(const u8 *uuid)
{
	int i;

	for (i = 0; i < nvsim.gpus; i++)
		if (!memcmp(nvsim_gpu[i]->uuid, uuid, 16))
			return nvsim_gpu[i];
	return NULL;
}

static void destroy_gpus(void)
{
	int i;

	for (i = NVSIM_MAX_GPUS - 1; i >= 0; i--) {
		if (nvsim_gpu[i])
			nvsim_gpu_destroy(nvsim_gpu[i]);
		nvsim_gpu[i] = NULL;
	}
}

static int create_gpus(void)
{
	int i;

	for (i = 0; i < nvsim.gpus; i++) {
		nvsim_gpu[i] = nvsim_gpu_create(i);
		if (IS_ERR(nvsim_gpu[i])) {
			int err = PTR_ERR(nvsim_gpu[i]);

			nvsim_gpu[i] = NULL;
			destroy_gpus();
			return err;
		}
	}
	return 0;
}

static bool check_framebuffers(void)
{
	unsigned int i;

	for (i = 0; i < nvsim.fb_mib_count; i++)
		if (nvsim.fb_mib[i] < 64)
			return false;
	return nvsim.fb_mib_count && nvsim.fb_mib_count <= (unsigned int)nvsim.gpus;
}

static int check_params(void)
{
	if (nvsim.gpus < 1 || nvsim.gpus > NVSIM_MAX_GPUS || !check_framebuffers() || nvsim.rules.timeslice_us < 1 ||
	    nvsim.rules.copy_mbps < 1 || nvsim.rules.poll_us < 1 || nvsim.rules.idle_poll_us < 1 || nvsim.ctx_mib < 0 || nvsim.rules.ctxsw_us < 0 ||
	    nvsim.rules.sm_count < 1 || nvsim.rules.launch_ns < 0 || nvsim.rules.wave_ns < 0)
		return -EINVAL;
	return nvsim_version_init() ?: nvsim_chip_init();
}

static int __init nvsim_init(void)
{
	int err;

	err = check_params();
	if (err)
		return err;
	err = create_gpus();
	if (err)
		return err;
	err = nvsim_proc_init();
	if (err)
		goto err_gpus;
	err = nvsim_uvm_init();
	if (err)
		goto err_proc;
	err = nvsim_chardev_init();
	if (err)
		goto err_uvm;
	kernel_param_lock(THIS_MODULE);
	ready = true;
	kernel_param_unlock(THIS_MODULE);
	pr_info("%d x %s, %d MiB%s, driver %s, simulated\n", nvsim.gpus, nvsim.name, nvsim.fb_mib[0],
		nvsim.fb_mib_count > 1 ? " and others" : "",
		nvsim_release());
	return 0;

err_uvm:
	nvsim_uvm_exit();
	nvdup_exit();
err_proc:
	nvsim_proc_exit();
err_gpus:
	destroy_gpus();
	return err;
}

static void __exit nvsim_exit(void)
{
	nvsim_chardev_exit();
	nvsim_rm_exit();
	if (uvm)
		nvsim_uvm_exit();
	nvdup_exit();
	nvsim_proc_exit();
	destroy_gpus();
}

module_init(nvsim_init);
module_exit(nvsim_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Simulated NVIDIA driver and GPU");
