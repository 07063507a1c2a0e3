# SPDX-License-Identifier: MIT
"""Every trace through the core's call table; and proof that the checker detects errors."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
import values
from check import check
from refusals import LIVES_WITHOUT, LIVES_WITHOUT_ON_A_CARD
from tracefile import Event, Item, flat, load, parse

ROOT = Path(__file__).parent / "traces"
TRACES = sorted(ROOT.rglob("*.trace"))
RECORDED = sorted(ROOT.glob("*/*.trace"))
ON_A_CARD = [path for path in RECORDED if "-" in path.parent.name]
#: libcuda uses another number from the branch on that no longer has it.
GONE_LATER = {"NVC36F_CTRL_GET_CLASS_ENGINEID"}


def trace_id(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


@pytest.mark.parametrize("path", TRACES, ids=trace_id)
def test_the_table_takes_it(path):
    trace = load(path)
    checker = check(trace)
    assert not checker.problems, "\n".join(checker.problems)
    calls = [event for event in flat(trace.events) if event.verb == "call"]
    assert len(checker.verdicts) == len(calls) > 0


@pytest.mark.parametrize("path", TRACES, ids=trace_id)
def test_its_header(path):
    """Its maker, and for recorded ones the branch in the name of their folder."""
    header = load(path).header
    if path in RECORDED:
        assert header["made-by"].startswith("rmtap ")
        branch, _, card = path.parent.name.partition("-")
        assert header["driver"].partition(".")[0] == branch
        assert card.upper() in header["gpu"]
        assert ("simulated" in header["gpu"]) == (not card)
    else:
        assert header["made-by"] == "hand"


def number_of(event: Event) -> int:
    """The refused number: of the control, the class, or the call itself."""
    inside = event.fields.get("cmd") or event.fields.get("class")
    return values.number_of(inside or event.words[1].partition("/")[0])


def refused(path: Path) -> set[int]:
    return {
        number_of(event)
        for event in flat(load(path).events)
        if any(expect.side == "cgpu" and expect.refused for expect in event.expects)
    }


@pytest.mark.parametrize("path", RECORDED, ids=trace_id)
def test_the_program_lives_without_what_is_refused(path):
    assert refused(path) <= excuses_of(path).keys()


def excuses_of(path: Path) -> dict[int, str]:
    return (LIVES_WITHOUT_ON_A_CARD if path in ON_A_CARD else LIVES_WITHOUT)[path.stem]


def test_no_excuse_is_dead():
    """Programs with one list share it."""
    for excuses in (*LIVES_WITHOUT.values(), *LIVES_WITHOUT_ON_A_CARD.values()):
        seen = set().union(*(refused(path) for path in RECORDED if excuses_of(path) is excuses))
        assert seen == excuses.keys()


#: UVM's name for the processor, NV_PROCESSOR_UUID_CPU_DEFAULT of nvCpuUuid.h: the same everywhere.
CPU_UUID = "a65e0f4ed7d47ba25047412c142a7773"

#: Paths, a UUID in text, and addresses of the kernel's data: 8 bytes from ffff8000'00000000 to ffffff7f'ffffffff.
PATHS = re.compile(rb"/(bin|dev|etc|home|lib|mnt|opt|proc|root|run|srv|sys|tmp|usr|var)/|(GPU|MIG)-[0-9a-f]{8}")


def shown(items: list[Item]) -> bytes:
    """The numbers and text of a block; names and omitted bytes as zeros."""
    fixed = ("word", "byte", "text")
    return b"".join(values.item_bytes(i, None) if i.kind in fixed else bytes(i.size) for i in items)


@pytest.mark.parametrize("path", ON_A_CARD, ids=trace_id)
def test_nothing_in_it_tells_the_machine(path):
    events = [event for event in flat(load(path).events) if event.verb == "call"]
    assert {event.fields["uuid"] for event in events if "uuid" in event.fields} <= {"$gpu0.uuid", CPU_UUID}
    for event in events:
        for block in event.blocks:
            data = bytes(block.offset % 8) + shown(block.items)
            whole = data[: len(data) // 8 * 8]
            kernel = [hex(n) for (n,) in struct.iter_unpack("<Q", whole) if 0xFFFF8000 <= n >> 32 < 0xFFFFFF80]
            assert not kernel, f"{path.name}:{block.line}"
            assert not PATHS.search(data), f"{path.name}:{block.line}"


#: What 550's libraries call and the branch does not have; 555's libcuda uses another number, as later ones.
ABSENT = {
    "535.261.03": {
        "NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID",
        "NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL",
        "NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE",
        "NV2080_CTRL_CMD_PERF_GET_VID_ENG_PERFMON_SAMPLE",
        "NV_ESC_WAIT_OPEN_COMPLETE",
    },
    "555.58.02": GONE_LATER,
}


@pytest.mark.parametrize("driver", ABSENT)
def test_what_a_branch_leaves_to_550_is_treated_alike_there(driver):
    """The traces of 535 and 555 do not repeat a call that 550's have in the same form."""
    absent = set()
    for path in (ROOT / "550").glob("*.trace"):
        text = path.read_text()
        here, there = (check(parse(text)), check(parse(re.sub(r"(?m)^driver .*", f"driver {driver}", text))))
        changed = {
            (a.name, b.verdict) for a, b in zip(here.verdicts, there.verdicts, strict=True) if a.verdict != b.verdict
        }
        assert {verdict for _, verdict in changed} <= {"unknown"}
        absent |= {name for name, _ in changed}
    assert absent == ABSENT[driver]


@pytest.mark.parametrize("driver", ["580.105.08", "595.44.01"])
@pytest.mark.parametrize("path", RECORDED, ids=trace_id)
def test_a_later_branch_treats_it_alike(path, driver):
    """Sizes change, and are checked where they are known; the verdicts pass, answer and refuse stay."""
    text = path.read_text()
    then, now = (check(parse(text)), check(parse(re.sub(r"(?m)^driver .*", f"driver {driver}", text))))
    changed = {
        (old.call, old.name, old.verdict, new.verdict)
        for old, new in zip(then.verdicts, now.verdicts, strict=True)
        if old.verdict != new.verdict and old.name not in GONE_LATER
    }
    assert not changed


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("0x1f0:NV0000_CTRL_CMD_SYSTEM_GET_FEATURES", "0x1f1", "does not know its control"),
        ("cmd=0x1f0:NV0000_CTRL_CMD_SYSTEM_GET_FEATURES", "cmd=0x1f0:NV0000_CTRL_CMD_OTHER", "the table calls cmd"),
        ("  in params 524: ", "  in params 528: 00000000 ", "with 528 bytes of parameters, the table says 524"),
        ("class=0x80:NV01_DEVICE_0", "class=0x8877", "does not know its control or class"),
        ("0xd6/8:NV_ESC_SYS_PARAMS", "0xd6/8:NV_ESC_OTHER", "the table calls it"),
        ("ctl_fd=@ctl1 -> ok", "ctl_fd=@uvm1 -> ok", "the driver looks for CTL"),
        ("ctl_fd=@ctl1 -> ok", "ctl_fd=0x3 -> ok", "no file at offset 0"),
        ("client=$obj1 object=$device1", "client=$client7 object=$device1", r"\$client7 is not bound"),
        ("close @gpu4", "close @gpu4\nclose @gpu4", "is not open"),
        ("expect cgpu refused status=0x56 # what they", "# what they", "which the trace does not expect"),
        (
            "call @ctl1 0xd6/8:NV_ESC_SYS_PARAMS -> ok",
            "expect cgpu refused status=0x56\ncall @ctl1 0xd6/8:NV_ESC_SYS_PARAMS -> ok",
            "not refused by the table",
        ),
        (
            "0x27/8:UVM_PAGEABLE_MEM_ACCESS -> status=0x0",
            "0x27/16:UVM_PAGEABLE_MEM_ACCESS -> ok",
            "16 bytes",
        ),
        ("driver 550.163.01", "driver 470.1", "not a branch"),
    ],
)
def test_the_checker_sees(old, new, problem):
    text = (ROOT / "550/walk.trace").read_text()
    assert old in text
    assert not check(parse(text)).problems
    found = check(parse(text.replace(old, new))).problems
    assert any(re.search(problem, line) for line in found), found


def test_another_branch_has_other_sizes():
    """The same calls under an older driver: the changes in between are named."""
    text = (ROOT / "cumemalloc.trace").read_text()
    found = "\n".join(check(parse(text.replace("580.105.08", "535.288.01"))).problems)
    for what in ("FERMI_VASPACE_A with 56", "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE with 3", "UVM_MAP_EXTERNAL_ALLOCATION"):
        assert what in found
