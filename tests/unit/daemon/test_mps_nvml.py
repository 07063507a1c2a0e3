# SPDX-License-Identifier: MIT
"""NVML for the MPS mode: the compute mode, the processes, and the limit of a cgroup, over a stand-in of the library."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cgpu_common import mps_nvml
from cgpu_common.mps_nvml import Failed

UUID = "GPU-00000000-0000-0000-0000-000000000000"
MIB = 1 << 20


class NVMLError(Exception):
    def __init__(self, code: Any = 999) -> None:
        super().__init__(f"NVML {code}")


class NotSupported(NVMLError):
    pass


class Library:
    """The part of pynvml that the module calls; of driver 550, or of 615 with `limits`."""

    NVMLError, NVMLError_NotSupported, NVMLError_FunctionNotFound = NVMLError, NotSupported, NotSupported
    NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 0, 3

    def __init__(self) -> None:
        self.mode = 0
        self.sticks = True
        self.refuses = False
        self.lists: dict[str, Any] = {"Compute": [(7, 100 * MIB), (8, 5 * MIB + 1)], "MPSCompute": [(8, 9 * MIB)]}
        self.limits: dict[bytes, tuple[int, int]] | None = None
        self.code = 0
        self.written = -1

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != UUID:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetComputeMode(self, _handle: str) -> int:
        return self.mode

    def nvmlDeviceSetComputeMode(self, _handle: str, mode: int) -> None:
        if self.refuses:
            raise NVMLError("Insufficient Permissions")
        self.mode = mode if self.sticks else self.mode

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.163.01"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12040

    def nvmlDeviceGetMigMode(self, _handle: str) -> tuple[int, int]:
        raise NotSupported

    def _rows(self, name: str) -> list[Any]:
        if name not in self.lists:
            raise NotSupported
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.lists[name]]

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[Any]:
        return self._rows("Compute")

    def nvmlDeviceGetMPSComputeRunningProcesses(self, _handle: str) -> list[Any]:
        return self._rows("MPSCompute")

    def nvmlDeviceGetGraphicsRunningProcesses(self, _handle: str) -> list[Any]:
        return self._rows("Graphics")

    def _nvmlGetFunctionPointer(self, name: str) -> Any:
        if self.limits is None:
            raise NotSupported
        return {"nvmlDeviceSetMemoryLimits_v1": self._set, "nvmlDeviceGetMemoryLimits_v1": self._get}[name]

    def _set(self, _handle: str, where: Any) -> int:
        """By nvml.h: a pointer to {path, soft, hard}."""
        found = ctypes.cast(where, ctypes.POINTER(mps_nvml._Limits)).contents
        assert self.limits is not None
        self.limits[found.name] = (found.soft, found.hard)
        return self.code

    def _get(self, _handle: str, where: Any) -> int:
        found = ctypes.cast(where, ctypes.POINTER(mps_nvml._Found)).contents
        assert self.limits is not None
        soft, hard = self.limits[found.name]
        found.soft, found.hard = soft, hard if self.written < 0 else self.written
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_what_the_unit_reads(library: Library) -> None:
    card = mps_nvml.look(UUID)
    assert (card.mig, card.exclusive, card.processes, card.clients) == (False, False, (7, 8), 48)
    assert (card.driver, card.by_cgroup) == ("550.163.01", False)
    library.limits, library.mode = {}, 3
    assert mps_nvml.look(UUID).by_cgroup and mps_nvml.look(UUID).exclusive
    with pytest.raises(Failed, match="NVML knows no GPU GPU-1: NVML Not Found"):
        mps_nvml.look("GPU-1")


def test_the_mode_is_read_back(library: Library) -> None:
    mps_nvml.set_exclusive(UUID, True)
    assert library.mode == 3
    mps_nvml.set_exclusive(UUID, False)
    assert library.mode == 0
    library.sticks = False
    with pytest.raises(Failed, match="it is 0 after it was set to 3"):
        mps_nvml.set_exclusive(UUID, True)
    library.refuses = True
    with pytest.raises(Failed, match="Insufficient Permissions"):
        mps_nvml.set_exclusive(UUID, True)


def test_a_sample_has_each_process_once_with_the_most_that_any_list_says(library: Library) -> None:
    assert mps_nvml.sample(library, UUID) == {
        "uuid": UUID,
        "processes": [(7, 100, False), (8, 9, False)],
        "exclusive": False,
    }
    library.mode = 3
    assert mps_nvml.sample(library, UUID)["exclusive"]
    library.lists["Compute"] = [(os.getpid(), None)]
    assert mps_nvml.sample(library, UUID)["processes"][-1] == (os.getpid(), None, False), "unknown is no zero"
    assert "error" in mps_nvml.sample(library, "GPU-1")


def test_the_server_is_known_by_its_name(tmp_path: Path) -> None:
    """A tenant can take the name: test_a_program_with_the_servers_name_is_its_containers."""
    program = tmp_path / "nvidia-cuda-mps-server"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "100"])
    try:
        end = time.monotonic() + 10
        while not mps_nvml.is_server(process.pid):  # its command line is empty for a moment
            assert time.monotonic() < end
        assert not mps_nvml.is_server(os.getpid())
    finally:
        process.kill()
        process.wait()


def test_samples_come_until_the_reader_closes(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_nvml, "PERIOD_S", 0.01)
    here, there = os.pipe()
    keep = [os.dup(number) for number in range(3)]
    read, write = os.pipe()
    os.dup2(here, 0)
    os.dup2(write, 1)
    try:
        thread = threading.Thread(target=mps_nvml.report, args=(UUID,))
        thread.start()
        with open(read, "rb", closefd=False) as lines:
            found = [json.loads(lines.readline()) for _ in range(3)]
        os.close(there)
        thread.join(5)
        assert not thread.is_alive()
    finally:
        for number, old in enumerate(keep):
            os.dup2(old, number)
    assert [one["uuid"] for one in found] == [UUID] * 3


def test_the_limit_of_a_cgroup_is_set_and_read_back(library: Library) -> None:
    library.limits = {}
    mps_nvml.limit(UUID, "/sys/fs/cgroup/a", str(2048 * MIB))
    assert library.limits == {b"/sys/fs/cgroup/a": (2048 * MIB, 2048 * MIB)}
    library.written = 0
    with pytest.raises(SystemExit, match="NVML has 0 bytes for the cgroup after 2147483648 were set"):
        mps_nvml.limit(UUID, "/sys/fs/cgroup/a", str(2048 * MIB))
    library.code = 4
    with pytest.raises(SystemExit, match="nvmlDeviceSetMemoryLimits: NVML 4"):
        mps_nvml.limit(UUID, "/sys/fs/cgroup/a", str(2048 * MIB))
    library.limits = None
    with pytest.raises(SystemExit, match="the driver has no memory limits of cgroups"):
        mps_nvml.limit(UUID, "/sys/fs/cgroup/a", "1")
