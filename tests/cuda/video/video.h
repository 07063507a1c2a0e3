/* SPDX-License-Identifier: MIT */
/*
 * What video.c uses of the interfaces of libnvcuvid.so.1 and libnvidia-encode.so.1: layouts as those libraries of 550
 * read them, names of our own.
 */
#ifndef VIDEO_H
#define VIDEO_H

#include <stdint.h>

#define CUVID_MPEG2		1
#define CUVID_420		1
#define CUVID_PREFER_ENGINE	4	/* not a decoder made of kernels */
#define CUVID_INTRA		1

typedef void *cuvid_decoder;

struct cuvid_caps {
	int codec, chroma;
	unsigned int depth, reserved1[3];
	unsigned char supported, engines;
	unsigned short outputs;
	unsigned int max_width, max_height, max_blocks;
	unsigned short min_width, min_height;
	unsigned char histogram, histogram_depth;
	unsigned short histogram_bins;
	unsigned int reserved2[10];
};

struct cuvid_rect {
	short left, top, right, bottom;
};

struct cuvid_create {
	unsigned long width, height, surfaces;
	int codec, chroma;
	unsigned long flags, depth, intra_only, max_width, max_height, reserved1;
	struct cuvid_rect display;
	int format, deinterlace;
	unsigned long target_width, target_height, outputs;
	void *lock;
	struct cuvid_rect target;
	unsigned long histogram, reserved2[4];
};

struct cuvid_mpeg2 {
	int forward, backward, type, full_pel_forward, full_pel_backward, f_code[2][2], dc_precision, frame_dct;
	int concealment, q_scale, intra_vlc, alternate_scan, top_first;
	unsigned char intra_matrix[64], inter_matrix[64];
};

struct cuvid_picture {
	int width, height, surface, is_field, is_bottom, is_second;
	unsigned int bytes;
	const unsigned char *data;
	unsigned int slices;
	const unsigned int *slice_at;
	int is_reference, is_intra;
	unsigned int reserved[30];
	union {
		struct cuvid_mpeg2 mpeg2;
		unsigned int any[1024];
	};
};

struct cuvid_output {
	int progressive, second_field, top_first, unpaired;
	unsigned int reserved1, reserved2;
	void *stream;
	unsigned int reserved3[46];
	unsigned long long *histogram;
	void *reserved4[1];
};

/* API 12.2, which 550 has. */
#define NVENC_API		(12u | 2u << 24)
#define NVENC_STRUCT(version)	(NVENC_API | (version) << 16 | 7u << 28)
#define NVENC_CUDA		1

struct nvenc_open {
	uint32_t version, device_type;
	void *device, *reserved;
	uint32_t api, reserved1[253];
	void *reserved2[64];
};

/* By the place in the list: 27 is NvEncDestroyEncoder, 29 NvEncOpenEncodeSessionEx. */
struct nvenc_functions {
	uint32_t version, reserved;
	void *before[27];
	int (*destroy)(void *encoder);
	void *invalidate;
	int (*open_session)(struct nvenc_open *, void **encoder);
	void *rest[290];
};

#endif
