// SPDX-License-Identifier: MIT
/* Two processes that compute and copy side by side, each with a context of its own. */
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

#define N (1 << 18)

static int work(int seed)
{
	float *host = (float *)malloc(N * sizeof(float)), *back = (float *)calloc(N, sizeof(float)), *device;

	for (int i = 0; i < N; i++)
		host[i] = i + seed;
	MUST(cudaMalloc(&device, 2 * N * sizeof(float)));
	for (int round = 0; round < 50; round++) {
		MUST(cudaMemcpy(device, host, N * sizeof(float), cudaMemcpyHostToDevice));
		add<<<N / 256, 256>>>(device + N, device, device, N);
		MUST(cudaMemcpy(back, device, N * sizeof(float), cudaMemcpyDeviceToHost));
		must_hold(!memcmp(host, back, N * sizeof(float)), "each process sees its own");
	}
	return 0;
}

int main(void)
{
	pid_t pid = fork();
	int status = 1;

	if (!pid)
		_exit(work(1));
	work(1000);
	waitpid(pid, &status, 0);
	must_hold(!status, "the other process ends well");
	return 0;
}
