# SPDX-License-Identifier: MIT
"""A plain container for the guest tests: an instance made through inst_ctl, its nodes under /dev/cgpu, no engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPO / "tests/nvsim"))

import nvclient  # noqa: E402

PROC = Path("/proc/cgpu_km")
MIB = 1 << 20
CLIENTS = REPO / "build/client"


def command(text: str) -> None:
    """One write to inst_ctl."""
    fd = os.open(PROC / "inst_ctl", os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def until(what, timeout: float = 30.0, step: float = 0.02):
    """The first true value of what(); fails after @timeout seconds."""
    end = time.monotonic() + timeout
    while not (got := what()):
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(step)
    return got


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
        return self.stat("used_bytes")

    def meminfo(self) -> tuple[int, dict[int, int]]:
        """Free bytes, and bytes by pid."""
        first, *rest = (self.proc / "meminfo").read_text().splitlines()
        return int(first.split()[1]), {int(line.split()[1]): int(line.split()[3]) for line in rest}

    def client(self) -> nvclient.Client:
        return nvclient.Client(self.dev)

    def simload(self, *options: object) -> subprocess.Popen:
        argv = [CLIENTS / "simload", "--dev", self.dev, "--json", *options]
        return subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE, text=True)

    def destroy(self) -> None:
        """Gone, with its directory: nothing of it is open or mapped any more."""
        if self.there():
            command(f"destroy {self.name}")
        until(lambda: not self.there())
        assert not self.proc.exists()

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *exc) -> None:
        self.destroy()


def result(load: subprocess.Popen, timeout: float = 120.0) -> dict:
    """The last line of a simload."""
    out, _ = load.communicate(timeout=timeout)
    return json.loads(out.splitlines()[-1])


def fb_used(gpu: int = 0) -> int:
    """What the simulated card itself says is taken."""
    return int(re.search(r"fb_used=(\d+)", Path(f"/proc/driver/nvsim/{gpu}/state").read_text())[1])
