# SPDX-License-Identifier: MIT
"""The steps that module-run has for a card (tests/forward/card.py), over nvsim without the forwarder, in exact time.

What they say of a card is another matter: here each must come to its end with good results, or name what is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda_box import WAVE_NS
from slicebox import PROC, REPO

pytestmark = [pytest.mark.cuda_icount, pytest.mark.more]

KERNEL_US, WAVES = 10_000, 4
STEPS = (
    "nodes",
    "vectoradd",
    "faults",
    "alone 2",
    "shares 3",
    "limits",
    "kinds",
    "ipc",
    "newer",
    "charges",
    "costs 2",
    "calls 20",
    "takeover 2",
)
TORCH_STEPS = ("torch", "torch_shares 2", "priority 2", "decode 2")
SETTINGS = ("policy", "prio_ratio", "max_inst", "uvm")


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """As before; kernels as long as on the simulated card of the rehearsals."""
    before = {name: (PROC / "0" / name).read_text().strip() for name in SETTINGS}
    wave = WAVE_NS.read_text()
    WAVE_NS.write_text(str(KERNEL_US * 1000 // WAVES))
    yield
    WAVE_NS.write_text(wave)
    for name, value in before.items():
        (PROC / "0" / name).write_text(value)


def results_of(folder: Path, step: str, **more: str) -> list[dict]:
    environment = os.environ | {"CARD_IS_SIMULATED": "1", "GPULOAD_KERNEL_US": str(KERNEL_US)} | more
    command = [sys.executable, REPO / "tests/forward/inside.py", folder, *step.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_comes_to_a_good_end(tmp_path: Path, step: str) -> None:
    results = results_of(tmp_path, step)
    assert results
    assert [one for one in results if one["ok"] is False] == []


@pytest.mark.parametrize("step", TORCH_STEPS)
def test_a_step_names_what_is_missing(tmp_path: Path, step: str) -> None:
    (result,) = results_of(tmp_path, step)
    assert result["missing"] == "PyTorch is not installed"


@pytest.mark.parametrize("step", TORCH_STEPS)
def test_a_step_runs_on_the_standin(tmp_path: Path, step: str) -> None:
    """Its control flow: processes, settings, windows. No result of it is taken for one."""
    folder = str(REPO / "tests/forward/standin")
    results = results_of(tmp_path, step, TORCH_IS_STANDIN="1", PYTHONPATH=folder)
    assert len(results) >= 2
    assert {(one["ok"], one["missing"]) for one in results} == {
        (None, "PyTorch is a stand-in: this is the control flow")
    }
