# SPDX-License-Identifier: MIT
"""A Python program with rmlever in it, whose driver says yes to all (rmtap/fake_nodes.c)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NVSIM = Path(__file__).resolve().parents[1] / "rmclient"
PRELUDE = f"import os, sys; sys.path.insert(0, {str(NVSIM)!r}); import nvclient as nv\n"
CONTEXT = """
rm = nv.Client().__enter__()
group = rm.gpu().space().group()
one, two = group.channel(), group.channel()
"""


class Process:
    """A Python program with rmlever in it; it prints what it has to say and ends when its input does."""

    def __init__(self, built: Path, folder: Path, program: str, **env: str):
        environment = {
            **os.environ,
            "LD_PRELOAD": f"{built / 'librmlever.so'} {built / 'fake.so'}",
            "RMLEVER_DIR": str(folder),
            **env,
        }
        argv = [sys.executable, "-u", "-c", PRELUDE + program + "\nprint('ready')\nsys.stdin.read()\n"]
        self.process = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = []
        while (line := self.process.stdout.readline()) not in ("ready\n", ""):
            self.said.append(line.strip())
        self.socket = folder / f"{self.process.pid}.sock"

    def end(self) -> int:
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(10)
