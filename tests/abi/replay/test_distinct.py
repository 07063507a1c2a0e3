# SPDX-License-Identifier: MIT
"""A reduced trace has each distinct call once, with what it needs, and nothing of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from distinct import first_ones, reduce
from record import beside
from tracefile import TraceError, load, parse, unfolded

ROOT = Path(__file__).parent / "traces"
HEAD = "cgpu-trace 1\ndriver 580.105.08\ngpu Tesla T4\ndate 2026-11-21\nprogram none\nmade-by hand\n\n"
ROOT_CLIENT = "call @ctl1 0x2b/32:NV_ESC_RM_ALLOC -> new=$client1! status=0x0\n"
MEMORY = (
    "call @ctl1 0x2b/48:NV_ESC_RM_ALLOC root=$client1 parent=$client1 class=0x40:NV01_MEMORY_LOCAL_USER"
    " -> new=$mem{}! status=0x0\n  in params 4: 00000001\n"
)
FREE = "call @ctl1 0x29/16:NV_ESC_RM_FREE root=$client1 parent=$client1 old=$mem{} -> status=0x0\n"


def reduced(text: str) -> str:
    return reduce(parse(HEAD + text)).text().partition("\n\n")[2]


def test_a_repeated_call_is_left_out_with_its_end():
    once = "open @ctl1 nvidiactl\n" + ROOT_CLIENT + MEMORY.format(1) + FREE.format(1)
    assert reduced(once + MEMORY.format(2) + FREE.format(2)) == once
    assert reduced("open @gpu1 nvidia0\n" + once + "close @gpu1\n") == once, "a file that no call uses"


def test_another_result_size_or_refusal_is_another_call():
    start = "open @ctl1 nvidiactl\n" + ROOT_CLIENT + MEMORY.format(1)
    for other in (
        MEMORY.format(2).replace("new=$mem2! status=0x0", "status=0x51"),
        MEMORY.format(2).replace("params 4: 00000001", "params 8: 00000001 00000002"),
        "expect cgpu refused status=0x22\n" + MEMORY.format(2),
    ):
        assert reduced(start + other) == start + other


def test_what_makes_a_name_comes_with_its_use():
    """The second memory is like the first; a mapping of it needs it, and it ends where it ended."""
    text = (
        "open @ctl1 nvidiactl\n"
        + ROOT_CLIENT
        + MEMORY.format(1)
        + MEMORY.format(2)
        + FREE.format(1)
        + "open @gpu1 nvidia0\n"
        "call @ctl1 0x4e/56:NV_ESC_RM_MAP_MEMORY client=$client1 memory=$mem2 fd=@gpu1 -> status=0x0\n"
        "mmap $addr1 @gpu1 length=0x1000\n" + FREE.format(2) + "munmap $addr1 length=0x1000\nclose @gpu1\nclose @ctl1\n"
    )
    assert reduced(text) == text


def test_a_handle_without_a_name_is_known_by_its_number():
    """The second of 535's allocations from the heap is like the first, and a mapping needs it."""
    heap = (
        "call @ctl1 0x4a/184:NV_ESC_RM_VID_HEAP_CONTROL root=$client1 parent=$device1 function=0x2 -> status=0x0\n"
        "  in data 8: $client1 {}\n"
    )
    text = (
        "open @ctl1 nvidiactl\nopen @uvm1 nvidia-uvm\n"
        + ROOT_CLIENT
        + heap.format("5c000008")
        + heap.format("5c000009")
        + "call @uvm1 0x21/1200:UVM_MAP_EXTERNAL_ALLOCATION base=0x1000 ctl_fd=@ctl1 memory=0x5c000009 -> status=0x0\n"
        + FREE.format(1).replace("$mem1", "0x5c000009")
    )
    assert reduced(text) == text


def test_an_object_that_notifies_needs_its_event_and_a_state_its_maker():
    """Neither has a name in the call that needs it; what 550's trace has is kept for it too."""
    start = "open @ctl1 nvidiactl\n" + ROOT_CLIENT
    events = (
        "call @ctl1 0xce/16:NV_ESC_ALLOC_OS_EVENT client=$client1 fd={} -> status=0x0\n"
        "call @ctl1 0x2b/48:NV_ESC_RM_ALLOC root=$client1 parent=$client1 new=$event{}! class=0x79:NV01_EVENT_OS_EVENT"
        " -> {}\n  in params 24: $client1 00000000 00000079 3800000c 000000{} 00000000\n"
    )
    first, second = events.format("0x11", 1, "status=0x0", 11), events.format("0x12", 2, "status=0x3b", 12)
    assert reduced(start + first + second) == start + first + second
    attached = (
        "call @ctl1 0x2a/32:NV_ESC_RM_CONTROL client=$client1 object=$client1 cmd=0x215:NV0000_CTRL_CMD_GPU_ATTACH_IDS"
        " -> status=0x0\n"
    )
    known = parse(HEAD + start + attached + MEMORY.format(1))
    other = MEMORY.format(1).replace("params 4: 00000001", "params 8: 00000001 00000002")
    left = reduce(parse(HEAD + start + attached + MEMORY.format(2) + other), known).text().partition("\n\n")[2]
    assert left == start + attached + other


def test_loops_are_opened_and_several_processes_refused():
    start = "open @ctl1 nvidiactl\n" + ROOT_CLIENT
    assert reduced(start + "repeat 3\n" + MEMORY.format(1) + FREE.format(1) + "end\n") == (
        start + MEMORY.format(1) + FREE.format(1)
    )
    with pytest.raises(TraceError, match=r"trace:10: a trace of several processes"):
        reduced(start + "fork p2\n")


@pytest.mark.parametrize("path", sorted(ROOT.glob("5[0-9][0-9]/*.trace")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_recordings_of_the_simulated_driver_are_reduced(path: Path):
    """By make record; those of other branches to what 550's does not have."""
    assert reduce(load(path), beside(path)).text() == path.read_text()


@pytest.mark.parametrize("name", ["walk", "nvidia-smi"])
def test_what_550_does_not_have_is_kept_with_its_need(name: str):
    """The same recording without a kind of call: that call, and what makes its names."""
    whole = load(ROOT / f"550/{name}.trace")
    known = load(ROOT / f"550/{name}.trace")
    lost = next(event for event in reversed(known.events) if "class" in event.fields)
    known.events.remove(lost)
    left = reduce(whole, known)
    assert lost in left.events
    assert reduce(left).text() == left.text()
    assert len(left.events) * 3 < len(whole.events)


def test_a_sequence_of_a_card_has_repeated_calls():
    events = unfolded(load(ROOT / "580-h100/torch.trace").events)
    assert len(first_ones(events, set())) * 3 < sum(event.verb == "call" for event in events)
