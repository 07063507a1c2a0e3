/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What nvforward, a module of User-Mode Linux, and nvforwardd, a program of the host, say to each other.
 *
 * A connection (SOCK_SEQPACKET) is a lane: it has one request under way at most. Its first message is FWD_HELLO, which
 * names the guest process it serves and has the bell, the writing end of a pipe, with it. Every request has a reply on
 * the same lane; then the lane's number is written to the bell, as four bytes.
 *
 * Data follows the header: all buffers, each at a multiple of 8 bytes. The first one is the argument of the ioctl.
 * Files come with SCM_RIGHTS; the first one is the file of the call.
 */
#ifndef FWD_WIRE_H
#define FWD_WIRE_H

#define FWD_BUFS_MAX	6
#define FWD_FDS_MAX	4
#define FWD_DATA_MAX	(96u << 10)	/* bytes of all buffers */

enum fwd_op {
	FWD_HELLO = 1,	/* no reply */
	FWD_OPEN,	/* data: a name below /dev; reply: the file */
	FWD_CLOSE,	/* drop the file, in the process that it served */
	FWD_IOCTL,	/* reply: its result, and the buffers */
	FWD_READ,	/* data: a name below /proc/driver/nvidia; reply: its text */
	FWD_POLL,	/* @cmd: milliseconds, or -1; reply: events */
};

/* Of a hello. */
#define FWD_ADMIN	1u	/* keep the rights that nvforwardd has */

struct fwd_buf {
	unsigned int size;	/* bytes */
	unsigned int parent;	/* the buffer that has its address, 8 bytes */
	unsigned int at;	/* where in that buffer */
	unsigned int pages_of;	/* 0, or which file: the buffer is a list of struct fwd_segment */
};

/* Pages of a file. Those of one buffer are mapped one behind the other, and the ioctl sees @offset_in_page bytes behind
 * the start of the first.
 */
struct fwd_segment {
	unsigned long long offset, bytes;	/* the first one: @offset is offset_in_page, @bytes is 0 */
};

struct fwd_fd {
	unsigned int buf, at;	/* where its number stands, 4 bytes; not of the first one */
	unsigned int used;
};

struct fwd_request {
	unsigned int op, cmd;
	unsigned int bufs, fds;
	struct fwd_buf buf[FWD_BUFS_MAX];
	struct fwd_fd fd[FWD_FDS_MAX];
	/* of a hello */
	unsigned int lane, pid, uid, flags;
	unsigned long long process;	/* one for each guest process; not used again after its last lane */
};

struct fwd_reply {
	long long ret;		/* of the call, or -errno */
	unsigned int bytes;	/* of data */
	unsigned int host_pid;
};

static inline unsigned int fwd_align(unsigned int bytes)
{
	return (bytes + 7) & ~7u;
}

#endif
