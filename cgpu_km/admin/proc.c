// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The files of /proc/cgpu_km: their show and store functions. Takes ckm_lock, gpu->lock. */
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "admin/core_swap.h"
#include "admin/instance.h"
#include "admin/proc.h"
#include "admin/proc_dir.h"
#include "admin/proc_stat.h"
#include "admin/settings.h"
#include "core_ref.h"
#include "pure/text_parse.h"
#include "registry.h"
#include "state/container.h"
#include "state/gpu.h"
#include "state/minor.h"
#include "state/slot.h"

static struct ckm_proc_dir *root;

static int parse(const char *text, size_t len, u64 *value, const char **why)
{
	int ret = cgpu_parse_u64(text, len, value);

	if (ret)
		*why = "a decimal number, without a unit";
	return ret;
}

/* ---- root ---- */

static int show_default_memsize(struct seq_file *m, void *obj, u32 attr)
{
	seq_printf(m, "%llu\n", ckm_default_memsize());
	return 0;
}

static int store_default_memsize(void *obj, u32 attr, const char *text, size_t len,
				 const char **why)
{
	u64 value;
	int ret = parse(text, len, &value, why);

	if (ret)
		return ret;
	*why = "at least " __stringify(CGPU_MIB) " bytes";
	if (value < CGPU_MIB || value > S64_MAX)
		return -EINVAL;
	ckm_set_default_memsize(value);
	return 0;
}

static int show_inst_ctl(struct seq_file *m, void *obj, u32 attr)
{
	struct ckm_container *ct;
	u32 i;

	mutex_lock(&ckm_lock);
	list_for_each_entry(ct, &ckm_containers, node) {
		seq_printf(m, "%s cookie=0x%llx dir=%s major=%u ctl=%u uvm=%u state=%s gpu=",
			   ct->id, ct->cookie, ct->dir, ckm_major(), ct->ctl_minor,
			   ct->uvm_minor, ct->dying ? "dying" : "live");
		for (i = 0; i < ct->slot_count; i++)
			seq_printf(m, "%s%u:%u", i ? "," : "", ct->slot[i].gpu->index,
				   ct->slot[i].minor);
		seq_putc(m, '\n');
	}
	mutex_unlock(&ckm_lock);
	return 0;
}

/* A line for each destroyed container of which something is held. Its id and directory may be another's by now. */
static int show_ended(struct seq_file *m, void *obj, u32 attr)
{
	struct ckm_container *ct;
	u64 limit, used;
	u32 i;

	mutex_lock(&ckm_lock);
	list_for_each_entry(ct, &ckm_ended, node) {
		seq_printf(m, "%s cookie=0x%llx dir=%s gpu=", ct->id, ct->cookie, ct->dir);
		for (i = 0; i < ct->slot_count; i++) {
			ckm_slot_limits(&ct->slot[i], &limit, &used);
			seq_printf(m, "%s%u:%llu", i ? "," : "", ct->slot[i].gpu->index, used);
		}
		seq_putc(m, '\n');
	}
	mutex_unlock(&ckm_lock);
	return 0;
}

static int create(const struct cgpu_inst_cmd *cmd)
{
	struct ckm_create *req = kzalloc(sizeof(*req), GFP_KERNEL);
	struct ckm_container *ct;
	const char *why = NULL;
	int ret;
	u32 i;

	if (!req)
		return -ENOMEM;
	req->id = cmd->id;
	req->cookie = cmd->cookie;
	req->slots = cmd->gpus;
	for (i = 0; i < cmd->gpus; i++)
		req->slot[i] = (struct ckm_slot_request){
			.gpu = cmd->gpu[i],
			.weight = cmd->weight[i],
			.limit_bytes = cmd->memsize[i],
			.highprio = cmd->highprio,
			.ceiling = cmd->ceiling[i],
		};
	mutex_lock(&ckm_lock);
	ct = ckm_container_create(req, &why);
	ret = PTR_ERR_OR_ZERO(ct);
	mutex_unlock(&ckm_lock);
	if (ret)
		pr_notice_ratelimited("inst_ctl: %s not created: %s (%d)\n", cmd->id, why, ret);
	kfree(req);
	return ret;
}

static int store_inst_ctl(void *obj, u32 attr, const char *text, size_t len,
			  const char **why)
{
	struct cgpu_inst_cmd *cmd = kzalloc(sizeof(*cmd), GFP_KERNEL);
	size_t at = 0;
	int ret;

	if (!cmd)
		return -ENOMEM;
	ret = cgpu_parse_inst(text, len, cmd, &at);
	if (ret)
		pr_notice_ratelimited("inst_ctl: byte %zu is not understood; a size is bytes, without a unit\n",
				      at);
	if (!ret && cmd->verb == CGPU_VERB_CREATE) {
		ret = create(cmd);
	} else if (!ret) {
		mutex_lock(&ckm_lock);
		ret = ckm_container_destroy(cmd->id, cmd->cookie);
		mutex_unlock(&ckm_lock);
		if (!ret)
			ckm_container_wait_removed(cmd->id);
	}
	kfree(cmd);
	return ret;
}

static int show_upgrade(struct seq_file *m, void *obj, u32 attr)
{
	char *buf = kmalloc(PAGE_SIZE, GFP_KERNEL);

	if (!buf)
		return -ENOMEM;
	seq_write(m, buf, ckm_core_list(buf, PAGE_SIZE));
	kfree(buf);
	return 0;
}

static int store_upgrade(void *obj, u32 attr, const char *text, size_t len,
			 const char **why)
{
	char version[CKM_CORE_VERSION_MAX];

	if (len && text[len - 1] == '\n')
		len--;
	*why = "a version of a core that is loaded, as 1.2.3";
	if (!len || len >= sizeof(version))
		return -EINVAL;
	memcpy(version, text, len);
	version[len] = '\0';
	if (strspn(version, "0123456789.") != len)
		return -EINVAL;
	*why = NULL; /* it logs by itself */
	return ckm_core_switch(version);
}

static int show_version(struct seq_file *m, void *obj, u32 attr)
{
	const struct cgpu_core_ops *core = ckm_core_enter_if_any();

	seq_printf(m, "%s\n", core ? core->version : CGPU_VERSION);
	if (core)
		ckm_core_leave();
	return 0;
}

static const struct ckm_proc_file root_files[] = {
	{ "default_memsize", show_default_memsize, store_default_memsize },
	{ "ended", show_ended },
	{ "inst_ctl", show_inst_ctl, store_inst_ctl },
	{ "upgrade", show_upgrade, store_upgrade },
	{ "version", show_version },
};

/* ---- GPU ---- */

static u64 gpu_value(struct ckm_gpu *gpu, u32 attr)
{
	struct cgpu_sched_view view;
	u64 value = 0;

	spin_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	switch (attr) {
	case CGPU_G_DEFAULT_MEMSIZE:
		value = ckm_gpu_default_memsize_locked(gpu);
		break;
	case CGPU_G_FREE_WEIGHT:
		value = view.free_weight;
		break;
	case CGPU_G_MAX_INST:
		value = view.max_inst;
		break;
	case CGPU_G_NV_MINOR:
		value = gpu->desc.nv_minor;
		break;
	case CGPU_G_OVERCOMMIT:
		value = gpu->overcommit_pct;
		break;
	case CGPU_G_POLICY:
		value = view.policy;
		break;
	case CGPU_G_PRIO_RATIO:
		value = view.prio_ratio;
		break;
	case CGPU_G_SLICE_US:
		value = div_u64(view.slice_ns, 1000);
		break;
	}
	spin_unlock(&gpu->lock);
	return value;
}

static int show_gpu(struct seq_file *m, void *obj, u32 attr)
{
	seq_printf(m, "%llu\n", gpu_value(obj, attr));
	return 0;
}

static int store_gpu(void *obj, u32 attr, const char *text, size_t len,
		     const char **why)
{
	struct ckm_gpu_values values = { .given = BIT(attr) };

	return parse(text, len, &values.value[attr], why) ?: ckm_gpu_set(obj, &values, why);
}

static int show_major(struct seq_file *m, void *obj, u32 attr)
{
	seq_printf(m, "%u\n", ckm_major());
	return 0;
}

static int show_pci(struct seq_file *m, void *obj, u32 attr)
{
	seq_printf(m, "%s\n", ((struct ckm_gpu *)obj)->desc.pci);
	return 0;
}

static int show_uuid(struct seq_file *m, void *obj, u32 attr)
{
	seq_printf(m, "%s\n", ((struct ckm_gpu *)obj)->desc.uuid);
	return 0;
}

static int show_uvm(struct seq_file *m, void *obj, u32 attr)
{
	struct ckm_gpu *gpu = obj;

	seq_puts(m, READ_ONCE(gpu->uvm_account) ? "account\n" : "deny\n");
	return 0;
}

static int store_uvm(void *obj, u32 attr, const char *text, size_t len,
		     const char **why)
{
	struct ckm_gpu_values values = { .given = BIT(CGPU_G_UVM) };

	*why = "account or deny";
	if (len && text[len - 1] == '\n')
		len--;
	values.value[CGPU_G_UVM] = len == 7 && !memcmp(text, "account", 7);
	if (!values.value[CGPU_G_UVM] && !(len == 4 && !memcmp(text, "deny", 4)))
		return -EINVAL;
	return ckm_gpu_set(obj, &values, why);
}

static const struct ckm_proc_file gpu_files[] = {
	{ "default_memsize", show_gpu, store_gpu, CGPU_G_DEFAULT_MEMSIZE },
	{ "free_weight", show_gpu, NULL, CGPU_G_FREE_WEIGHT },
	{ "major", show_major },
	{ "max_inst", show_gpu, store_gpu, CGPU_G_MAX_INST },
	{ "minor", show_gpu, NULL, CGPU_G_NV_MINOR },
	{ "overcommit", show_gpu, store_gpu, CGPU_G_OVERCOMMIT },
	{ "pci", show_pci },
	{ "policy", show_gpu, store_gpu, CGPU_G_POLICY },
	{ "prio_ratio", show_gpu, store_gpu, CGPU_G_PRIO_RATIO },
	{ "slice_us", show_gpu, store_gpu, CGPU_G_SLICE_US },
	{ "stat", ckm_proc_show_gpu_stat },
	{ "uuid", show_uuid },
	{ "uvm", show_uvm, store_uvm },
};

/* ---- slot ---- */

static u64 slot_value(struct ckm_slot *slot, u32 attr)
{
	struct cgpu_sched_entity_view view;
	u64 value = 0;

	spin_lock(&slot->gpu->lock);
	ckm_gpu_slot_view_locked(slot->gpu, slot->sched_id, &view);
	switch (attr) {
	case CGPU_S_CEILING:
		value = view.ceiling;
		break;
	case CGPU_S_HIGHPRIO:
		value = view.highprio;
		break;
	case CGPU_S_HOST_LIMIT:
		value = READ_ONCE(slot->ct->host_limit);
		break;
	case CGPU_S_LIMIT:
		value = slot->ledger.limit_bytes;
		break;
	case CGPU_S_WEIGHT:
		value = view.weight;
		break;
	}
	spin_unlock(&slot->gpu->lock);
	return value;
}

static int show_slot(struct seq_file *m, void *obj, u32 attr)
{
	seq_printf(m, "%llu\n", slot_value(obj, attr));
	return 0;
}

static int store_slot(void *obj, u32 attr, const char *text, size_t len,
		      const char **why)
{
	struct ckm_slot_values values = { .slot = obj, .given = BIT(attr) };

	return parse(text, len, &values.value[attr], why) ?: ckm_slots_set(&values, 1, why);
}

static int show_id(struct seq_file *m, void *obj, u32 attr)
{
	seq_printf(m, "%s\n", ((struct ckm_slot *)obj)->ct->id);
	return 0;
}

static int show_ipc(struct seq_file *m, void *obj, u32 attr)
{
	char name[CGPU_ID_MAX + 1];

	ckm_container_ipc(((struct ckm_slot *)obj)->ct, name);
	seq_printf(m, "%s\n", name);
	return 0;
}

static int store_ipc(void *obj, u32 attr, const char *text, size_t len,
		     const char **why)
{
	*why = "a name as an id, or nothing";
	if (len && text[len - 1] == '\n')
		len--;
	return ckm_container_set_ipc(((struct ckm_slot *)obj)->ct, text, len);
}

static const struct ckm_proc_file slot_files[] = {
	{ "ceiling", show_slot, store_slot, CGPU_S_CEILING },
	{ "highprio", show_slot, store_slot, CGPU_S_HIGHPRIO },
	{ "host_memsize", show_slot, store_slot, CGPU_S_HOST_LIMIT },
	{ "id", show_id },
	{ "ipc", show_ipc, store_ipc },
	{ "meminfo", ckm_proc_show_meminfo },
	{ "memsize", show_slot, store_slot, CGPU_S_LIMIT },
	{ "stat", ckm_proc_show_slot_stat },
	{ "weight", show_slot, store_slot, CGPU_S_WEIGHT },
};

/* ---- directories ---- */

static int add_gpu(struct ckm_gpu *gpu)
{
	char name[12];

	snprintf(name, sizeof(name), "%u", gpu->index);
	gpu->proc = ckm_proc_dir_add(name, root, gpu_files, ARRAY_SIZE(gpu_files), gpu);
	return gpu->proc ? 0 : -ENOMEM;
}

static void remove_gpu(struct ckm_gpu *gpu)
{
	ckm_proc_dir_remove(gpu->proc);
	gpu->proc = NULL;
}

static void remove_container(struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++) {
		ckm_proc_dir_remove(ct->slot[i].proc);
		ct->slot[i].proc = NULL;
	}
}

static int add_container(struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++) {
		ct->slot[i].proc = ckm_proc_dir_add(ct->dir, ct->slot[i].gpu->proc, slot_files,
						    ARRAY_SIZE(slot_files), &ct->slot[i]);
		if (!ct->slot[i].proc) {
			remove_container(ct);
			return -ENOMEM;
		}
	}
	return 0;
}

const struct ckm_observer ckm_proc_observer = {
	.gpu_added		= add_gpu,
	.gpu_removed		= remove_gpu,
	.container_added	= add_container,
	.container_removed	= remove_container,
};

int ckm_proc_init(void)
{
	root = ckm_proc_dir_add("cgpu_km", NULL, root_files, ARRAY_SIZE(root_files), NULL);
	return root ? 0 : -ENOMEM;
}

void ckm_proc_exit(void)
{
	ckm_proc_dir_remove(root);
}
