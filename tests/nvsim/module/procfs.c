// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* /proc/driver/nvidia as the driver writes it, and /proc/driver/nvsim for the tests. */
#include <linux/ktime.h>
#include <linux/pid.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nvsim.h"

static struct proc_dir_entry *dir_nvidia, *dir_gpus, *dir_sim;

static int show_version(struct seq_file *s, void *unused)
{
	seq_printf(s, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (nvsim: simulated)\n",
		   nvsim_release());
	seq_printf(s, "GCC version:  gcc version %d.%d.%d\n", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
	return 0;
}

static int show_params(struct seq_file *s, void *unused)
{
	seq_puts(s, "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
	seq_puts(s, "EnableMSI: 1\nNvLinkDisable: 0\nEnableGpuFirmware: 18\n");
	return 0;
}

static int show_information(struct seq_file *s, void *unused)
{
	struct nvgpu *gpu = s->private;
	char uuid[48];

	nvsim_uuid_string(gpu, uuid);
	seq_printf(s, "Model: \t\t %s\n", gpu->name);
	seq_printf(s, "IRQ:   \t\t %d\n", 16 + gpu->index);
	seq_printf(s, "GPU UUID: \t %s\n", uuid);
	seq_puts(s, "Video BIOS: \t 00.00.00.00.00\n");
	seq_puts(s, "Bus Type: \t PCIe\n");
	seq_puts(s, "DMA Size: \t 47 bits\n");
	seq_puts(s, "DMA Mask: \t 0x7fffffffffff\n");
	seq_printf(s, "Bus Location: \t %s\n", gpu->bdf);
	seq_printf(s, "Device Minor: \t %u\n", gpu->index);
	seq_printf(s, "GPU Firmware: \t %s\n", nvsim_release());
	seq_puts(s, "GPU Excluded:\t No\n");
	return 0;
}

/*
 * The driver's files have .proc_read alone (kernel-open/common/inc/nv-procfs-utils.h): unlike files
 * of proc_create_single(), the kernel cannot read them for a module.
 */
#define NV_PROC_FILE(name) \
static int open_##name(struct inode *inode, struct file *file) \
{ \
	return single_open(file, show_##name, pde_data(inode)); \
} \
static const struct proc_ops name##_ops = { \
	.proc_open = open_##name, \
	.proc_read = seq_read, \
	.proc_lseek = seq_lseek, \
	.proc_release = single_release, \
}

NV_PROC_FILE(version);
NV_PROC_FILE(params);
NV_PROC_FILE(information);

static void advance_all(struct nvgpu *gpu)
{
	unsigned long flags;
	int i;

	for (i = 0; i < NVSIM_ENGINES; i++) {
		raw_spin_lock_irqsave(&gpu->eng[i].lock, flags);
		engine_kick(&gpu->eng[i]);
		raw_spin_unlock_irqrestore(&gpu->eng[i].lock, flags);
	}
}

static int show_tsgs(struct seq_file *s, void *unused)
{
	struct nvgpu *gpu = s->private;
	struct nvtsg_rec *r;

	advance_all(gpu);
	mutex_lock(&gpu->rec_lock);
	list_for_each_entry(r, &gpu->recs, link)
		seq_printf(s, "client=%x tsg=%x pid=%d engine=%u busy_ns=%llu switches=%llu works=%llu timeslice_us=%llu enabled=%d preempt=%u bound=%u%s\n",
			   r->hclient, r->htsg, r->count.tgid, r->engine, READ_ONCE(r->count.busy_ns), READ_ONCE(r->count.switches),
			   READ_ONCE(r->count.works), READ_ONCE(r->timeslice_us), r->enabled, r->preempt, r->bound, r->ended ? " ended=1" : "");
	mutex_unlock(&gpu->rec_lock);
	return 0;
}

static int show_state(struct seq_file *s, void *unused)
{
	struct nvgpu *gpu = s->private;
	int i;

	advance_all(gpu);
	seq_printf(s, "now_ns=%llu\nfb_total=%llu\nfb_used=%llu\nbar1_used=%llu\n", ktime_get_ns(), gpu->fb_total,
		   gpu->fb_total - nvsim_fb_free(gpu), READ_ONCE(gpu->bar1_used));
	seq_printf(s, "external=%d\nos_events=%u\n", atomic_read(&gpu->external), nvsim_event_os_count());
	seq_printf(s, "asleep_calls=%u\n", nvsim_power_asleep_calls());
	for (i = 0; i < NVSIM_ENGINES; i++)
		seq_printf(s, "engine=%u enabled_chans=%u slips=%llu\n", gpu->eng[i].type, READ_ONCE(gpu->eng[i].enabled_chans),
			   READ_ONCE(gpu->eng[i].slips));
	return 0;
}

static int open_tsgs(struct inode *inode, struct file *file)
{
	return single_open(file, show_tsgs, pde_data(inode));
}

static ssize_t write_tsgs(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	struct nvgpu *gpu = pde_data(file_inode(file));
	struct nvtsg_rec *r, *next;
	char word[8] = {};

	if (len < 5 || len > 6 || copy_from_user(word, buf, len) || strncmp(word, "clear", 5))
		return -EINVAL;
	mutex_lock(&gpu->rec_lock);
	list_for_each_entry_safe(r, next, &gpu->recs, link) {
		if (!r->ended)
			continue;
		list_del(&r->link);
		put_pid(r->pid);
		kfree(r);
	}
	gpu->nr_ended = 0;
	mutex_unlock(&gpu->rec_lock);
	return len;
}

static const struct proc_ops tsgs_ops = {
	.proc_open = open_tsgs,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
	.proc_write = write_tsgs,
};

static int gpu_dirs(struct nvgpu *gpu)
{
	char index[8];

	gpu->proc = proc_mkdir(gpu->bdf, dir_gpus);
	if (!gpu->proc || !proc_create_data("information", 0444, gpu->proc, &information_ops, gpu))
		return -ENOMEM;
	snprintf(index, sizeof(index), "%u", gpu->index);
	gpu->proc_sim = proc_mkdir(index, dir_sim);
	if (!gpu->proc_sim || !proc_create_data("tsgs", 0600, gpu->proc_sim, &tsgs_ops, gpu) ||
	    !proc_create_single_data("state", 0400, gpu->proc_sim, show_state, gpu))
		return -ENOMEM;
	return 0;
}

int nvsim_proc_init(void)
{
	int i;

	dir_nvidia = proc_mkdir("driver/nvidia", NULL);
	if (!dir_nvidia)
		return -ENOMEM;
	dir_sim = proc_mkdir("driver/nvsim", NULL);
	dir_gpus = proc_mkdir("gpus", dir_nvidia);
	if (!dir_sim || !dir_gpus)
		goto err;
	if (!proc_create("version", 0444, dir_nvidia, &version_ops) ||
	    !proc_create("params", 0444, dir_nvidia, &params_ops) ||
	    !proc_create("suspend", 0644, dir_nvidia, &nvsim_suspend_ops))
		goto err;
	for (i = 0; i < nvsim.gpus; i++)
		if (gpu_dirs(nvsim_gpu[i]))
			goto err;
	return 0;
err:
	nvsim_proc_exit();
	return -ENOMEM;
}

void nvsim_proc_exit(void)
{
	proc_remove(dir_sim);
	proc_remove(dir_nvidia);
}
