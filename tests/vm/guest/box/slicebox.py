# SPDX-License-Identifier: MIT
"""A plain container for the guest tests: an instance made through inst_ctl, its nodes under /dev/cgpu, no engine."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[4]
sys.path[:0] = [str(REPO / "tests/rmclient"), str(REPO / "tests")]

import nvclient  # noqa: E402
from nvsim import load as nvsim_load  # noqa: E402

PROC = Path("/proc/cgpu_km")
MIB = 1 << 20
KINDS = ("data", "context", "managed", "imported", "tables")  # of charged memory
CLIENTS = REPO / "build/client"


def command(text: str) -> None:
    """One write to inst_ctl."""
    fd = os.open(PROC / "inst_ctl", os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def ended() -> list[str]:
    """The lines of destroyed containers of which something is held."""
    return (PROC / "ended").read_text().splitlines()


NODES = Path("/dev/cgpu")


def mount_nodes() -> None:
    """As dev-cgpu.mount does it after the module is loaded."""
    NODES.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "cgpu", "cgpu", NODES], check=True)


def unmount_nodes() -> None:
    """Required before the module can be unloaded. No error if they are not mounted or the module is not loaded."""
    while subprocess.run(["umount", NODES], capture_output=True).returncode == 0:
        pass


def module_functions() -> list[tuple[int, str]]:
    """(address, name) of cgpu_km's functions, by address; with what the compiler makes of one, such as name.cold."""
    found = []
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, kind, name, *module = line.split()
        if module == ["[cgpu_km]"] and kind in "tT":
            found.append((int(address, 16), name))
    return sorted(found)


def until(what, timeout: float = 60.0, step: float = 0.02, why: Callable[[], str] | None = None):
    """The first true value of what(); fails after @timeout seconds, with why() in the message."""
    end = time.monotonic() + timeout
    while not (got := what()):
        assert time.monotonic() < end, why() if why else "it did not come true in time"
        time.sleep(step)
    return got


_numbers = itertools.count(0xA00000000000)


def fresh_id() -> str:
    """The id of a container that this process has not used yet, and so its directory."""
    return f"{next(_numbers):012x}" + "e" * 52


class Box:
    """with Box("aaaa…", mib=1024) as box: …"""

    def __init__(self, name: str, mib: int = 1024, gpu: int = 0, **more: object):
        self.name = name
        self.gpu = gpu
        words = "".join(f" {key}={value}" for key, value in more.items())
        command(f"create {name} gpu={gpu} memsize={mib * MIB}{words}")
        line = next(line for line in self.listed() if line.split()[0] == name)
        self.dir = dict(word.split("=", 1) for word in line.split()[1:])["dir"]
        self.dev = f"/dev/cgpu/{self.dir}"
        self.proc = PROC / str(gpu) / self.dir

    @staticmethod
    def listed() -> list[str]:
        return (PROC / "inst_ctl").read_text().splitlines()

    def there(self) -> bool:
        return any(line.split()[0] == self.name for line in self.listed())

    def stat(self, key: str) -> int:
        return int(dict(line.split() for line in (self.proc / "stat").read_text().splitlines())[key])

    @property
    def used(self) -> int:
        """And the kinds of memory are what it consists of."""
        found = dict(line.split() for line in (self.proc / "stat").read_text().splitlines())
        used = int(found["used_bytes"])
        assert sum(int(found[f"used_{kind}_bytes"]) for kind in KINDS) == used, found
        return used

    def meminfo(self) -> tuple[int, dict[int, int]]:
        """Free bytes, and bytes by pid."""
        first, *rest = (self.proc / "meminfo").read_text().splitlines()
        return int(first.split()[1]), {int(line.split()[1]): int(line.split()[3]) for line in rest}

    def client(self) -> nvclient.Client:
        return nvclient.Client(self.dev)

    def simload(self, *options: object) -> subprocess.Popen:
        """A client that does not preempt others when it wakes (SCHED_BATCH). With one processor, wakeup preemption
        would favour the client with the least processor time. The delay until a client's next doorbell would then
        depend on how long it was frozen.
        """
        argv = [CLIENTS / "simload", "--dev", self.dev, "--json", *options]
        load = subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE, text=True, errors="replace")
        os.sched_setscheduler(load.pid, os.SCHED_BATCH, os.sched_param(0))
        return load

    def destroy(self) -> None:
        """Destroys the instance and waits until it is gone with its directory: nothing of it is open or mapped."""
        with contextlib.suppress(FileNotFoundError):  # an instance ends with its last file, maybe in between
            if self.there():
                command(f"destroy {self.name}")
        until(lambda: not self.there())
        assert not self.proc.exists()

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *exc) -> None:
        self.destroy()


def vidmem(gpu: nvclient.Gpu, size: int, handle: int = 0) -> tuple[ctypes.Structure, ctypes.Structure]:
    """An RM_ALLOC of video memory to be made by hand: the struct and its parameters, of which it keeps the address."""
    huge = size % nvclient.VA_ALIGN == 0
    params = nvclient.MemoryParams(
        owner=gpu.rm.handle,
        size=size,
        attr=nvclient.ATTR_NONCONTIG_ALLOWED | (nvclient.ATTR_PAGE_HUGE if huge else 0),
        attr2=nvclient.ATTR2_PAGE_2M if huge else 0,
    )
    arg = nvclient.Alloc(
        root=gpu.rm.handle,
        parent=gpu.device,
        handle=handle,
        class_id=nvclient.NV01_MEMORY_LOCAL_USER,
        params=ctypes.addressof(params),
        params_size=ctypes.sizeof(params),
    )
    arg.keep = params
    return arg, params


def result(load: subprocess.Popen, timeout: float = 120.0) -> dict:
    """The last line of a simload."""
    out, _ = load.communicate(timeout=timeout)
    return json.loads(out.splitlines()[-1])


def insert_nvsim(*options: str) -> None:
    """As tests/nvsim/load.py does it. Another Python for that would take seconds in an emulated machine."""
    module = ("--module", f"{os.environ['CGPU_MODULES']}/nvsim.ko")
    subprocess.run(nvsim_load.command(nvsim_load.options([*options, *module])), check=True)
    until(Path("/dev/nvidiactl").exists)


def load_nvsim(profile: str = os.environ.get("PROFILE") or "t4", *options: str, **parameters: object) -> None:
    """Another nvsim in place of this one; no container may be there."""
    until(lambda: subprocess.run(["rmmod", "nvsim"], capture_output=True).returncode == 0, step=0.2)
    words = [word for name, value in parameters.items() for word in ("--param", f"{name}={value}")]
    insert_nvsim("--profile", profile, "--gpus", os.environ["GPUS"] or "1", *options, *words)


@contextlib.contextmanager
def nvsim_as(profile: str, **parameters: object) -> Iterator[None]:
    """Another card for a while."""
    load_nvsim(profile, **parameters)
    try:
        yield
    finally:
        load_nvsim()


def fb_used(gpu: int = 0) -> int:
    """Memory in use by the simulated card's own count."""
    return int(re.search(r"fb_used=(\d+)", Path(f"/proc/driver/nvsim/{gpu}/state").read_text())[1])


@contextlib.contextmanager
def child(work: Callable[[], None]) -> Iterator[int]:
    """A process that does @work, and then nothing until the end of the block."""
    pid = os.fork()
    if not pid:
        try:
            work()
            signal.pause()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextlib.contextmanager
def rewriting(memory: mmap.mmap, *values: bytes, at: int = 0) -> Iterator[None]:
    """A process that writes one value after the other to the same place of shared memory, from the first line on."""
    memory[at : at + len(values[0])] = values[0]
    pid = os.fork()
    if not pid:
        for value in itertools.cycle(values):
            memory[at : at + len(value)] = value
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def until_raced(attempt: Callable[[], int], wanted: set[int], at_least: int = 400, timeout_s: float = 60) -> None:
    """Attempt it until each wanted answer has come: on one processor the other process may not run for 400 attempts.

    It sleeps now and then, so that the scheduler runs that process next.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + timeout_s
    for attempts in itertools.count(1):
        seen.add(attempt())
        if attempts >= at_least and wanted <= seen:
            return
        assert time.monotonic() < deadline, f"the race was none: {attempts} attempts gave {sorted(seen)}"
        if attempts % 16 == 0:
            time.sleep(attempts % 7 * 0.0003)


@contextlib.contextmanager
def clean_box(mib: int) -> Iterator[Box]:
    """A container in which nothing may be left: no byte charged, and the card as it was."""
    before = fb_used()
    with Box(fresh_id(), mib) as box:
        yield box
        until(lambda: box.used == 0)
        until(lambda: fb_used() == before)
