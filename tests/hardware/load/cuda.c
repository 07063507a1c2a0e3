// SPDX-License-Identifier: MIT
#include <dlfcn.h>
#include <stdio.h>

#include "cuda.h"

static const struct {
	const char *symbol;
	size_t at;
} calls[] = {
#define CU_ROW(name, symbol, ...) { #symbol, offsetof(struct cuda, name) },
	CU_CALLS(CU_ROW)
#undef CU_ROW
};

const char *cuda_load(struct cuda *cu)
{
	static char missing[160];

	cu->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!cu->library) {
		snprintf(missing, sizeof(missing), "%.150s", dlerror());
		return missing;
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		void *found = dlsym(cu->library, calls[i].symbol);

		if (!found) {
			snprintf(missing, sizeof(missing), "libcuda.so.1 has no %s", calls[i].symbol);
			return missing;
		}
		*(void **)((char *)cu + calls[i].at) = found;
	}
	return NULL;
}

const char *cuda_error(const struct cuda *cu, cu_result result)
{
	const char *name = NULL;

	if (!cu->error_name || cu->error_name(result, &name) || !name)
		return "an error without a name";
	return name;
}
