/* SPDX-License-Identifier: MIT */
/* simsmi: nvidia-smi's list and summary, from the driver's own calls. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "rm.h"

#define MIB 1048576ull

static const char help[] =
"simsmi [-L | --json] [--dev DIR] - the GPUs that can be opened here, and their memory\n"
"\n"
"  simsmi              driver, and per GPU: name, used / total MiB, processes\n"
"  simsmi -L           one line per GPU: index, name, UUID\n"
"  simsmi --json       one JSON object\n"
"  --dev DIR           directory of the nodes (default $NVSIM_DEV or /dev)\n"
"\n"
"All GPUs are simulated. Exit codes: 0, 1 a call failed, 2 usage.\n";

enum mode { SUMMARY, LIST, JSON };

struct card {
	char name[64], uuid[48];
	struct rm_memory mem;
	struct rm_process proc[200];
	unsigned int procs;
};

static void print_summary(unsigned int index, const struct rm_gpu_info *info, const struct card *c)
{
	unsigned long long used = (c->mem.total - c->mem.free) / MIB;

	printf("| %3u  %-36s %04x:%02x:%02x.%x |\n", index, c->name, info->domain, info->bus,
	       info->slot, info->function);
	printf("|      %9lluMiB / %lluMiB\n", used, (unsigned long long)c->mem.total / MIB);
	for (unsigned int i = 0; i < c->procs; i++)
		printf("|      pid %-8u %9lluMiB\n", c->proc[i].pid,
		       (unsigned long long)c->proc[i].bytes / MIB);
}

static void print_json(unsigned int index, const struct rm_gpu_info *info, const struct card *c)
{
	printf("%s{\"index\":%u,\"minor\":%u,\"name\":\"%s\",\"uuid\":\"%s\",\"ram_bytes\":%llu,"
	       "\"total_bytes\":%llu,\"free_bytes\":%llu,\"process\":[", index ? "," : "", index,
	       info->minor, c->name, c->uuid, (unsigned long long)c->mem.ram,
	       (unsigned long long)c->mem.total, (unsigned long long)c->mem.free);
	for (unsigned int i = 0; i < c->procs; i++)
		printf("%s{\"pid\":%u,\"bytes\":%llu}", i ? "," : "", c->proc[i].pid,
		       (unsigned long long)c->proc[i].bytes);
	printf("]}");
}

static rm_status read_card(struct rm *rm, const struct rm_gpu_info *info, struct card *c)
{
	struct rm_gpu gpu;
	rm_status st = rm_gpu_open(&gpu, rm, info);

	if (st)
		return st;
	st = rm_gpu_name(&gpu, c->name);
	if (!st)
		st = rm_gpu_memory(&gpu, &c->mem);
	if (!st)
		st = rm_gpu_processes(&gpu, c->proc, 200, &c->procs);
	rm_gpu_uuid_text(&gpu, c->uuid);
	rm_gpu_close(&gpu);
	return st;
}

static rm_status show(struct rm *rm, enum mode mode)
{
	struct rm_gpu_info list[MAX_GPUS];
	unsigned int count;
	rm_status st = rm_list_gpus(rm, list, &count);

	if (st)
		return st;
	if (mode == SUMMARY)
		printf("simsmi (simulated)   driver %s\n", rm->version);
	else if (mode == JSON)
		printf("{\"simulated\":true,\"driver\":\"%s\",\"gpu\":[", rm->version);
	for (unsigned int i = 0; i < count; i++) {
		static struct card card;

		st = read_card(rm, &list[i], &card);
		if (st)
			return st;
		if (mode == LIST)
			printf("GPU %u: %s (UUID: %s) (simulated)\n", i, card.name, card.uuid);
		else if (mode == JSON)
			print_json(i, &list[i], &card);
		else
			print_summary(i, &list[i], &card);
	}
	if (mode == JSON)
		printf("]}\n");
	else if (!count)
		printf("No devices were found\n");
	return 0;
}

int main(int argc, char **argv)
{
	enum mode mode = SUMMARY;
	const char *dir = NULL;
	struct rm rm;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-L")) {
			mode = LIST;
		} else if (!strcmp(argv[i], "--json")) {
			mode = JSON;
		} else if (!strcmp(argv[i], "--dev") && i + 1 < argc) {
			dir = argv[++i];
		} else {
			bool asked = !strcmp(argv[i], "--help");

			fputs(help, asked ? stdout : stderr);
			return asked ? 0 : 2;
		}
	}
	if (!rm_open(&rm, dir) && !show(&rm, mode)) {
		rm_close(&rm);
		return 0;
	}
	fprintf(stderr, "simsmi: %s: %s", rm.error.call, rm_strerror(rm.error.status));
	if (rm.error.status > 0)
		fprintf(stderr, " (0x%llx)", (long long)rm.error.status);
	fputc('\n', stderr);
	rm_close(&rm);
	return 1;
}
