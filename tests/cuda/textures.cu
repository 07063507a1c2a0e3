// SPDX-License-Identifier: MIT
/* Arrays, textures and surfaces: each kind is made, filled, read back and bound to a kernel. */
#include "program.h"

#define WIDTH 512
#define HEIGHT 256
#define DEPTH 8

static float there[WIDTH * HEIGHT * DEPTH], back[WIDTH * HEIGHT * DEPTH];

static __global__ void sample(float *at, cudaTextureObject_t texture, cudaSurfaceObject_t surface)
{
	int x = threadIdx.x, y = blockIdx.x;

	at[y * WIDTH + x] = tex2D<float>(texture, x, y);
	if (surface)
		surf2Dwrite(at[x], surface, x * 4, y);
}

static cudaTextureObject_t texture_of(const cudaResourceDesc *what, cudaTextureReadMode mode)
{
	cudaTextureObject_t texture;
	cudaTextureDesc how = {};

	how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
	how.filterMode = what->resType == cudaResourceTypeLinear ? cudaFilterModePoint : cudaFilterModeLinear;
	how.readMode = mode;
	MUST(cudaCreateTextureObject(&texture, what, &how, NULL));
	return texture;
}

static void flat(float *at)
{
	cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
	cudaResourceDesc what = {};
	cudaTextureObject_t texture;
	cudaSurfaceObject_t surface;
	cudaArray_t array;

	MUST(cudaMallocArray(&array, &format, WIDTH, HEIGHT, cudaArraySurfaceLoadStore));
	MUST(cudaMemcpy2DToArray(array, 0, 0, there, WIDTH * 4, WIDTH * 4, HEIGHT,
	     cudaMemcpyHostToDevice));
	MUST(cudaMemcpy2DFromArray(back, WIDTH * 4, array, 0, 0, WIDTH * 4, HEIGHT,
	     cudaMemcpyDeviceToHost));
	must_hold(!memcmp(there, back, WIDTH * HEIGHT * 4), "an array holds what is written");
	what.resType = cudaResourceTypeArray;
	what.res.array.array = array;
	texture = texture_of(&what, cudaReadModeElementType);
	MUST(cudaCreateSurfaceObject(&surface, &what));
	sample<<<HEIGHT, WIDTH>>>(at, texture, surface);
	MUST(cudaDeviceSynchronize());
	MUST(cudaDestroySurfaceObject(surface));
	MUST(cudaDestroyTextureObject(texture));
	MUST(cudaFreeArray(array));
}

static void linear(float *at)
{
	cudaResourceDesc what = {};
	cudaTextureObject_t texture;
	size_t pitch;
	void *rows;

	what.resType = cudaResourceTypeLinear;
	what.res.linear.devPtr = at;
	what.res.linear.desc = cudaCreateChannelDesc<float>();
	what.res.linear.sizeInBytes = WIDTH * HEIGHT * 4;
	MUST(cudaDestroyTextureObject(texture_of(&what, cudaReadModeElementType)));
	MUST(cudaMallocPitch(&rows, &pitch, WIDTH * 4 - 4, HEIGHT));
	MUST(cudaMemcpy2D(rows, pitch, there, WIDTH * 4, WIDTH * 4 - 4, HEIGHT,
	     cudaMemcpyHostToDevice));
	memset(&what, 0, sizeof(what));
	what.resType = cudaResourceTypePitch2D;
	what.res.pitch2D.devPtr = rows;
	what.res.pitch2D.desc = cudaCreateChannelDesc<float>();
	what.res.pitch2D.width = WIDTH - 1;
	what.res.pitch2D.height = HEIGHT;
	what.res.pitch2D.pitchInBytes = pitch;
	texture = texture_of(&what, cudaReadModeElementType);
	sample<<<HEIGHT, WIDTH - 1>>>(at, texture, 0);
	MUST(cudaDeviceSynchronize());
	MUST(cudaDestroyTextureObject(texture));
	MUST(cudaFree(rows));
}

static void solid(void)
{
	cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
	cudaExtent size = make_cudaExtent(WIDTH, HEIGHT, DEPTH);
	cudaMemcpy3DParms copy = {};
	cudaMipmappedArray_t levels;
	cudaArray_t array, level;
	cudaExtent seen;

	MUST(cudaMalloc3DArray(&array, &format, size, 0));
	copy.srcPtr = make_cudaPitchedPtr(there, WIDTH * 4, WIDTH, HEIGHT);
	copy.dstArray = array;
	copy.extent = size;
	copy.kind = cudaMemcpyHostToDevice;
	MUST(cudaMemcpy3D(&copy));
	memset(&copy, 0, sizeof(copy));
	copy.srcArray = array;
	copy.dstPtr = make_cudaPitchedPtr(back, WIDTH * 4, WIDTH, HEIGHT);
	copy.extent = size;
	copy.kind = cudaMemcpyDeviceToHost;
	MUST(cudaMemcpy3D(&copy));
	must_hold(!memcmp(there, back, sizeof(there)),
		  "an array of three dimensions holds what is written");
	MUST(cudaFreeArray(array));
	MUST(cudaMalloc3DArray(&array, &format, make_cudaExtent(64, 64, 6), cudaArrayCubemap));
	MUST(cudaFreeArray(array));
	MUST(cudaMalloc3DArray(&array, &format, size, cudaArrayLayered));
	MUST(cudaFreeArray(array));
	MUST(cudaMallocMipmappedArray(&levels, &format, make_cudaExtent(WIDTH, HEIGHT, 0), 4));
	MUST(cudaGetMipmappedArrayLevel(&level, levels, 2));
	MUST(cudaArrayGetInfo(NULL, &seen, NULL, level));
	must_hold(seen.width == WIDTH / 4 && seen.height == HEIGHT / 4, "a level of a quarter");
	MUST(cudaFreeMipmappedArray(levels));
}

int main(void)
{
	float *at;

	for (int i = 0; i < WIDTH * HEIGHT * DEPTH; i++)
		there[i] = i;
	MUST(cudaMalloc(&at, WIDTH * HEIGHT * 4));
	flat(at);
	linear(at);
	solid();
	return 0;
}
