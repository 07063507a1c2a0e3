# SPDX-License-Identifier: MIT
"""A minute of `make soak`, with a fixed seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slicebox import REPO

pytestmark = pytest.mark.long

MINUTES = 1
SEED = 18
#: Beside another machine on two processors; a quarter of what a minute does alone.
LEAST = {"actions": 30, "containers": 5, "faults": 1, "swaps": 1}


def test_a_minute_of_soak() -> None:
    words = [sys.executable, REPO / "tests/soak/soak.py", str(MINUTES), str(SEED)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(Path(os.environ["CGPU_RUN"], "soak.json").read_text())
    print(report)
    assert {name: report[name] >= least for name, least in LEAST.items()} == dict.fromkeys(LEAST, True), report
