// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* nvforward: in the place of nvidia.ko and nvidia-uvm.ko in User-Mode Linux. docs/develop/forward.md. */
#include <linux/module.h>

#include "core/nv_call.h"
#include "forward.h"

#define CARD_INFO_BYTES		72u
#define CARD_INFO_NR		200u
#define VERSION_NR		210u
#define VERSION_BYTES		72u

static char *socket = "";
module_param(socket, charp, 0444);
MODULE_PARM_DESC(socket, "of nvforwardd, a path of the host");

struct fwd_gpu fwd_gpus[FWD_GPUS_MAX];
struct fwd_state fwd_states[FWD_GPUS_MAX], fwd_ctl;
u32 fwd_gpu_count, fwd_branch;
char fwd_version[64];

static s64 ask(struct fwd_file *f, u32 nr, struct fwd_call **call, u32 size)
{
	struct fwd_process *p = fwd_process_kernel();
	s64 ret = -ENOMEM;

	*call = fwd_call_new(FWD_IOCTL, _IOC(_IOC_READ | _IOC_WRITE, 'F', nr, size));
	if (*call) {
		fwd_add_fd(*call, f->host_fd, 0, 0);
		fwd_add(*call, size, 0, 0);
		if (nr == VERSION_NR)
			put32(fwd_buf(*call, 0), 0, '2');	/* NV_RM_API_VERSION_CMD_QUERY */
		ret = fwd_run(p, *call);
	}
	fwd_process_put(p);
	return ret;
}

/* nv-ioctl.h: nv_ioctl_card_info_t */
static void add_gpu(const u8 *info)
{
	struct fwd_gpu *gpu = &fwd_gpus[fwd_gpu_count];

	*gpu = (struct fwd_gpu){
		.domain = get32(info, 4), .bus = info[8], .slot = info[9], .function = info[10],
		.gpu_id = get32(info, 16), .minor = get32(info, 56),
	};
	snprintf(gpu->bdf, sizeof(gpu->bdf), "%04x:%02x:%02x.%u", gpu->domain & 0xffff, gpu->bus, gpu->slot,
		 gpu->function & 7u);
	fwd_states[fwd_gpu_count++].gpu = gpu;
}

/* The host's driver: its release and its GPUs. */
static int learn(void)
{
	struct fwd_file *f = fwd_file_open("nvidiactl");
	struct fwd_call *call;
	s64 ret;
	u32 i;

	if (IS_ERR(f))
		return PTR_ERR(f);
	ret = ask(f, VERSION_NR, &call, VERSION_BYTES);
	if (!ret)
		strscpy(fwd_version, fwd_buf(call, 0) + 8, sizeof(fwd_version));
	fwd_call_free(call);
	if (!ret) {
		ret = ask(f, CARD_INFO_NR, &call, FWD_GPUS_MAX * CARD_INFO_BYTES);
		for (i = 0; !ret && i < FWD_GPUS_MAX; i++) {
			const u8 *info = fwd_buf(call, 0) + i * CARD_INFO_BYTES;

			if (info[0])
				add_gpu(info);
		}
		fwd_call_free(call);
	}
	fwd_file_close(f);
	fwd_branch = cgpu_call_branch(fwd_version);
	return ret;
}

static int __init fwd_init(void)
{
	int ret = fwd_mmap_init();

	if (ret)
		return ret;
	ret = fwd_host_init(socket);
	if (ret)
		return ret;
	ret = learn();
	if (ret) {
		pr_err("nvforward: no driver behind %s (%d)\n", socket, ret);
		goto err_host;
	}
	ret = fwd_kernel_open();
	if (ret)
		goto err_host;
	ret = fwd_procfs_init();
	if (ret)
		goto err_kernel;
	ret = fwd_chardev_init();
	if (ret)
		goto err_procfs;
	ret = fwd_uvm_init();
	if (ret)
		goto err_chardev;
	pr_info("nvforward: driver %s of the host, %u GPUs\n", fwd_version, fwd_gpu_count);
	return 0;

err_chardev:
	fwd_chardev_exit();
err_procfs:
	fwd_procfs_exit();
err_kernel:
	fwd_kernel_close();
err_host:
	fwd_host_exit();
	return ret;
}

static void __exit fwd_exit(void)
{
	fwd_uvm_exit();
	fwd_chardev_exit();
	fwd_procfs_exit();
	fwd_kernel_close();
	fwd_host_exit();
}

module_init(fwd_init);
module_exit(fwd_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("NVIDIA's driver of the host, for User-Mode Linux");
