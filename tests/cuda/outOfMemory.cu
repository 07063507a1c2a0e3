// SPDX-License-Identifier: MIT
/* Takes all there is, piece by piece, is refused, gives back, and gets it again. */
#include "program.h"

#define PIECE (256ull << 20)
#define PIECES 1024

static int take(void **at)
{
	int n = 0;

	while (n < PIECES && cudaMalloc(&at[n], PIECE) == cudaSuccess)
		n++;
	must_hold(cudaGetLastError() == cudaErrorMemoryAllocation, "what is refused is memory");
	return n;
}

int main(void)
{
	void *at[PIECES];
	size_t left, total;
	int n, again;

	MUST(cudaMemGetInfo(&left, &total));
	n = take(at);
	printf("%d pieces of 256 MiB, of %zu MiB of %zu\n", n, left >> 20, total >> 20);
	must_hold(n * PIECE <= left && (n + 1) * PIECE > left - (64 << 20), "so much as was free");
	for (int i = 0; i < n; i++)
		MUST(cudaFree(at[i]));
	again = take(at);
	must_hold(again == n, "what was given back is there again");
	MUST(cudaDeviceReset());
	return 0;
}
