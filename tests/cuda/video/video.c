// SPDX-License-Identifier: MIT
/*
 * video caps | video decode [SESSIONS [FRAMES]] | video encode [SESSIONS]: sessions of NVIDIA's libnvcuvid and
 * libnvidia-encode, by declarations of our own. A simulated engine decodes nothing: what a frame holds means nothing.
 *
 * Prints one object of JSON with the result of each call, {"steps": {"cuInit": 0, ...}, "sessions": 1, "frames": 1},
 * waits for a line from stdin, frees what it has and prints {"after": {...}}. Sessions are opened until one fails. A line
 * "frame" before it decodes another frame: {"frame": {...}}. The exit status is 0 where each call returned 0.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../walk/calls.h"
#include "video.h"

#define WIDTH	640
#define HEIGHT	480
#define BLOCK	16		/* of MPEG-2, in pixels */
#define SURFACES 4
#define MAX_SESSIONS 600

static bool failed;
static int count;

static void *open_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);

	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
	return library;
}

static void *symbol(const char *name)
{
	static void *cuda, *cuvid;

	if (!cuda)
		cuda = open_library("libcuda.so.1");
	if (!cuvid)
		cuvid = open_library("libnvcuvid.so.1");
	return dlsym(strncmp(name, "cuvid", 5) ? cuda : cuvid, name);
}

static int note(const char *name, int result)
{
	printf("%s\"%s\": %d", count++ ? ", " : "", name, result);
	fflush(stdout);
	failed |= result != 0;
	return result;
}

#define CALL(type, name, ...) note(#name, ((cu_result (*)type)symbol(#name))(__VA_ARGS__))

/* True: the next line is "frame". False: another line, or the end of the input. */
static bool another_frame(void)
{
	char line[16];

	fflush(stdout);
	return fgets(line, sizeof(line), stdin) && !strcmp(line, "frame\n");
}

static void begin(const char *name)
{
	printf("{\"%s\": {", name);
	count = 0;
}

/* ---- decoder ---- */

static void caps(void)
{
	struct cuvid_caps caps = { .codec = CUVID_MPEG2, .chroma = CUVID_420 };

	CALL((struct cuvid_caps *), cuvidGetDecoderCaps, &caps);
	printf(", \"supported\": %d", caps.supported);
}

static int create_decoder(cuvid_decoder *decoder)
{
	struct cuvid_create create = {
		.width = WIDTH, .height = HEIGHT, .surfaces = SURFACES, .codec = CUVID_MPEG2, .chroma = CUVID_420,
		.flags = CUVID_PREFER_ENGINE, .max_width = WIDTH, .max_height = HEIGHT, .target_width = WIDTH,
		.target_height = HEIGHT, .outputs = 1,
	};

	return CALL((cuvid_decoder *, struct cuvid_create *), cuvidCreateDecoder, decoder, &create);
}

/* An intra picture: it refers to no other. */
static int decode(cuvid_decoder decoder, int surface)
{
	static const unsigned char data[4096] = { 0, 0, 1, 1 };	/* a slice, of which nothing is read here */
	static const unsigned int at[1] = { 0 };
	struct cuvid_picture picture = {
		.width = WIDTH / BLOCK, .height = HEIGHT / BLOCK, .surface = surface, .bytes = sizeof(data), .data = data,
		.slices = 1, .slice_at = at, .is_reference = 1, .is_intra = 1,
	};
	struct cuvid_mpeg2 *mpeg2 = &picture.mpeg2;

	mpeg2->forward = mpeg2->backward = -1;
	mpeg2->type = CUVID_INTRA;
	mpeg2->frame_dct = 1;
	memset(mpeg2->intra_matrix, BLOCK, sizeof(mpeg2->intra_matrix));
	memset(mpeg2->inter_matrix, BLOCK, sizeof(mpeg2->inter_matrix));
	return CALL((cuvid_decoder, struct cuvid_picture *), cuvidDecodePicture, decoder, &picture);
}

/* A frame of the decoder in memory, which waits until the engine has ended. */
static int look(cuvid_decoder decoder, int surface)
{
	struct cuvid_output output = { .progressive = 1 };
	unsigned long long at = 0;
	unsigned int pitch = 0;
	int result = CALL((cuvid_decoder, int, unsigned long long *, unsigned int *, struct cuvid_output *),
			  cuvidMapVideoFrame64, decoder, surface, &at, &pitch, &output);

	if (!result)
		result = CALL((cuvid_decoder, unsigned long long), cuvidUnmapVideoFrame64, decoder, at);
	return result;
}

static void decoders(int sessions, int frames)
{
	cuvid_decoder decoder[MAX_SESSIONS] = { NULL };
	int made, done, i;

	for (made = 0; made < sessions && !create_decoder(&decoder[made]); made++)
		;
	for (done = 0; made && done < frames; done++)
		if (decode(decoder[0], done % SURFACES) || look(decoder[0], done % SURFACES))
			break;
	printf("}, \"sessions\": %d, \"frames\": %d}\n", made, done);
	for (; another_frame() && made; done++) {
		begin("frame");
		if (!decode(decoder[0], done % SURFACES))
			look(decoder[0], done % SURFACES);
		printf("}}\n");
	}
	begin("after");
	for (i = 0; i < made; i++)
		CALL((cuvid_decoder), cuvidDestroyDecoder, decoder[i]);
	CALL((void), cuCtxSynchronize);
}

/* ---- encoder ---- */

static void encoders(cu_context context, int sessions)
{
	static struct nvenc_functions api = { .version = NVENC_STRUCT(2) };
	struct nvenc_open open = {
		.version = NVENC_STRUCT(1), .device_type = NVENC_CUDA, .device = context, .api = NVENC_API,
	};
	void *encoder[MAX_SESSIONS] = { NULL };
	int (*instance)(struct nvenc_functions *);
	int made, i;

	*(void **)&instance = dlsym(open_library("libnvidia-encode.so.1"), "NvEncodeAPICreateInstance");
	if (note("NvEncodeAPICreateInstance", instance(&api)))
		return;
	for (made = 0; made < sessions && !note("nvEncOpenEncodeSessionEx", api.open_session(&open, &encoder[made])); made++)
		;
	printf("}, \"sessions\": %d}\n", made);
	another_frame();
	begin("after");
	for (i = 0; i < made; i++)
		note("nvEncDestroyEncoder", api.destroy(encoder[i]));
}

int main(int argc, char **argv)
{
	int sessions = argc > 2 ? atoi(argv[2]) : 1, frames = argc > 3 ? atoi(argv[3]) : 1;
	cu_context context = NULL;

	if (argc < 2 || sessions < 1 || sessions > MAX_SESSIONS)
		return 2;
	printf("{\"steps\": {");
	CALL((unsigned int), cuInit, 0);
	CALL((cu_context *, unsigned int, cu_device), cuCtxCreate_v2, &context, 0, 0);
	if (!strcmp(argv[1], "encode")) {
		encoders(context, sessions);
	} else {
		caps();
		if (!strcmp(argv[1], "caps"))
			frames = sessions = 0;
		decoders(sessions, frames);
	}
	CALL((cu_context), cuCtxDestroy_v2, context);
	printf("}}\n");
	return failed;
}
