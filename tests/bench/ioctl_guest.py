# SPDX-License-Identifier: MIT
"""Inside the machine of ioctl.py: the cost of a call on the driver's own node and on a container's.

The same client runs on both, so its own cost cancels out. Prints one JSON object, the last line of its
stdout. With `--scaling` it measures throughput of one and two processes instead, in ordinary time; with `--scale`
the calls of one process beside many containers and processes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / part) for part in ("tests/vm/guest/box", "tests/rmclient", "tests")]

import nvclient as nv  # noqa: E402
from slicebox import Box, vidmem  # noqa: E402
from vm.harness.machine import ICOUNT_NS  # noqa: E402

BATCHES = 21
CALLS = 50  # in a batch
MIB = 1 << 20
CTRL_TSG_GET_INFO = 0xA06C0106


class Bench:
    """A client with everything made beforehand, so that each loop is calls and nothing else."""

    def __init__(self, directory: str):
        self.rm = nv.Client(directory)
        self.gpu = self.rm.gpu(0)
        self.space = self.gpu.space()
        self.group = self.space.group()
        self.group.channel()
        nv.check("vidmem", self.gpu.alloc_vidmem(2 * MIB, 0x5000)[0])

    def close(self) -> None:
        self.rm.close()

    def ioctl(self, number: int, arg: ctypes.Structure, node: nv.Node | None = None) -> Callable[[], int]:
        """A call without arguments; the request, its address and the function are looked up once."""
        call, fd = nv.libc.ioctl, (node or self.rm.ctl).fd
        call.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
        request = nv.request(number, ctypes.sizeof(arg)) if node is None else number
        address = ctypes.addressof(arg)
        # Only the first call's status words are checked, to keep the loop short.
        keep = arg

        def made() -> int:
            return call(fd, request, address) + (0 if keep else 1)

        return made

    def control(self, obj: int, cmd: int, params: ctypes.Structure | ctypes.Array) -> Callable[[], int]:
        arg = nv.Control(
            client=self.rm.handle,
            object=obj,
            cmd=cmd,
            params=ctypes.addressof(params),
            params_size=ctypes.sizeof(params),
        )
        arg.keep = params
        call = self.ioctl(nv.NV_ESC_RM_CONTROL, arg)
        if call() or arg.status:
            raise RuntimeError(f"control {cmd:#x}: status {arg.status:#x}")
        return call

    def kinds(self) -> Iterator[list[tuple[str, Callable[[], int]]]]:
        """Groups of calls that are made in turn; each is measured by itself."""
        yield [("SYS_PARAMS", self.ioctl(nv.NV_ESC_SYS_PARAMS, (ctypes.c_uint64 * 1)()))]
        yield [("control GET_INFO", self.control(self.group.tsg, CTRL_TSG_GET_INFO, (ctypes.c_uint32 * 1)()))]
        name = self.control(self.gpu.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_NAME_STRING, nv.GpuName())
        yield [("control GET_NAME_STRING", name)]
        info = nv.FbInfo(count=1)
        info.list[0].index = nv.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE
        yield [("control FB_GET_INFO_V2", self.control(self.gpu.subdevice, nv.NV2080_CTRL_CMD_FB_GET_INFO_V2, info))]
        yield self._pair("RM_ALLOC vidmem", self._alloc())
        yield self._pair("RM_DUP_OBJECT", self._dup())
        yield self._uvm()

    def _pair(self, name: str, make: Callable[[], int]) -> list[tuple[str, Callable[[], int]]]:
        free = self.ioctl(nv.NV_ESC_RM_FREE, nv.Free(self.rm.handle, self.gpu.device, 0x5001))
        return [(name, make), ("RM_FREE after it", free)]

    def _alloc(self) -> Callable[[], int]:
        arg, _ = vidmem(self.gpu, 2 * MIB, 0x5001)
        return self.ioctl(nv.NV_ESC_RM_ALLOC, arg)

    def _dup(self) -> Callable[[], int]:
        return self.ioctl(
            nv.NV_ESC_RM_DUP_OBJECT, nv.Dup(self.rm.handle, self.gpu.device, 0x5001, self.rm.handle, 0x5000)
        )

    def _uvm(self) -> list[tuple[str, Callable[[], int]]]:
        uvm, uuid = self.space.uvm, nv._uuid(self.gpu.uuid)
        base = self.space.reserve(2 * MIB)
        mapped = nv.UvmMapExternal(base=base, length=2 * MIB, gpu_count=1, client=self.rm.handle, memory=0x5000)
        mapped.gpu[0].gpuUuid = uuid
        return [
            ("UVM_CREATE_EXTERNAL_RANGE", self.ioctl(nv.UVM_CREATE_EXTERNAL_RANGE, nv.UvmRange(base, 2 * MIB), uvm)),
            ("UVM_MAP_EXTERNAL_ALLOCATION", self.ioctl(nv.UVM_MAP_EXTERNAL_ALLOCATION, mapped, uvm)),
            ("UVM_FREE", self.ioctl(nv.UVM_FREE, nv.UvmRange(base, 2 * MIB), uvm)),
        ]


def instructions(bench: Bench) -> dict[str, float]:
    """Instructions of each call, its caller's included: the median of some batches, ticks of the clock apart."""
    clock = time.perf_counter_ns
    found: dict[str, list[float]] = {}
    for calls in bench.kinds():
        for _batch in range(BATCHES):
            spent = [0] * len(calls)
            for _call in range(CALLS):
                for i, (name, call) in enumerate(calls):
                    begin = clock()
                    ret = call()
                    spent[i] += clock() - begin
                    if ret:
                        raise RuntimeError(f"{name}: ioctl returned {ret}")
            for (name, _), ns in zip(calls, spent, strict=True):
                found.setdefault(name, []).append(ns / CALLS / ICOUNT_NS)
    return {name: statistics.median(values) for name, values in found.items()}


def measure(directory: str) -> dict[str, float]:
    bench = Bench(directory)
    try:
        return instructions(bench)
    finally:
        bench.close()


def exact() -> dict[str, object]:
    """The driver alone, then through cgpu_km with one container and with 25 that each have a client.

    The driver beside one and 25 too: its own calls cost more or less there, by where its allocations come to lie.
    """
    found = {"native": measure("/dev"), "containers": {}}
    boxes, clients = [Box("c0" * 32, 256)], []
    found["containers"]["1"] = measure(boxes[0].dev)
    found["native_1"] = measure("/dev")
    Path("/proc/cgpu_km/0/max_inst").write_text("25\n")
    for n in range(1, 25):
        boxes.append(Box(f"{0xC0 + n:02x}" * 32, 256))
        clients.append(boxes[-1].client().gpu(0).space().group().channel())
    found["containers"]["25"] = measure(boxes[0].dev)
    found["native_25"] = measure("/dev")
    for channel in clients:
        channel.gpu.rm.close()
    for box in boxes:
        box.destroy()
    return found


def processes(boxes: list[Box], count: int) -> list[int]:
    """Processes with a client each, spread over the containers: their pids. They wait for their end."""
    gc.freeze()  # fewer pages that a child must copy
    pids = []
    for n in range(count):
        read_end, write_end = os.pipe()
        pid = os.fork()
        if not pid:
            box = boxes[n % len(boxes)]
            client = box.client()
            nv.check("vidmem", client.gpu(0).alloc_vidmem(MIB)[0])
            os.write(write_end, b".")
            signal.pause()
        os.close(write_end)
        if os.read(read_end, 1) != b".":
            raise RuntimeError(f"process {n} has no client")
        os.close(read_end)
        pids.append(pid)
    return pids


def scale(gpus: int, containers: int, count: int) -> dict[str, object]:
    """As exact(), beside that many containers on each of that many GPUs, with that many processes in all."""
    native = measure("/dev")
    boxes = [Box("c0" * 32, 256)]
    one = measure(boxes[0].dev)
    native_one = measure("/dev")
    for gpu in range(gpus):
        Path(f"/proc/cgpu_km/{gpu}/max_inst").write_text(f"{containers}\n")
        first = 1 if gpu == 0 else 0
        boxes += [Box(f"{gpu:02x}{n:02x}" * 16, 256, gpu) for n in range(first, containers)]
    pids = processes(boxes[1:], count)
    many = measure(boxes[0].dev)
    native_many = measure("/dev")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    for box in boxes:
        box.destroy()
    both = {"1": one, "25": many}
    return {"native": native, "containers": both, "native_1": native_one, "native_25": native_many}


def calls_in(directory: str, processes: int, seconds: float) -> float:
    """Pass-through controls per second of that many processes together."""
    reports = []
    for _ in range(processes):
        read_end, write_end = os.pipe()
        if not os.fork():
            bench = Bench(directory)
            call = bench.control(bench.group.tsg, CTRL_TSG_GET_INFO, (ctypes.c_uint32 * 1)())
            begin = time.monotonic()
            made = 0
            while (passed := time.monotonic() - begin) < seconds:
                for _call in range(100):
                    call()
                made += 100
            os.write(write_end, json.dumps(made / passed).encode())
            os._exit(0)
        os.close(write_end)
        reports.append(read_end)
    total = sum(json.loads(os.read(fd, 64)) for fd in reports)
    for fd in reports:
        os.close(fd)
        os.wait()
    return total


def scaling() -> dict[str, object]:
    found = {}
    with Box("c0" * 32, 1024) as box:
        for name, directory in (("native", "/dev"), ("container", box.dev)):
            one, two = (calls_in(directory, n, 3.0) for n in (1, 2))
            found[name] = round(two / one, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--scale", nargs=3, type=int, metavar=("GPUS", "CONTAINERS", "PROCESSES"))
    options = parser.parse_args()
    print(json.dumps(scale(*options.scale) if options.scale else scaling() if options.scaling else exact()))


if __name__ == "__main__":
    main()
