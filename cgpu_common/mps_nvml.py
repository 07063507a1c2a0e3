# SPDX-License-Identifier: MIT
"""NVML for the MPS node mode: a GPU's compute mode, its processes, and the memory limit of a cgroup.

A call may never return: report() and limit() are main functions of child processes, the others of the unit's program.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import time
from dataclasses import dataclass
from typing import Any

from cgpu_common import mps
from cgpu_common.gpus import opened
from cgpu_common.model import MIB

PERIOD_S = 0.5
SERVER = b"nvidia-cuda-mps-server"


class Failed(Exception):
    """NVML did not do what was requested; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as the unit's program needs it."""

    mig: bool
    exclusive: bool
    processes: tuple[int, ...]
    driver: str
    clients: int  # the most that MPS takes
    by_cgroup: bool


class _Limits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t of nvml.h: path of the cgroup's directory, then bytes."""

    _fields_ = (("name", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong))


class _Found(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = (*_Limits._fields_, ("used", ctypes.c_ulonglong))


def _handle(nvml: Any, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError as error:
        raise Failed(f"NVML knows no GPU {uuid}: {error}") from error


def _lists(nvml: Any, handle: Any) -> dict[int, int | None]:
    """Bytes by pid, from every list that the driver has: a client of MPS may be in one or the other."""
    found: dict[int, int | None] = {}
    for name in ("Compute", "MPSCompute", "Graphics"):
        try:
            rows = getattr(nvml, f"nvmlDeviceGet{name}RunningProcesses")(handle)
        except (AttributeError, nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            continue
        for row in rows:
            known = found.get(row.pid)
            found[row.pid] = row.usedGpuMemory if known is None else max(known, row.usedGpuMemory or 0)
    return found


def is_server(pid: int) -> bool:
    """Whether its command line names an MPS server; False also for a process that has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[0].rpartition(b"/")[2] == SERVER
    except OSError:
        return False


def look(uuid: str) -> Card:
    """Raises Failed, or gpus.NvmlAbsent."""
    with opened() as nvml:
        handle = _handle(nvml, uuid)
        try:
            mode = nvml.nvmlDeviceGetComputeMode(handle)
            driver = nvml.nvmlSystemGetDriverVersion()
            cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
            processes = tuple(sorted(_lists(nvml, handle)))
        except nvml.NVMLError as error:
            raise Failed(str(error)) from error
        try:
            mig = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
        except nvml.NVMLError:
            mig = False
        exclusive = mode == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
        text = driver.decode() if isinstance(driver, bytes) else str(driver)
        return Card(mig, exclusive, processes, text, mps.clients_max(cuda), _setter(nvml) is not None)


def set_exclusive(uuid: str, on: bool) -> None:
    """Set the compute mode, and read it back. Raises Failed."""
    with opened() as nvml:
        handle = _handle(nvml, uuid)
        wanted = nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS if on else nvml.NVML_COMPUTEMODE_DEFAULT
        try:
            nvml.nvmlDeviceSetComputeMode(handle, wanted)
            found = nvml.nvmlDeviceGetComputeMode(handle)
        except nvml.NVMLError as error:
            raise Failed(str(error)) from error
        if found != wanted:
            raise Failed(f"it is {found} after it was set to {wanted}")


def _setter(nvml: Any) -> Any:
    """nvmlDeviceSetMemoryLimits_v1, or None: a driver below 615 has none."""
    try:
        return nvml._nvmlGetFunctionPointer("nvmlDeviceSetMemoryLimits_v1")
    except nvml.NVMLError:
        return None


def limit(uuid: str, directory: str, size: str) -> None:
    """Limit the GPU's memory of the cgroup to @size bytes, guaranteed and at most, and read it back. Ends the process
    with a sentence if it fails."""
    with opened() as nvml:
        call = _setter(nvml)
        if call is None:
            sys.exit("the driver has no memory limits of cgroups")
        name, wanted = os.fsencode(directory), int(size)
        code = call(_handle(nvml, uuid), ctypes.byref(_Limits(name, wanted, wanted)))
        if code:
            sys.exit(f"nvmlDeviceSetMemoryLimits: {nvml.NVMLError(code)}")
        found = _Found(name)
        code = nvml._nvmlGetFunctionPointer("nvmlDeviceGetMemoryLimits_v1")(_handle(nvml, uuid), ctypes.byref(found))
        if code or found.hard != wanted:
            sys.exit(f"NVML has {found.hard} bytes for the cgroup after {wanted} were set (status {code})")


def sample(nvml: Any, uuid: str) -> dict[str, Any]:
    """Processes with their MiB (None: not known) and whether each is a server, and the compute mode; or the error."""
    try:
        handle = _handle(nvml, uuid)
        found = _lists(nvml, handle)
        exclusive = nvml.nvmlDeviceGetComputeMode(handle) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    except (Failed, nvml.NVMLError) as error:
        return {"uuid": uuid, "error": str(error)}
    rows = [(pid, None if size is None else -(-size // MIB), is_server(pid)) for pid, size in sorted(found.items())]
    return {"uuid": uuid, "processes": rows, "exclusive": exclusive}


def report(*uuids: str) -> None:
    """Write a sample of each GPU to stdout every PERIOD_S, one JSON object a line, until stdin is closed."""
    out = os.dup(1)
    os.dup2(2, 1)  # a line that the library prints must not be part of the answer
    with opened() as nvml:
        due = time.monotonic()
        while True:
            for uuid in uuids:
                os.write(out, json.dumps(sample(nvml, uuid)).encode() + b"\n")
            due = max(due + PERIOD_S, time.monotonic())
            if select.select([0], [], [], max(due - time.monotonic(), 0))[0] and not os.read(0, 4096):
                return
