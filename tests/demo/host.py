# SPDX-License-Identifier: MIT
"""make demo, make real: set up, build, boot Debian's kernel with a simulated GPU, and run the documented lines there.

Standard library only: it runs before anything is installed. Prints a line for every step with the time since the start;
the report is build/demo.json or build/real.json, the exit status is 0 if every claim held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/cuda"))

import ways  # noqa: E402

BUILD = REPO / "build"
QUIET_S = 15.0
VM_TIMEOUT_S = 900


@dataclass(frozen=True)
class Show:
    """One of the two sequences."""

    name: str
    title: str
    guest: Sequence[str]  #: what runs in the machine, after the report's path
    keys: Mapping[str, set[str]]  #: a report without them is none
    variables: Mapping[str, str] = field(default_factory=dict)
    targets: Sequence[str] = ()  #: built besides modules and tools

    @property
    def report(self) -> Path:
        return BUILD / f"{self.name}.json"

    @property
    def work(self) -> Path:
        return BUILD / self.name


DEMO = Show(
    "demo",
    "cgpu demo. The GPU is SIMULATED (tests/nvsim); kernel, module, daemon and Docker are real.",
    ("guest.py", "build/client/simload"),
    {
        "containers": {"gpu_test1", "gpu_test2"},
        "over_limit": {"status", "neighbour_alive"},
        "ratio": {"asked", "got", "error_pct", "window_s"},
        "after_kill": {"directory_gone", "memory_returned_bytes"},
    },
)
REAL = Show(
    "real",
    "cgpu real. NVIDIA's own libcuda, NVML and nvidia-smi in the containers; the GPU and its kernel driver are "
    "SIMULATED (tests/nvsim); kernel, module, daemon and Docker are real.",
    ("real.py",),
    {
        "containers": {"gpu_test1", "gpu_test2"},
        "over_limit": {"result", "neighbour_alive"},
        "ratio": {"asked", "got", "error_pct"},
        "programs": {"nvidia-smi", "nvidia-smi -L", "pynvml", "gpuload", "walk", *ways.of_branch(550), *ways.LATER},
    },
    {"NVIDIA": "550"},
    ("nvidia",),
)
SHOWS = {show.name: show for show in (DEMO, REAL)}


class Narrator:
    """Prefixes each line with the time since the start and breaks long silences."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = self._start
        self._lock = threading.Lock()
        self._doing = ""
        self._set_up: set[str] = set()
        threading.Thread(target=self._heartbeat, daemon=True).start()

    def say(self, text: str = "") -> None:
        with self._lock:
            self._last = time.monotonic()
            elapsed = int(self._last - self._start)
            print(f"{elapsed // 60}:{elapsed % 60:02d} | {text}".rstrip(), flush=True)

    def step(self, text: str) -> None:
        self._doing = text
        self.say(f"== {text}")

    def follow(self, line: str) -> None:
        """A line of another program; its own steps are steps. Repeated lines of set-up are printed once."""
        if line.startswith("setup: "):
            if line in self._set_up:
                return
            self._set_up.add(line)
        if line.startswith("== "):
            self._doing = line[3:]
        self.say(line)

    def _heartbeat(self) -> None:
        while True:
            time.sleep(1)
            if time.monotonic() - self._last > QUIET_S and self._doing:
                self.say(f"   ... still at it: {self._doing}")


def make(narrator: Narrator, log: Path, *words: str, timeout: float, env: Mapping[str, str] = os.environ) -> int:
    """Run a make target, its lines narrated as they come; all of them also go to a log."""
    with (
        subprocess.Popen(
            ["make", "-s", "-C", str(REPO), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(env),
        ) as process,
        log.open("a") as out,
    ):
        watchdog = threading.Timer(timeout, process.terminate)
        watchdog.start()
        assert process.stdout
        for line in process.stdout:
            out.write(line)
            narrator.follow(line.rstrip("\n"))
        watchdog.cancel()
    return process.returncode


def guest_command(show: Show) -> str:
    script, *rest = show.guest
    return " ".join(["build/venv/bin/python", f"tests/demo/{script}", str(show.report.relative_to(REPO)), *rest])


def docker_config(show: Show) -> Path:
    """dockerd's runtimes: NVIDIA's toolkit is not in Debian's archive, so `nvidia` is cgpu-runtime itself, or what
    scripts/build-cuda has laid out."""
    if branch := show.variables.get("NVIDIA"):
        return BUILD / "cuda" / f"daemon-{branch}.json"
    path = show.work / "daemon.json"
    path.write_text(json.dumps({"runtimes": {"nvidia": {"path": str(BUILD / "bin/cgpu-runtime")}}}, indent=2))
    return path


def read_report(show: Show) -> dict[str, Any]:
    try:
        report = json.loads(show.report.read_text())
    except (OSError, ValueError):
        return {"simulated": True, "ok": False}
    return report if isinstance(report, dict) else {"simulated": True, "ok": False}


def complete(show: Show, report: Mapping[str, Any]) -> bool:
    return all(isinstance(report.get(key), dict) and names <= set(report[key]) for key, names in show.keys.items())


def table(report: Mapping[str, Any]) -> list[str]:
    """The few numbers worth remembering, of what a report has."""
    rows = [("container", "memory MiB", "weight", "works/s at 1:2")]
    for name, box in report.get("containers", {}).items():
        rows.append((name, str(box["total_mib"]), str(box.get("weight", "")), f"{box['work_per_s']:.1f}"))
    lines = ["  ".join(f"{cell:<14}" for cell in row).rstrip() for row in rows]
    ratio, over, kill = report.get("ratio", {}), report.get("over_limit", {}), report.get("after_kill", {})
    got = f"asked {ratio.get('asked')}, got {ratio.get('got')}, error {ratio.get('error_pct')} %"
    lines.append(f"ratio           {got} over {ratio.get('window_s')} s")
    status = over.get("status", over.get("result"))
    lines.append(f"over the limit  status {status}, neighbour alive: {over.get('neighbour_alive')}")
    back = f"{kill.get('memory_returned_bytes')} bytes returned"
    lines.append(f"after the kill  directory gone: {kill.get('directory_gone')}, {back}")
    for name, program in report.get("programs", {}).items():
        lines.append(f"{name:<14}  {program.get('branch')}: {program.get('result')}")
    return lines


def prepare(show: Show, narrator: Narrator, log: Path) -> int:
    """Runs all steps before the machine; returns the status of the first that failed."""
    narrator.step("set-up: packages, kernel images, Python environment (build/)")
    status = make(narrator, log, "setup", timeout=1500)
    if status == 0:
        narrator.step(f"build: kernel modules, cgpu-runtime, programs{', NVIDIA user space' if show.targets else ''}")
        env = {**os.environ, **show.variables}
        status = make(narrator, log, "modules", "tools", *show.targets, timeout=900, env=env)
    return status


def main() -> int:
    show = SHOWS[sys.argv[1]]
    show.work.mkdir(parents=True, exist_ok=True)
    log = show.work / "make.log"
    log.write_text("")
    show.report.unlink(missing_ok=True)
    narrator = Narrator()
    narrator.say(show.title)
    status = prepare(show, narrator, log)
    if status == 0:
        narrator.step("boot: the virtual machine, modules, cgpud, dockerd")
        variables = {
            "DOCKER": "1",
            "PROFILE": "t4",
            "TIMEOUT": str(VM_TIMEOUT_S),
            "DOCKER_CONFIG": str(docker_config(show)),
            **show.variables,
        }
        command = f"CMD={guest_command(show)}"
        env = {**os.environ, **variables}
        status = make(narrator, log, "vm", command, timeout=VM_TIMEOUT_S + 120, env=env)
    report = read_report(show)
    ok = status == 0 and bool(report.get("ok")) and complete(show, report)
    if not ok:
        report["ok"] = False
    show.report.write_text(json.dumps(report, indent=2) + "\n")
    narrator.step("result (simulated GPU)")
    for line in table(report):
        narrator.say(f"  {line}")
    said = "Everything held." if ok else f"NOT everything held (status {status})."
    narrator.say(f"{said} Report: {show.report.relative_to(REPO)}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
