# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What the table does not know of the calls that real programs make, and that docs/reference/abi.md says so."""

import runpy
from pathlib import Path

import calltable
import coverage
import pytest
from calltable import BRANCHES
from corelib import lib

from cgpu_cli import branches

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/reference/abi.md").read_text()


def test_the_list_is_whole():
    calls = coverage.calls()
    assert len(calls) > 350
    assert {c.kind for c in calls} == {"escape", "control", "class", "uvm"}
    assert len({(c.kind, c.number, c.name) for c in calls}) == len(calls)


@pytest.mark.parametrize("call", coverage.calls(), ids=lambda c: c.name)
def test_call_is_in_the_table(call):
    """Each call has a row, passed or refused with a reason, or is known to be missing for one."""
    known = (call.kind, call.number) in coverage.MISSING
    rows = coverage.rows_of(call)
    assert bool(rows) != known
    if rows:
        # Two controls are named without CMD in the driver.
        assert call.name.replace("_CMD_", "_") in {r.name.replace("_CMD_", "_") for r in rows}


def test_nothing_is_missing_that_is_not_listed():
    listed = {(c.kind, c.number) for c in coverage.calls()}
    assert set(coverage.MISSING) <= listed


def test_the_commands_know_the_branches():
    """They read the core's file; here the core itself says which ones it accepts."""
    accepted = tuple(one for one in BRANCHES if lib.cgpu_call_knows_driver(f"{one}.999".encode()))
    assert accepted == branches.BRANCHES
    assert tuple(one for one in BRANCHES if one not in accepted) == branches.PARTLY


@pytest.mark.parametrize(
    ("head", "used"),
    [
        ("verdict", {row.verdict for kind in ("escape", "control", "uvm") for row in calltable.table(kind)}),
        ("kind", {row.verdict for row in calltable.table("class")}),
        ("fd", set(calltable.FD_KINDS.values()) - {"NONE"}),
    ],
)
def test_the_page_explains_each_word_of_the_table(head: str, used: set[str]):
    table = PAGE[PAGE.index(f"\n| {head} |") :].split("\n\n")[0].strip().splitlines()[2:]
    assert sorted(line.split("|")[1].strip() for line in table) == sorted(used)


def test_every_row_is_printed():
    """`make abi-doc`."""
    text = runpy.run_path(str(ROOT / "scripts/abi-doc"))["page"]()
    rows = [*calltable.every(), *calltable.opaque()]
    assert sum(line.startswith("| ") for line in text[text.index("## The rows") :].splitlines()) == len(rows) + 8
    assert {row.name for row in rows if f" | {row.name} | {row.size} | {row.verdict} | " not in text} == set()
