# SPDX-License-Identifier: MIT
"""cgpu's call table against RM's own: control numbers and parameter sizes, classes and theirs."""

import tomllib
from pathlib import Path

import calltable
import pytest
from rm import BRANCHES, Rm

UNKNOWN = tomllib.loads((Path(__file__).parent / "unknown.toml").read_text())


@pytest.fixture(scope="module", params=BRANCHES)
def rm(request):
    """RM's tables need no card."""
    with Rm(request.param) as rm:
        yield rm


def rows(rm, kind):
    return [row for row in calltable.table(kind) if row.holds(int(rm.branch))]


def test_control_sizes_are_rms(rm):
    wrong, unknown = [], set()
    for row in rows(rm, "control"):
        status, _, _, size = rm.control_info(row.number)
        if status:
            unknown.add(row.number)
        elif size != row.size:
            wrong.append((hex(row.number), row.name, row.size, size))
    assert not wrong
    assert unknown <= {int(number, 16) for number in UNKNOWN["controls"]}


def test_class_sizes_are_rms(rm):
    wrong, unknown = [], set()
    for row in rows(rm, "class"):
        known, size, _, _ = rm.class_info(row.number)
        if not known:
            unknown.add(row.number)
        elif size != row.size:
            wrong.append((hex(row.number), row.name, row.size, size))
    assert not wrong
    assert unknown <= {int(number, 16) for number in UNKNOWN["classes"]}


def test_the_lists_of_unknown_numbers_are_needed():
    """Each number of the lists is one that RM does not know on some branch that has a row of it."""
    needed = {"controls": set(), "classes": set()}
    for branch in BRANCHES:
        with Rm(branch) as rm:
            needed["controls"] |= {row.number for row in rows(rm, "control") if rm.control_info(row.number)[0]}
            needed["classes"] |= {row.number for row in rows(rm, "class") if not rm.class_info(row.number)[0]}
    assert {kind: {int(number, 16) for number in UNKNOWN[kind]} for kind in needed} == needed
