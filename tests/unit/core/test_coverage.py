# SPDX-License-Identifier: MIT OR GPL-2.0
"""What the table does not know of the calls that real programs make, and that docs/reference/abi.md says so."""

import subprocess
import sys
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[3]


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


def test_the_page_is_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "scripts/abi-doc", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
