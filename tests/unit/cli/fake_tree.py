# SPDX-License-Identifier: MIT
"""A copy of /proc/cgpu_km as plain files, and the commands run on it."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cgpu_cli import collect
from cgpu_cli.main import cgpu
from cgpu_cli.smi import smi
from cgpu_common import proc
from cgpu_common.model import Slot, Snapshot

MIB = 1 << 20
ID1 = "012b2edccd7a" + "1" * 52
ID3 = "ffeeddccbbaa" + "3" * 52
ID2 = "aabbccddeeff" + "2" * 52
PCI = "0000:01:00.0"
CONTRACT = (Path(__file__).resolve().parents[3] / "docs/reference/proc.md").read_text(encoding="utf-8")


@cache
def numbers(above: str) -> dict[str, object]:
    """The files of a folder that have one number: their defaults, or 0."""
    rows = re.findall(rf"^\| `{above}(\w+)` \| 0[0-7]{{3}} \| decimal[^|]*\|[^|;]*(?:; (\d+) \|)?", CONTRACT, re.M)
    return {name: default or 0 for name, default in rows}


def write(path: Path, text: str) -> None:
    """In most cases the folder is there."""
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n", encoding="utf-8")


def waits(shorter: dict[int, int], total: int) -> str:
    """The histogram of a stat: shorter than i-th bound -> how many more than with the bound before."""
    lines, count = [], 0
    for bucket in range(18):
        count += shorter.get(bucket, 0)
        lines.append(f"wait_lt_{100_000 << bucket} {count}")
    return "\n".join([*lines, f"waits {total}", f"waits_ns {total * 10_000_000}"])


@dataclass
class Tree:
    """The fake, with the few changes a test makes to it."""

    root: Path

    @property
    def proc(self) -> Path:
        return self.root / "proc/cgpu_km"

    def gpu(self, number: int, **nodes: object) -> None:
        defaults: dict[str, object] = {
            "free_weight": 17,
            "major": 240,
            "max_inst": 20,
            "minor": number,
            "pci": f"0000:{number + 1:02x}:00.0",
            "policy": 2,
            "prio_ratio": 80,
            "slice_us": 5000,
            "uuid": f"GPU-{number:08x}-1111-2222-3333-444455556666",
            "uvm": "deny",
            "stat": f"total_bytes {15109 * MIB}\nlimits_bytes {14101 * MIB}\nused_bytes {768 * MIB}\n"
            "instances 2\ncontrol freeze,timeslice\ncontrol_p50_us 120\nturns 99\nthread_cpu_ns 5\ncontrol_seen freeze"
            "\nrun_state_source chram\nrun_state_errors 0",
        }
        for name, value in (numbers("N/") | defaults | nodes).items():
            write(self.proc / str(number) / name, str(value))

    def slot(self, number: int, container_id: str, **nodes: object) -> Path:
        path = self.proc / str(number) / container_id[:12]
        defaults: dict[str, object] = {
            "id": container_id,
            "memsize": 6043 * MIB,
            "meminfo": f"Free: {5787 * MIB}\nPID: 19772 Mem: {256 * MIB}",
            "weight": 1,
            "stat": f"gpu_ns 1000000000\nwait_ns 2000000000\nturns 30\noverruns 1\nrunning 1\nopened 1\n"
            f"limit_bytes {6043 * MIB}\nused_bytes {256 * MIB}\npeak_bytes {512 * MIB}\n"
            "refused_allocs 3\nrefused_calls 0",
        }
        for name, value in (numbers("N/C/") | defaults | nodes).items():
            write(path / name, str(value))
        return path

    def listed(self, *lines: str) -> None:
        write(self.proc / "inst_ctl", "\n".join(lines))


def empty_tree(root: Path) -> Tree:
    """The module is loaded with one simulated T4, no container is there."""
    tree = Tree(root)
    tree.gpu(0, free_weight=20)
    for name, text in (("version", "0.1.0"), ("upgrade", "0.1.0"), ("default_memsize", str(8 << 30))):
        write(tree.proc / name, text)
    (tree.proc / "inst_ctl").write_text("", encoding="utf-8")
    write(root / "sys/module/cgpu_km/version", "0.1.0")
    write(root / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  580.105.08  x")
    write(root / f"proc/driver/nvidia/gpus/{PCI}/information", "Model: \t\t Tesla T4 (simulated)\nDevice Minor: 0")
    return tree


def with_containers(tree: Tree) -> Tree:
    """Two, weights 1 and 2, policy 2."""
    write(tree.proc / "0/free_weight", "17")
    tree.slot(0, ID1)
    tree.slot(
        0,
        ID2,
        memsize=8058 * MIB,
        weight=2,
        meminfo=f"Free: {7546 * MIB}\n" + "\n".join(f"PID: {200 + n} Mem: {MIB}" for n in range(6)),
        stat=f"gpu_ns 2000000000\nwait_ns 1000000000\nturns 31\noverruns 0\nrunning 0\nopened 1\n"
        f"limit_bytes {8058 * MIB}\nused_bytes {512 * MIB}\npeak_bytes {512 * MIB}\nrefused_allocs 0\nrefused_calls 7\n"
        + waits({6: 90, 8: 10}, 100),
    )
    tree.listed(inst_line(ID1, 1), inst_line(ID2, 7))
    write(tree.root / f"var/lib/docker/containers/{ID1}/config.v2.json", json.dumps({"Name": "/gpu_test1"}))
    return tree


#: Of a container in a moving tree.
STAT = "gpu_ns {ran}\nwait_ns {waited}\nturns {turns}\nopened 1\nlimit_bytes 1\nused_bytes 0"


def inst_line(container_id: str, n: int, state: str = "live", gpus: str = "0:4") -> str:
    return (
        f"{container_id} cookie=0x{n:x} dir={container_id[:12]} major=240 ctl={n} uvm={n + 1} state={state} gpu={gpus}"
    )


class Cli:
    """Runs a command on a tree as a terminal would."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def smi(self, *args: str) -> Result:
        return CliRunner().invoke(smi, ["--root", str(self.tree.root), *args], prog_name="cgpu-smi")

    def cgpu(self, *args: str) -> Result:
        return CliRunner().invoke(cgpu, ["--root", str(self.tree.root), *args], prog_name="cgpu")


class Moving(threading.Thread):
    """Writes the stat files of a tree as a module would whose two containers take turns."""

    def __init__(self, tree: Tree, slice_s: float) -> None:
        super().__init__(daemon=True)
        self.paths = [tree.proc / "0" / one[:12] / "stat" for one in (ID1, ID2)]
        self.slice_ns = round(slice_s * 1e9)
        self.over = threading.Event()

    def run(self) -> None:
        begin = time.monotonic_ns()
        while not self.over.is_set():
            whole, rest = divmod(time.monotonic_ns() - begin, 2 * self.slice_ns)
            ran = (min(rest, self.slice_ns), max(0, rest - self.slice_ns))
            for path, own in zip(self.paths, ran, strict=True):
                text = STAT.format(ran=whole * self.slice_ns + own, waited=0, turns=whole).ljust(200)
                fd = os.open(path, os.O_WRONLY)
                os.pwrite(fd, text.encode(), 0)  # one call: a reader sees a whole text
                os.close(fd)
            time.sleep(0.001)


#: What each container ran and waited in the second before, in ms, and its turns.
SECOND = {ID1: (333, 667, 10), ID2: (667, 333, 10), ID3: (950, 50, 4)}


def exactly_at(snapshot: Snapshot, at_ns: int) -> Snapshot:
    """As if it had been read at once."""
    gpus = tuple(replace(gpu, slots=tuple(replace(slot, at_ns=at_ns) for slot in gpu.slots)) for gpu in snapshot.gpus)
    return replace(snapshot, gpus=gpus, at_ns=at_ns)


def a_second_before(now: Snapshot) -> Snapshot:
    def earlier(slot: Slot) -> Slot:
        ran, waited, turns = SECOND.get(slot.id, (0, 0, 0))
        grown = {"gpu_ns": ran * 10**6, "wait_ns": waited * 10**6, "turns": turns}
        stat = {name: value for name, value in slot.stat.items() if not name.startswith("wait")}
        stat |= {name: slot.stat.get(name, 0) - by for name, by in grown.items()}
        return replace(slot, stat=stat, at_ns=slot.at_ns - 10**9)

    gpus = tuple(replace(gpu, slots=tuple(map(earlier, gpu.slots))) for gpu in now.gpus)
    return replace(now, gpus=gpus, at_ns=now.at_ns - 10**9)


def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample of a command is of exactly a second, and takes no time."""

    def read(paths: proc.Paths, brief: bool = False) -> Snapshot:
        now = exactly_at(proc.read_tree(paths), 10**12)
        return a_second_before(now) if brief else now

    monkeypatch.setattr(collect, "read_tree", read)
    monkeypatch.setattr(collect.Collector, "wait", lambda _self, _seconds: None)
