# SPDX-License-Identifier: MIT
"""nvidia-ml-py's view of the GPUs here, as JSON: a check that a libnvidia-ml.so.1 can be used with it."""

import json

import pynvml


def unless_refused(call):
    """The answer, or the name of NVML's error."""
    try:
        return call()
    except pynvml.NVMLError as error:
        return type(error).__name__


def card(handle) -> dict:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    memory2 = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == pynvml.nvmlDeviceGetIndex(handle)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId)) == uuid
    return {
        "index": pynvml.nvmlDeviceGetIndex(handle),
        "minor": pynvml.nvmlDeviceGetMinorNumber(handle),
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": uuid,
        "pci": pci.busId,
        "total": memory.total,
        "free": memory.free,
        "used": memory.used,
        "reserved": memory2.reserved,
        "used_v2": memory2.used,
        "processes": {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)},
        "graphics": len(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)),
        "mig": unless_refused(lambda: pynvml.nvmlDeviceGetMigMode(handle)),
        "utilization": unless_refused(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    }


def main() -> None:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    print(json.dumps([card(handle) for handle in handles]))
    pynvml.nvmlShutdown()


if __name__ == "__main__":
    main()
