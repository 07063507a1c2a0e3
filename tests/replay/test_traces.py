# SPDX-License-Identifier: MIT
"""Every trace through the core's call table; and that the checker sees what it is there to see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from check import check
from tracefile import flat, load, parse

TRACES = sorted((Path(__file__).parent / "traces").glob("*.trace"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_table_takes_it(path):
    trace = load(path)
    checker = check(trace)
    assert not checker.problems, "\n".join(checker.problems)
    calls = [event for event in flat(trace.events) if event.verb == "call"]
    assert len(checker.verdicts) == len(calls) > 0


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_it_says_who_made_it(path):
    made = load(path).header["made-by"]
    assert made == "hand" or made.startswith("rmtap ")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("0x1f0:NV0000_CTRL_CMD_SYSTEM_GET_FEATURES", "0x1f1", "does not know its control"),
        ("cmd=0x1f0:NV0000_CTRL_CMD_SYSTEM_GET_FEATURES", "cmd=0x1f0:NV0000_CTRL_CMD_OTHER", "the table calls cmd"),
        ("  in params 564: ", "  in params 568: 00000000 ", "with 568 bytes of parameters, the table says 564"),
        ("class=0x80:NV01_DEVICE_0", "class=0x8877", "does not know its control or class"),
        ("0xd6/8:NV_ESC_SYS_PARAMS", "0xd6/8:NV_ESC_OTHER", "the table calls it"),
        ("ctl_fd=@ctl1 -> ok", "ctl_fd=@uvm1 -> ok", "the driver looks for CTL"),
        ("ctl_fd=@ctl1 -> ok", "ctl_fd=0x3 -> ok", "no file at offset 0"),
        ("client=$client1 object=$device1", "client=$client7 object=$device1", r"\$client7 is not bound"),
        ("close @uvm2", "close @uvm2\nclose @uvm2", "is not open"),
        ("expect cgpu refused status=0x22 # one", "# one", "which the trace does not expect"),
        ("expect nvsim status=0x56 # no ECC", "expect cgpu refused status=0x56 # no ECC", "not refused by the table"),
        (
            "0x27/8:UVM_PAGEABLE_MEM_ACCESS -> access=0x1 status=0x0",
            "0x27/16:UVM_PAGEABLE_MEM_ACCESS -> ok",
            "16 bytes",
        ),
        ("driver 580.105.08", "driver 470.1", "not a branch"),
    ],
)
def test_the_checker_sees(old, new, problem):
    text = (TRACES[0].parent / "cuinit.trace").read_text()
    assert old in text
    assert not check(parse(text)).problems
    found = check(parse(text.replace(old, new))).problems
    assert any(re.search(problem, line) for line in found), found


def test_another_branch_has_other_sizes():
    """The same calls under an older driver: what changed in between is named."""
    text = (TRACES[0].parent / "cumemalloc.trace").read_text()
    found = "\n".join(check(parse(text.replace("580.105.08", "535.288.01"))).problems)
    for what in ("FERMI_VASPACE_A with 56", "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE with 3", "UVM_MAP_EXTERNAL_ALLOCATION"):
        assert what in found
