// SPDX-License-Identifier: MIT
/* Two processes: one exports a pool and memory of it, the other imports both and copies from it. */
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

#define SIZE (4 << 20)

static void send_fd(int to, int fd)
{
	char room[CMSG_SPACE(sizeof(int))] = {}, byte = 0;
	struct iovec data = {&byte, 1};
	struct msghdr message = {};
	struct cmsghdr *head;

	message.msg_iov = &data;
	message.msg_iovlen = 1;
	message.msg_control = room;
	message.msg_controllen = sizeof(room);
	head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	must_hold(sendmsg(to, &message, 0) == 1, "a descriptor goes");
}

static int take_fd(int from)
{
	char room[CMSG_SPACE(sizeof(int))], byte;
	struct iovec data = {&byte, 1};
	struct msghdr message = {};
	int fd;

	message.msg_iov = &data;
	message.msg_iovlen = 1;
	message.msg_control = room;
	message.msg_controllen = sizeof(room);
	must_hold(recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message), "a descriptor comes");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static int child(int from)
{
	cudaMemPoolPtrExportData which;
	char *back = (char *)malloc(SIZE);
	cudaMemAccessDesc access = {};
	cudaMemPool_t pool;
	void *at;
	int fd;

	MUST(cudaFree(0));
	fd = take_fd(from);
	must_hold(read(from, &which, sizeof(which)) == sizeof(which), "which memory it is comes");
	MUST(cudaMemPoolImportFromShareableHandle(&pool, (void *)(long)fd,
	     cudaMemHandleTypePosixFileDescriptor, 0));
	access.location.type = cudaMemLocationTypeDevice;
	access.flags = cudaMemAccessFlagsProtReadWrite;
	MUST(cudaMemPoolSetAccess(pool, &access, 1));
	MUST(cudaMemPoolImportPointer(&at, pool, &which));
	MUST(cudaMemcpy(back, at, SIZE, cudaMemcpyDeviceToHost));
	must_hold(back[0] == 0x51 && back[SIZE - 1] == 0x51,
		  "the other process sees what is written");
	MUST(cudaFree(at));
	MUST(cudaMemPoolDestroy(pool));
	return 0;
}

int main(void)
{
	char *there = (char *)malloc(SIZE);
	cudaMemPoolPtrExportData which;
	cudaMemPoolProps wanted = {};
	cudaMemPool_t pool;
	int both[2], status = 1, fd = -1;
	void *at;
	pid_t pid;

	must_hold(!socketpair(AF_UNIX, SOCK_STREAM, 0, both), "a socket");
	pid = fork();
	if (!pid) {
		close(both[0]);
		_exit(child(both[1]));
	}
	close(both[1]);
	memset(there, 0x51, SIZE);
	wanted.allocType = cudaMemAllocationTypePinned;
	wanted.handleTypes = cudaMemHandleTypePosixFileDescriptor;
	wanted.location.type = cudaMemLocationTypeDevice;
	MUST(cudaMemPoolCreate(&pool, &wanted));
	MUST(cudaMallocFromPoolAsync(&at, SIZE, pool, 0));
	MUST(cudaMemcpyAsync(at, there, SIZE, cudaMemcpyHostToDevice, 0));
	MUST(cudaStreamSynchronize(0));
	MUST(cudaMemPoolExportToShareableHandle(&fd, pool, cudaMemHandleTypePosixFileDescriptor,
	     0));
	MUST(cudaMemPoolExportPointer(&which, at));
	send_fd(both[0], fd);
	must_hold(write(both[0], &which, sizeof(which)) == sizeof(which),
		  "which memory it is goes");
	waitpid(pid, &status, 0);
	must_hold(!status, "the other process ends well");
	MUST(cudaFreeAsync(at, 0));
	MUST(cudaStreamSynchronize(0));
	MUST(cudaMemPoolDestroy(pool));
	return 0;
}
