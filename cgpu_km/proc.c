// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/pid_namespace.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/user_namespace.h>

#include "container.h"
#include "core_link.h"
#include "gpu.h"
#include "lever.h"
#include "netlink.h"
#include "proc.h"
#include "settings.h"

#define WRITE_MAX 4096

/* What a file shows and takes; @obj is the directory's: NULL, GPU or slot. */
struct file_desc {
	const char *name;
	int (*show)(struct seq_file *m, void *obj);
	int (*store)(void *obj, const char *text, size_t len);	/* NULL: read only */
};

struct file_node {
	const struct file_desc *desc;
	void *obj;
};

struct ckm_proc_dir {
	struct proc_dir_entry *entry;
	struct file_node node[];
};

static struct ckm_proc_dir *root;
static u64 default_memsize = 8ull << 30;

u64 ckm_default_memsize(void)
{
	return READ_ONCE(default_memsize);
}

/* ---- helpers ---- */

static int parse(const char *text, size_t len, u64 *value)
{
	const struct cgpu_core_ops *core = ckm_core_enter();
	int ret;

	if (!core)
		return -ENODEV;
	ret = core->parse_u64(text, len, value);
	ckm_core_leave();
	return ret;
}

static int store_gpu(struct ckm_gpu *gpu, u32 attr, const char *text, size_t len)
{
	struct ckm_gpu_values values = { .given = BIT(attr) };
	const char *why;

	return parse(text, len, &values.value[attr]) ?: ckm_gpu_set(gpu, &values, &why);
}

static int store_slot(struct ckm_slot_values *values, u64 *value, const char *text, size_t len)
{
	const char *why;
	int ret = parse(text, len, value) ?: ckm_slots_set(values, 1, &why);

	if (!ret)
		ckm_netlink_event(values->slot->ct, CGPU_EVENT_CHANGED);
	return ret;
}

/* ---- root ---- */

static int show_default_memsize(struct seq_file *m, void *obj)
{
	seq_printf(m, "%llu\n", ckm_default_memsize());
	return 0;
}

static int store_default_memsize(void *obj, const char *text, size_t len)
{
	u64 value;
	int ret = parse(text, len, &value);

	if (ret)
		return ret;
	if (value < CGPU_MIB || value > S64_MAX)
		return -EINVAL;
	WRITE_ONCE(default_memsize, value);
	return 0;
}

static int show_inst_ctl(struct seq_file *m, void *obj)
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

static int store_inst_ctl(void *obj, const char *text, size_t len)
{
	struct cgpu_inst_cmd *cmd = kzalloc(sizeof(*cmd), GFP_KERNEL);
	const struct cgpu_core_ops *core;
	size_t at = 0;
	int ret = -ENODEV;

	if (!cmd)
		return -ENOMEM;
	core = ckm_core_enter();
	if (core) {
		ret = core->parse_inst(text, len, cmd, &at);
		ckm_core_leave();
		if (ret)
			pr_notice_ratelimited("inst_ctl: byte %zu is not understood\n", at);
	}
	if (!ret && cmd->verb == CGPU_VERB_CREATE) {
		ret = create(cmd);
	} else if (!ret) {
		mutex_lock(&ckm_lock);
		ret = ckm_container_destroy(cmd->id, cmd->cookie);
		mutex_unlock(&ckm_lock);
	}
	kfree(cmd);
	return ret;
}

static int show_upgrade(struct seq_file *m, void *obj)
{
	char *buf = kmalloc(PAGE_SIZE, GFP_KERNEL);

	if (!buf)
		return -ENOMEM;
	seq_write(m, buf, ckm_core_list(buf, PAGE_SIZE));
	kfree(buf);
	return 0;
}

static int store_upgrade(void *obj, const char *text, size_t len)
{
	char version[CKM_CORE_VERSION_MAX];

	if (len && text[len - 1] == '\n')
		len--;
	if (!len || len >= sizeof(version))
		return -EINVAL;
	memcpy(version, text, len);
	version[len] = '\0';
	if (strspn(version, "0123456789.") != len)
		return -EINVAL;
	return ckm_core_switch(version);
}

static int show_version(struct seq_file *m, void *obj)
{
	const struct cgpu_core_ops *core = ckm_core_enter();

	seq_printf(m, "%s\n", core ? core->version : CGPU_VERSION);
	if (core)
		ckm_core_leave();
	return 0;
}

static const struct file_desc root_files[] = {
	{ "default_memsize", show_default_memsize, store_default_memsize },
	{ "inst_ctl", show_inst_ctl, store_inst_ctl },
	{ "upgrade", show_upgrade, store_upgrade },
	{ "version", show_version },
};

/* ---- GPU ---- */

static struct cgpu_turn_view view_of(struct ckm_gpu *gpu)
{
	struct cgpu_turn_view view;

	mutex_lock(&gpu->lock);
	ckm_gpu_view_locked(gpu, &view);
	mutex_unlock(&gpu->lock);
	return view;
}

static int show_free_weight(struct seq_file *m, void *obj)
{
	seq_printf(m, "%u\n", view_of(obj).free_weight);
	return 0;
}

static int show_max_inst(struct seq_file *m, void *obj)
{
	seq_printf(m, "%u\n", view_of(obj).max_inst);
	return 0;
}

static int store_max_inst(void *obj, const char *text, size_t len)
{
	return store_gpu(obj, CGPU_G_MAX_INST, text, len);
}

static int show_policy(struct seq_file *m, void *obj)
{
	seq_printf(m, "%u\n", view_of(obj).policy);
	return 0;
}

static int store_policy(void *obj, const char *text, size_t len)
{
	return store_gpu(obj, CGPU_G_POLICY, text, len);
}

static int show_prio_ratio(struct seq_file *m, void *obj)
{
	seq_printf(m, "%u\n", view_of(obj).prio_ratio);
	return 0;
}

static int store_prio_ratio(void *obj, const char *text, size_t len)
{
	return store_gpu(obj, CGPU_G_PRIO_RATIO, text, len);
}

static int show_slice_us(struct seq_file *m, void *obj)
{
	seq_printf(m, "%llu\n", div_u64(view_of(obj).slice_ns, 1000));
	return 0;
}

static int store_slice_us(void *obj, const char *text, size_t len)
{
	return store_gpu(obj, CGPU_G_SLICE_US, text, len);
}

static int show_gpu_default_memsize(struct seq_file *m, void *obj)
{
	struct ckm_gpu *gpu = obj;
	u64 bytes;

	mutex_lock(&gpu->lock);
	bytes = ckm_gpu_default_memsize_locked(gpu);
	mutex_unlock(&gpu->lock);
	seq_printf(m, "%llu\n", bytes);
	return 0;
}

static int store_gpu_default_memsize(void *obj, const char *text, size_t len)
{
	return store_gpu(obj, CGPU_G_DEFAULT_MEMSIZE, text, len);
}

static int show_overcommit(struct seq_file *m, void *obj)
{
	struct ckm_gpu *gpu = obj;
	u32 pct;

	mutex_lock(&gpu->lock);
	pct = gpu->overcommit_pct;
	mutex_unlock(&gpu->lock);
	seq_printf(m, "%u\n", pct);
	return 0;
}

static int store_overcommit(void *obj, const char *text, size_t len)
{
	return store_gpu(obj, CGPU_G_OVERCOMMIT, text, len);
}

static int show_major(struct seq_file *m, void *obj)
{
	seq_printf(m, "%u\n", ckm_major());
	return 0;
}

static int show_minor(struct seq_file *m, void *obj)
{
	seq_printf(m, "%u\n", ((struct ckm_gpu *)obj)->desc.nv_minor);
	return 0;
}

static int show_pci(struct seq_file *m, void *obj)
{
	seq_printf(m, "%s\n", ((struct ckm_gpu *)obj)->desc.pci);
	return 0;
}

static int show_uuid(struct seq_file *m, void *obj)
{
	seq_printf(m, "%s\n", ((struct ckm_gpu *)obj)->desc.uuid);
	return 0;
}

static int show_uvm(struct seq_file *m, void *obj)
{
	struct ckm_gpu *gpu = obj;

	seq_puts(m, READ_ONCE(gpu->uvm_account) ? "account\n" : "deny\n");
	return 0;
}

static int store_uvm(void *obj, const char *text, size_t len)
{
	struct ckm_gpu_values values = { .given = BIT(CGPU_G_UVM) };
	const char *why;

	if (len && text[len - 1] == '\n')
		len--;
	values.value[CGPU_G_UVM] = len == 7 && !memcmp(text, "account", 7);
	if (!values.value[CGPU_G_UVM] && !(len == 4 && !memcmp(text, "deny", 4)))
		return -EINVAL;
	return ckm_gpu_set(obj, &values, &why);
}

static const char *lever_name(u32 levers)
{
	static const char * const names[] = { "none", "window", "timeslice", "window,timeslice" };

	return names[levers & (CGPU_LEVER_WINDOW | CGPU_LEVER_TIMESLICE)];
}

static const char *look_name(enum ckm_look_state state)
{
	static const char * const names[] = { "idle", "watching", "holding", "blind" };

	return names[state];
}

static int show_gpu_stat(struct seq_file *m, void *obj)
{
	struct ckm_gpu *gpu = obj;
	struct ckm_lever_stat st = {};
	u64 used = 0, limits, p50, p99, cpu = 0, turns, driver, free;
	u32 i, instances = 0, seen;
	struct cgpu_turn_view view;
	enum ckm_look_state look;

	if (!ckm_gpu_heap_if_open(gpu, &driver, &free))
		driver = 0;
	mutex_lock(&gpu->lever_lock);
	st.calls = gpu->lever.calls;
	st.failed = gpu->lever.failed;
	st.max_ns = gpu->lever.max_ns;
	p50 = ckm_lever_latency_ns(gpu, 50);
	p99 = ckm_lever_latency_ns(gpu, 99);
	turns = gpu->turns;
	mutex_lock(&gpu->lock);
	if (gpu->thread)
		cpu = gpu->thread->se.sum_exec_runtime;
	limits = gpu->limits_bytes;
	ckm_gpu_view_locked(gpu, &view);
	seen = gpu->look->seen;
	look = gpu->look_state;
	for (i = 0; i < CGPU_SLOTS; i++)
		if (gpu->slot[i]) {
			used += gpu->slot[i]->ledger.used_bytes;
			instances++;
		}
	mutex_unlock(&gpu->lock);
	mutex_unlock(&gpu->lever_lock);

	seq_printf(m, "total_bytes %llu\nlimits_bytes %llu\nused_bytes %llu\ninstances %u\n",
		   gpu->total_bytes, limits, used, instances);
	seq_printf(m, "lever %s\nlever_p50_us %llu\nlever_p99_us %llu\nlever_max_us %llu\n",
		   lever_name(view.levers), p50 / 1000, p99 / 1000, st.max_ns / 1000);
	seq_printf(m, "lever_calls %llu\nlever_failed %llu\nturns %llu\nthread_cpu_ns %llu\n",
		   st.calls, st.failed, turns, cpu);
	seq_printf(m, "context_bytes %llu\ndriver_used_bytes %llu\nunattributed_bytes %llu\n",
		   ckm_gpu_context_bytes(gpu), driver, driver > used ? driver - used : 0);
	seq_printf(m, "lever_seen %s\nlever_inert %s\nlever_look %s\n", lever_name(seen),
		   lever_name(view.inert), look_name(look));
	return 0;
}

static const struct file_desc gpu_files[] = {
	{ "default_memsize", show_gpu_default_memsize, store_gpu_default_memsize },
	{ "free_weight", show_free_weight },
	{ "major", show_major },
	{ "max_inst", show_max_inst, store_max_inst },
	{ "minor", show_minor },
	{ "overcommit", show_overcommit, store_overcommit },
	{ "pci", show_pci },
	{ "policy", show_policy, store_policy },
	{ "prio_ratio", show_prio_ratio, store_prio_ratio },
	{ "slice_us", show_slice_us, store_slice_us },
	{ "stat", show_gpu_stat },
	{ "uuid", show_uuid },
	{ "uvm", show_uvm, store_uvm },
};

/* ---- slot ---- */

static struct cgpu_turn_slot_view slot_view_of(struct ckm_slot *slot)
{
	struct cgpu_turn_slot_view view;

	mutex_lock(&slot->gpu->lock);
	ckm_gpu_slot_view_locked(slot->gpu, slot->turn_slot, &view);
	mutex_unlock(&slot->gpu->lock);
	return view;
}

static int show_highprio(struct seq_file *m, void *obj)
{
	seq_printf(m, "%u\n", slot_view_of(obj).highprio);
	return 0;
}

static int store_highprio(void *obj, const char *text, size_t len)
{
	struct ckm_slot_values values = { .slot = obj, .given = BIT(CGPU_S_HIGHPRIO) };

	return store_slot(&values, &values.highprio, text, len);
}

static int show_weight(struct seq_file *m, void *obj)
{
	seq_printf(m, "%u\n", slot_view_of(obj).weight);
	return 0;
}

static int store_weight(void *obj, const char *text, size_t len)
{
	struct ckm_slot_values values = { .slot = obj, .given = BIT(CGPU_S_WEIGHT) };

	return store_slot(&values, &values.weight, text, len);
}

static int show_id(struct seq_file *m, void *obj)
{
	seq_printf(m, "%s\n", ((struct ckm_slot *)obj)->ct->id);
	return 0;
}

static int show_ipc(struct seq_file *m, void *obj)
{
	char name[CGPU_ID_MAX + 1];

	ckm_container_ipc(((struct ckm_slot *)obj)->ct, name);
	seq_printf(m, "%s\n", name);
	return 0;
}

static int store_ipc(void *obj, const char *text, size_t len)
{
	if (len && text[len - 1] == '\n')
		len--;
	return ckm_container_set_ipc(((struct ckm_slot *)obj)->ct, text, len);
}

static int show_memsize(struct seq_file *m, void *obj)
{
	u64 limit, used;

	ckm_slot_limits(obj, &limit, &used);
	seq_printf(m, "%llu\n", limit);
	return 0;
}

static int store_memsize(void *obj, const char *text, size_t len)
{
	struct ckm_slot_values values = { .slot = obj, .given = BIT(CGPU_S_LIMIT) };

	return store_slot(&values, &values.limit_bytes, text, len);
}

static int show_meminfo(struct seq_file *m, void *obj)
{
	struct ckm_slot *slot = obj;
	const struct cgpu_core_ops *core;
	struct cgpu_pid_mem *pids;
	u64 left = 0;
	u32 count = 0, room = 0;
	struct ckm_mem *mem;
	size_t size;
	char *text;
	int len = -ENOMEM;

	mutex_lock(&slot->ct->rm_lock);
	list_for_each_entry(mem, &slot->mems, node)
		room++;
	pids = kvcalloc(room + 1, sizeof(*pids), GFP_KERNEL);
	if (pids)
		list_for_each_entry(mem, &slot->mems, node) {
			pids[count].pid = mem->core.pid;
			pids[count++].bytes = mem->core.bytes;
		}
	mutex_lock(&slot->gpu->lock);
	core = ckm_core_enter();
	if (core) {
		left = core->ledger_free(&slot->ledger);
		ckm_core_leave();
	}
	mutex_unlock(&slot->gpu->lock);
	mutex_unlock(&slot->ct->rm_lock);

	size = 64 + count * 48;
	text = kvmalloc(size, GFP_KERNEL);
	core = ckm_core_enter();
	if (core && pids && text) {
		count = core->format_merge_pids(pids, count);
		len = core->format_meminfo(text, size, left, pids, count);
	}
	if (core)
		ckm_core_leave();
	if (len > 0)
		seq_write(m, text, len);
	kvfree(text);
	kvfree(pids);
	return len < 0 ? len : 0;
}

static int show_slot_stat(struct seq_file *m, void *obj)
{
	struct ckm_slot *slot = obj;
	const struct cgpu_core_ops *core;
	struct cgpu_turn_stat st = {};
	struct cgpu_ledger led;
	char text[512];
	int len = -ENODEV;

	mutex_lock(&slot->gpu->lock);
	core = ckm_core_enter();
	if (core) {
		core->turn_stat(slot->gpu->turn, slot->turn_slot, ktime_get_ns(), &st);
		led = slot->ledger;
		len = core->format_slot_stat(text, sizeof(text), &led, &st,
					     atomic64_read(&slot->refused_calls));
		ckm_core_leave();
	}
	mutex_unlock(&slot->gpu->lock);
	if (len < 0)
		return len;
	seq_write(m, text, len);
	return 0;
}

static const struct file_desc slot_files[] = {
	{ "highprio", show_highprio, store_highprio },
	{ "id", show_id },
	{ "ipc", show_ipc, store_ipc },
	{ "meminfo", show_meminfo },
	{ "memsize", show_memsize, store_memsize },
	{ "stat", show_slot_stat },
	{ "weight", show_weight, store_weight },
};

/* ---- plumbing ---- */

/* procfs cannot hide the tree from one reader: opening it is refused. */
bool ckm_from_outside(void)
{
	return task_active_pid_ns(current) != &init_pid_ns ||
	       current_user_ns() != &init_user_ns;
}

static int show(struct seq_file *m, void *v)
{
	struct file_node *node = m->private;

	return node->desc->show(m, node->obj);
}

/* Under ckm_lock we read other files of procfs (driver.c), and reading ours
 * takes ckm_lock: two classes, or lockdep sees a circle.
 */
static struct lock_class_key seq_lock_key;

static int open(struct inode *inode, struct file *file)
{
	int ret;

	if (ckm_from_outside())
		return -EPERM;
	if ((file->f_mode & FMODE_WRITE) && !capable(CAP_SYS_ADMIN))
		return -EPERM;
	ret = single_open(file, show, pde_data(inode));
	if (!ret)
		lockdep_set_class(&((struct seq_file *)file->private_data)->lock, &seq_lock_key);
	return ret;
}

static ssize_t write(struct file *file, const char __user *user, size_t len, loff_t *pos)
{
	struct file_node *node = pde_data(file_inode(file));
	char *text;
	int ret;

	/* The writer's right, and the opener's: a descriptor does not carry it. */
	if (ckm_from_outside() || !capable(CAP_SYS_ADMIN) ||
	    !file_ns_capable(file, &init_user_ns, CAP_SYS_ADMIN))
		return -EPERM;
	if (*pos || len > WRITE_MAX)
		return -EINVAL;
	text = memdup_user_nul(user, len);
	if (IS_ERR(text))
		return PTR_ERR(text);
	ret = node->desc->store(node->obj, text, len);
	kfree(text);
	if (ret)
		return ret;
	*pos += len;
	return len;
}

static const struct proc_ops read_ops = {
	.proc_open	= open,
	.proc_read	= seq_read,
	.proc_lseek	= seq_lseek,
	.proc_release	= single_release,
};

static const struct proc_ops write_ops = {
	.proc_open	= open,
	.proc_read	= seq_read,
	.proc_write	= write,
	.proc_lseek	= seq_lseek,
	.proc_release	= single_release,
};

static struct ckm_proc_dir *add_dir(const char *name, struct proc_dir_entry *parent,
				    const struct file_desc *files, u32 count, void *obj)
{
	struct ckm_proc_dir *dir = kzalloc(struct_size(dir, node, count), GFP_KERNEL);
	u32 i;

	if (!dir)
		return NULL;
	dir->entry = proc_mkdir(name, parent);
	if (!dir->entry)
		goto err_free;
	for (i = 0; i < count; i++) {
		dir->node[i].desc = &files[i];
		dir->node[i].obj = obj;
		if (!proc_create_data(files[i].name, files[i].store ? 0644 : 0444, dir->entry,
				      files[i].store ? &write_ops : &read_ops, &dir->node[i]))
			goto err_remove;
	}
	return dir;

err_remove:
	proc_remove(dir->entry);
err_free:
	kfree(dir);
	return NULL;
}

static void remove_dir(struct ckm_proc_dir *dir)
{
	if (!dir)
		return;
	proc_remove(dir->entry);
	kfree(dir);
}

int ckm_proc_add_gpu(struct ckm_gpu *gpu)
{
	char name[12];

	snprintf(name, sizeof(name), "%u", gpu->index);
	gpu->proc = add_dir(name, root->entry, gpu_files, ARRAY_SIZE(gpu_files), gpu);
	return gpu->proc ? 0 : -ENOMEM;
}

void ckm_proc_remove_gpu(struct ckm_gpu *gpu)
{
	remove_dir(gpu->proc);
	gpu->proc = NULL;
}

void ckm_proc_remove_container(struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++) {
		remove_dir(ct->slot[i].proc);
		ct->slot[i].proc = NULL;
	}
}

int ckm_proc_add_container(struct ckm_container *ct)
{
	u32 i;

	for (i = 0; i < ct->slot_count; i++) {
		ct->slot[i].proc = add_dir(ct->dir, ct->slot[i].gpu->proc->entry, slot_files,
					   ARRAY_SIZE(slot_files), &ct->slot[i]);
		if (!ct->slot[i].proc) {
			ckm_proc_remove_container(ct);
			return -ENOMEM;
		}
	}
	return 0;
}

int ckm_proc_init(void)
{
	root = add_dir("cgpu_km", NULL, root_files, ARRAY_SIZE(root_files), NULL);
	return root ? 0 : -ENOMEM;
}

void ckm_proc_exit(void)
{
	remove_dir(root);
}
