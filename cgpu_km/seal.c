// SPDX-License-Identifier: MIT OR GPL-2.0
#include <linux/file.h>
#include <linux/fdtable.h>
#include <linux/hashtable.h>
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/objtool.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/syscalls.h>
#include <linux/uaccess.h>

#include "backfs.h"
#include "calls.h"
#include "container.h"
#include "core/nv_abi.h"
#include "core_link.h"
#include "dmabuf.h"
#include "driver.h"
#include "interpose.h"
#include "rm_calls.h"
#include "seal.h"

enum { PROBE_IOCTL, PROBE_COPY, PROBE_ANSWER, PROBE_FD, PROBE_DUP, PROBE_UNDUP, PROBE_RETAIN, PROBE_RELEASE,
       PROBE_DMABUF, PROBE_DMABUF_FD,
       PROBES };

/* A reference that uvm took, keyed by what the driver gave it to give it back:
 * a handle by PROBE_UNDUP, a pointer by PROBE_RELEASE.
 */
struct uvm_ref {
	struct hlist_node node;
	struct rcu_head rcu;
	unsigned long key;
	u32 probe;
	struct cgpu_mem *mem;		/* a reference, or NULL: system memory */
	struct ckm_container *ct;	/* a reference */
	struct ckm_slot *slot;		/* of @overhead; NULL: it has none */
	u64 overhead;			/* page tables of its mapping */
};
static DEFINE_HASHTABLE(uvm_refs, 10);
static DEFINE_SPINLOCK(uvm_refs_lock);

static struct kprobe probes[PROBES];

/* Run the function a probe sits on, which this task's next hit lets through.
 * From 5.18 on a probe's address lies behind the function's ENDBR, and with
 * CONFIG_X86_KERNEL_IBT an indirect branch to there is fatal. A return is not
 * an indirect branch: the target is pushed and returned to.
 */
unsigned long ckm_call_original(unsigned long a, unsigned long b, unsigned long c,
				unsigned long d, unsigned long e, unsigned long f,
				void *target);
asm(".pushsection .text\n"
    "	.balign 16\n"
    "	.type ckm_call_original, @function\n"
    "ckm_call_original:\n"
    "	pushq 8(%rsp)\n"
    "	" ASM_RET
    "	.size ckm_call_original, . - ckm_call_original\n"
    ".popsection\n");
STACK_FRAME_NON_STANDARD(ckm_call_original);	/* returns to what it pushed */

#define ARG(x) ((unsigned long)(x))

static void *original(struct ckm_call *call, u32 probe)
{
	call->aside |= BIT(probe);
	return probes[probe].addr;
}

/* The functions are as nvidia.ko declares them: nv.h, os-interface.h,
 * nv_uvm_interface.h of kernel-open/.
 */

static u32 sealed_rm_ioctl(void *sp, void *nv, void *nvfp, u32 cmd, void *arg, u32 size)
{
	struct ckm_call *call = ckm_call_mine();
	u32 ret;

	if (size != call->size)
		return NV_ERR_ARGUMENT;
	memcpy(arg, call->top, size);
	ret = ckm_call_original(ARG(sp), ARG(nv), ARG(nvfp), cmd, ARG(arg), size,
				original(call, PROBE_IOCTL));
	call->ran = true;
	if (call->post)
		call->post(call, arg);
	memcpy(call->top, arg, size);
	return ret;
}

static u32 sealed_memcpy_from_user(void *to, const void __user *from, u32 n)
{
	const struct ckm_range *r = &ckm_call_mine()->nested;
	unsigned long at = (unsigned long)from;
	unsigned long first = max(at, r->user), end = min(at + n, r->user + r->size);

	if (!r->size || first >= end)
		return copy_from_user(to, from, n) ? NV_ERR_ADDRESS : NV_OK;
	/* What lies around the sealed bytes is the tenant's own affair. */
	if ((first != at || end != at + n) && copy_from_user(to, from, n))
		return NV_ERR_ADDRESS;
	memcpy(to + (first - at), r->copy + (first - r->user), end - first);
	return NV_OK;
}

/* What the driver answers in sealed parameters is ours to hand on when it has
 * ended: one that cannot be written must not pass for a call that failed.
 */
static u32 sealed_memcpy_to_user(void __user *to, const void *from, u32 n)
{
	struct ckm_range *r = &ckm_call_mine()->nested;
	unsigned long at = (unsigned long)to, past = at + n;
	unsigned long first = max(at, r->user), end = min(past, r->user + r->size);

	if (!r->size || first >= end)
		return copy_to_user(to, from, n) ? NV_ERR_ADDRESS : NV_OK;
	memcpy(r->copy + (first - r->user), from + (first - at), end - first);
	r->answered = true;
	if (copy_to_user(to, from, first - at) ||
	    copy_to_user(to + (end - at), from + (end - at), past - end))
		return NV_ERR_ADDRESS;
	return NV_OK;
}

/* The driver wants the private data behind an fd. The number is the tenant's
 * and names one of our files; the driver must see its back file. The fd made
 * for that lives for this call only, and R is guarded: whoever grabs it from
 * another thread can do nothing with it but keep it open.
 */
static void *redirected_file_private(s32 fd, u8 ctl, void **priv)
{
	struct ckm_call *call = ckm_call_mine();
	struct file *front = fget(fd);
	struct ckm_back *back;
	void *found = NULL;
	int inner;

	if (!front)
		return NULL;
	back = ckm_front_back(front);
	if (!back || !(back->ct == call->back->ct ||
		       (call->shares && ckm_container_shares(back->ct, call->back->ct))) ||
	    back->node != (ctl ? CGPU_NODE_CTL : CGPU_NODE_GPU) ||
	    (call->carrier && call->carrier != back->file))
		goto out;
	inner = get_unused_fd_flags(O_CLOEXEC);
	if (inner < 0)
		goto out;
	fd_install(inner, get_file(back->file));
	found = (void *)ckm_call_original(inner, ctl, ARG(priv), 0, 0, 0,
					  original(call, PROBE_FD));
	close_fd(inner);
	/* Another thread put another file there: refuse. */
	if (found && *priv != back->file) {
		fput(*priv);
		found = NULL;
	}
out:
	fput(front);
	return found;
}

static struct uvm_ref *find_uvm_ref(u32 probe, unsigned long key)
{
	struct uvm_ref *ref;

	hash_for_each_possible_rcu(uvm_refs, ref, node, key)
		if (ref->key == key && ref->probe == probe)
			return ref;
	return NULL;
}

static void add_uvm_ref(struct uvm_ref *ref, u32 probe, unsigned long key)
{
	ref->probe = probe;
	ref->key = key;
	ckm_container_get(ref->ct);
	spin_lock(&uvm_refs_lock);
	hash_add_rcu(uvm_refs, &ref->node, key);
	spin_unlock(&uvm_refs_lock);
}

/* Out of the table before the driver gives it up: after that it may give the
 * same key to another, and the probe lets this one through.
 */
static struct uvm_ref *take_uvm_ref(u32 probe, unsigned long key)
{
	struct uvm_ref *ref;

	spin_lock(&uvm_refs_lock);
	ref = find_uvm_ref(probe, key);
	if (ref)
		hash_del_rcu(&ref->node);
	spin_unlock(&uvm_refs_lock);
	return ref;
}

static void drop_charge(struct uvm_ref *ref)
{
	mutex_lock(&ref->ct->rm_lock);
	if (ref->mem)
		ckm_mem_put_locked(ref->ct, ref->mem);
	if (ref->slot)
		ckm_slot_overhead_less_locked(ref->slot, ref->overhead);
	mutex_unlock(&ref->ct->rm_lock);
}

/* uvm maps what it dups, once: its page tables. */
static bool charge_tables(struct uvm_ref *ref, struct cgpu_obj *memory)
{
	struct ckm_slot *slot = ckm_container_slot_of(ref->ct, memory->gpu);
	int ret;

	if (!slot)
		return true;
	ref->overhead = ckm_page_tables_of(memory);
	mutex_lock(&ref->ct->rm_lock);
	ret = ckm_slot_overhead_locked(slot, ref->overhead);
	mutex_unlock(&ref->ct->rm_lock);
	if (!ret)
		ref->slot = slot;
	return !ret;
}

static void give_begin(struct uvm_ref *ref)
{
	if (ref)
		ckm_container_moves_begin(ref->ct);
}

static void give_end(struct uvm_ref *ref)
{
	if (!ref)
		return;
	ckm_container_moves_end(ref->ct);
	drop_charge(ref);
	ckm_container_put(ref->ct);
	kfree_rcu(ref, rcu);
}

/* uvm takes memory, or a channel's context, of a tenant for a client of its
 * own. The handles here are the ones the driver uses, whatever the tenant's
 * memory says by now. What it will give back it leaves at @key.
 */
static u32 charged_take(u32 take, u32 give, unsigned long a, u32 client, u32 handle, void *key,
			void *info)
{
	struct ckm_call *call = ckm_call_mine();
	struct uvm_ref *ref = kzalloc(sizeof(*ref), GFP_KERNEL);
	struct cgpu_obj *obj;
	u32 status;

	if (!ref)
		return NV_ERR_RESOURCES;
	ref->ct = call->back->ct;
	obj = ckm_tenant_hold(ref->ct, client, handle);
	if (!obj) {
		kfree(ref);
		return NV_ERR_NOT_FOUND;
	}
	ref->mem = take == PROBE_DUP ? ckm_tenant_get_mem(ref->ct, obj)
				     : ckm_tenant_get_context(ref->ct, obj);
	status = NV_ERR_NO_MEMORY;
	if (take != PROBE_DUP || charge_tables(ref, obj))
		status = ckm_call_original(a, client, handle, ARG(key), ARG(info), 0,
					   original(call, take));
	ckm_tenant_unhold(ref->ct, obj);
	if (status == NV_OK && (ref->mem || ref->slot)) {
		add_uvm_ref(ref, give, give == PROBE_UNDUP ? *(u32 *)key : *(unsigned long *)key);
		return NV_OK;
	}
	drop_charge(ref);
	kfree(ref);
	return status;
}

static u32 charged_dup_memory(void *device, u32 client, u32 memory, u32 *dup, void *info)
{
	return charged_take(PROBE_DUP, PROBE_UNDUP, ARG(device), client, memory, dup, info);
}

static u32 charged_retain_channel(void *space, u32 client, u32 channel, void **retained,
				  void *info)
{
	return charged_take(PROBE_RETAIN, PROBE_RELEASE, ARG(space), client, channel, retained,
			    info);
}

/* In whatever context uvm gives back: a call, an exit, a release. */
static u32 uncharged_free_dup(void *device, u32 handle)
{
	struct uvm_ref *ref = take_uvm_ref(PROBE_UNDUP, handle);
	u32 status;

	give_begin(ref);
	status = ckm_call_original(ARG(device), handle, 0, 0, 0, 0, probes[PROBE_UNDUP].addr);
	give_end(ref);
	return status;
}

static void uncharged_release_channel(void *retained)
{
	struct uvm_ref *ref = take_uvm_ref(PROBE_RELEASE, ARG(retained));

	give_begin(ref);
	ckm_call_original(ARG(retained), 0, 0, 0, 0, 0, probes[PROBE_RELEASE].addr);
	give_end(ref);
}

static u32 run_dmabuf_export(void *nv, void *params)
{
	return ckm_call_original(ARG(nv), ARG(params), 0, 0, 0, 0,
				 original(ckm_call_mine(), PROBE_DMABUF));
}

static u32 charged_dmabuf_export(void *nv, void *params)
{
	return ckm_dmabuf_export(ckm_call_mine(), params, run_dmabuf_export, nv);
}

static const struct {
	const char *symbol;
	void *replacement;
} redirections[PROBES] = {
	[PROBE_IOCTL]	= { "rm_ioctl", sealed_rm_ioctl },
	[PROBE_COPY]	= { "os_memcpy_from_user", sealed_memcpy_from_user },
	[PROBE_ANSWER]	= { "os_memcpy_to_user", sealed_memcpy_to_user },
	[PROBE_FD]	= { "nv_get_file_private", redirected_file_private },
	[PROBE_DUP]	= { "nvUvmInterfaceDupMemory", charged_dup_memory },
	[PROBE_UNDUP]	= { "nvUvmInterfaceFreeDupedHandle", uncharged_free_dup },
	[PROBE_RETAIN]	= { "nvUvmInterfaceRetainChannel", charged_retain_channel },
	[PROBE_RELEASE]	= { "nvUvmInterfaceReleaseChannel", uncharged_release_channel },
	[PROBE_DMABUF]	= { "nv_dma_buf_export", charged_dmabuf_export },
	[PROBE_DMABUF_FD] = { "dma_buf_fd" },	/* the kernel's own: looked at only */
};

/* Probe context: no sleeping, no locks. */
static int redirect(struct kprobe *p, struct pt_regs *regs)
{
	u32 probe = p - probes;
	struct ckm_call *call;

	if (probe == PROBE_UNDUP) {
		/* second argument, a 32-bit handle */
		if (!find_uvm_ref(probe, (u32)regs_get_kernel_argument(regs, 1)))
			return 0;
	} else if (probe == PROBE_RELEASE) {
		if (!find_uvm_ref(probe, regs_get_kernel_argument(regs, 0)))
			return 0;
	} else {
		call = ckm_call_mine();
		if (!call)
			return 0;
		if (probe == PROBE_DMABUF_FD) {
			ckm_dmabuf_seen(call, (void *)regs_get_kernel_argument(regs, 0));
			return 0;
		}
		if (call->aside & BIT(probe)) {
			call->aside &= ~BIT(probe);
			return 0;
		}
	}
	instruction_pointer_set(regs, (unsigned long)redirections[probe].replacement);
	return 1;
}

/* Its presence keeps the probe from being optimised into a jump that would
 * ignore a changed instruction pointer.
 */
static void keep_unoptimised(struct kprobe *p, struct pt_regs *regs, unsigned long flags)
{
}

/* ---- uvm ---- */

/* With HMM a kernel that touches malloc'd memory brings its pages into video
 * memory, which no call shows. UVM_INITIALIZE can ask for a space without, and
 * so ours do: uvm_va_space_create(mapping, space, flags) of nvidia-uvm.ko, the
 * same from 535 to 595, sees it asked for, whatever the tenant asked.
 */
static struct kprobe space_probe;
static bool uvm_sealed;		/* ckm_lock for writing */

static int without_hmm(struct kprobe *p, struct pt_regs *regs)
{
	struct ckm_call *call = ckm_call_mine();

	if (call) {
		call->back->space_flags = regs->dx;	/* the third argument */
		regs->dx |= UVM_INIT_FLAGS_DISABLE_HMM;
		smp_store_release(&call->back->space_sealed, true);
	}
	return 0;
}

void ckm_seal_attach_uvm(void)
{
	int ret;

	lockdep_assert_held(&ckm_lock);
	if (READ_ONCE(uvm_sealed) || !ckm_driver_uvm_major())
		return;
	/* Of a nvidia-uvm that was unloaded meanwhile, or never registered. */
	if (space_probe.symbol_name)
		unregister_kprobe(&space_probe);
	memset(&space_probe, 0, sizeof(space_probe));
	space_probe.symbol_name = "uvm_va_space_create";
	space_probe.pre_handler = without_hmm;
	ret = register_kprobe(&space_probe);
	if (ret) {
		pr_err("uvm_va_space_create of nvidia-uvm.ko cannot be redirected (%d): containers get no address spaces\n",
		       ret);
		memset(&space_probe, 0, sizeof(space_probe));
		return;
	}
	WRITE_ONCE(uvm_sealed, true);
}

bool ckm_seal_has_uvm(void)
{
	return READ_ONCE(uvm_sealed);
}

void ckm_seal_uvm_gone(void)
{
	WRITE_ONCE(uvm_sealed, false);
}

/* ---- attach and detach ---- */

int ckm_seal_attach(void)
{
	int i, ret;

	lockdep_assert_held(&ckm_lock);
	for (i = 0; i < PROBES; i++) {
		memset(&probes[i], 0, sizeof(probes[i]));
		probes[i].symbol_name = redirections[i].symbol;
		probes[i].pre_handler = redirect;
		probes[i].post_handler = keep_unoptimised;
		ret = register_kprobe(&probes[i]);
		if (ret) {
			pr_err("%s of nvidia.ko cannot be redirected (%d): are kprobes enabled?\n",
			       redirections[i].symbol, ret);
			goto err_unregister;
		}
	}
	return 0;

err_unregister:
	while (i--)
		unregister_kprobe(&probes[i]);
	return ret;
}

void ckm_seal_detach(void)
{
	int i;

	lockdep_assert_held(&ckm_lock);
	WRITE_ONCE(uvm_sealed, false);
	if (space_probe.symbol_name)
		unregister_kprobe(&space_probe);
	memset(&space_probe, 0, sizeof(space_probe));
	for (i = PROBES; i--;) {
		if (probes[i].nmissed)
			pr_warn("%s: %lu redirections were missed\n",
				redirections[i].symbol, probes[i].nmissed);
		unregister_kprobe(&probes[i]);
	}
}

void ckm_seal_exit(void)
{
	rcu_barrier();	/* kfree_rcu() */
}
