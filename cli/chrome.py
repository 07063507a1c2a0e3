# SPDX-License-Identifier: MIT
"""Chrome's trace format, which ui.perfetto.dev and chrome://tracing open, written and read. Pure.

Google's "Trace Event Format": complete events (X), counters (C), instants (i) and metadata (M), times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SIZE_MAX = 256 << 20  # of a file that is read


class BadTrace(Exception):
    """The text is not such a trace; the reason."""


@dataclass(frozen=True)
class Span:
    """An interval in which a container ran."""

    track: int
    begin_us: float
    end_us: float
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Instant:
    at_us: float
    text: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Counter:
    at_us: float
    name: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Process:
    """One GPU: its tracks are its containers, by name. @about: of each container, kept in the trace."""

    number: int
    title: str
    tracks: Sequence[str]
    spans: Sequence[Span] = ()
    counters: Sequence[Counter] = ()
    instants: Sequence[Instant] = ()
    about: Sequence[Mapping[str, Any]] = ()


def _named(kind: str, pid: int, tid: int, name: str, **more: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name, **more}}


def _events(process: Process) -> Iterable[dict[str, Any]]:
    pid = process.number
    yield _named("process_name", pid, 0, process.title)
    for number, name in enumerate(process.tracks):
        about = process.about[number] if process.about else {}
        yield _named("thread_name", pid, number + 1, name, **about)
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": number + 1, "args": {"sort_index": number}}
    for span in process.spans:
        yield {
            "ph": "X",
            "name": process.tracks[span.track],
            "cat": "gpu",
            "pid": pid,
            "tid": span.track + 1,
            "ts": round(span.begin_us, 3),
            "dur": round(span.end_us - span.begin_us, 3),
            "args": dict(span.args),
        }
    for counter in process.counters:
        yield {
            "ph": "C", "name": counter.name, "pid": pid, "tid": 0, "ts": round(counter.at_us, 3),
            "args": {name: round(value, 2) for name, value in counter.values.items()},
        }  # fmt: skip
    for one in process.instants:
        yield {
            "ph": "i", "s": "p", "name": one.text, "pid": pid, "tid": 0, "ts": round(one.at_us, 3),
            "args": dict(one.args),
        }  # fmt: skip


def document(processes: Sequence[Process], about: Mapping[str, Any]) -> str:
    """The file's text. @about: of the whole trace."""
    events = [event for process in processes for event in _events(process)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}) + "\n"


def _number(event: Mapping[str, Any], key: str) -> float:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e13:
        raise BadTrace(f"{key} of an event is {value!r}")
    return float(value)


def _place(event: Mapping[str, Any]) -> tuple[int, int]:
    return int(_number(event, "pid")), int(_number(event, "tid"))


def parse(text: str) -> list[Process]:
    """The processes of a trace with their tracks and spans. Events of other kinds are left out."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise BadTrace(f"no JSON: {err}") from None
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise BadTrace("it has no list of traceEvents")
    names: dict[tuple[int, int], Mapping[str, Any]] = {}
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        args = event.get("args")
        if event.get("ph") == "M" and event.get("name") == "thread_name" and isinstance(args, dict):
            names[_place(event)] = args
        if event.get("ph") == "X":
            begin = _number(event, "ts")
            spans.setdefault(_place(event), []).append((begin, begin + _number(event, "dur")))
    found = []
    by_pid: dict[int, list[int]] = {}
    for pid, tid in sorted(names.keys() | spans.keys()):
        by_pid.setdefault(pid, []).append(tid)
    for pid, tids in by_pid.items():
        titles = [str(names.get((pid, tid), {}).get("name", f"c{tid}")) for tid in tids]
        own = [
            Span(place, begin, end)
            for place, tid in enumerate(tids)
            for begin, end in sorted(spans.get((pid, tid), ()))
        ]
        found.append(Process(pid, f"GPU {pid}", titles, own, about=[names.get((pid, tid), {}) for tid in tids]))
    return found
