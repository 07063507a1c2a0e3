/* SPDX-License-Identifier: MIT */
/*
 * flip: two threads against one argument. One issues a call again and again,
 * the other keeps changing a field of its argument. A layer that checks the
 * argument and then lets the driver read it again executes calls it did not
 * check; this program counts them. --help defines "flipped" for each mode.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "flip_fault.h"
#include "rm.h"

#define MIB		1048576ull
#define MAX_PARAMS	4096

static const char help[] =
"flip - change an argument between a check and its use, and count what got through\n"
"\n"
"  flip --mode nested-size   RM_ALLOC of video memory; params.size goes between --small-mib and\n"
"                            --big-mib. Flipped: the memory that came into being is the big one\n"
"                            (seen by mapping behind the small size). Behind a memory limit below\n"
"                            --big-mib there must be none.\n"
"  flip --mode top-ptr       the same, but it is the pointer to the params that changes.\n"
"  flip --mode top-cmd       RM_CONTROL; cmd goes between --cmd and --flip-cmd (same size, same\n"
"                            object). Flipped: the call succeeded and its answer is not --cmd's.\n"
"                            Where --flip-cmd is refused there must be none.\n"
"\n"
"  --how race        another thread keeps changing the field; needs two CPUs (default)\n"
"  --how fault       the field changes right after it was read for the first time, in every call\n"
"                    (userfaultfd, needs root): who reads twice is caught every time, and the bare\n"
"                    driver, which reads once, never.\n"
"\n"
"  --calls N         (20000)        --seconds T   stop after T seconds at the latest (60)\n"
"  --gpu N  --dev DIR               as in simload\n"
"  --small-mib M     (2)            --big-mib M   (64)\n"
"  --cmd HEX         (a06c0106, GET_INFO)\n"
"  --flip-cmd HEX    (a06c0108, GET_INTERLEAVE_LEVEL)\n"
"  --object O        client, device, subdevice, tsg (default) or channel\n"
"  --size BYTES      of the params (4)\n"
"  --json\n"
"\n"
"\"calls\" were made, \"first\" ran as first written, \"flipped\" ran with the other value,\n"
"\"refused\" failed, \"turns\" changes were made. Exit codes: 0 counted, 1 a call failed, 2 usage, 4 no such GPU.\n";

enum mode { NESTED_SIZE, TOP_PTR, TOP_CMD };
static const char *const mode_names[] = { "nested-size", "top-ptr", "top-cmd" };

static struct {
	enum mode mode;
	unsigned long calls;
	double seconds;
	unsigned int gpu;
	const char *dir, *object;
	uint64_t small, big;
	uint32_t cmd, flip_cmd, size;
	bool fault, json;
} opt = {
	.calls = 20000, .seconds = 60, .object = "tsg", .small = 2 * MIB, .big = 64 * MIB,
	.cmd = 0xa06c0106, .flip_cmd = 0xa06c0108, .size = 4,
};

static struct {
	unsigned long calls, first, flipped, refused;
	uint32_t last_refusal;
} count;

/* The other thread writes two values to one place in turn. */
static struct {
	void *volatile place;
	bool wide;		/* 8 bytes, else 4 */
	uint64_t value[2];
	atomic_bool stop;
	atomic_ulong turns;
} flipper;

static void *flip_thread(void *unused)
{
	for (unsigned int i = 0; !atomic_load_explicit(&flipper.stop, memory_order_relaxed); i++) {
		if (flipper.wide)
			*(volatile uint64_t *)flipper.place = flipper.value[i & 1];
		else
			*(volatile uint32_t *)flipper.place = flipper.value[i & 1];
		for (volatile unsigned int wait = i * 7 % 61; wait; wait--)
			;	/* no fixed step between the two threads */
		atomic_fetch_add_explicit(&flipper.turns, 1, memory_order_relaxed);
	}
	return unused;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/* An argument that is changed; in the exact way its last bytes, from @before on, are on the absent page. */
struct spot {
	void *at;
	size_t size, before;
};

static void place(const struct spot *spot, const void *argument)
{
	memcpy(spot->at, argument, opt.fault ? spot->before : spot->size);
	if (opt.fault)
		fault_arm((const char *)argument + spot->before, spot->size - spot->before);
}

static void flip_once(void)
{
	if (flipper.wide)
		*(volatile uint64_t *)flipper.place = flipper.value[1];
	else
		*(volatile uint32_t *)flipper.place = flipper.value[1];
	atomic_fetch_add_explicit(&flipper.turns, 1, memory_order_relaxed);
}

/* The place for the argument; @field is the offset of the changing field. */
static struct spot make_spot(size_t size, size_t before, size_t field)
{
	static uint64_t here[MAX_PARAMS / 8];
	struct spot spot = { .at = here, .size = size, .before = before };

	if (opt.fault)
		spot.at = fault_area(before, flip_once);
	if (!spot.at) {
		perror("flip: userfaultfd");
		exit(1);
	}
	flipper.place = (char *)spot.at + field;
	return spot;
}

static bool more(double start)
{
	return count.calls < opt.calls && now() - start < opt.seconds;
}

/* ---- allocations ---- */

static struct nv_mem_params params[2];	/* small, big */

/* Does the memory reach beyond the small size? The driver checks the range of a mapping. */
static bool is_big(struct rm_gpu *gpu, uint32_t memory)
{
	struct rm *rm = gpu->rm;
	struct nvos33_fd arg = {
		.params.hClient = rm->client, .params.hDevice = gpu->device, .params.hMemory = memory,
		.params.offset = opt.small, .params.length = 4096,
	};
	struct nv_register_fd reg = { .ctl_fd = rm->ctl };
	char path[96];
	bool big;

	snprintf(path, sizeof(path), "%s/nvidia%u", rm->dir, gpu->info.minor);
	arg.fd = open(path, O_RDWR | O_CLOEXEC);
	if (arg.fd < 0 || ioctl(arg.fd, _IOWR('F', NV_ESC_REGISTER_FD, reg), &reg) < 0) {
		perror(path);
		exit(1);
	}
	big = !ioctl(rm->ctl, _IOWR('F', NV_ESC_RM_MAP_MEMORY, arg), &arg) && !arg.params.status;
	close(arg.fd);
	return big;
}

static void set_params(struct nv_mem_params *p, uint32_t owner, uint64_t size)
{
	memset(p, 0, sizeof(*p));
	p->owner = owner;
	p->attr = ATTR_NONCONTIG_ALLOWED | ATTR_PAGE_HUGE;
	p->attr2 = ATTR2_PAGE_2M;
	p->size = size;
}

static void settle_alloc(struct rm_gpu *gpu, struct nvos64 *arg, int ret)
{
	count.calls++;
	if (ret < 0 || arg->status) {
		count.refused++;
		count.last_refusal = ret < 0 ? 0 : arg->status;
		return;
	}
	if (is_big(gpu, arg->hObjectNew))
		count.flipped++;
	else
		count.first++;
	rm_free(gpu->rm, gpu->device, arg->hObjectNew);
}

/* The changing argument: the params, or the call's own struct with its pointer to them. */
static struct spot alloc_spot(void)
{
	bool ptr = opt.mode == TOP_PTR;

	flipper.wide = true;
	flipper.value[0] = ptr ? (uintptr_t)&params[0] : opt.small;
	flipper.value[1] = ptr ? (uintptr_t)&params[1] : opt.big;
	if (ptr)
		return make_spot(sizeof(struct nvos64), offsetof(struct nvos64, pRightsRequested),
				 offsetof(struct nvos64, pAllocParms));
	return make_spot(sizeof(struct nv_mem_params), offsetof(struct nv_mem_params, alignment),
			 offsetof(struct nv_mem_params, size));
}

static void try_allocs(struct rm_gpu *gpu, const struct spot *spot, double start)
{
	uint32_t owner = gpu->rm->client;
	struct nvos64 local, *arg = opt.mode == TOP_PTR ? spot->at : &local;

	while (more(start)) {
		set_params(&params[0], owner, opt.small);
		set_params(&params[1], owner, opt.big);
		local = (struct nvos64) {
			.hRoot = owner, .hObjectParent = gpu->device, .hObjectNew = ++gpu->rm->last_handle,
			.hClass = NV01_MEMORY_LOCAL_USER,
			.paramsSize = rm_class_bytes(gpu->rm, NV01_MEMORY_LOCAL_USER, sizeof(params[0])),
			.pAllocParms = opt.mode == TOP_PTR ? (uintptr_t)&params[0] : (uintptr_t)spot->at,
		};
		place(spot, opt.mode == TOP_PTR ? (void *)&local : (void *)&params[0]);
		settle_alloc(gpu, arg, ioctl(gpu->rm->ctl, _IOWR('F', NV_ESC_RM_ALLOC, *arg), arg));
	}
}

/* ---- controls ---- */

static uint8_t answer[MAX_PARAMS], expected[MAX_PARAMS];

static struct nvos54 control_of(struct rm *rm, uint32_t object, uint32_t cmd)
{
	memset(answer, 0xff, opt.size);
	return (struct nvos54) {
		.hClient = rm->client, .hObject = object, .cmd = cmd,
		.params = (uintptr_t)answer, .paramsSize = opt.size,
	};
}

static int issue(struct rm *rm, struct nvos54 *arg)
{
	return ioctl(rm->ctl, _IOWR('F', NV_ESC_RM_CONTROL, *arg), arg);
}

/* Read the answer of --cmd, and check that the answer of --flip-cmd differs. */
static void learn(struct rm *rm, uint32_t object)
{
	struct nvos54 arg = control_of(rm, object, opt.cmd);

	if (issue(rm, &arg) < 0 || arg.status) {
		fprintf(stderr, "flip: RM_CONTROL(0x%x): status 0x%x\n", opt.cmd, arg.status);
		exit(1);
	}
	memcpy(expected, answer, opt.size);
	arg = control_of(rm, object, opt.flip_cmd);
	if (!issue(rm, &arg) && !arg.status && !memcmp(expected, answer, opt.size)) {
		fprintf(stderr, "flip: 0x%x and 0x%x answer the same here\n", opt.cmd, opt.flip_cmd);
		exit(1);
	}
}

static struct spot control_spot(void)
{
	flipper.value[0] = opt.cmd;
	flipper.value[1] = opt.flip_cmd;
	return make_spot(sizeof(struct nvos54), offsetof(struct nvos54, params),
			 offsetof(struct nvos54, cmd));
}

static void try_controls(struct rm *rm, const struct spot *spot, uint32_t object, double start)
{
	struct nvos54 *arg = spot->at;

	while (more(start)) {
		struct nvos54 local = control_of(rm, object, opt.cmd);
		int ret;

		place(spot, &local);
		ret = issue(rm, arg);
		count.calls++;
		if (ret < 0 || arg->status) {
			count.refused++;
			count.last_refusal = ret < 0 ? 0 : arg->status;
		} else if (memcmp(answer, expected, opt.size)) {
			count.flipped++;
		} else {
			count.first++;
		}
	}
}

static uint32_t object_handle(struct rm_gpu *gpu)
{
	static struct rm_space space;
	static struct rm_group group;
	static struct rm_channel channel;

	if (!strcmp(opt.object, "client"))
		return gpu->rm->client;
	if (!strcmp(opt.object, "device"))
		return gpu->device;
	if (!strcmp(opt.object, "subdevice"))
		return gpu->subdevice;
	if (rm_space_create(&space, gpu) || rm_group_create(&group, &space, NV2080_ENGINE_TYPE_GRAPHICS) ||
	    rm_channel_create(&channel, &group, 1))
		return 0;
	return !strcmp(opt.object, "tsg") ? group.tsg : channel.handle;
}

/* ---- main ---- */

static void usage_error(const char *what)
{
	fprintf(stderr, "flip: %s (see --help)\n", what);
	exit(2);
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "mode", 1, NULL, 'm' }, { "calls", 1, NULL, 'n' }, { "seconds", 1, NULL, 't' },
		{ "gpu", 1, NULL, 'g' }, { "dev", 1, NULL, 'd' }, { "small-mib", 1, NULL, 's' },
		{ "big-mib", 1, NULL, 'b' }, { "cmd", 1, NULL, 'c' }, { "flip-cmd", 1, NULL, 'f' },
		{ "object", 1, NULL, 'o' }, { "size", 1, NULL, 'z' }, { "json", 0, NULL, 'j' },
		{ "how", 1, NULL, 'w' }, { "help", 0, NULL, 'h' }, { 0 },
	};
	bool have_mode = false;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'm':
			for (int i = 0; i < 3; i++) {
				if (!strcmp(optarg, mode_names[i])) {
					opt.mode = i;
					have_mode = true;
				}
			}
			break;
		case 'n': opt.calls = strtoul(optarg, NULL, 0); break;
		case 't': opt.seconds = strtod(optarg, NULL); break;
		case 'g': opt.gpu = strtoul(optarg, NULL, 0); break;
		case 'd': opt.dir = optarg; break;
		case 's': opt.small = strtoull(optarg, NULL, 0) * MIB; break;
		case 'b': opt.big = strtoull(optarg, NULL, 0) * MIB; break;
		case 'c': opt.cmd = strtoul(optarg, NULL, 16); break;
		case 'f': opt.flip_cmd = strtoul(optarg, NULL, 16); break;
		case 'o': opt.object = optarg; break;
		case 'z': opt.size = strtoul(optarg, NULL, 0); break;
		case 'w':
			opt.fault = !strcmp(optarg, "fault");
			if (!opt.fault && strcmp(optarg, "race"))
				usage_error("--how is race or fault");
			break;
		case 'j': opt.json = true; break;
		case 'h': fputs(help, stdout); exit(0);
		default: exit(2);
		}
	}
	if (!have_mode)
		usage_error("--mode is one of nested-size, top-ptr, top-cmd");
	if (!opt.size || opt.size > MAX_PARAMS)
		usage_error("--size is 1 to 4096");
	if (!opt.small || opt.small >= opt.big)
		usage_error("--small-mib is less than --big-mib");
}

static void fail(const struct rm *rm)
{
	fprintf(stderr, "flip: %s: %s (status %lld)\n", rm->error.call, rm_strerror(rm->error.status),
		(long long)rm->error.status);
	exit(1);
}

static void report(double seconds)
{
	const char *form = opt.json ?
		"{\"mode\":\"%s\",\"how\":\"%s\",\"calls\":%lu,\"first\":%lu,\"flipped\":%lu,"
		"\"refused\":%lu,\"last_refusal\":%u,\"turns\":%lu,\"seconds\":%.3f,"
		"\"simulated\":true}\n" :
		"%s by %s: %lu calls: %lu first, %lu flipped, %lu refused (last status %u), %lu turns"
		" in %.3f s (simulated)\n";

	printf(form, mode_names[opt.mode], opt.fault ? "fault" : "race", count.calls, count.first,
	       count.flipped, count.refused, count.last_refusal, atomic_load(&flipper.turns), seconds);
}

static void open_gpu(struct rm *rm, struct rm_gpu *gpu)
{
	struct rm_gpu_info list[MAX_GPUS];
	unsigned int gpus;

	if (rm_open(rm, opt.dir) || rm_list_gpus(rm, list, &gpus))
		fail(rm);
	if (opt.gpu >= gpus) {
		fprintf(stderr, "flip: no GPU %u in %s\n", opt.gpu, rm->dir);
		exit(4);
	}
	if (rm_gpu_open(gpu, rm, &list[opt.gpu]))
		fail(rm);
}

int main(int argc, char **argv)
{
	uint32_t object = 0;
	pthread_t thread;
	struct spot spot;
	struct rm_gpu gpu;
	struct rm rm;
	double start;

	parse(argc, argv);
	open_gpu(&rm, &gpu);
	if (opt.mode == TOP_CMD) {
		object = object_handle(&gpu);
		if (!object)
			fail(&rm);
		learn(&rm, object);
	}
	spot = opt.mode == TOP_CMD ? control_spot() : alloc_spot();
	if (!opt.fault) {
		errno = pthread_create(&thread, NULL, flip_thread, NULL);
		if (errno) {
			perror("flip: pthread_create");
			return 1;
		}
	}
	start = now();
	if (opt.mode == TOP_CMD)
		try_controls(&rm, &spot, object, start);
	else
		try_allocs(&gpu, &spot, start);
	report(now() - start);
	atomic_store(&flipper.stop, true);
	if (!opt.fault)
		pthread_join(thread, NULL);
	rm_close(&rm);
	return 0;
}
