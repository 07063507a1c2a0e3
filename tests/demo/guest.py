# SPDX-License-Identifier: MIT
"""The demo, inside the virtual machine: the documented lines with real Docker on a simulated GPU.

Prints each step as it runs, checks every claim, and writes a report (its keys: README.md). Run by
tests/demo/host.py; module, cgpud and dockerd are up when it starts.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import Progress, rate, whole_rounds

PROC = Path("/proc/cgpu_km")
GPU = PROC / "0"
MIB = 1 << 20
TAB = "\t"
IMAGE = "cgpu-demo"
CARD_MIB = 15109
OUT_OF_MEMORY = 0x51
WINDOW_S = 10.0
SETTLE_S = 2.0
WINDOWS = 3
# Ordinary emulation: timers of a busy host are late by milliseconds. The accuracy of the
# scheduler is measured with instruction counting (make bench-sched), not here.
RATIO_TOLERANCE_PCT = 10.0


@dataclass(frozen=True)
class Box:
    """A container of the demo and its expected view."""

    name: str
    gib: int
    weight: int
    total_mib: int
    alloc_mib: int


BOXES = (Box("gpu_test1", 6, 1, 6043, 1024), Box("gpu_test2", 8, 2, 8058, 2048))


class Broken(Exception):
    """A step could not be done at all."""


@dataclass
class Claims:
    """A claim and whether it held."""

    rows: list[tuple[str, str, bool]] = field(default_factory=list)

    def check(self, what: str, held: bool, seen: str) -> bool:
        self.rows.append((what, seen, held))
        say(f"  {'ok' if held else 'DOES NOT HOLD'}: {what}: {seen}")
        return held

    @property
    def ok(self) -> bool:
        return bool(self.rows) and all(held for _, _, held in self.rows)


def say(text: str = "") -> None:
    print(text, flush=True)


def say_command(*parts: Sequence[str]) -> None:
    """A long command, continued over lines as one would type it."""
    text = " \\\n      ".join(" ".join(part) for part in parts)
    say(f"  # {text}")


def step(text: str) -> None:
    say()
    say(f"== {text}")


def call(*words: str, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise Broken(f"{' '.join(words)}: no answer after {timeout:.0f} s") from None


def must(*words: str, timeout: float = 180) -> str:
    done = call(*words, timeout=timeout)
    if done.returncode:
        raise Broken(f"{' '.join(words)}: status {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def show(command: str, keep: int = 40) -> str:
    """Run a line as a person would, showing it and what it prints."""
    say(f"  # {command}")
    done = call("sh", "-c", command)
    for line in (done.stdout + done.stderr).splitlines()[:keep]:
        say(f"  {' '.join(line.split(TAB))}")
    if done.returncode:
        raise Broken(f"{command}: status {done.returncode}")
    return done.stdout


def until(seconds: float, check: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def number(path: Path) -> int:
    return int(path.read_text())


def stat(path: Path, name: str) -> int:
    return int(dict(line.split(" ", 1) for line in (path / "stat").read_text().splitlines())[name])


def make_image(simload: Path) -> None:
    """busybox and simload in a tar, nothing from a registry."""
    busybox = Path("/bin/busybox")
    with tarfile.open("/run/cgpu-demo.tar", "w") as tar:
        for source, name in ((busybox, "bin/busybox"), (simload, "bin/simload")):
            info = tar.gettarinfo(str(source), name)
            info.mode = 0o755
            with source.open("rb") as stream:
                tar.addfile(info, stream)
        for name in ("sh", "cat", "ls", "sleep", "mknod"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        passwd = b"root:x:0:0:root:/:/bin/sh\n"
        info = tarfile.TarInfo("etc/passwd")
        info.size = len(passwd)
        tar.addfile(info, io.BytesIO(passwd))
    must("docker", "import", "/run/cgpu-demo.tar", IMAGE)


def start(box: Box, image: str, program: Sequence[str]) -> Container:
    """The documented line."""
    words = [
        *("docker", "run", "-d", "--runtime=nvidia", "--name", box.name),
        *("-e", "ALIYUN_COM_GPU_MEM_DEV=15", "-e", f"ALIYUN_COM_GPU_MEM_CONTAINER={box.gib}"),
        *("-e", "ALIYUN_COM_GPU_VISIBLE_DEVICES=0", "-e", f"ALIYUN_COM_GPU_SCHD_WEIGHT={box.weight}"),
        *(image, *program, "--json", "--seconds", "0", "--interval", "0.2"),
        *("--alloc-mib", str(box.alloc_mib), "--depth", "16"),
    ]
    say_command(words[:6], words[6:10], words[10:14], words[14:])
    began = time.monotonic()
    full_id = must(*words).strip()
    say(f"  {full_id[:12]} after {time.monotonic() - began:.1f} s")
    return Container(box, full_id, Progress(["docker", "logs", "-f", box.name]))


@dataclass
class Container:
    """A running container of the demo."""

    box: Box
    id: str
    progress: Progress
    total_mib: int = 0
    limit_bytes: int = 0
    work_per_s: float = 0.0

    @property
    def name(self) -> str:
        return self.box.name

    @property
    def dir(self) -> Path:
        return GPU / self.id[:12]

    def report(self) -> dict[str, Any]:
        return {
            "total_mib": self.total_mib,
            "limit_bytes": self.limit_bytes,
            "weight": self.box.weight,
            "work_per_s": round(self.work_per_s, 3),
        }


def measure(boxes: Sequence[Container], round_s: float) -> tuple[list[float], float]:
    """Completed works per second of each over whole rounds, after the change had time to act."""
    time.sleep(SETTLE_S)
    window = whole_rounds(WINDOW_S, round_s)
    begin = time.monotonic()
    for box in boxes:
        if not box.progress.wait_until(begin + window, window + 60):
            raise Broken(f"{box.name} stopped reporting: {box.progress.last_words()}")
    rates = [rate(box.progress.samples(), begin, begin + window) for box in boxes]
    text = ", ".join(f"{box.name} {works:.1f} works/s" for box, works in zip(boxes, rates, strict=True))
    say(f"  {text} over {window:.2f} s = {window / round_s:.0f} rounds")
    return rates, window


def round_seconds(weights: Sequence[int]) -> float:
    return sum(weights) * number(GPU / "slice_us") / 1e6


def error_pct(asked: float, got: float) -> float:
    return abs(got / asked - 1) * 100


@dataclass(frozen=True)
class Ratio:
    """Throughput of the second container against the first."""

    asked: float
    rates: Sequence[float]
    window_s: float

    @property
    def got(self) -> float:
        return self.rates[1] / max(self.rates[0], 1e-9)

    @property
    def error_pct(self) -> float:
        return error_pct(self.asked, self.got)

    def __str__(self) -> str:
        return f"1 : {self.got:.3f}, {self.error_pct:.1f} % off"


class Demo:
    """The sequence; its results go to the report."""

    image = IMAGE
    program: Sequence[str] = ("simload", "--kernel-us", "1000")
    over_program: Sequence[str] = ("simload", "--no-context")
    out_of_memory = OUT_OF_MEMORY
    tolerance_pct = RATIO_TOLERANCE_PCT
    ready_s = 60.0

    def __init__(self, simload: Path) -> None:
        self.simload = simload
        self.claims = Claims()
        self.boxes: list[Container] = []
        self.report: dict[str, Any] = {
            "containers": {},
            "over_limit": {"status": None, "neighbour_alive": False},
            "ratio": {"asked": 2.0, "got": None, "error_pct": None, "window_s": None},
            "after_kill": {"directory_gone": False, "memory_returned_bytes": 0},
            "simulated": True,
            "ok": False,
        }

    def run(self) -> None:
        self.introduce()
        self.start_containers()
        self.show_tree()
        self.see_memory()
        self.native()
        self.over_limit()
        self.weighted()
        self.live_weight()
        self.let_go()
        self.kill()

    def introduce(self) -> None:
        step("the machine: Debian's kernel in QEMU, a SIMULATED GPU behind a simulated NVIDIA driver")
        show("uname -r; cat /proc/driver/nvidia/version; grep -h Model /proc/driver/nvidia/gpus/*/information")
        show("cat /proc/cgpu_km/version; lsmod | grep -E '^(nvsim|cgpu)'")
        step(f"image: busybox and simload, made here ({IMAGE})")
        make_image(self.simload)

    def start_containers(self) -> None:
        step("two containers, 6 and 8 of 15 GiB, weights 1 and 2, by the documented lines")
        for wanted in BOXES:
            self.boxes.append(start(wanted, self.image, self.program))
        for box in self.boxes:
            if box.progress.wait_event("ready", self.ready_s) is None:
                raise Broken(f"{box.name} did not start: {box.progress.last_words()}")

    def show_tree(self) -> None:
        step("what the kernel shows")
        one = self.boxes[0]
        listed = show(f"ls /proc/cgpu_km /proc/cgpu_km/0 {one.dir}").split()
        want = [
            "default_memsize",
            "inst_ctl",
            "upgrade",
            "version",
            "free_weight",
            "major",
            "max_inst",
            "policy",
            "prio_ratio",
        ]
        want += ["highprio", "id", "memsize", "meminfo", "weight"] + [box.id[:12] for box in self.boxes]
        missing = [name for name in want if name not in listed]
        self.claims.check("the documented files are there", not missing, f"missing {missing}" if missing else "all")
        show(f"cat {one.dir}/meminfo; cat /proc/cgpu_km/0/free_weight")
        self.claims.check("free_weight is max_inst less both weights", number(GPU / "free_weight") == 17, "17 of 20")

    def see_memory(self) -> None:
        step(f"total memory as each container sees it (the card has {CARD_MIB} MiB)")
        for box in self.boxes:
            ready = box.progress.event("ready") or {}
            box.total_mib = int(ready.get("total_bytes", 0)) // MIB
            box.limit_bytes = number(box.dir / "memsize")
            self.claims.check(
                f"{box.name} sees {box.box.total_mib} MiB", box.total_mib == box.box.total_mib, f"{box.total_mib} MiB"
            )
            self.claims.check(
                f"{box.name}'s limit is that, in bytes",
                box.limit_bytes == box.box.total_mib * MIB,
                f"{box.limit_bytes}",
            )
            self.claims.check(
                f"{box.name}'s allocation is charged",
                stat(box.dir, "used_bytes") >= box.box.alloc_mib * MIB,
                f"{stat(box.dir, 'used_bytes') // MIB} MiB in use",
            )

    def native(self) -> None:
        step("policy 5 (native): memory is limited, compute is the driver's")
        show("cat /proc/cgpu_km/0/policy")
        one, two = measure(self.boxes, round_seconds([1]))[0]
        self.claims.check(
            "native: neither is held back", error_pct(1, two / max(one, 1e-9)) < 25, f"1 : {two / max(one, 1e-9):.2f}"
        )

    def over_limit(self) -> None:
        one, two = self.boxes
        left = (one.limit_bytes - stat(one.dir, "used_bytes")) // MIB
        step(f"{one.name} asks for {one.box.total_mib} MiB more, and has {left} MiB left")
        before = two.progress.works()
        words = ("docker", "exec", one.name, *self.over_program, "--json", "--seconds", "1")
        words += ("--alloc-mib", str(one.box.total_mib))
        say(f"  # {' '.join(words)}")
        done = call(*words)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        status = next((line["first_error"]["status"] for line in reversed(lines) if line.get("first_error")), None)
        say(f"  {done.stderr.strip()}")
        moved = until(30, lambda: two.progress.works() > before + 10)
        running = must("docker", "inspect", "-f", "{{.State.Running}}", one.name, two.name).split()
        alive = moved and running == ["true", "true"]
        self.report["over_limit"] = {"status": status, "neighbour_alive": alive}
        self.claims.check(
            "refused with the driver's out of memory",
            status == self.out_of_memory and done.returncode == 3,
            f"status {status}",
        )
        self.claims.check("the neighbour keeps running", alive, f"{two.progress.works() - before} works meanwhile")

    def settle(self, weights: Sequence[int]) -> Ratio:
        """Measure until the ratio is that of the weights, three windows at most; the last one counts."""
        asked = weights[1] / weights[0]
        for _ in range(WINDOWS):
            rates, window = measure(self.boxes, round_seconds(weights))
            ratio = Ratio(asked, rates, window)
            if ratio.error_pct <= self.tolerance_pct:
                break
        return ratio

    def weighted(self) -> None:
        step("echo 2 > policy: shares by weight, 1 : 2")
        show("echo 2 > /proc/cgpu_km/0/policy; cat /proc/cgpu_km/0/slice_us")
        ratio = self.settle([1, 2])
        for box, works in zip(self.boxes, ratio.rates, strict=True):
            box.work_per_s = works
        self.report["ratio"] = {
            "asked": ratio.asked,
            "got": round(ratio.got, 4),
            "error_pct": round(ratio.error_pct, 2),
            "window_s": round(ratio.window_s, 3),
        }
        self.claims.check("throughput settles at 1 : 2", ratio.error_pct <= self.tolerance_pct, str(ratio))
        step("cgpu-smi")
        show("cgpu-smi")

    def live_weight(self) -> None:
        step("echo 4 > weight of gpu_test2, while it runs")
        show(f"echo 4 > {self.boxes[1].dir}/weight")
        ratio = self.settle([1, 4])
        self.claims.check("throughput follows to 1 : 4", ratio.error_pct <= self.tolerance_pct, str(ratio))

    def let_go(self) -> None:
        step("echo 5 > policy: let go")
        show("echo 5 > /proc/cgpu_km/0/policy")
        one, two = measure(self.boxes, round_seconds([1]))[0]
        got = two / max(one, 1e-9)
        self.claims.check("native again: neither is held back", error_pct(1, got) < 25, f"1 : {got:.2f}")

    def kill(self) -> None:
        one, two = self.boxes
        step(f"docker kill {two.name}")
        held = stat(two.dir, "used_bytes")
        total, before = stat(GPU, "used_bytes"), one.progress.works()
        show(f"docker kill {two.name}")
        began = time.monotonic()
        gone = until(60, lambda: not two.dir.exists())
        took = time.monotonic() - began
        returned = total - stat(GPU, "used_bytes")
        self.report["after_kill"] = {"directory_gone": gone, "memory_returned_bytes": returned}
        self.claims.check("its directory is gone", gone, f"{took:.1f} s after the kill")
        self.claims.check("its memory is returned", returned == held > 0, f"{returned} of {held} bytes")
        self.claims.check(
            "its weight is returned", number(GPU / "free_weight") == 19, f"{number(GPU / 'free_weight')} free"
        )
        moved = until(30, lambda: one.progress.works() > before + 10)
        self.claims.check(f"{one.name} goes on", moved, f"{one.progress.works() - before} works meanwhile")
        step("cgpu-smi")
        show("cgpu-smi")

    def finish(self) -> bool:
        """Write the report and the table."""
        self.report["containers"] = {box.name: box.report() for box in self.boxes}
        self.report["ok"] = self.claims.ok
        step("what held, on a simulated GPU")
        width = max((len(what) for what, _, _ in self.claims.rows), default=0)
        for what, seen, held in self.claims.rows:
            say(f"  {'ok ' if held else 'NOT'}  {what:<{width}}  {seen}")
        return self.claims.ok


def play(demo: Demo, out: Path) -> int:
    """The whole of it; 0 where every claim held."""
    try:
        demo.run()
    except (Broken, OSError, ValueError, KeyError) as err:
        demo.claims.check("the demo runs to its end", False, str(err))
    ok = demo.finish()
    out.write_text(json.dumps(demo.report, indent=2) + "\n")
    for box in demo.boxes:
        box.progress.stop()
    names = [box.name for box in BOXES]
    call("docker", "rm", "-f", *names)
    os.sync()
    return 0 if ok else 1


def main() -> int:
    out, simload = Path(sys.argv[1]), Path(sys.argv[2])
    return play(Demo(simload), out)


if __name__ == "__main__":
    sys.exit(main())
