# SPDX-License-Identifier: MIT
"""make demo: set up, build, boot Debian's kernel with a simulated GPU, and run the documented lines there.

Standard library only: it runs before anything is installed. Prints a line for every step with the time since the start;
the report is build/demo.json, the exit status says whether every claim held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build"
REPORT = BUILD / "demo.json"
WORK = BUILD / "demo"
QUIET_S = 15.0
VM_TIMEOUT_S = 540

KEYS = {
    "containers": {"gpu_test1", "gpu_test2"},
    "over_limit": {"status", "neighbour_alive"},
    "ratio": {"asked", "got", "error_pct", "window_s"},
    "after_kill": {"directory_gone", "memory_returned_bytes"},
}


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
        """A line of another program; its own steps are steps. What set-up says each time is said once."""
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


def make(narrator: Narrator, *words: str, timeout: float, env: Mapping[str, str] = os.environ) -> int:
    """Run a make target, its lines narrated as they come; all of them also go to build/demo/make.log."""
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
        (WORK / "make.log").open("a") as log,
    ):
        watchdog = threading.Timer(timeout, process.terminate)
        watchdog.start()
        assert process.stdout
        for line in process.stdout:
            log.write(line)
            narrator.follow(line.rstrip("\n"))
        watchdog.cancel()
    return process.returncode


def guest_command() -> str:
    words = [sys_python(), "tests/demo/guest.py", REPORT.relative_to(REPO), "build/client/simload"]
    return " ".join(str(word) for word in words)


def sys_python() -> str:
    return "build/venv/bin/python"


def docker_config() -> Path:
    """dockerd's runtimes: NVIDIA's toolkit is not in Debian's archive, so `nvidia` is cgpu-runtime itself."""
    path = WORK / "daemon.json"
    path.write_text(json.dumps({"runtimes": {"nvidia": {"path": str(BUILD / "bin/cgpu-runtime")}}}, indent=2))
    return path


def read_report() -> dict[str, Any]:
    try:
        report = json.loads(REPORT.read_text())
    except (OSError, ValueError):
        return {"simulated": True, "ok": False}
    return report if isinstance(report, dict) else {"simulated": True, "ok": False}


def complete(report: Mapping[str, Any]) -> bool:
    return all(isinstance(report.get(key), dict) and set(report[key]) == names for key, names in KEYS.items())


def table(report: Mapping[str, Any]) -> list[str]:
    """The few numbers worth remembering."""
    rows = [("container", "memory MiB", "weight", "works/s at 1:2")]
    for name, box in report.get("containers", {}).items():
        rows.append((name, str(box["total_mib"]), str(box["weight"]), f"{box['work_per_s']:.1f}"))
    lines = ["  ".join(f"{cell:<14}" for cell in row).rstrip() for row in rows]
    ratio, over, kill = report.get("ratio", {}), report.get("over_limit", {}), report.get("after_kill", {})
    got = f"asked {ratio.get('asked')}, got {ratio.get('got')}, error {ratio.get('error_pct')} %"
    lines.append(f"ratio           {got} over {ratio.get('window_s')} s")
    lines.append(f"over the limit  status {over.get('status')}, neighbour alive: {over.get('neighbour_alive')}")
    back = f"{kill.get('memory_returned_bytes')} bytes returned"
    lines.append(f"after the kill  directory gone: {kill.get('directory_gone')}, {back}")
    return lines


def main() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "make.log").write_text("")
    REPORT.unlink(missing_ok=True)
    narrator = Narrator()
    narrator.say("cgpu demo. The GPU is SIMULATED (tests/nvsim); kernel, module, daemon and Docker are real.")
    narrator.step("set-up: packages, kernel images, Python environment (build/)")
    status = make(narrator, "setup", timeout=1500)
    if status == 0:
        narrator.step("build: kernel modules, cgpu-runtime, simload")
        status = make(narrator, "modules", "tools", timeout=900)
    if status == 0:
        narrator.step("boot: Debian's kernel in QEMU, modules, cgpud, dockerd")
        variables = {
            "DOCKER": "1",
            "PROFILE": "t4",
            "TIMEOUT": str(VM_TIMEOUT_S),
            "DOCKER_CONFIG": str(docker_config()),
        }
        status = make(
            narrator, "vm", f"CMD={guest_command()}", timeout=VM_TIMEOUT_S + 120, env={**os.environ, **variables}
        )
    report = read_report()
    ok = status == 0 and bool(report.get("ok")) and complete(report)
    if not ok:
        report["ok"] = False
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
    narrator.step("result (simulated GPU)")
    for line in table(report):
        narrator.say(f"  {line}")
    narrator.say(
        f"{'Everything held.' if ok else f'NOT everything held (status {status}).'} Report: {REPORT.relative_to(REPO)}"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
