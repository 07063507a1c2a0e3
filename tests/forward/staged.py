# SPDX-License-Identifier: MIT
"""Programs of libcuda that stop at each stage: a line of JSON, then they wait for a line on stdin.

    staged.py kinds MIB     each kind of allocation, made and freed: {"stage": KIND, "status": CUresult}
    staged.py share MIB     memory that a second process opens by cuIpcOpenMemHandle: allocated, opened, freed, closed
    staged.py open HANDLE   whether this process may open it: {"stage": "open", "status": CUresult}

The container's charge is read from outside at each stage.
"""

from __future__ import annotations

import ctypes as c
import json
import mmap
import os
import sys
from collections.abc import Callable

from libcuda import MIB, ON_DEVICE, ArrayDescriptor, ArrayDescriptor3d, Cuda, IpcHandle

PATTERN = 0x1234ABCD
FLOAT = 0x20  # CU_AD_FORMAT_FLOAT
LAZY_PEER = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


def stage(name: str, **values: object) -> None:
    """Said; goes on at a line."""
    print(json.dumps({"stage": name} | values), flush=True)
    sys.stdin.readline()


def kinds(cuda: Cuda, size: int) -> None:
    """The driver's ways to memory of the GPU, and three to memory of the host, which is none of it."""
    side = 4096
    pitch, descriptor = c.c_size_t(), ArrayDescriptor(side, size // (4 * side), FLOAT, 1)
    bytes_ = c.c_size_t(size)
    solid = ArrayDescriptor3d(256, 256, size // (4 * 256 * 256), FLOAT, 1, 0)
    own = mmap.mmap(-1, size)
    start = c.addressof(c.c_char.from_buffer(own))
    cuda.context()

    def register(at: object) -> int:
        """Memory of this process; its address is what it is given back by."""
        c.cast(at, c.POINTER(c.c_uint64))[0] = start  # type: ignore[arg-type]
        return cuda.status("cuMemHostRegister_v2", c.c_uint64(start), bytes_, 0)

    made: list[tuple[str, Callable[[object], int], str]] = [
        ("cuMemAlloc", lambda at: cuda.status("cuMemAlloc_v2", at, bytes_), "cuMemFree_v2"),
        (
            "cuMemAllocPitch",
            lambda at: cuda.status(
                "cuMemAllocPitch_v2", at, c.byref(pitch), c.c_size_t(side), c.c_size_t(size // side), 4
            ),
            "cuMemFree_v2",
        ),
        ("cuArrayCreate", lambda at: cuda.status("cuArrayCreate_v2", at, c.byref(descriptor)), "cuArrayDestroy"),
        ("cuArray3DCreate", lambda at: cuda.status("cuArray3DCreate_v2", at, c.byref(solid)), "cuArrayDestroy"),
        ("cuMemAllocManaged", lambda at: cuda.status("cuMemAllocManaged", at, bytes_, 1), "cuMemFree_v2"),
        (
            "cuMemCreate",
            lambda at: cuda.status("cuMemCreate", at, bytes_, c.byref(ON_DEVICE), c.c_uint64(0)),
            "cuMemRelease",
        ),
        ("cuMemAllocHost", lambda at: cuda.status("cuMemAllocHost_v2", at, bytes_), "cuMemFreeHost"),
        ("cuMemHostAlloc", lambda at: cuda.status("cuMemHostAlloc", at, bytes_, 2), "cuMemFreeHost"),
        ("cuMemHostRegister", register, "cuMemHostUnregister"),
    ]
    for name, take, give in made:
        stage(f"before {name}")
        at = c.c_uint64()
        status = take(c.byref(at))
        stage(name, status=status)
        if not status:
            cuda.must(give, at)


def share(size: int) -> None:
    """One process allocates, the other opens and keeps it after the first has freed its own."""
    to_child, to_parent = os.pipe(), os.pipe()
    if not os.fork():
        os.close(to_child[1])  # so that the end of one process is the end of the other
        os.close(to_parent[0])
        sys.exit(borrow(to_child[0], to_parent[1]))
    os.close(to_child[0])
    os.close(to_parent[1])
    cuda = Cuda()
    cuda.context()
    at, handle = cuda.alloc(size), IpcHandle()
    cuda.must("cuMemcpyHtoD_v2", at, c.byref(c.c_uint(PATTERN)), c.c_size_t(4))
    cuda.must("cuIpcGetMemHandle", c.byref(handle), at)
    stage("allocated", handle=bytes(handle.bytes).hex())
    os.write(to_child[1], bytes(handle.bytes))
    stage("opened", seen=os.read(to_parent[0], 64).decode())
    cuda.free(at)
    stage("freed")
    os.write(to_child[1], b"\n")
    stage("closed", seen=os.read(to_parent[0], 64).decode())


def opened(cuda: Cuda, raw: bytes) -> tuple[int, c.c_uint64]:
    at = c.c_uint64()
    handle = IpcHandle((c.c_ubyte * 64)(*raw))
    return cuda.status("cuIpcOpenMemHandle_v2", c.byref(at), handle, LAZY_PEER), at


def borrow(from_parent: int, to_parent: int) -> int:
    """The other process: its words go to the parent's lines."""
    raw = os.read(from_parent, 64)
    cuda = Cuda()
    cuda.context()
    status, at = opened(cuda, raw)
    word = c.c_uint()
    if not status:
        cuda.must("cuMemcpyDtoH_v2", c.byref(word), at, c.c_size_t(4))
    right = not status and word.value == PATTERN
    os.write(to_parent, f"status {status}, pattern {'right' if right else 'wrong'}".encode())
    os.read(from_parent, 1)
    os.write(to_parent, f"status {cuda.status('cuIpcCloseMemHandle', at) if right else status}".encode())
    return 0


def main() -> int:
    """0 if it came to its end."""
    what, word = sys.argv[1:]
    if what == "share":
        share(int(word) * MIB)
        return 0
    cuda = Cuda()
    if what == "kinds":
        kinds(cuda, int(word) * MIB)
    else:
        cuda.context()
        stage("open", status=opened(cuda, bytes.fromhex(word))[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
