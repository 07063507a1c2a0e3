// SPDX-License-Identifier: MIT
/* Two processes: one makes memory, the other opens it, finds what is there and leaves an answer. */
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

#define SIZE (4 << 20)

static int child(void)
{
	char *back = (char *)malloc(SIZE);
	cudaIpcMemHandle_t handle;
	void *at;

	must_hold(read(0, &handle, sizeof(handle)) == sizeof(handle), "a handle comes");
	MUST(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess));
	MUST(cudaMemcpy(back, at, SIZE, cudaMemcpyDeviceToHost));
	must_hold(back[0] == 0x41 && back[SIZE - 1] == 0x41, "the other process sees what is written");
	memset(back, 0x42, SIZE);
	MUST(cudaMemcpy(at, back, SIZE, cudaMemcpyHostToDevice));
	MUST(cudaIpcCloseMemHandle(at));
	return 0;
}

int main(int argc, char **argv)
{
	char *host = (char *)malloc(SIZE);
	cudaIpcMemHandle_t handle;
	int down[2], status;
	void *at;
	pid_t pid;

	if (argc > 1)
		return child();
	must_hold(!pipe(down), "a pipe");
	pid = fork();
	if (!pid) {
		dup2(down[0], 0);
		close(down[1]);	/* so that it ends when nothing comes */
		execl("/proc/self/exe", argv[0], "child", NULL);
		_exit(1);
	}
	memset(host, 0x41, SIZE);
	MUST(cudaMalloc(&at, SIZE));
	MUST(cudaMemcpy(at, host, SIZE, cudaMemcpyHostToDevice));
	MUST(cudaIpcGetMemHandle(&handle, at));
	must_hold(write(down[1], &handle, sizeof(handle)) == sizeof(handle), "the handle goes");
	waitpid(pid, &status, 0);
	must_hold(!status, "the other process ends well");
	MUST(cudaMemcpy(host, at, SIZE, cudaMemcpyDeviceToHost));
	must_hold(host[0] == 0x42 && host[SIZE - 1] == 0x42, "its answer is seen");
	return 0;
}
