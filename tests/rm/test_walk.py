# SPDX-License-Identifier: MIT
"""RM's statuses of the calls that nvsim gets too (tests/vm/guest/simulator/test_rm_walk.py)."""

import tomllib
from pathlib import Path

from client import Client
from walk import walk

ANSWERS = tomllib.loads((Path(__file__).parent / "answers.toml").read_text())


def test_the_answers_are_rms(machine):
    assert walk(lambda: Client(machine.rm)) == ANSWERS
