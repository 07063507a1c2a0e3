// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Passes the checked copies to the driver, inside a call of ours. Takes os_event_lock. */
#include <linux/atomic.h>
#include <linux/file.h>
#include <linux/fdtable.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/syscalls.h>
#include <linux/uaccess.h>

#include "call.h"
#include "compat.h"
#include "core/nv_struct.h"
#include "driver/driver.h"
#include "driver/redirect.h"
#include "fields.h"
#include "intercept/backing_file.h"
#include "intercept/dmabuf.h"
#include "intercept/front_file.h"
#include "intercept/rm_call.h"
#include "intercept/seal.h"
#include "intercept/uvm_charge.h"
#include "state/container.h"
#include "state/gpu.h"

enum { PROBE_IOCTL, PROBE_COPY, PROBE_ANSWER, PROBE_FD, PROBE_ACCESS, PROBE_PIN, PROBE_UNPIN, PROBES };

static struct ckm_redirection redirections[PROBES];

static void *original(struct ckm_call *call, u32 row)
{
	return ckm_redirect_original(call, &redirections[row]);
}

/* Signatures as in nvidia.ko: nv.h and os-interface.h of kernel-open/. */

static u32 redirected_rm_ioctl(void *sp, void *nv, void *nvfp, u32 cmd, void *arg, u32 size)
{
	struct ckm_call *call = ckm_call_mine();
	u32 ret = NV_OK;

	if (size != call->size)
		return NV_ERR_INVALID_ARGUMENT;
	call->entered = true;
	memcpy(arg, call->top, size);
	if (call->serial)
		mutex_lock(call->serial);
	if (!call->may || call->may(call, arg))
		ret = ckm_call_original(ARG(sp), ARG(nv), ARG(nvfp), cmd, ARG(arg), size,
					original(call, PROBE_IOCTL));
	call->ran = true;
	if (call->post)
		call->post(call, arg);
	if (call->serial)
		mutex_unlock(call->serial);
	memcpy(call->top, arg, size);
	return ret;
}

/* The driver reads the parameters of a class by its own size of them (rmapiParamsCopyInit()), whatever size the call
 * names. In a release whose struct is not the table's, what was checked may not be what the driver takes it for.
 */
static u32 redirected_memcpy_from_user(void *to, const void __user *from, u32 n)
{
	struct ckm_call *call = ckm_call_mine();
	const struct ckm_range *r = &call->nested;
	unsigned long at = (unsigned long)from;
	unsigned long first = max(at, r->user), end = min(at + n, r->user + r->size);

	/* rm_ioctl() runs with the tenant's struct instead of ours. */
	if (call->must_enter && !call->entered)
		return NV_ERR_INVALID_ADDRESS;
	if (ckm_range_is_other(r, at, n)) {
		ckm_call_denied(call, "parameters of another size than in the table, class",
				get32(call->top, NVOS_H_CLASS));
		return NV_ERR_INVALID_ADDRESS;
	}
	if (!r->size || first >= end)
		return copy_from_user(to, from, n) ? NV_ERR_INVALID_ADDRESS : NV_OK;
	/* Bytes outside the snapshot are not validated; read them from user memory. */
	if ((first != at || end != at + n) && copy_from_user(to, from, n))
		return NV_ERR_INVALID_ADDRESS;
	memcpy(to + (first - at), r->copy + (first - r->user), end - first);
	return NV_OK;
}

/* What the driver writes to copied-in parameters goes to our copy; ckm_rm_forward()
 * copies it out when the driver has returned. A result that cannot be written must not
 * make a call fail that the driver has executed.
 */
static u32 redirected_memcpy_to_user(void __user *to, const void *from, u32 n)
{
	struct ckm_range *r = &ckm_call_mine()->nested;
	unsigned long at = (unsigned long)to, past = at + n;
	unsigned long first = max(at, r->user), end = min(past, r->user + r->size);

	if (!r->size || first >= end)
		return copy_to_user(to, from, n) ? NV_ERR_INVALID_ADDRESS : NV_OK;
	memcpy(r->copy + (first - r->user), from + (first - at), end - first);
	r->answered = true;
	if (copy_to_user(to, from, first - at) ||
	    copy_to_user(to + (end - at), from + (end - at), past - end))
		return NV_ERR_INVALID_ADDRESS;
	return NV_OK;
}

/* The driver gives a file one mapping context. Mappings keep the pages after RM_FREE, and the last one leaves them to
 * its file: the file keeps their charge. A mapping of video memory loses its pages instead (rm_view.h). No lock: the
 * driver calls this with its own held, and then makes the context unless the file has one. False: another call has
 * taken the file, with whose memory it goes.
 */
static bool keep_mapped(struct ckm_call *call, struct ckm_backing *backing)
{
	if (call->map_mem && !cmpxchg(&backing->map_mem, NULL, call->map_mem))
		call->map_mem = NULL;
	if (call->shows && !call->shown_by) {
		if (backing->node == CGPU_NODE_CTL && xchg(&backing->view_taken, true))
			return false;
		get_file(backing->real);
		call->shown_by = backing;
	}
	return true;
}

/* The driver looks up the private data of an fd from the tenant. The fd names a front
 * file, and the driver must see the backing file. The fd that is made for that exists
 * during this call only. Another thread that uses the fd can only keep the backing file
 * open, because the file is guarded.
 */
static void *redirected_file_private(s32 fd, u8 ctl, void **priv)
{
	struct ckm_call *call = ckm_call_mine();
	struct file *front = fget(fd);
	struct ckm_backing *backing;
	void *found = NULL;
	int inner;

	if (!front)
		return NULL;
	backing = ckm_front_get(front);
	if (!backing || !(backing->ct == call->backing->ct ||
			  (call->shares && ckm_container_shares(backing->ct, call->backing->ct))) ||
	    backing->node != (ctl ? CGPU_NODE_CTL : CGPU_NODE_GPU) ||
	    (call->export_file && call->export_file != backing->real))
		goto out;
	inner = get_unused_fd_flags(O_CLOEXEC);
	if (inner < 0)
		goto out;
	fd_install(inner, get_file(backing->real));
	found = (void *)ckm_call_original(inner, ctl, ARG(priv), 0, 0, 0,
					  original(call, PROBE_FD));
	close_fd(inner);
	/* Another thread replaced the file behind the fd, or another call has taken it: refuse. */
	if (found && (*priv != backing->real || !keep_mapped(call, backing))) {
		fput(*priv);
		found = NULL;
	}
out:
	if (backing)
		ckm_front_put(backing);
	fput(front);
	return found;
}

/* RM checks whether the calling process has the driver's file of this GPU open. A
 * tenant's process has front files only, and backing files are in no fd table, so what
 * counts is whether the container has the GPU.
 */
static u32 container_has_gpu(void *nv)
{
	const struct ckm_container *ct = ckm_call_mine()->backing->ct;
	u32 minor = ckm_driver_minor_of(nv), i;

	for (i = 0; i < ct->slot_count; i++)
		if (ct->slot[i].gpu->desc.nv_minor == minor)
			return true;
	return false;
}

/* Of a page that belongs to a mapped file, or is anonymous, the kernel notes that. What a driver allocated and mapped,
 * RM's system memory and nvidia-uvm's among it, has no such note.
 */
static bool is_of_process(struct page *page)
{
	return ckm_page_mapping(page) || is_zero_pfn(page_to_pfn(page));
}

static u64 pages_of_process(struct page *const *pages, u64 count)
{
	u64 n;

	for (n = 0; n < count && is_of_process(pages[n]); n++)
		if (!(n % 4096))
			cond_resched();
	return n;
}

static bool is_without_pages(unsigned long at)
{
	struct vm_area_struct *vma;
	bool without;

	mmap_read_lock(current->mm);
	vma = find_vma(current->mm, at);
	without = vma && vma->vm_start <= at && vma->vm_flags & (VM_IO | VM_PFNMAP);
	mmap_read_unlock(current->mm);
	return without;
}

/* For this status RM looks for registers at the address: for an administrator's process, or with the driver's
 * PeerMappingOverride for each (osCreateOsDescriptorFromIoMemory()). It takes any mapping without pages of its own for
 * such, as those of io_uring's rings before Linux 6.10 or of the kernel's clock, and holds no reference to what is
 * there: the GPU reads and writes it on when the kernel has given it to others. rm_alloc_memory.c restores the status.
 */
static u32 no_registers(struct ckm_call *call, unsigned long at)
{
	if (is_without_pages(at))
		ckm_call_denied(call, "registers, for class", NV01_MEMORY_SYSTEM_OS_DESCRIPTOR);
	call->no_pages = true;
	return NV_ERR_NOT_SUPPORTED;
}

/* RM pins the pages of an OS descriptor. A page of the process's own stays in its memory cgroup meanwhile. One that a driver
 * allocated does not, and with its allocation and its mapping gone it would be in no account. Which mappings are there
 * can change until the pages are pinned, so what was pinned is looked at. Not NV_ERR_INVALID_ADDRESS: RM would look for registers
 * there. It holds no lock here.
 */
static u32 redirected_lock_user_pages(void *address, u64 count, void **pages, u32 flags)
{
	struct ckm_call *call = ckm_call_mine();
	u32 ret = ckm_call_original(ARG(address), count, ARG(pages), flags, 0, 0, original(call, PROBE_PIN));

	if (ret == NV_ERR_INVALID_ADDRESS)
		return no_registers(call, (unsigned long)address);
	if (ret != NV_OK || pages_of_process(*pages, count) == count)
		return ret;
	ckm_call_original(count, ARG(*pages), flags, 0, 0, 0, ckm_redirect_address(&redirections[PROBE_UNPIN]));
	*pages = NULL;
	ckm_call_denied(call, "memory that a driver allocated, to be pinned for class", NV01_MEMORY_SYSTEM_OS_DESCRIPTOR);
	return NV_ERR_NOT_SUPPORTED;
}

/* That row is for the address. */
static bool wants_none(struct pt_regs *regs)
{
	return false;
}

static struct ckm_redirection redirections[PROBES] = {
	[PROBE_IOCTL]	= { "rm_ioctl", redirected_rm_ioctl },
	[PROBE_COPY]	= { "os_memcpy_from_user", redirected_memcpy_from_user },
	[PROBE_ANSWER]	= { "os_memcpy_to_user", redirected_memcpy_to_user },
	[PROBE_FD]	= { "nv_get_file_private", redirected_file_private },
	[PROBE_ACCESS]	= { "nv_is_gpu_accessible", container_has_gpu },
	[PROBE_PIN]	= { "os_lock_user_pages", redirected_lock_user_pages },
	[PROBE_UNPIN]	= { "os_unlock_user_pages", NULL, wants_none },
};

int ckm_seal_attach(void)
{
	int ret;

	ret = ckm_redirect_attach(redirections, PROBES, CKM_NVIDIA, "no container can start");
	if (ret)
		return ret;
	ret = ckm_uvm_charge_attach();
	if (ret)
		goto err_seal;
	ret = ckm_dmabuf_attach();
	if (ret)
		goto err_uvm_charge;
	return 0;

err_uvm_charge:
	ckm_uvm_charge_detach();
err_seal:
	ckm_redirect_detach(redirections);
	return ret;
}

void ckm_seal_detach(void)
{
	ckm_dmabuf_detach();
	ckm_uvm_charge_detach();
	ckm_redirect_detach(redirections);
}
