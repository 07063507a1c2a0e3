// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "core/nv_abi.h"
#include "core_link.h"
#include "driver.h"

static bool any_driver;
module_param(any_driver, bool, 0444);
MODULE_PARM_DESC(any_driver, "accept driver versions the call table was not checked against (default: refuse)");

/* kernel-open/common/inc/nv-modeset-interface.h; order stable 390 … 580. */
struct nv_rm_ops {
	const char *version_string;
	struct {
		u8 allow_write_combining;
	} system_info;
	int (*alloc_stack)(void **sp);
	void (*free_stack)(void *sp);
	u32 (*enumerate_gpus)(struct nv_gpu_info *info);
	int (*open_gpu)(u32 gpu_id, void *sp);
	void (*close_gpu)(u32 gpu_id, void *sp);
	void (*op)(void *sp, void *ops);
	int (*set_callbacks)(const void *callbacks);
};

extern u32 nvidia_get_rm_ops(struct nv_rm_ops *ops);

/* nv-kernel-rmapi-ops.h: op number, then a union that is at most 64 bytes. */
struct nv_rmapi_op {
	u32 op;
	u32 pad;
	union {
		struct {	/* NVOS00 */
			u32 root, parent, old, status;
		} free;
		struct {	/* NVOS21 or NVOS64: struct cgpu_abi has the rest */
			u32 root, parent, handle, cls;
			u64 params;
		} alloc;
		struct {	/* NVOS54 */
			u32 client, object, cmd, flags;
			u64 params;
			u32 params_size, status;
		} control;
		u8 room[64];
	};
};
static_assert(sizeof(struct nv_rmapi_op) == 72);

/* Written by get/put only, whose callers hold ckm_lock; read by everyone
 * between them.
 */
static struct nv_rm_ops rm;
static char version[64];
static u32 branch;
static u32 fb_info_size;
static u32 util_size;
static struct cgpu_abi abi;
static u32 gets;
static u32 uvm_major;

static u32 (*rm_ops_symbol)(struct nv_rm_ops *);

static u32 params_size(const struct cgpu_core_ops *core, u32 cmd)
{
	const struct cgpu_control *row = core->call_control(branch, cmd);

	return row ? row->params_size : 0;
}

int ckm_driver_get(bool quiet)
{
	const struct cgpu_core_ops *core;
	bool known;
	int ret;

	if (gets) {
		gets++;
		return 0;
	}
	rm_ops_symbol = symbol_get(nvidia_get_rm_ops);
	if (!rm_ops_symbol) {
		if (!quiet)
			pr_err_ratelimited("nvidia.ko is not loaded, or does not export nvidia_get_rm_ops to GPL modules (open modules >= 535.146 or >= 550.40 do)\n");
		return -ENODEV;
	}
	/* A wrong version is answered with the right one; then it is accepted. */
	memset(&rm, 0, sizeof(rm));
	rm.version_string = "";
	if (rm_ops_symbol(&rm) && (!rm.version_string || rm_ops_symbol(&rm))) {
		pr_err_ratelimited("nvidia.ko refused its kernel interface\n");
		ret = -ENODEV;
		goto err_put;
	}
	strscpy(version, rm.version_string, sizeof(version));
	core = ckm_core_enter();
	if (!core) {
		if (!quiet)
			pr_err_ratelimited("no core is loaded: no call table\n");
		ret = -ENODEV;
		goto err_put;
	}
	known = core->call_knows_driver(version);
	branch = core->call_branch(version);
	abi = *core->call_abi(branch);
	fb_info_size = params_size(core, NV2080_CTRL_FB_GET_INFO_V2);
	util_size = params_size(core, NV2080_CTRL_PERF_UTIL_SAMPLES);
	ckm_core_leave();
	if (!known && !any_driver) {
		pr_err_ratelimited("driver %s is of no branch the call table was checked against; any_driver=1 accepts it as if it were %u\n",
				   version, branch);
		ret = -EOPNOTSUPP;
		goto err_put;
	}
	gets = 1;
	return 0;

err_put:
	symbol_put(nvidia_get_rm_ops);
	return ret;
}

void ckm_driver_put(void)
{
	if (--gets)
		return;
	memset(&rm, 0, sizeof(rm));
	symbol_put(nvidia_get_rm_ops);
}

bool ckm_driver_fits(const struct cgpu_core_ops *core)
{
	if (!gets)
		return true;
	return (core->call_knows_driver(version) || any_driver) &&
	       core->call_branch(version) == branch &&
	       !memcmp(core->call_abi(branch), &abi, sizeof(abi)) &&
	       params_size(core, NV2080_CTRL_FB_GET_INFO_V2) == fb_info_size &&
	       params_size(core, NV2080_CTRL_PERF_UTIL_SAMPLES) == util_size;
}

const char *ckm_driver_version(void)
{
	return version;
}

const struct cgpu_abi *ckm_driver_abi(void)
{
	return &abi;
}

u32 ckm_driver_branch(void)
{
	return branch;
}

u32 ckm_driver_fb_info_size(void)
{
	return fb_info_size;
}

u32 ckm_driver_util_size(void)
{
	return util_size;
}

/* Read a small text file of procfs; NULL on any failure. @path is ours, never
 * a tenant's, and the file must really be procfs's.
 */
static char *read_proc_file(const char *path, size_t size)
{
	struct file *file = filp_open(path, O_RDONLY, 0);
	size_t got = 0;
	loff_t pos = 0;
	ssize_t n;
	char *text;

	if (IS_ERR(file))
		return NULL;
	text = file_inode(file)->i_sb->s_magic == PROC_SUPER_MAGIC ?
	       kvmalloc(size, GFP_KERNEL) : NULL;
	while (text && got < size - 1) {
		n = kernel_read(file, text + got, size - 1 - got, &pos);
		if (n <= 0)
			break;
		got += n;
	}
	if (text)
		text[got] = '\0';
	filp_close(file, NULL);
	return text;
}

/* The value after "<key>" on its line of @text, copied to @out. */
static bool find_field(const char *text, const char *key, char *out, size_t size)
{
	const char *at = strstr(text, key);
	size_t len;

	if (!at)
		return false;
	at = skip_spaces(at + strlen(key));
	len = strcspn(at, "\n");
	if (len >= size)
		return false;
	memcpy(out, at, len);
	out[len] = '\0';
	strim(out);
	return true;
}

void ckm_driver_learn_uvm(void)
{
	char *text = read_proc_file("/proc/devices", 16384);
	u32 major = 0, n;
	char *line, *rest = text;
	char name[64];

	while ((line = strsep(&rest, "\n"))) {
		if (!strncmp(line, "Block devices", 13))
			break;
		if (sscanf(line, "%u %63s", &n, name) == 2 && !strcmp(name, "nvidia-uvm"))
			major = n;
	}
	kvfree(text);
	uvm_major = major;
}

u32 ckm_driver_uvm_major(void)
{
	return uvm_major;
}

bool ckm_driver_owns(const struct file_operations *fops)
{
	static const char * const names[] = { "nvidia", "nvidia_uvm", "nvsim" };

	return fops->owner && fops->unlocked_ioctl &&
	       match_string(names, ARRAY_SIZE(names), module_name(fops->owner)) >= 0;
}

/* The driver tells a GPU's minor and UUID only as text. */
static bool describe(const struct nv_gpu_info *info, struct ckm_gpu_desc *desc)
{
	char path[80], minor[16];
	char *text;
	bool ok;

	memset(desc, 0, sizeof(*desc));
	desc->gpu_id = info->gpu_id;
	snprintf(desc->pci, sizeof(desc->pci), "%04x:%02x:%02x.%u", info->pci.domain & 0xffff,
		 info->pci.bus, info->pci.slot, info->pci.function & 7u);
	snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", desc->pci);
	text = read_proc_file(path, 8192);
	if (!text) {
		pr_warn("GPU %s: %s is not readable; left out\n", desc->pci, path);
		return false;
	}
	ok = find_field(text, "Device Minor:", minor, sizeof(minor)) &&
	     !kstrtou32(minor, 10, &desc->nv_minor) && desc->nv_minor <= NV_MINOR_GPU_MAX;
	if (!find_field(text, "GPU UUID:", desc->uuid, sizeof(desc->uuid)) ||
	    strchr(desc->uuid, '?'))
		desc->uuid[0] = '\0';
	kvfree(text);
	if (!ok)
		pr_warn("GPU %s: no device minor in %s; left out\n", desc->pci, path);
	return ok;
}

u32 ckm_driver_enumerate(struct ckm_gpu_desc *desc)
{
	struct nv_gpu_info *info = kcalloc(CGPU_MAX_GPUS, sizeof(*info), GFP_KERNEL);
	u32 count, i, kept = 0;

	if (!info)
		return 0;
	count = min_t(u32, rm.enumerate_gpus(info), CGPU_MAX_GPUS);
	for (i = 0; i < count; i++)
		if (describe(&info[i], &desc[kept]))
			kept++;
	kfree(info);
	return kept;
}

static bool run_op(struct nv_rmapi_op *op)
{
	void *sp = NULL;

	/* sp may be NULL although this succeeds. */
	if (rm.alloc_stack(&sp))
		return false;
	rm.op(sp, op);
	rm.free_stack(sp);
	return true;
}

u32 ckm_rm_alloc(u32 client, u32 parent, u32 *handle, u32 cls, void *params, u32 size)
{
	struct nv_rmapi_op op = { .op = NV04_ALLOC };
	u32 status;

	op.alloc.root = client;
	op.alloc.parent = parent;
	op.alloc.handle = *handle;
	op.alloc.cls = cls;
	op.alloc.params = (uintptr_t)params;
	memcpy(op.room + abi.op_alloc_params_size, &size, sizeof(size));
	if (!run_op(&op))
		return NV_ERR_RESOURCES;
	*handle = op.alloc.handle;
	memcpy(&status, op.room + abi.op_alloc_status, sizeof(status));
	return status;
}

u32 ckm_rm_free(u32 client, u32 parent, u32 handle)
{
	struct nv_rmapi_op op = { .op = NV01_FREE };

	op.free.root = client;
	op.free.parent = parent;
	op.free.old = handle;
	return run_op(&op) ? op.free.status : NV_ERR_RESOURCES;
}

u32 ckm_rm_control(u32 client, u32 object, u32 cmd, void *params, u32 size)
{
	struct nv_rmapi_op op = { .op = NV04_CONTROL };

	op.control.client = client;
	op.control.object = object;
	op.control.cmd = cmd;
	op.control.params = (uintptr_t)params;
	op.control.params_size = size;
	return run_op(&op) ? op.control.status : NV_ERR_RESOURCES;
}

int ckm_rm_open_gpu(u32 gpu_id)
{
	void *sp = NULL;
	int ret;

	if (rm.alloc_stack(&sp))
		return -ENOMEM;
	ret = rm.open_gpu(gpu_id, sp);
	rm.free_stack(sp);
	return ret ? -EIO : 0;
}

void ckm_rm_close_gpu(u32 gpu_id)
{
	void *sp = NULL;

	if (rm.alloc_stack(&sp))
		return;
	rm.close_gpu(gpu_id, sp);
	rm.free_stack(sp);
}
