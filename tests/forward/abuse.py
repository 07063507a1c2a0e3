# SPDX-License-Identifier: MIT
"""What may go wrong between a guest and the host's driver: calls of other forms, processes that die, calls that hang, a
crowd, a nvforwardd that dies; and what libcuda's walk does not reach. Steps of the rehearsal on a simulated driver:
none of them is for a card.
"""

from __future__ import annotations

import ctypes as c
import errno
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable

from parts import MIB, NAMES, PROC, REPO, Box, Report

sys.path.insert(0, str(REPO / "tests/rmclient"))

import nvclient

PATIENCE_S = 60.0


def dev(box: Box) -> str:
    """Its nodes."""
    return f"/dev/cgpu/{box.dir}"


def slice_mib() -> int:
    """6 of 15 parts of the card; without nvidia-smi, which this machine need not have."""
    with nvclient.Client() as rm:
        return int(rm.gpu().memory()["total"]) // MIB * 6 // 15


def child(work: Callable[[], object]) -> int:
    """Its pid; status 0 if it came to its end."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        print(f"{os.getpid()}: {error!r}", file=sys.stderr, flush=True)
    os._exit(status)


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def works(directory: str) -> bool:
    """A client that allocates and maps."""
    with nvclient.Client(directory) as rm:
        gpu = rm.gpu()
        status, memory = gpu.alloc_vidmem(4 * MIB)
        if status:
            return False
        gpu.map_cpu(memory, 4096).write32(0, 7)
    return True


ESCAPES = (0x27, 0x29, 0x2A, 0x2B, 0x34, 0x35, 0x41, 0x4A, 0x4D, 0x4E, 0x4F, 0x52, 0x57, 0x58, 0x5E, 0x7F)
ESCAPES += (200, 201, 206, 207, 209, 210, 211, 212, 213, 215, 216, 217, 218, 255)
SIZES = (0, 1, 4, 8, 12, 16, 24, 32, 40, 48, 56, 72, 184, 4096, 16383)
UVM_CALLS = (*range(1, 90), 0x30000001, 0x30000002, 0xFFFFFFFF)
UVM_BYTES = 16384  #: more than any of their structs, since the number does not have the size
#: EFAULT and the driver's own; no call may end otherwise, or not at all.
ANSWERS = {0} | {getattr(errno, name) for name in ("EINVAL", "EFAULT", "EPERM", "ENOTTY", "EBADF", "EBADFD", "ENODEV")}
ANSWERS |= {errno.ENOMEM, errno.EACCES, errno.ENOENT, errno.EBUSY}


def contents(size: int) -> list[bytes]:
    """Zeros, ones, and words that are neither handles nor addresses of anything."""
    chance = random.Random(size)
    return [bytes(size), b"\xff" * size, chance.randbytes(size)]


def odd(report: Report, *words: str) -> None:
    """Every number with every size, on the driver's nodes and a container's: each call ends, and all goes on."""
    with Box(NAMES[0], slice_mib()) as box:
        for directory in ("/dev", dev(box)):
            seen: dict[int, int] = {}
            for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
                with nvclient.Node(name, directory) as node:
                    for number, data in calls_of(name):
                        buffer = (c.c_uint8 * max(len(data), 1)).from_buffer_copy(data or b"\0")
                        for argument in (buffer, 0, 0x10):
                            answer = node.raw(number, argument)
                            seen[answer] = seen.get(answer, 0) + 1
            others = {errno.errorcode[one]: count for one, count in seen.items() if one not in ANSWERS}
            report.add(
                f"odd calls, {'the driver' if directory == '/dev' else 'a container'}",
                ok=not others and works(directory),
                calls=sum(seen.values()),
                others=others,
            )
        report.add("odd calls leave no charge", ok=box.is_empty(), used=box.used())


def calls_of(name: str) -> list[tuple[int, bytes]]:
    """Number of an ioctl and what it points to."""
    if name == "nvidia-uvm":
        same = contents(UVM_BYTES)
        return [(number, data) for number in UVM_CALLS for data in same]
    return [(nvclient.request(nr, size), data) for nr in ESCAPES for size in SIZES for data in contents(size)]


def context(directory: str) -> None:
    """A context that works until it is killed."""
    with nvclient.Client(directory) as rm:
        gpu = rm.gpu()
        nvclient.check("RM_ALLOC", gpu.alloc_vidmem(16 * MIB)[0])
        space = gpu.space()
        while True:
            channel = space.group().channel()
            channel.submit(kernel_ns=1_000_000)
            channel.wait()


def deaths(report: Report, *words: str) -> None:
    """Processes killed in one call after the other; what they had is given back, and nothing stops the others."""
    count = int(words[0]) if words else 20
    with Box(NAMES[0], slice_mib()) as box:
        most = 0
        for number in range(count):
            pid = child(lambda: context(dev(box)))
            time.sleep(0.01 * number)
            most = max(most, box.used())
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        report.add("killed processes", ok=box.is_empty() and works(dev(box)), most_used=most, used=box.used())


FILES = 30


def member(directory: str, ready: int, go: int) -> None:
    """One of the crowd."""
    with nvclient.Client(directory) as rm:
        files = [nvclient.Node("nvidia0", directory) for _ in range(FILES)]
        nvclient.check("RM_ALLOC", rm.gpu().alloc_vidmem(8 * MIB)[0])
        os.write(ready, b"x")
        os.read(go, 1)
        nvclient.check("RM_ALLOC", rm.gpu().alloc_vidmem(8 * MIB)[0])
        for file in files:
            file.close()


def crowd(report: Report, *words: str) -> None:
    """Forty processes at once, with more files than the thousand that a process of the host usually may have."""
    count = int(words[0]) if words else 40
    with Box(NAMES[0], slice_mib()) as box:
        ready, go = os.pipe(), os.pipe()
        pids = [child(lambda: member(dev(box), ready[1], go[0])) for _ in range(count)]
        os.close(ready[1])
        arrived = 0
        while arrived < count and (got := os.read(ready[0], count)):
            arrived += len(got)
        used = box.used()
        os.write(go[1], b"x" * count)
        ended = [status_of(pid) for pid in pids]
        ok = arrived == count and not any(ended) and used >= count * 8 * MIB and box.is_empty()
        report.add("a crowd", ok=ok, processes=arrived, files=arrived * FILES, used_mib=used // MIB, statuses=ended)


def hung(report: Report, *words: str) -> None:
    """A call of the host's driver that takes seconds (nvsim's ctx_ms), by a process that is killed meanwhile."""
    slow_s = float(words[0])
    with Box(NAMES[0], slice_mib()) as box:
        pid = child(lambda: context(dev(box)))
        until = time.monotonic() + PATIENCE_S
        while not box.used() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5)
        took = []
        with nvclient.Client(dev(box)) as rm:
            gpu = rm.gpu()
            for _ in range(20):
                began = time.monotonic()
                gpu.memory()
                took.append(time.monotonic() - began)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        os.waitpid(pid, 0)
        ended_s = time.monotonic() - began
        ok = max(took) < slow_s / 4 and 0 < ended_s < slow_s + PATIENCE_S and box.is_empty() and works(dev(box))
        report.add("a call that hangs", ok=ok, slowest_other_s=round(max(took), 3), ended_after_s=round(ended_s, 3))


def lost(report: Report, *words: str) -> None:
    """nvforwardd dies under a client: calls and opens fail, none hangs, and the module answers as before."""
    with Box(NAMES[0], slice_mib()) as box:
        with nvclient.Client(dev(box)) as rm:
            gpu = rm.gpu()
            nvclient.check("RM_ALLOC", gpu.alloc_vidmem(16 * MIB)[0])
            report.add("ready", ok=True)
            failed = first_failure(gpu.memory)
            answers = [open_error(directory) for directory in ("/dev", dev(box)) for _ in range(3)]
            charged = box.used()
        stat = (PROC / "0/stat").read_text()
        ok = bool(failed) and set(answers) == {errno.EIO} and charged >= 16 * MIB and "used_bytes" in stat
        report.add("nvforwardd is lost", ok=ok, error=failed, opened=answers, charged=charged, left=box.used())
        box.set("weight", 2)
        report.add("settings without a driver", ok=(box.proc / "weight").read_text().strip() == "2")


def first_failure(call: Callable[[], object]) -> str:
    """Of a call that is made until it fails."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            call()
        except (OSError, nvclient.RmError) as error:
            return str(error)
        time.sleep(0.05)
    return ""


def open_error(directory: str) -> int:
    """The errno of an open of the control node."""
    try:
        nvclient.Node("nvidiactl", directory).close()
    except OSError as error:
        return error.errno or -1
    return 0


# ---- what libcuda's walk does not reach ----

OS_DESCRIPTOR = 0x71
NO_MAP_CACHED = 1 << 30 | 1 << 12 | 1 << 4  # NVOS02_FLAGS: not mapped, cached, not contiguous


def pinned(report: Report, *words: str) -> None:
    """Pages of the process as memory of the driver: what the GPU writes there is in the process's own."""
    sys.path.insert(0, str(REPO / "tests/vm/guest/box"))
    from pusher import Pusher, release
    from slicebox import until

    size = 4 * MIB
    with Box(NAMES[0], slice_mib()) as box, nvclient.Client(dev(box)) as rm:
        gpu = rm.gpu()
        pages = mmap.mmap(-1, size)
        for at in range(0, size, 4096):
            pages[at : at + 4] = at.to_bytes(4, "little")
        address = c.addressof(c.c_char.from_buffer(pages))
        arg = nvclient.AllocMemory(rm.handle, gpu.device, 0x7171, OS_DESCRIPTOR, NO_MAP_CACHED, address, size - 1)
        arg.fd = -1
        gpu.node.call(nvclient.NV_ESC_RM_ALLOC_MEMORY, arg)
        said = {"status": arg.status, "used": box.used()}
        if not arg.status:
            space = gpu.space()
            one = Pusher(space.group())
            status, va = space.map(0x7171, size)
            one.push(release(va, 0xABCD1234), release(va + size - 4096, 0xABCD5678))
            until(one.done)
            first, last, next_one = (pages[at : at + 4].hex() for at in (0, size - 4096, 4096))
            said |= {"mapped": status, "first": first, "last": last, "next": next_one}
            said |= {"unmapped": space.unmap(va), "freed": gpu.free(0x7171)}
        again = nvclient.AllocMemory(rm.handle, gpu.device, 0x7171, OS_DESCRIPTOR, NO_MAP_CACHED, 0x1000, size - 1)
        again.fd = -1
        gpu.node.call(nvclient.NV_ESC_RM_ALLOC_MEMORY, again)
        written = {"first": "3412cdab", "last": "7856cdab", "next": "00100000", "mapped": 0, "unmapped": 0, "freed": 0}
        report.add("pages of a process", ok=said == {"status": 0, "used": 0, **written}, **said)
        report.add("pages that are not there", ok=again.status != 0, status=again.status)


def events(report: Report, *words: str) -> None:
    """poll() of a file of the driver: nothing, an interrupt of the engine, nothing."""
    sys.path.insert(0, str(REPO / "tests/vm/guest/box"))
    from pusher import Pusher, inc, listen

    with Box(NAMES[0], slice_mib()) as box, nvclient.Client(dev(box)) as rm:
        one = Pusher(rm.gpu().space().group())
        with nvclient.Ctl(dev(box)) as node:
            poll = listen(one.channel.gpu, node)
            seen = [len(poll.poll(100))]
            for _ in range(3):
                one.push(inc(0, 0x20, 0))
                seen += [len(poll.poll(10_000)), len(poll.poll(100))]
        report.add("events", ok=seen == [0, 1, 0, 1, 0, 1, 0], seen=seen)


STEPS = {one.__name__: one for one in (odd, deaths, crowd, hung, lost, pinned, events)}
