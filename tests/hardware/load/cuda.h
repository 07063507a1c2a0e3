/* SPDX-License-Identifier: MIT */
/* The part of CUDA's driver interface that is used here, from libcuda.so.1 at run time: no CUDA to build it. */
#ifndef CUDA_H
#define CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;		/* CUresult: 0 = done */
typedef int cu_device;
typedef uint64_t cu_pointer;
typedef struct cu_context_st *cu_context;
typedef struct cu_module_st *cu_module;
typedef struct cu_function_st *cu_function;
typedef struct cu_stream_st *cu_stream;
typedef struct cu_event_st *cu_event;

#define CU_NOT_READY			600
#define CU_OUT_OF_MEMORY		2
#define CU_ATTRIBUTE_MULTIPROCESSORS	16
#define CU_STREAM_NON_BLOCKING		1
#define CU_EVENT_DEFAULT		0

/* Name here, name there (the versioned ones as cuda.h maps them), parameters. */
#define CU_CALLS(X)										\
	X(init, cuInit, unsigned int)								\
	X(driver_version, cuDriverGetVersion, int *)						\
	X(device_get, cuDeviceGet, cu_device *, int)						\
	X(device_name, cuDeviceGetName, char *, int, cu_device)					\
	X(device_uuid, cuDeviceGetUuid, unsigned char *, cu_device)				\
	X(device_attribute, cuDeviceGetAttribute, int *, int, cu_device)			\
	X(device_total, cuDeviceTotalMem_v2, size_t *, cu_device)				\
	X(context_retain, cuDevicePrimaryCtxRetain, cu_context *, cu_device)			\
	X(context_release, cuDevicePrimaryCtxRelease_v2, cu_device)				\
	X(context_set, cuCtxSetCurrent, cu_context)						\
	X(context_synchronize, cuCtxSynchronize, void)						\
	X(module_load, cuModuleLoadData, cu_module *, const void *)				\
	X(module_function, cuModuleGetFunction, cu_function *, cu_module, const char *)		\
	X(mem_info, cuMemGetInfo_v2, size_t *, size_t *)					\
	X(mem_alloc, cuMemAlloc_v2, cu_pointer *, size_t)					\
	X(mem_free, cuMemFree_v2, cu_pointer)							\
	X(stream_create, cuStreamCreate, cu_stream *, unsigned int)				\
	X(event_create, cuEventCreate, cu_event *, unsigned int)				\
	X(event_record, cuEventRecord, cu_event, cu_stream)					\
	X(event_query, cuEventQuery, cu_event)							\
	X(event_synchronize, cuEventSynchronize, cu_event)					\
	X(event_elapsed, cuEventElapsedTime, float *, cu_event, cu_event)			\
	X(launch, cuLaunchKernel, cu_function, unsigned int, unsigned int, unsigned int, unsigned int,	\
	  unsigned int, unsigned int, unsigned int, cu_stream, void **, void **)		\
	X(error_name, cuGetErrorName, cu_result, const char **)

struct cuda {
#define CU_MEMBER(name, symbol, ...) cu_result (*name)(__VA_ARGS__);
	CU_CALLS(CU_MEMBER)
#undef CU_MEMBER
	void *library;
};

/* NULL, or what is missing. */
const char *cuda_load(struct cuda *cu);
const char *cuda_error(const struct cuda *cu, cu_result result);

#endif
