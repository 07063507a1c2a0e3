# SPDX-License-Identifier: MIT
"""Random lives of containers, with faults of the driver, until the time is over. Runs in the guest (`make soak`).

soak.py MINUTES SEED: afterwards nothing may be left, and a container must work. The last line is a JSON object.
Beside the actions, one after the other, a process opens, maps, polls and calls whatever nodes there are (crowd()).
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import itertools
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import quantiles

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests/vm/guest/box")]

import corebox  # noqa: E402
from slicebox import MIB, NODES, PROC, Box, clean_box, fb_used, mount_nodes, nvclient, until  # noqa: E402

from cgpu_common.policies import Policy  # noqa: E402

PARAMETERS = Path("/sys/module/nvsim/parameters")
MOST = 6
LARGEST_MIB = 1024
#: A step that takes longer hangs: a swap or a start beside other machines takes a second.
STUCK_S = 150
#: What a call may raise while the driver fails. LookupError: a card or an id that is not there.
EXPECTED = (OSError, nvclient.RmError, AssertionError, StopIteration, LookupError)


class Broken(Exception):
    """A promise that no failure of the driver excuses: it ends the soak."""


def parameter(name: str, value: int) -> None:
    (PARAMETERS / name).write_text(str(value))


class Netlink:
    """Messages to the module's generic netlink family, well formed or not."""

    GENERIC, CTRL, GET_FAMILY, FAMILY_ID, FAMILY_NAME = 16, 16, 3, 1, 2
    REQUEST, ACK = 0x1, 0x4
    ID, COOKIE, SLOTS, SLOT, GPU, NEST = 2, 3, 9, 10, 12, 0x8000

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, self.GENERIC)
        self.socket.bind((0, 0))
        self.socket.settimeout(10)
        answer = self.request(self.CTRL, self.GET_FAMILY, self.attribute(self.FAMILY_NAME, b"cgpu\0"), self.REQUEST)
        at = 20
        while at + 4 <= len(answer):
            length, kind = struct.unpack_from("=HH", answer, at)
            if kind == self.FAMILY_ID:
                self.family = struct.unpack_from("=H", answer, at + 4)[0]
            at += max(4, length + 3 & ~3)

    @staticmethod
    def attribute(kind: int, data: bytes) -> bytes:
        return struct.pack("=HH", len(data) + 4, kind) + data + b"\0" * (-len(data) % 4)

    def request(self, kind: int, command: int, attributes: bytes, flags: int) -> bytes:
        """The first message of the answer."""
        body = struct.pack("=BBH", command, 1, 0) + attributes
        self.socket.send(struct.pack("=IHHII", len(body) + 16, kind, flags, 0, 0) + body)
        return self.socket.recv(1 << 16)

    def wrong(self, chance: random.Random) -> bytes:
        """Attributes of a container or a GPU (cgpu_km/uapi.h), some left out; then some bytes change or are cut."""
        values = (struct.pack("=I", chance.choice((0, 1, 7, 1 << 31))), struct.pack("=Q", chance.getrandbits(30)))
        fields = b"".join(self.attribute(n, chance.choice(values)) for n in range(1, 20))
        parts = [
            self.attribute(self.ID, chance.randbytes(chance.randrange(1, 160)).hex().encode() + b"\0"),
            self.attribute(self.COOKIE, struct.pack("=Q", chance.getrandbits(64))),
            self.attribute(self.SLOTS | self.NEST, self.attribute(self.SLOT | self.NEST, fields)),
            self.attribute(self.GPU | self.NEST, fields),
        ]
        data = bytearray(b"".join(chance.sample(parts, chance.randrange(1, len(parts) + 1))))
        for _ in range(chance.choice((0, 0, 1, 8))):
            data[chance.randrange(len(data))] = chance.getrandbits(8)
        return bytes(data[: chance.choice((len(data), chance.randrange(len(data)) & ~3 or 4))])


def crowd(seed: int) -> None:
    """Opens, calls, maps and polls the nodes of any container until it is killed. All of it may fail."""
    chance = random.Random(seed)
    while True:
        time.sleep(0.02)
        try:
            directories = [path for path in NODES.iterdir() if path.is_dir()]
            with nvclient.Client(str(chance.choice(directories))) as rm:
                gpu = rm.gpu(0)
                status, memory = gpu.alloc_vidmem(MIB)
                nvclient.check("RM_ALLOC", status)
                mapping = gpu.map_cpu(memory, MIB)
                mapping.write32(0, 1)
                select.select([rm.ctl.fd], [], [], 0.001)
                gpu.space().uvm.close()
        except EXPECTED:
            continue


def watch(steps: Synchronized[int], parent: int) -> None:
    """When a step takes longer than STUCK_S, print where each process is, in the kernel too, and end the soak."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < STUCK_S:
        time.sleep(1)
        if steps.value != last:
            last, since = steps.value, time.monotonic()
    print(f"step {last} hangs", file=sys.stderr)
    for path in sorted(Path("/proc").glob("[0-9]*/task/[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):
            stack = (path / "stack").read_text()
            state = next(line for line in (path / "status").read_text().splitlines() if line.startswith("State:"))
            if "nvsim" in stack or "cgpu" in stack or int(path.name) == parent or state.split()[1] == "R":
                print(path, (path / "comm").read_text().strip(), state, stack, sep="\n", file=sys.stderr)
    os.kill(parent, signal.SIGABRT)


def exhausted() -> str:
    """Which limit of GPU 0 is reached. ENOSPC has three causes, and containers that end meanwhile may have gone."""
    lines = Box.listed()
    dying = sum("state=dying" in line for line in lines)
    most = int((PROC / "0/max_inst").read_text())
    found = [f"instances, {dying} of them dying"] if len(lines) >= most else []
    if int((PROC / "0/free_weight").read_text()) < 2:
        found.append("weight")
    limits = 0
    total = dict(line.split() for line in (PROC / "0/stat").read_text().splitlines())["total_bytes"]
    for path in (PROC / "0").glob("*/memsize"):
        with contextlib.suppress(OSError):
            limits += int(path.read_text())
    if limits + LARGEST_MIB * MIB > int(total):
        found.append("memory")
    return f"({', '.join(found) or 'none any more'})"


class Soak:
    """The containers that live, and what was done to them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = (f"{n:012x}" + "5a" * 26 for n in itertools.count(1))
        self.boxes: list[Box] = []
        self.loads: list[subprocess.Popen] = []
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.pauses_ns: list[int] = []
        self.netlink = Netlink()

    def step(self) -> None:
        action = self.random.choice(ACTIONS)
        try:
            action(self)
            self.done[action.__name__] += 1
        except EXPECTED as error:
            self.failed[action.__name__] += 1
            full = f" {exhausted()}" if getattr(error, "errno", 0) == errno.ENOSPC else ""
            self.reasons[f"{action.__name__}: {error!r}"[:120] + full] += 1

    def create(self) -> None:
        if len(self.boxes) < MOST:
            self.boxes.append(Box(next(self.names), self.random.choice((64, 256, LARGEST_MIB)), weight=1))

    def destroy(self) -> None:
        if self.boxes:
            box = self.boxes.pop(self.random.randrange(len(self.boxes)))
            with contextlib.suppress(FileNotFoundError):
                (PROC / "inst_ctl").write_text(f"destroy {box.name}")

    def load(self) -> None:
        if self.boxes and len(self.loads) < MOST:
            box = self.random.choice(self.boxes)
            self.loads.append(box.simload("--seconds", 0, "--kernel-us", self.random.choice((50, 500, 5000))))

    def kill(self) -> None:
        if self.loads:
            load = self.loads.pop(self.random.randrange(len(self.loads)))
            load.kill()
            load.communicate()

    def use(self) -> None:
        if not self.boxes:
            return
        with self.random.choice(self.boxes).client() as rm:
            gpu = rm.gpu(0)
            status, memory = gpu.alloc_vidmem(self.random.choice((1, 2, 16, 100)) * MIB)
            if not status:
                rm.dup(gpu.device, rm, memory)
                gpu.free(memory)

    def policy(self) -> None:
        (PROC / "0/policy").write_text(str(int(self.random.choice(tuple(Policy)))))

    def weight(self) -> None:
        if self.boxes:
            (self.random.choice(self.boxes).proc / "weight").write_text(str(self.random.randrange(3)))

    def read(self) -> None:
        for path in (PROC / "0").rglob("*"):
            if path.is_file():
                with contextlib.suppress(OSError):
                    path.read_text()

    def fault(self) -> None:
        parameter("fault_kind", self.random.randrange(3))
        parameter("fault_times", self.random.choice((1, 1, 1, 10)))
        parameter("fault_nth", self.random.randrange(1, 300))

    def gone(self) -> None:
        parameter("gone", 1)
        time.sleep(0.2)
        parameter("gone", 0)

    def flips(self) -> None:
        """Another policy each millisecond."""
        for _ in range(200):
            (PROC / "0/policy").write_text(str(int(self.random.choice(tuple(Policy)))))
            time.sleep(0.001)

    def shrink(self) -> None:
        """A limit below what is used."""
        if self.boxes:
            box = self.random.choice(self.boxes)
            (box.proc / "memsize").write_text(str(max(box.used // 2, MIB)))

    def names_of_ipc(self) -> None:
        if self.boxes:
            (self.random.choice(self.boxes).proc / "ipc").write_text(self.random.choice(("a", "b", "")))

    def short_lives(self) -> None:
        """Containers that end as they begin."""
        for _ in range(10):
            name = next(self.names)
            (PROC / "inst_ctl").write_text(f"create {name} gpu=0 memsize={64 * MIB}")
            (PROC / "inst_ctl").write_text(f"destroy {name}")
            self.done["short_life"] += 1

    def swap(self) -> None:
        """To the core that does not run."""
        try:
            corebox.swap(corebox.OLD if corebox.running() == corebox.NEXT else corebox.NEXT)
        except OSError as error:
            raise OSError(error.errno, corebox.last()[2]) from error
        self.pauses_ns.append(corebox.held_ns())

    def unload(self) -> None:
        """Whatever is in use is not unloaded: the mount of the nodes uses the module, a container its core."""
        running = corebox.PRODUCT if corebox.running() == corebox.OLD else "test_core_next"
        for module in ("cgpu_km", *([running] if self.boxes else [])):
            if corebox.rmmod(module):
                raise Broken(f"{module} was in use and has gone")

    def messages(self) -> None:
        for _ in range(20):
            flags = Netlink.REQUEST | Netlink.ACK
            command = self.random.randrange(1, 9)
            self.netlink.request(self.netlink.family, command, self.netlink.wrong(self.random), flags)

    def end(self) -> None:
        parameter("fault_nth", 0)
        parameter("gone", 0)
        while self.loads:
            self.kill()
        for line in Box.listed():
            with contextlib.suppress(FileNotFoundError):
                (PROC / "inst_ctl").write_text(f"destroy {line.split()[0]}")
        until(lambda: not Box.listed())


ACTIONS = (
    *(Soak.create,) * 4,
    *(Soak.use,) * 4,
    *(Soak.load, Soak.kill, Soak.destroy) * 2,
    *(Soak.policy, Soak.weight, Soak.read, Soak.fault, Soak.gone),
    *(Soak.flips, Soak.shrink, Soak.names_of_ipc, Soak.short_lives, Soak.swap, Soak.unload, Soak.messages),
)


def settings() -> dict[Path, str]:
    """What an administrator may set of each GPU; 0: the module's own choice."""
    names = ("policy", "max_inst", "prio_ratio", "uvm", "overcommit")
    found = {path: path.read_text() for name in names for path in sorted(PROC.glob(f"[0-9]*/{name}"))}
    return found | {path: "0" for name in ("slice_us", "default_memsize") for path in PROC.glob(f"[0-9]*/{name}")}


def p99(values: list[int]) -> int:
    return round(quantiles(values, n=100, method="inclusive")[98]) if len(values) > 1 else max(values, default=0)


def main(minutes: float, seed: int) -> dict[str, object]:
    if not os.path.ismount("/dev/cgpu"):
        mount_nodes()
    assert corebox.insmod("test_core_next")
    faulthandler.enable()  # prints where it is when watch() ends it
    before, as_set = fb_used(), settings()
    soak = Soak(seed)
    fork = get_context("fork")
    steps = fork.Value("i", 0)
    # Daemons: at its end this process would wait for others, for ever if an action has raised.
    beside = fork.Process(target=crowd, args=(seed,), daemon=True)
    watching = fork.Process(target=watch, args=(steps, os.getpid()), daemon=True)
    for process in (beside, watching):
        process.start()
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        soak.step()
        steps.value += 1
    beside.kill()
    beside.join()
    soak.end()
    watching.kill()
    corebox.leave_only_the_product()
    for path, text in as_set.items():
        path.write_text(text)
    until(lambda: fb_used() == before)
    with clean_box(64) as box, box.client() as rm:
        assert rm.gpu(0).alloc_vidmem(MIB)[0] == 0
    for reason, count in soak.reasons.most_common(40):
        print(f"refused {count} times: {reason}")
    return {
        "seed": seed,
        "minutes": minutes,
        "actions": sum(soak.done.values()),
        "refused": sum(soak.failed.values()),
        "containers": soak.done["create"] + soak.done["short_life"],
        "swaps": len(soak.pauses_ns),
        "pause p99, us": round(p99(soak.pauses_ns) / 1000),
        "lost bytes": fb_used() - before,
        "faults": soak.done["fault"] + soak.done["gone"],
    }


if __name__ == "__main__":
    report = json.dumps(main(float(sys.argv[1]), int(sys.argv[2])), sort_keys=True)
    (Path(os.environ["CGPU_RUN"]) / "soak.json").write_text(report + "\n")
    print(report)
