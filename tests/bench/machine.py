# SPDX-License-Identifier: MIT
"""How a bench runs its other half in a virtual machine and gets figures back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
# Clears the caller's variables for machines: a bench sets its own.
NOTHING = dict.fromkeys(("BARE", "DOCKER", "GPUS", "PROFILE", "CPUS", "CMD", "ICOUNT", "APPEND"), "")
DEFAULTS = {"DAEMON": "0", "KERNEL": "6.1", "PYTHONPATH": "tests", "TIMEOUT": "600"}


class Failed(Exception):
    """The machine or the bench in it failed: no figures."""


def boot(command: str, **variables: str) -> Any:
    """The JSON in the last line of what the command prints in a machine with these variables."""
    done = subprocess.run(
        [sys.executable, "-m", "vm.harness", "run", command],
        cwd=REPO,
        env=os.environ | NOTHING | DEFAULTS | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        profile = variables.get("PROFILE", "")
        raise Failed(f"{profile + ': ' if profile else ''}the machine ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])
