# SPDX-License-Identifier: MIT
"""How a bench runs its other half in a virtual machine and gets figures back; and the names a user may give it."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
# Clears the caller's variables for machines: a bench sets its own.
NOTHING = dict.fromkeys(("BARE", "DOCKER", "GPUS", "PROFILE", "CPUS", "CMD", "ICOUNT", "APPEND"), "")
DEFAULTS = {"DAEMON": "0", "KERNEL": "6.1", "PYTHONPATH": "tests", "TIMEOUT": "600"}


class Failed(Exception):
    """The machine or the bench in it failed: no figures."""


def unknown(names: Iterable[str], known: Iterable[str], kind: str) -> str | None:
    """A sentence about the first name that is not known, with the nearest that is."""
    known = list(dict.fromkeys(known))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            return f"no {kind} is called '{name}', the nearest is '{near}'"
    return None


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
