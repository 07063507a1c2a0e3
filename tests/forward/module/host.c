// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Lanes to nvforwardd. The kernel of User-Mode Linux is a process of the host: it makes system calls there itself, all
 * of them such that return at once. A reply rings the bell, a pipe, whose interrupt wakes the task that waits.
 */
#include <linux/completion.h>
#include <linux/cred.h>
#include <linux/interrupt.h>
#include <linux/mm_types.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/xarray.h>
#include <irq_kern.h>
#include <irq_user.h>
#include <os.h>

#include "forward.h"

/* ---- system calls of the host ---- */

#define HOST_READ	0
#define HOST_CLOSE	3
#define HOST_SOCKET	41
#define HOST_CONNECT	42
#define HOST_SENDMSG	46
#define HOST_RECVMSG	47
#define HOST_DUP	32
#define HOST_KILL	62
#define HOST_PIPE2	293

#define HOST_AF_UNIX		1
#define HOST_SEQPACKET		5
#define HOST_CLOEXEC		02000000
#define HOST_NONBLOCK		04000
#define HOST_SIGALRM		14
#define HOST_MSG_PEEK		0x2
#define HOST_MSG_DONTWAIT	0x40
#define HOST_MSG_NOSIGNAL	0x4000
#define HOST_MSG_CMSG_CLOEXEC	0x40000000
#define HOST_SCM_RIGHTS		1
#define HOST_SOL_SOCKET		1

static long host_call(long number, long a, long b, long c)
{
	long ret;

	asm volatile("syscall" : "=a"(ret) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return ret;
}

struct host_iovec {
	void *base;
	unsigned long bytes;
};

struct host_msg {
	void *name;
	u32 name_bytes, pad;
	struct host_iovec *iov;
	unsigned long iov_count;
	void *control;
	unsigned long control_bytes;
	s32 flags, pad2;
};

struct host_rights {
	unsigned long bytes;
	s32 level, type;
	s32 fds[FWD_FDS_MAX];
};

#define RIGHTS_BYTES(count)	(16 + 4 * (count))

void fwd_host_close(int fd)
{
	host_call(HOST_CLOSE, fd, 0, 0);
}

int fwd_host_dup(int fd)
{
	return host_call(HOST_DUP, fd, 0, 0);
}

/* ---- lanes ---- */

struct fwd_lane {
	struct list_head idle;		/* process->lanes */
	int sock;
	u32 number;
	struct completion done;
	/* of a poll; NULL: a task waits */
	void (*seen)(void *arg, s64 events);
	void *arg;
	struct fwd_process *process;
};

struct fwd_process {
	struct kref ref;
	struct list_head node;		/* processes_lock */
	struct pid *tgid;		/* NULL: the kernel's */
	u64 number;
	u32 uid, host_pid;
	bool admin;
	struct list_head lanes;		/* processes_lock; idle ones */
};

static char host_path[108];
static int bell[2] = { -1, -1 };
static int bell_irq = -1;
static DEFINE_MUTEX(processes_lock);	/* processes, their lanes, numbers */
static LIST_HEAD(processes);
static u64 next_process = 1;
static struct fwd_process *kernel_process;
static DEFINE_XARRAY_ALLOC(lanes_by_number);	/* its own lock, irqs off: the bell reads it */
/* A bell may ring for a lane that was taken back meanwhile. A new lane of the same number would end its own call by it;
 * so the next number is used, and an old one only after the last.
 */
static u32 next_lane;				/* the xarray's lock */

static long send_request(int sock, const struct fwd_request *r, const void *data, u32 bytes, const int *fds)
{
	struct host_rights rights = {
		.bytes = RIGHTS_BYTES(r->fds), .level = HOST_SOL_SOCKET, .type = HOST_SCM_RIGHTS,
	};
	struct host_iovec iov[] = { { (void *)r, sizeof(*r) }, { (void *)data, bytes } };
	struct host_msg msg = { .iov = iov, .iov_count = 2 };
	long ret;

	if (r->fds) {
		memcpy(rights.fds, fds, r->fds * sizeof(*fds));
		msg.control = &rights;
		msg.control_bytes = ALIGN(RIGHTS_BYTES(r->fds), 8);
	}
	do {
		ret = host_call(HOST_SENDMSG, sock, (long)&msg, HOST_MSG_DONTWAIT | HOST_MSG_NOSIGNAL);
	} while (ret == -EINTR);
	return ret < 0 ? ret : 0;
}

static long receive_reply(int sock, struct fwd_reply *reply, void *data, u32 bytes, int *fd)
{
	struct host_rights rights = {};
	struct host_iovec iov[] = { { reply, sizeof(*reply) }, { data, bytes } };
	struct host_msg msg = { .iov = iov, .iov_count = 2, .control = &rights, .control_bytes = RIGHTS_BYTES(1) };
	long ret;

	do {
		ret = host_call(HOST_RECVMSG, sock, (long)&msg, HOST_MSG_DONTWAIT | HOST_MSG_CMSG_CLOEXEC);
	} while (ret == -EINTR);
	*fd = ret >= 0 && msg.control_bytes >= RIGHTS_BYTES(1) && rights.type == HOST_SCM_RIGHTS ? rights.fds[0] : -1;
	return ret < (long)sizeof(*reply) ? -EIO : ret - sizeof(*reply);
}

/* The other end was closed, and no reply is there. */
static bool lane_is_dead(const struct fwd_lane *lane)
{
	struct fwd_reply reply;
	struct host_iovec iov = { &reply, sizeof(reply) };
	struct host_msg msg = { .iov = &iov, .iov_count = 1 };
	long ret = host_call(HOST_RECVMSG, lane->sock, (long)&msg, HOST_MSG_DONTWAIT | HOST_MSG_PEEK);

	return ret <= 0 && ret != -EAGAIN && ret != -EINTR;
}

static void lane_free(struct fwd_lane *lane)
{
	if (lane->number)
		xa_erase_irq(&lanes_by_number, lane->number);
	if (lane->sock >= 0)
		host_call(HOST_CLOSE, lane->sock, 0, 0);
	kfree(lane);
}

static int lane_connect(struct fwd_lane *lane)
{
	struct {
		u16 family;
		char path[108];
	} address = { .family = HOST_AF_UNIX };
	struct fwd_process *p = lane->process;
	struct fwd_request hello = {
		.op = FWD_HELLO, .fds = 1, .lane = lane->number, .pid = p->tgid ? pid_nr(p->tgid) : 0, .uid = p->uid,
		.flags = p->admin ? FWD_ADMIN : 0, .process = p->number,
	};
	long ret;

	lane->sock = host_call(HOST_SOCKET, HOST_AF_UNIX, HOST_SEQPACKET | HOST_CLOEXEC, 0);
	if (lane->sock < 0)
		return lane->sock;
	strscpy(address.path, host_path, sizeof(address.path));
	do {
		ret = host_call(HOST_CONNECT, lane->sock, (long)&address, sizeof(address));
	} while (ret == -EINTR);
	return ret ?: send_request(lane->sock, &hello, NULL, 0, &bell[1]);
}

static struct fwd_lane *lane_new(struct fwd_process *p)
{
	struct fwd_lane *lane = kzalloc(sizeof(*lane), GFP_KERNEL);
	int ret;

	if (!lane)
		return NULL;
	lane->sock = -1;
	lane->process = p;
	init_completion(&lane->done);
	ret = xa_alloc_cyclic_irq(&lanes_by_number, &lane->number, lane, XA_LIMIT(1, INT_MAX), &next_lane, GFP_KERNEL);
	if (ret >= 0)	/* 1: numbers begin anew */
		ret = lane_connect(lane);
	if (!ret)
		return lane;
	pr_err_ratelimited("nvforward: no connection to %s (%d)\n", host_path, ret);
	lane_free(lane);
	return NULL;
}

static struct fwd_lane *lane_take(struct fwd_process *p)
{
	struct fwd_lane *lane;

	mutex_lock(&processes_lock);
	lane = list_first_entry_or_null(&p->lanes, struct fwd_lane, idle);
	if (lane)
		list_del(&lane->idle);
	mutex_unlock(&processes_lock);
	return lane ?: lane_new(p);
}

static void lane_give(struct fwd_lane *lane)
{
	mutex_lock(&processes_lock);
	list_add(&lane->idle, &lane->process->lanes);
	mutex_unlock(&processes_lock);
}

/* In an interrupt: the number's lane may have been taken back meanwhile. */
static void rung(u32 number)
{
	void (*seen)(void *arg, s64 events) = NULL;
	struct fwd_reply reply = {};
	struct fwd_lane *lane;
	unsigned long flags;
	void *arg = NULL;
	int fd;

	xa_lock_irqsave(&lanes_by_number, flags);
	lane = xa_load(&lanes_by_number, number);
	if (lane && !lane->seen) {
		complete(&lane->done);
	} else if (lane) {
		receive_reply(lane->sock, &reply, NULL, 0, &fd);
		seen = lane->seen;
		arg = lane->arg;
		lane->seen = NULL;
	}
	/* fwd_poll_cancel() waits for this lock before its file goes. */
	if (seen)
		seen(arg, reply.ret);
	xa_unlock_irqrestore(&lanes_by_number, flags);
}

/* The interrupt comes while a guest process runs as a process of the host, which goes on until its next system call or
 * the end of a tick. As um's timer does, make it stop, so that the task that was woken runs now.
 */
static void stop_running(void)
{
	if (current->mm && current->mm->context.id.pid > 0)
		host_call(HOST_KILL, current->mm->context.id.pid, HOST_SIGALRM, 0);
}

static irqreturn_t bell_rung(int irq, void *data)
{
	u32 numbers[64];
	long got, i;

	while ((got = host_call(HOST_READ, bell[0], (long)numbers, sizeof(numbers))) > 0)
		for (i = 0; i < got / (long)sizeof(*numbers); i++)
			rung(numbers[i]);
	stop_running();
	return IRQ_HANDLED;
}

/* ---- processes ---- */

static struct fwd_process *process_new(struct pid *tgid, bool admin, u32 uid)
{
	struct fwd_process *p = kzalloc(sizeof(*p), GFP_KERNEL);

	lockdep_assert_held(&processes_lock);
	if (!p)
		return NULL;
	kref_init(&p->ref);
	INIT_LIST_HEAD(&p->lanes);
	p->tgid = get_pid(tgid);
	p->admin = admin;
	p->uid = uid;
	p->number = next_process++;
	list_add(&p->node, &processes);
	return p;
}

struct fwd_process *fwd_process_get(void)
{
	struct pid *tgid = task_tgid(current);
	struct fwd_process *p, *found = NULL;

	mutex_lock(&processes_lock);
	list_for_each_entry(p, &processes, node)
		if (p->tgid == tgid && kref_get_unless_zero(&p->ref)) {
			found = p;
			break;
		}
	if (!found)
		found = process_new(tgid, capable(CAP_SYS_ADMIN), from_kuid(&init_user_ns, current_euid()));
	mutex_unlock(&processes_lock);
	return found;
}

struct fwd_process *fwd_process_kernel(void)
{
	kref_get(&kernel_process->ref);
	return kernel_process;
}

struct fwd_process *fwd_process_ref(struct fwd_process *p)
{
	kref_get(&p->ref);
	return p;
}

static void process_end(struct kref *ref)
{
	struct fwd_process *p = container_of(ref, struct fwd_process, ref);
	struct fwd_lane *lane, *next;

	lockdep_assert_held(&processes_lock);
	list_del(&p->node);
	list_for_each_entry_safe(lane, next, &p->lanes, idle)
		lane_free(lane);
	put_pid(p->tgid);
	kfree(p);
}

void fwd_process_put(struct fwd_process *p)
{
	if (!p)
		return;
	mutex_lock(&processes_lock);
	kref_put(&p->ref, process_end);
	mutex_unlock(&processes_lock);
}

/* The guest's pid of a process of the host, for the pids in the driver's answers; 0: not of this guest. */
u32 fwd_process_tgid(u32 host_pid)
{
	struct fwd_process *p;
	u32 found = 0;

	mutex_lock(&processes_lock);
	list_for_each_entry(p, &processes, node)
		if (host_pid && p->host_pid == host_pid && p->tgid)
			found = pid_nr(p->tgid);
	mutex_unlock(&processes_lock);
	return found;
}

/* ---- calls ---- */

struct fwd_call *fwd_call_new(u32 op, u32 cmd)
{
	struct fwd_call *call = kzalloc(sizeof(*call), GFP_KERNEL);

	if (!call)
		return NULL;
	/* Written once here: a page that the host has not seen yet cannot be given to one of its calls. */
	call->data = kvzalloc(FWD_DATA_MAX, GFP_KERNEL);
	if (!call->data) {
		kfree(call);
		return NULL;
	}
	call->request.op = op;
	call->request.cmd = cmd;
	call->fd = -1;
	return call;
}

void fwd_call_free(struct fwd_call *call)
{
	if (!call)
		return;
	if (call->fd >= 0)
		fwd_host_close(call->fd);
	kvfree(call->data);
	kfree(call);
}

int fwd_add(struct fwd_call *call, u32 size, u32 parent, u32 at)
{
	u32 n = call->request.bufs;

	if (n >= FWD_BUFS_MAX || size > FWD_DATA_MAX - call->bytes || fwd_align(size) > FWD_DATA_MAX - call->bytes)
		return -E2BIG;
	call->request.buf[n] = (struct fwd_buf){ .size = size, .parent = parent, .at = at };
	call->at[n] = call->bytes;
	call->bytes += fwd_align(size);
	call->request.bufs = n + 1;
	return n;
}

void *fwd_buf(struct fwd_call *call, u32 buf)
{
	return call->data + call->at[buf];
}

int fwd_add_fd(struct fwd_call *call, int host_fd, u32 buf, u32 at)
{
	u32 n = call->request.fds;

	if (n >= FWD_FDS_MAX)
		return -E2BIG;
	call->fds[n] = host_fd;
	call->request.fd[n] = (struct fwd_fd){ .buf = buf, .at = at, .used = n > 0 };
	call->request.fds = n + 1;
	return n;
}

/* @close: which of this program's descriptors to close once it is on its way; -1: none. */
static s64 run(struct fwd_process *p, struct fwd_call *call, int close)
{
	struct fwd_lane *lane = lane_take(p);
	struct fwd_reply reply = {};
	long got = -EIO;

	if (lane)
		got = send_request(lane->sock, &call->request, call->data, call->bytes, call->fds);
	if (close >= 0)
		fwd_host_close(close);
	if (!lane)
		return -EIO;
	if (got) {
		lane_free(lane);
		return -EIO;
	}
	while (!wait_for_completion_timeout(&lane->done, HZ))
		if (lane_is_dead(lane))
			break;
	got = receive_reply(lane->sock, &reply, call->data, FWD_DATA_MAX, &call->fd);
	if (got < 0) {
		lane_free(lane);
		return -EIO;
	}
	p->host_pid = reply.host_pid;
	lane_give(lane);
	call->got = got;
	call->ret = reply.ret;
	return reply.ret;
}

s64 fwd_run(struct fwd_process *p, struct fwd_call *call)
{
	return run(p, call, -1);
}

void fwd_close_over(struct fwd_process *p, struct fwd_call *call)
{
	run(p, call, call->fds[0]);
}

struct fwd_lane *fwd_poll_start(struct fwd_process *p, int host_fd, void (*seen)(void *arg, s64 events), void *arg)
{
	struct fwd_request request = { .op = FWD_POLL, .cmd = (u32)-1, .fds = 1 };
	struct fwd_lane *lane = lane_new(p);

	if (!lane)
		return NULL;
	lane->arg = arg;
	lane->seen = seen;
	if (!send_request(lane->sock, &request, NULL, 0, &host_fd))
		return lane;
	lane_free(lane);
	return NULL;
}

void fwd_poll_cancel(struct fwd_lane *lane)
{
	if (lane)
		lane_free(lane);
}

/* ---- init ---- */

int fwd_host_init(const char *path)
{
	int ret;

	strscpy(host_path, path, sizeof(host_path));
	ret = host_call(HOST_PIPE2, (long)bell, HOST_CLOEXEC | HOST_NONBLOCK, 0);
	if (ret)
		return ret;
	bell_irq = um_request_irq(UM_IRQ_ALLOC, bell[0], IRQ_READ, bell_rung, 0, "nvforward", &bell_irq);
	if (bell_irq < 0) {
		ret = bell_irq;
		goto err_bell;
	}
	mutex_lock(&processes_lock);
	kernel_process = process_new(NULL, true, 0);
	mutex_unlock(&processes_lock);
	if (kernel_process)
		return 0;
	ret = -ENOMEM;
	um_free_irq(bell_irq, &bell_irq);
err_bell:
	fwd_host_close(bell[0]);
	fwd_host_close(bell[1]);
	return ret;
}

void fwd_host_exit(void)
{
	fwd_process_put(kernel_process);
	um_free_irq(bell_irq, &bell_irq);
	fwd_host_close(bell[0]);
	fwd_host_close(bell[1]);
}
