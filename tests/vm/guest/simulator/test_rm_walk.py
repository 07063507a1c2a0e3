# SPDX-License-Identifier: MIT
"""nvsim's statuses of the calls of tests/rm/walk.py against those of NVIDIA's resource manager."""

import importlib.util
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[4]

pytestmark = [pytest.mark.bare]

RM = REPO / "tests/rm"


def walk():
    """tests/rm is a folder of host tests; only this file of it runs here."""
    spec = importlib.util.spec_from_file_location("rm_walk", RM / "walk.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.walk_nodes()


def test_nvsim_answers_as_rm():
    assert walk() == tomllib.loads((RM / "answers.toml").read_text())
