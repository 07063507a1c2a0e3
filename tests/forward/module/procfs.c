// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* /proc/driver/nvidia: texts of the host's driver, read at each open. /proc/driver/nvforward: what was not passed on. */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "forward.h"

static struct proc_dir_entry *dir;

static int show(struct seq_file *m, void *v)
{
	struct fwd_call *call = fwd_call_new(FWD_READ, 0);
	const char *name = m->private;
	struct fwd_process *p;
	s64 ret = -ENOMEM;

	if (!call)
		return -ENOMEM;
	if (!fwd_add(call, strlen(name) + 1, 0, 0)) {
		strcpy(fwd_buf(call, 0), name);
		p = fwd_process_kernel();
		ret = fwd_run(p, call);
		fwd_process_put(p);
	}
	if (ret > 0)
		seq_write(m, call->data, ret);
	fwd_call_free(call);
	return ret < 0 ? ret : 0;
}

static int open(struct inode *inode, struct file *file)
{
	return single_open(file, show, pde_data(inode));
}

/* Without .proc_read_iter, as the driver's: a module cannot read them. */
static const struct proc_ops ops = {
	.proc_open = open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static int show_not_forwarded(struct seq_file *m, void *v)
{
	fwd_show_not_forwarded(m);
	return 0;
}

static int add_gpus(void)
{
	static char names[FWD_GPUS_MAX][48];
	struct proc_dir_entry *gpus = proc_mkdir("gpus", dir), *gpu;
	u32 i;

	for (i = 0; gpus && i < fwd_gpu_count; i++) {
		snprintf(names[i], sizeof(names[i]), "gpus/%s/information", fwd_gpus[i].bdf);
		gpu = proc_mkdir(fwd_gpus[i].bdf, gpus);
		if (!gpu || !proc_create_data("information", 0444, gpu, &ops, names[i]))
			return -ENOMEM;
	}
	return gpus ? 0 : -ENOMEM;
}

int fwd_procfs_init(void)
{
	dir = proc_mkdir("driver/nvidia", NULL);
	if (!dir)
		return -ENOMEM;
	if (!proc_create_data("version", 0444, dir, &ops, "version") ||
	    !proc_create_data("params", 0444, dir, &ops, "params") ||
	    !proc_create_single("driver/nvforward", 0444, NULL, show_not_forwarded) || add_gpus()) {
		fwd_procfs_exit();
		return -ENOMEM;
	}
	return 0;
}

void fwd_procfs_exit(void)
{
	remove_proc_subtree("driver/nvforward", NULL);
	proc_remove(dir);
}
