# SPDX-License-Identifier: MIT
"""nvsim's statuses of the calls of tests/rm/walk.py against those of NVIDIA's resource manager."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from slicebox import load_nvsim

REPO = Path(__file__).resolve().parents[4]

pytestmark = [pytest.mark.bare]

RM = REPO / "tests/rm"
#: Of RM there are 535 and 550; of other branches no program could be made.
RELEASES = ("535.261.03", "550.163.01", "580.105.08")
#: Where nvsim is not the driver: its own statuses of these calls.
DIFFERS = {
    "channel: of no USERD": 0x57,  # RM allocates one
    "channel: without entries": 0x1F,  # RM does not look at the number
    "map: an address space as addresses": 0x0,  # of RM's, only windows on one
}


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> Iterator[str]:
    load_nvsim(version=request.param)
    yield request.param
    subprocess.run(["rmmod", "nvsim"], check=True)
    subprocess.run(["sh", Path(os.environ["CGPU_RUN"], "nvsim")], check=True)


def walk() -> dict[str, int]:
    """tests/rm is a folder of host tests; only this file of it runs here."""
    spec = importlib.util.spec_from_file_location("rm_walk", RM / "walk.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, int] = module.walk_nodes()
    return found


def test_nvsim_answers_as_rm(release: str):
    answers = tomllib.loads((RM / "answers.toml").read_text())
    found = walk()
    assert found.keys() == answers.keys()
    differs = {name: status for name, status in found.items() if status != answers[name]}
    print(release, {name: f"{status:#x}, RM {answers[name]:#x}" for name, status in differs.items()})
    assert differs == DIFFERS
