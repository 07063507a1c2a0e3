# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The compiled call table as Python rows: for its tests, make abi-doc and the comparison with the driver.

Here each row has the branches that it holds in; the core's rows have the first one only, and end where the next begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from corelib import C, ffi, lib

KINDS = ("escape", "control", "class", "uvm")


@dataclass(frozen=True)
class Row:
    """One row. @verdict is the enum's name without CGPU_ (a class has a kind, without CGPU_KIND_)."""

    kind: str
    number: int
    size: int
    first: int
    last: int
    verdict: str
    name: str
    source: str
    note: str
    status_at: int = 0
    nodes: int = 0
    copied_in: bool = False
    fd_at: int = 0
    fd_kind: str = "NONE"

    @property
    def refused(self) -> bool:
        return self.verdict in ("REFUSE", "REFUSED")

    def holds(self, branch: int) -> bool:
        return self.first <= branch <= self.last


def enum(typename: str, prefix: str) -> dict[int, str]:
    """Number to name, without the prefix."""
    return {number: name.removeprefix(prefix) for number, name in ffi.typeof(typename).elements.items()}


VERDICTS = enum("enum cgpu_verdict", "CGPU_")
CLASS_KINDS = enum("enum cgpu_kind", "CGPU_KIND_")
FD_KINDS = enum("enum cgpu_fd_kind", "CGPU_FD_")
BRANCHES = tuple(lib.cgpu_branches[i] for i in range(lib.cgpu_branch_count))


def text(pointer) -> str:
    return ffi.string(pointer).decode() if pointer else ""


def row(kind: str, raw, last: int = BRANCHES[-1], like: Row | None = None) -> Row:
    """@raw is a row of the table of @kind, as cffi gives it. A difference has the words of the row @like before it."""
    own = {
        "escape": lambda: {
            "number": raw.nr,
            "size": raw.size,
            "verdict": VERDICTS[raw.verdict],
            "source": text(raw.doc.source),
            "status_at": raw.status_at,
            "nodes": raw.nodes,
        },
        "control": lambda: {
            "number": raw.cmd,
            "size": raw.params_size,
            "verdict": VERDICTS[raw.verdict],
            "source": text(raw.doc.source),
            "copied_in": raw.copied_in,
        },
        "class": lambda: {
            "number": raw.cls,
            "size": raw.params_size,
            "verdict": CLASS_KINDS[raw.kind],
            "source": text(raw.doc.source),
            "copied_in": raw.copied_in,
        },
        "uvm": lambda: {
            "number": raw.nr,
            "size": raw.size,
            "verdict": VERDICTS[raw.verdict],
            "source": "kernel-open/nvidia-uvm/uvm_ioctl.h",
            "status_at": raw.status_at,
        },
    }[kind]()
    if kind != "class":
        own |= {"fd_at": raw.fd_at, "fd_kind": FD_KINDS[raw.fd_kind]}
    words = {"name": text(raw.doc.name), "note": text(raw.doc.note)}
    if like and not words["name"]:
        words = {"name": like.name, "note": like.note}
        own["source"] = like.source
    return Row(kind=kind, first=raw.since, last=last, **words, **own)


NUMBER = {"escape": "nr", "control": "cmd", "class": "cls", "uvm": "nr"}


def histories(kind: str) -> list[list]:
    """The core's rows of each number, the oldest first, the end of a call (GONE) among them."""
    found: dict[int, list] = {}
    for t in tables(kind):
        for i in range(t.count):
            found.setdefault(getattr(t.row[i], NUMBER[kind]), []).append(t.row[i])
    return list(found.values())


def expanded(kind: str, raws: list) -> list[Row]:
    """The rows of one number with the branches that each holds in."""
    rows: list[Row] = []
    for raw in raws:
        later = min((r.since for r in raws if r.since > raw.since), default=BRANCHES[-1] + 1)
        last = max((b for b in BRANCHES if raw.since <= b < later), default=0)
        found = row(kind, raw, last, rows[-1] if rows else None)
        if found.verdict != "GONE":
            rows.append(found)
    return rows


def control_tables() -> list:
    """The sorted tables of controls, in order."""
    return [lib.cgpu_control_tables[i] for i in range(C.CGPU_CONTROL_TABLES)]


def tables(kind: str) -> list:
    """The core's tables of a kind, in order."""
    return {
        "escape": lambda: [lib.cgpu_escapes],
        "control": control_tables,
        "class": lambda: [lib.cgpu_classes],
        "uvm": lambda: [lib.cgpu_uvm_calls],
    }[kind]()


@cache
def table(kind: str) -> list[Row]:
    """All rows of a kind in the order of the tables, without the opaque controls."""
    return [r for raws in histories(kind) for r in expanded(kind, raws)]


@cache
def by_address(kind: str) -> dict[int, Row]:
    """Every row of the core, as its look-ups return it."""
    rows = {}
    for raws in histories(kind):
        held = [raw for raw in raws if row(kind, raw).verdict != "GONE"]
        rows |= {address(raw): one for raw, one in zip(held, expanded(kind, raws), strict=True)}
    if kind == "control":
        rows |= {address(lib.cgpu_controls_opaque.row[i]): one for i, one in enumerate(opaque())}
    return rows


def address(raw) -> int:
    return int(ffi.cast("uintptr_t", ffi.addressof(raw)))


def found(kind: str, pointer) -> Row | None:
    """The row that a look-up of the core returned."""
    return by_address(kind)[int(ffi.cast("uintptr_t", pointer))] if pointer != ffi.NULL else None


def opaque() -> list[Row]:
    """One row for all controls of a kind that cannot be distinguished."""
    t = lib.cgpu_controls_opaque
    return [row("control", t.row[i]) for i in range(t.count)]


def every() -> list[Row]:
    return [r for kind in KINDS for r in table(kind)]
