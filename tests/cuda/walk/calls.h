/* SPDX-License-Identifier: MIT */
/* The calls of CUDA's driver interface that the walk makes, by their names in libcuda.so.1. No CUDA to build it. */
#ifndef CALLS_H
#define CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "../../hardware/load/cuda.h"

#define CU_DEFAULT			0
#define CU_ALLOC_PINNED			1
#define CU_HANDLE_FD			1
#define CU_LOCATION_DEVICE		1
#define CU_ACCESS_READWRITE		3
#define CU_CAPTURE_GLOBAL		0
#define CU_IPC_LAZY_PEER		1
#define CU_MANAGED_GLOBAL		1
#define CU_EVENT_BLOCKING		1
#define CU_EVENT_NO_TIMING		2
#define CU_EVENT_INTERPROCESS		4
#define CU_HOST_MAPPED			2
#define CU_MEMORY_HOST			1
#define CU_MEMORY_DEVICE		2
#define CU_LIMIT_STACK			0
#define CU_LIMIT_HEAP			2
#define CU_WAIT_GEQ			0
#define CU_INPUT_PTX			1
#define CU_POINTER_MEMORY_TYPE		2
#define CU_ARRAY_UINT8			1

typedef struct cu_graph_st *cu_graph;
typedef struct cu_graph_node_st *cu_node;
typedef struct cu_graph_exec_st *cu_graph_exec;
typedef struct cu_pool_st *cu_pool;
typedef struct cu_link_st *cu_link;
typedef struct cu_array_st *cu_array;
typedef unsigned long long cu_handle;
typedef void (*cu_host_function)(void *);

struct cu_location {
	int type, id;
};

struct cu_allocation {
	int type, handle_types;
	struct cu_location location;
	void *win32;
	unsigned char flags[8];
};

struct cu_access {
	struct cu_location location;
	int flags;
};

struct cu_pool_properties {
	int type, handle_types;
	struct cu_location location;
	void *win32;
	size_t max_size;
	unsigned char reserved[56];
};

struct cu_copy_end {
	size_t x, y;
	int type;
	const void *host;
	cu_pointer device;
	void *array;
	size_t pitch;
};

struct cu_copy_2d {
	struct cu_copy_end from, to;
	size_t width, height;
};

struct cu_fill_node {
	cu_pointer to;
	size_t pitch;
	unsigned int value, element;
	size_t width, height;
};

struct cu_kernel_node {
	cu_function function;
	unsigned int grid[3], block[3], shared;
	void **parameters, **extra;
};

struct cu_array_format {
	size_t width, height;
	int format;
	unsigned int channels;
};

struct cu_ipc {
	char reserved[64];
};

#define WALK_CALLS(X)										\
	X(cuInit, unsigned int)									\
	X(cuDriverGetVersion, int *)								\
	X(cuDeviceGetCount, int *)								\
	X(cuDeviceGet, cu_device *, int)							\
	X(cuDeviceGetName, char *, int, cu_device)						\
	X(cuDeviceGetUuid, unsigned char *, cu_device)						\
	X(cuDeviceGetPCIBusId, char *, int, cu_device)						\
	X(cuDeviceGetAttribute, int *, int, cu_device)						\
	X(cuDeviceTotalMem_v2, size_t *, cu_device)						\
	X(cuDeviceCanAccessPeer, int *, cu_device, cu_device)					\
	X(cuDevicePrimaryCtxGetState, cu_device, unsigned int *, int *)				\
	X(cuDevicePrimaryCtxRetain, cu_context *, cu_device)					\
	X(cuDevicePrimaryCtxRelease_v2, cu_device)						\
	X(cuDevicePrimaryCtxReset_v2, cu_device)						\
	X(cuDeviceGetDefaultMemPool, cu_pool *, cu_device)					\
	X(cuCtxCreate_v2, cu_context *, unsigned int, cu_device)				\
	X(cuCtxDestroy_v2, cu_context)								\
	X(cuCtxGetCurrent, cu_context *)							\
	X(cuCtxSetCurrent, cu_context)								\
	X(cuCtxPushCurrent_v2, cu_context)							\
	X(cuCtxPopCurrent_v2, cu_context *)							\
	X(cuCtxGetDevice, cu_device *)								\
	X(cuCtxGetApiVersion, cu_context, unsigned int *)					\
	X(cuCtxGetLimit, size_t *, int)								\
	X(cuCtxSetLimit, int, size_t)								\
	X(cuCtxGetStreamPriorityRange, int *, int *)						\
	X(cuCtxSynchronize, void)								\
	X(cuMemGetInfo_v2, size_t *, size_t *)							\
	X(cuMemAlloc_v2, cu_pointer *, size_t)							\
	X(cuMemAllocPitch_v2, cu_pointer *, size_t *, size_t, size_t, unsigned int)		\
	X(cuMemFree_v2, cu_pointer)								\
	X(cuMemGetAddressRange_v2, cu_pointer *, size_t *, cu_pointer)				\
	X(cuPointerGetAttribute, void *, int, cu_pointer)					\
	X(cuMemcpyHtoD_v2, cu_pointer, const void *, size_t)					\
	X(cuMemcpyDtoH_v2, void *, cu_pointer, size_t)						\
	X(cuMemcpyDtoD_v2, cu_pointer, cu_pointer, size_t)					\
	X(cuMemcpyHtoDAsync_v2, cu_pointer, const void *, size_t, cu_stream)			\
	X(cuMemcpyDtoHAsync_v2, void *, cu_pointer, size_t, cu_stream)				\
	X(cuMemcpyDtoDAsync_v2, cu_pointer, cu_pointer, size_t, cu_stream)			\
	X(cuMemcpy2D_v2, const struct cu_copy_2d *)						\
	X(cuMemsetD8_v2, cu_pointer, unsigned char, size_t)					\
	X(cuMemsetD16_v2, cu_pointer, unsigned short, size_t)					\
	X(cuMemsetD32_v2, cu_pointer, unsigned int, size_t)					\
	X(cuMemsetD2D8_v2, cu_pointer, size_t, unsigned char, size_t, size_t)			\
	X(cuMemsetD8Async, cu_pointer, unsigned char, size_t, cu_stream)			\
	X(cuMemsetD32Async, cu_pointer, unsigned int, size_t, cu_stream)			\
	X(cuMemHostAlloc, void **, size_t, unsigned int)					\
	X(cuMemFreeHost, void *)								\
	X(cuMemHostGetDevicePointer_v2, cu_pointer *, void *, unsigned int)			\
	X(cuMemHostRegister_v2, void *, size_t, unsigned int)					\
	X(cuMemHostUnregister, void *)								\
	X(cuMemAllocManaged, cu_pointer *, size_t, unsigned int)				\
	X(cuArrayCreate_v2, cu_array *, const struct cu_array_format *)				\
	X(cuArrayDestroy, cu_array)								\
	X(cuModuleLoadData, cu_module *, const void *)						\
	X(cuModuleLoadDataEx, cu_module *, const void *, unsigned int, int *, void **)		\
	X(cuModuleGetFunction, cu_function *, cu_module, const char *)				\
	X(cuModuleGetGlobal_v2, cu_pointer *, size_t *, cu_module, const char *)		\
	X(cuModuleUnload, cu_module)								\
	X(cuFuncGetAttribute, int *, int, cu_function)						\
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor, int *, cu_function, int, size_t)		\
	X(cuLinkCreate_v2, unsigned int, int *, void **, cu_link *)				\
	X(cuLinkAddData_v2, cu_link, int, void *, size_t, const char *, unsigned int, int *, void **) \
	X(cuLinkComplete, cu_link, void **, size_t *)						\
	X(cuLinkDestroy, cu_link)								\
	X(cuLaunchKernel, cu_function, unsigned int, unsigned int, unsigned int, unsigned int,	\
	  unsigned int, unsigned int, unsigned int, cu_stream, void **, void **)		\
	X(cuLaunchCooperativeKernel, cu_function, unsigned int, unsigned int, unsigned int,	\
	  unsigned int, unsigned int, unsigned int, unsigned int, cu_stream, void **)		\
	X(cuLaunchHostFunc, cu_stream, cu_host_function, void *)				\
	X(cuStreamCreate, cu_stream *, unsigned int)						\
	X(cuStreamCreateWithPriority, cu_stream *, unsigned int, int)				\
	X(cuStreamDestroy_v2, cu_stream)							\
	X(cuStreamQuery, cu_stream)								\
	X(cuStreamSynchronize, cu_stream)							\
	X(cuStreamWaitEvent, cu_stream, cu_event, unsigned int)					\
	X(cuStreamWriteValue32_v2, cu_stream, cu_pointer, uint32_t, unsigned int)		\
	X(cuStreamWaitValue32_v2, cu_stream, cu_pointer, uint32_t, unsigned int)		\
	X(cuStreamBeginCapture_v2, cu_stream, int)						\
	X(cuStreamEndCapture, cu_stream, cu_graph *)						\
	X(cuEventCreate, cu_event *, unsigned int)						\
	X(cuEventDestroy_v2, cu_event)								\
	X(cuEventRecord, cu_event, cu_stream)							\
	X(cuEventQuery, cu_event)								\
	X(cuEventSynchronize, cu_event)								\
	X(cuEventElapsedTime, float *, cu_event, cu_event)					\
	X(cuGraphCreate, cu_graph *, unsigned int)						\
	X(cuGraphDestroy, cu_graph)								\
	X(cuGraphAddMemsetNode, cu_node *, cu_graph, const cu_node *, size_t, const struct cu_fill_node *, cu_context) \
	X(cuGraphAddKernelNode, cu_node *, cu_graph, const cu_node *, size_t, const struct cu_kernel_node *) \
	X(cuGraphGetNodes, cu_graph, cu_node *, size_t *)					\
	X(cuGraphInstantiateWithFlags, cu_graph_exec *, cu_graph, unsigned long long)		\
	X(cuGraphUpload, cu_graph_exec, cu_stream)						\
	X(cuGraphLaunch, cu_graph_exec, cu_stream)						\
	X(cuGraphExecDestroy, cu_graph_exec)							\
	X(cuMemGetAllocationGranularity, size_t *, const struct cu_allocation *, int)		\
	X(cuMemAddressReserve, cu_pointer *, size_t, size_t, cu_pointer, unsigned long long)	\
	X(cuMemAddressFree, cu_pointer, size_t)							\
	X(cuMemCreate, cu_handle *, size_t, const struct cu_allocation *, unsigned long long)	\
	X(cuMemRelease, cu_handle)								\
	X(cuMemMap, cu_pointer, size_t, size_t, cu_handle, unsigned long long)			\
	X(cuMemUnmap, cu_pointer, size_t)							\
	X(cuMemSetAccess, cu_pointer, size_t, const struct cu_access *, size_t)			\
	X(cuMemExportToShareableHandle, void *, cu_handle, int, unsigned long long)		\
	X(cuMemImportFromShareableHandle, cu_handle *, void *, int)				\
	X(cuMemAllocAsync, cu_pointer *, size_t, cu_stream)					\
	X(cuMemFreeAsync, cu_pointer, cu_stream)						\
	X(cuMemAllocFromPoolAsync, cu_pointer *, size_t, cu_pool, cu_stream)			\
	X(cuMemPoolCreate, cu_pool *, const struct cu_pool_properties *)			\
	X(cuMemPoolTrimTo, cu_pool, size_t)							\
	X(cuMemPoolDestroy, cu_pool)								\
	X(cuIpcGetMemHandle, struct cu_ipc *, cu_pointer)					\
	X(cuIpcOpenMemHandle_v2, cu_pointer *, struct cu_ipc, unsigned int)			\
	X(cuIpcCloseMemHandle, cu_pointer)							\
	X(cuIpcGetEventHandle, struct cu_ipc *, cu_event)					\
	X(cuIpcOpenEventHandle, cu_event *, struct cu_ipc)					\
	X(cuProfilerStart, void)								\
	X(cuProfilerStop, void)

#define WALK_TYPE(name, ...) typedef cu_result name##_fn(__VA_ARGS__);
WALK_CALLS(WALK_TYPE)
#undef WALK_TYPE

#endif
