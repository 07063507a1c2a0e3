// SPDX-License-Identifier: MIT
/* A target without libFuzzer: each argument is a file with one input. */
#include <stdio.h>

#include "target.h"

#define INPUT_MAX	(1u << 20)

int main(int argc, char **argv)
{
	uint8_t *data = malloc(INPUT_MAX);
	int i;

	for (i = 1; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");

		if (!file || !data)
			return 2;
		LLVMFuzzerTestOneInput(data, fread(data, 1, INPUT_MAX, file));
		fclose(file);
	}
	free(data);
	printf("%d inputs\n", argc - 1);
	return 0;
}
