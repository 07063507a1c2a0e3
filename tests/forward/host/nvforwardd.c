// SPDX-License-Identifier: MIT
/* nvforwardd SOCKET: makes the calls that nvforward, in User-Mode Linux, passes out of it, on this machine's NVIDIA
 * driver (docs/develop/forward.md).
 *
 * For each process of the guest there is a process here, so that the driver sees as many, and in it a thread for each
 * call that is under way: a call that waits stops its caller and nothing else. No signal is ever handled, so no call
 * returns with EINTR. It ends with the program that started it; a process ends with its last lane.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire.h"

#define GPUS_MAX	32
#define PROCESSES_MAX	1024

static bool verbose;

static void die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("nvforwardd: ", stderr);
	vfprintf(stderr, format, args);
	fputs("\n", stderr);
	va_end(args);
	exit(1);
}

/* ---- messages ---- */

struct message {
	union {
		struct fwd_request request;
		struct fwd_reply reply;
	};
	int fds[FWD_FDS_MAX];
	unsigned int fd_count;
	unsigned int bytes;	/* of data */
	unsigned char data[FWD_DATA_MAX] __attribute__((aligned(8)));
};

static void close_all(struct message *m)
{
	for (unsigned int i = 0; i < m->fd_count; i++)
		close(m->fds[i]);
	m->fd_count = 0;
}

/* False: the other end is closed, or it did not keep to wire.h, or there is no number for its files. */
static bool receive(int sock, struct message *m)
{
	char control[CMSG_SPACE(sizeof(m->fds))];
	struct iovec iov[] = { { &m->request, sizeof(m->request) }, { m->data, sizeof(m->data) } };
	struct msghdr msg = {
		.msg_iov = iov, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof(control),
	};
	ssize_t got = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);

	m->fd_count = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); got >= 0 && c; c = CMSG_NXTHDR(&msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			m->fd_count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(m->fds, CMSG_DATA(c), m->fd_count * sizeof(int));
		}
	if (got < (ssize_t)sizeof(m->request) || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
	    m->fd_count != m->request.fds || m->request.bufs > FWD_BUFS_MAX) {
		close_all(m);
		return false;
	}
	m->bytes = got - sizeof(m->request);
	return true;
}

static bool send_message(int sock, const void *head, size_t head_bytes, const void *data, size_t bytes, int fd)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(fd))];
	} control = { .head = { CMSG_LEN(sizeof(fd)), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec iov[] = { { (void *)head, head_bytes }, { (void *)data, bytes } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	if (fd >= 0) {
		memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control.room);
	}
	return sendmsg(sock, &msg, MSG_NOSIGNAL) >= 0;
}

/* ---- calls ---- */

struct lane {
	int sock, bell;
	unsigned int number;
};

static pid_t own_pid;
static atomic_uint lanes;

static bool answer(const struct lane *lane, long long ret, const void *data, size_t bytes, int fd)
{
	struct fwd_reply reply = { .ret = ret, .bytes = bytes, .host_pid = own_pid };

	return send_message(lane->sock, &reply, sizeof(reply), data, bytes, fd) &&
	       write(lane->bell, &lane->number, sizeof(lane->number)) == sizeof(lane->number);
}

static long result(long ret)
{
	return ret < 0 ? -errno : ret;
}

/* "nvidiactl" or "gpus/0000:01:00.0/information": no way out of the folder. */
static bool is_name(const struct message *m)
{
	const char *name = (const char *)m->data;

	return m->bytes && m->bytes < 128 && memchr(name, 0, m->bytes) && *name && *name != '/' && !strstr(name, "..");
}

static bool do_open(const struct lane *lane, struct message *m)
{
	char path[160];
	bool sent;
	long fd;

	if (!is_name(m) || strncmp((char *)m->data, "nvidia", 6))
		return answer(lane, -EINVAL, NULL, 0, -1);
	snprintf(path, sizeof(path), "/dev/%.127s", m->data);
	fd = result(open(path, O_RDWR | O_CLOEXEC));
	sent = answer(lane, fd < 0 ? fd : 0, NULL, 0, fd < 0 ? -1 : fd);
	if (fd >= 0)
		close(fd);
	return sent;
}

static bool do_read(const struct lane *lane, struct message *m)
{
	char path[192];
	ssize_t got = 0, n = 0;
	long fd;

	if (!is_name(m))
		return answer(lane, -EINVAL, NULL, 0, -1);
	snprintf(path, sizeof(path), "/proc/driver/nvidia/%.127s", m->data);
	fd = result(open(path, O_RDONLY | O_CLOEXEC));
	if (fd < 0)
		return answer(lane, fd, NULL, 0, -1);
	while (got < (ssize_t)sizeof(m->data) && (n = read(fd, m->data + got, sizeof(m->data) - got)) > 0)
		got += n;
	n = result(n);
	close(fd);
	return answer(lane, n < 0 ? n : got, m->data, n < 0 ? 0 : got, -1);
}

/* Waits for the guest's end to be closed as well: that is how it takes the request back. */
static bool do_poll(const struct lane *lane, struct message *m)
{
	struct pollfd fds[] = { { m->fds[0], POLLIN | POLLPRI, 0 }, { lane->sock, POLLIN, 0 } };

	if (m->fd_count != 1)
		return answer(lane, -EINVAL, NULL, 0, -1);
	if (poll(fds, 2, (int)m->request.cmd) < 0)
		return answer(lane, -errno, NULL, 0, -1);
	return !fds[1].revents && answer(lane, fds[0].revents, NULL, 0, -1);
}

/* Guest pages, contiguous in this process; the driver pins them by that address. NULL, with errno. */
static void *map_pages(const struct fwd_segment *s, unsigned int count, int fd, size_t *bytes)
{
	unsigned char *base, *at;

	*bytes = 0;
	for (unsigned int i = 1; i < count; i++)
		*bytes += s[i].bytes;
	base = mmap(NULL, *bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return NULL;
	at = base;
	for (unsigned int i = 1; i < count; i++) {
		if (mmap(at, s[i].bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, s[i].offset) ==
		    MAP_FAILED) {
			munmap(base, *bytes);
			return NULL;
		}
		at += s[i].bytes;
	}
	return base;
}

struct pages {
	void *base;
	size_t bytes;
};

/* Puts the buffers' addresses and the files' numbers in place. 0, or -errno. */
static long link_buffers(struct message *m, struct pages *pages)
{
	const struct fwd_request *r = &m->request;
	unsigned char *buf[FWD_BUFS_MAX];
	unsigned int at = 0;

	for (unsigned int i = 0; i < r->bufs; i++) {
		const struct fwd_buf *b = &r->buf[i];

		if (b->size > sizeof(m->data) || at + b->size > m->bytes)
			return -EINVAL;
		buf[i] = m->data + at;
		at += fwd_align(b->size);
		if (!i)
			continue;
		if (b->parent >= i || b->at + 8 > r->buf[b->parent].size)
			return -EINVAL;
		if (b->pages_of) {
			struct fwd_segment *s = (struct fwd_segment *)buf[i];

			if (b->pages_of >= m->fd_count || pages->base || b->size < 2 * sizeof(*s))
				return -EINVAL;
			pages->base = map_pages(s, b->size / sizeof(*s), m->fds[b->pages_of], &pages->bytes);
			if (!pages->base)
				return -errno;
			buf[i] = (unsigned char *)pages->base + s->offset;
		}
		memcpy(buf[b->parent] + b->at, &buf[i], 8);
	}
	for (unsigned int i = 1; i < r->fds; i++) {
		const struct fwd_fd *f = &r->fd[i];

		if (!f->used)
			continue;
		if (f->buf >= r->bufs || f->at + 4 > r->buf[f->buf].size)
			return -EINVAL;
		memcpy(buf[f->buf] + f->at, &m->fds[i], 4);
	}
	return 0;
}

enum { NV_ESC_RM_CONTROL = 0x2a, NV_ESC_RM_ALLOC = 0x2b, HEAD_WORDS = 16, TAIL_WORDS = 4 };

static unsigned int word(const struct message *m, unsigned int at)
{
	unsigned int value = 0;

	if (at + sizeof(value) <= m->bytes)
		memcpy(&value, m->data + at, sizeof(value));
	return value;
}

/* The call's own struct, one line at once: in it are the command and the status, for nvidia-uvm often in its last words.
 * Before the call too, since one that hangs has no end.
 */
static void log_call(const struct lane *lane, const struct message *m, const char *moment, long ret)
{
	unsigned int size = m->request.bufs ? m->request.buf[0].size / 4 : 0, nr = m->request.cmd & 0xff, n;
	char line[512];

	n = snprintf(line, sizeof(line), "nvforwardd: %d: lane %u: %s ioctl %#x", own_pid, lane->number, moment,
		     m->request.cmd);
	if (m->request.cmd >> 8 && nr == NV_ESC_RM_CONTROL)
		n += snprintf(line + n, sizeof(line) - n, " control %#x status %#x", word(m, 8), word(m, 28));
	if (m->request.cmd >> 8 && nr == NV_ESC_RM_ALLOC)
		n += snprintf(line + n, sizeof(line) - n, " class %#x status %#x", word(m, 12),
			      word(m, size == 8 ? 28 : 40));
	n += snprintf(line + n, sizeof(line) - n, ": %ld:", ret);
	for (unsigned int i = 0; i < size; i++)
		if (i < HEAD_WORDS || i >= size - TAIL_WORDS)
			n += snprintf(line + n, sizeof(line) - n, " %x", word(m, 4 * i));
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, n) < 0)
		verbose = false;
}

static bool do_ioctl(const struct lane *lane, struct message *m)
{
	struct pages pages = { NULL, 0 };
	long ret = m->fd_count ? link_buffers(m, &pages) : -EINVAL;

	if (verbose)
		log_call(lane, m, "begins", ret);
	if (!ret)
		ret = result(ioctl(m->fds[0], m->request.cmd, m->request.bufs ? m->data : NULL));
	if (pages.base)	/* what the driver has pinned stays */
		munmap(pages.base, pages.bytes);
	if (verbose)
		log_call(lane, m, "ended", ret);
	return answer(lane, ret, m->data, m->bytes, -1);
}

static bool serve(const struct lane *lane, struct message *m)
{
	switch (m->request.op) {
	case FWD_OPEN:
		return do_open(lane, m);
	case FWD_CLOSE:	/* the guest has closed its own by now */
		close_all(m);
		return answer(lane, 0, NULL, 0, -1);
	case FWD_IOCTL:
		return do_ioctl(lane, m);
	case FWD_READ:
		return do_read(lane, m);
	case FWD_POLL:
		return do_poll(lane, m);
	}
	return answer(lane, -ENOSYS, NULL, 0, -1);
}

static void lane_end(struct lane *lane)
{
	close(lane->sock);
	close(lane->bell);
	free(lane);
	if (atomic_fetch_sub(&lanes, 1) == 1)
		exit(0);	/* the guest's process is gone */
}

static void *lane_thread(void *arg)
{
	struct lane *lane = arg;
	struct message *m = malloc(sizeof(*m));

	while (m && receive(lane->sock, m)) {
		bool go_on = serve(lane, m);

		close_all(m);
		if (!go_on)
			break;
	}
	free(m);
	lane_end(lane);
	return NULL;
}

/* ---- processes ---- */

/* The driver looks whether a process has a file of the GPU open before it makes it a device. */
static void open_gpus(void)
{
	char path[32];

	for (int i = 0; i < GPUS_MAX; i++) {
		snprintf(path, sizeof(path), "/dev/nvidia%d", i);
		open(path, O_RDWR | O_CLOEXEC);
	}
}

/* The driver asks for rights of the caller: those of the guest's process. Without the right to drop them there are none
 * to drop.
 */
static void drop_rights(unsigned int uid)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { { 0, 0, 0 }, { 0, 0, 0 } };

	if (syscall(SYS_setresuid, uid, uid, uid) && geteuid() == 0)
		die("setresuid: %s", strerror(errno));
	if (syscall(SYS_capset, &head, none))
		die("capset: %s", strerror(errno));
}

static void add_lane(int sock, int bell, unsigned int number)
{
	struct lane *lane = malloc(sizeof(*lane));
	pthread_attr_t attr;
	pthread_t thread;

	if (!lane)
		die("no memory");
	*lane = (struct lane){ sock, bell, number };
	atomic_fetch_add(&lanes, 1);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 << 10);
	if (pthread_create(&thread, &attr, lane_thread, lane)) {
		fprintf(stderr, "nvforwardd: %d: no thread: its call ends with EIO\n", own_pid);
		lane_end(lane);
	}
	pthread_attr_destroy(&attr);
}

/* Lanes come over @from, with the hello: the lane, then its bell. */
static void process(int from, const struct fwd_request *hello, pid_t parent)
{
	struct message *m = malloc(sizeof(*m));
	char name[16];

	own_pid = getpid();
	snprintf(name, sizeof(name), "guest-%u", hello->pid);
	prctl(PR_SET_NAME, name);
	open_gpus();
	if (!(hello->flags & FWD_ADMIN))
		drop_rights(hello->uid);
	/* After the change of the user, which clears it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
	while (m && receive(from, m) && m->fd_count == 2)
		add_lane(m->fds[0], m->fds[1], m->request.lane);
	/* nvforwardd has gone: the lanes end with the guest */
	for (;;)
		pause();
}

static struct {
	unsigned long long process;
	int to;
} processes[PROCESSES_MAX];

/* @lane and @m: of the hello; they reach the process over the pair, and what it inherits would be open in it for good. */
static int process_of(struct message *m, int lane, int listening)
{
	const struct fwd_request *hello = &m->request;
	pid_t parent = getpid();
	int pair[2], at = -1;

	for (int i = 0; i < PROCESSES_MAX; i++) {
		if (processes[i].process == hello->process)
			return processes[i].to;
		if (!processes[i].process && at < 0)
			at = i;
	}
	if (at < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -1;
	switch (fork()) {
	case -1:
		close(pair[0]);
		close(pair[1]);
		return -1;
	case 0:
		close(listening);
		close(lane);
		close_all(m);
		close(pair[0]);
		for (int i = 0; i < PROCESSES_MAX; i++)
			if (processes[i].process)
				close(processes[i].to);
		process(pair[1], hello, parent);
		_exit(0);
	}
	close(pair[1]);
	processes[at].process = hello->process;
	processes[at].to = pair[0];
	return pair[0];
}

static void forget_ended(void)
{
	struct pollfd p = { .events = 0 };

	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	for (int i = 0; i < PROCESSES_MAX; i++) {
		p.fd = processes[i].to;
		if (processes[i].process && poll(&p, 1, 0) > 0) {
			close(processes[i].to);
			processes[i].process = 0;
		}
	}
}

static bool hand_over(int lane, struct message *m, int listening)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = { .head = { CMSG_LEN(2 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS } };
	struct iovec iov = { &m->request, sizeof(m->request) };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.room),
	};
	int fds[] = { lane, m->fds[0] }, to;

	if (m->request.op != FWD_HELLO || m->fd_count != 1)
		return false;
	to = process_of(m, lane, listening);
	m->request.fds = 2;
	memcpy(CMSG_DATA(&control.head), fds, sizeof(fds));
	return to >= 0 && sendmsg(to, &msg, MSG_NOSIGNAL) >= 0;
}

/* Every guest process comes over one socket: a connection that does not say what it is for holds up the others. */
static bool receive_hello(int lane, struct message *m)
{
	const struct timeval limit = { .tv_sec = 1 }, none = { 0, 0 };

	setsockopt(lane, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (!receive(lane, m))
		return false;
	setsockopt(lane, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none));
	return true;
}

/* A guest with many processes has many files. */
static void allow_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct message *m = malloc(sizeof(*m));
	int listening, lane;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* A call is short, and a guest waits for it: before what else runs here, the guest's kernel too, if that is
	 * allowed. Inherited.
	 */
	sched_setscheduler(0, SCHED_RR, &(struct sched_param){ .sched_priority = 2 });
	allow_files();
	verbose = getenv("NVFORWARDD_VERBOSE");
	if (argc != 2 || strlen(argv[1]) >= sizeof(address.sun_path) || !m)
		die("usage: nvforwardd SOCKET");
	strcpy(address.sun_path, argv[1]);
	unlink(address.sun_path);
	listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (listening < 0 || bind(listening, (struct sockaddr *)&address, sizeof(address)) || listen(listening, 64))
		die("%s: %s", argv[1], strerror(errno));
	signal(SIGPIPE, SIG_IGN);
	while ((lane = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno == ECONNABORTED) {
		if (lane < 0)
			continue;
		forget_ended();
		if (receive_hello(lane, m)) {
			if (!hand_over(lane, m, listening))
				fprintf(stderr, "nvforwardd: a connection of process %u is refused\n", m->request.pid);
			close_all(m);
		}
		close(lane);
	}
	die("accept: %s", strerror(errno));
}
