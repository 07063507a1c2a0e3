# SPDX-License-Identifier: MIT
"""cgpu's call table against RM's own: control numbers and parameter sizes, classes and theirs."""

import tomllib
from pathlib import Path

import calltable
import pytest
from rm import BRANCHES, Rm

UNKNOWN = tomllib.loads((Path(__file__).parent / "unknown.toml").read_text())


def control_size(rm, number):
    """None: RM does not know it."""
    status, _, _, size = rm.control_info(number)
    return None if status else size


def class_size(rm, number):
    known, size, _, _ = rm.class_info(number)
    return size if known else None


@pytest.mark.parametrize(
    ("kind", "size", "listed"), [("control", control_size, "controls"), ("class", class_size, "classes")]
)
def test_sizes_are_rms(kind, size, listed):
    """What RM does not know on some branch is listed, and nothing else is. RM's tables need no card."""
    wrong, unknown = [], set()
    for branch in BRANCHES:
        with Rm(branch) as rm:
            for row in calltable.table(kind):
                if not row.holds(int(branch)):
                    continue
                found = size(rm, row.number)
                if found is None:
                    unknown.add(row.number)
                elif found != row.size:
                    wrong.append((branch, hex(row.number), row.name, row.size, found))
    assert not wrong
    assert unknown == {int(number, 16) for number in UNKNOWN[listed]}
