# SPDX-License-Identifier: MIT
"""Reduces a trace to its distinct calls and to what these need, in the trace's order.

distinct.py FILE…: each file anew, reduced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tracefile import Event, Trace, TraceError, load, symbols, unfolded

RM_FREE, UVM_FREE = "0x29/", "0x22/"
#: CREATE_EXTERNAL_RANGE, MAP_DYNAMIC_PARALLELISM_REGION: a range of addresses that nvidia-uvm serves begins there.
MAKE_RANGE = ("0x49/", "0x41/")
ALLOC_OS_EVENT, FREE_OS_EVENT = "0xce/", "0xcf/"
#: 535's libcuda chooses a handle in the data of this call, where a trace has no name for it.
VID_HEAP_CONTROL = "0x4a/"
HANDLE = re.compile(r"0x5c[0-9a-f]{6}")  # a number of libcuda's for a handle
#: A file serves no client before it is registered, and no range before its address space is made.
FILE_CALLS = ("0xc9/", "0x30000001/")
#: Range groups are numbered in the order of their making.
CREATE_RANGE_GROUP = "0x17/"
#: What ends a thing by its name: left out, a later one of the same number would be refused as a second.
ENDS = ("close", "munmap")
END_CALLS = (RM_FREE, UVM_FREE, FREE_OS_EVENT)
#: What makes no name and later calls depend on: a GPU attached, its file, the GPU registered with nvidia-uvm, its
#: space, a channel, objects on a file.
STATE = ("0x215:", "0xc9/", "0x25/", "0x19/", "0x1b/", "0x4b/", "0x3d0")
#: An object of this class notifies the OS event of the number at this word of its parameters.
OS_EVENT_CLASS, OS_EVENT_WORD = "0x79:", 4


def reduce(trace: Trace, beside: Trace | None = None) -> Trace:
    """The trace of one process without repeated calls, and without those of @beside; it plays as the whole one does."""
    events = unfolded(trace.events)
    if several := next((event for event in events if event.verb in ("as", "fork", "send")), None):
        raise TraceError(f"{trace.where(several)}: a trace of several processes is not reduced")
    theirs = unfolded(beside.events) if beside else []
    seen = {kind for kind, place in kinds(theirs) if not makes_state(theirs[place])}
    kept = needed_by(events, first_ones(events, seen))
    return Trace(trace.header, ending(events, kept), trace.path)


def first_ones(events: list[Event], seen: set[object]) -> set[int]:
    """Places of the first call of each kind that is not among those @seen; of range groups, every one."""
    places, seen = set(), set(seen)
    for kind, place in kinds(events):
        if kind not in seen or call_of(events[place]).startswith(CREATE_RANGE_GROUP):
            seen.add(kind)
            places.add(place)
    return places


def kinds(events: list[Event]) -> Iterator[tuple[object, int]]:
    """Each call's number, size, control, class, size of parameters and result, with its place.

    A mapping is distinct by its file's node, protection and result.
    """
    nodes: dict[str, str] = {}
    for place, event in enumerate(events):
        if event.verb == "open":
            nodes[event.words[0]] = event.words[1].rstrip("0123456789")
        elif event.verb == "mmap":
            yield (nodes.get(event.words[1]), event.fields.get("prot"), str(event.result)), place
        elif event.verb == "call":
            params = event.block("in", "params")
            answer = event.result or {}
            names = (event.words[1], event.fields.get("cmd"), event.fields.get("class"), params and params.size)
            yield (*names, answer.get("status"), answer.get("errno"), *map(str, event.expects)), place


def makes_state(event: Event) -> bool:
    return call_of(event).startswith(STATE) or event.fields.get("cmd", "").startswith(STATE)


def names_of(event: Event) -> tuple[set[str], set[str]]:
    """Symbols, files, events and ranges that the event needs, and those that it binds.

    A range of addresses that nvidia-uvm serves has its base as its name.
    """
    needed, bound = symbols(event)
    words = [item.text for block in event.blocks for item in block.items if item.kind == "word"]
    values = (*event.fields.values(), *(f"0x{word}" for word in words))
    files = {item.text for block in event.blocks for item in block.items if item.kind == "fd"}
    files |= {text for text in (*event.words, *event.fields.values()) if text.startswith("@")}
    made = made_by(event)
    used = {value for value in values if HANDLE.match(value)} | files
    if call_of(event).startswith(FREE_OS_EVENT):
        used.add(os_event_of(event))
    elif event.fields.get("class", "").startswith(OS_EVENT_CLASS):
        used.add(notified_by(event))
    elif not made and event.words[:1] and event.words[0].startswith("@uvm") and "base" in event.fields:
        used.add(base_of(event, "base"))
    return needed | (used - made if event.verb in ("open", "dup") else used), bound | made


def call_of(event: Event) -> str:
    """Number, size and name of a call; "" of another event."""
    return event.words[1] if event.verb == "call" else ""


def made_by(event: Event) -> set[str]:
    """Names beside symbols that the event binds."""
    call = call_of(event)
    if event.verb == "open" or call.startswith(FILE_CALLS):
        return {event.words[0]}
    if event.verb == "dup":
        return {event.words[1]}
    if event.verb == "mmap" and "at" in event.fields:
        return {base_of(event, "at")}
    if call.startswith(ALLOC_OS_EVENT):
        return {os_event_of(event)}
    if call.startswith(MAKE_RANGE):
        return {base_of(event, "base")}
    if call.startswith(VID_HEAP_CONTROL) and (data := event.block("in", "data")):
        return {f"0x{data.items[1].text}"}
    return set()


def os_event_of(event: Event) -> str:
    """The name of the OS event of a file's number."""
    return f"event {event.fields.get('fd')}"


def notified_by(event: Event) -> str:
    """The name of the OS event that an object notifies."""
    words = [item.text for item in event.block("in", "params").items for _ in range(item.count)]
    return f"event {int(words[OS_EVENT_WORD], 16):#x}"


def base_of(event: Event, name: str) -> str:
    """The name of the range that begins at the address in this field."""
    return f"range {event.fields[name]}"


def needed_by(events: list[Event], places: set[int]) -> set[int]:
    """These places and those that bind a name for them: the last one before its use."""
    kept, needed = set(), set()
    for place in reversed(range(len(events))):
        needs, binds = names_of(events[place])
        if place in places or binds & needed:
            kept.add(place)
            needed = (needed - binds) | needs
    return kept


def ending(events: list[Event], kept: set[int]) -> list[Event]:
    """The kept events, and the ends of what they made."""
    out, alive = [], set()
    for place, event in enumerate(events):
        needs, binds = names_of(event)
        ends = event.verb in ENDS or call_of(event).startswith(END_CALLS)
        if place in kept or (ends and needs <= alive):
            out.append(event)
            alive |= binds
            if ends:
                alive -= ended(event)
    return out


def ended(event: Event) -> set[str]:
    """The names that this end takes back."""
    call = call_of(event)
    if call.startswith(RM_FREE):
        return {event.fields["old"].removeprefix("$")}
    if call.startswith(UVM_FREE):
        return {base_of(event, "base")}
    if call.startswith(FREE_OS_EVENT):
        return {os_event_of(event)}
    return {event.words[0].removeprefix("$")}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(reduce(load(Path(name))).text())
