# SPDX-License-Identifier: MIT OR GPL-2.0
"""The compiled call table as Python rows: for its tests, docs/reference/abi.md and the comparison with the driver."""

from __future__ import annotations

from dataclasses import dataclass

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
BRANCHES = tuple(lib.cgpu_branches)


def text(pointer) -> str:
    return ffi.string(pointer).decode() if pointer else ""


def row(kind: str, raw) -> Row:
    """@raw is a row of the table of @kind, as cffi gives it."""
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
    return Row(
        kind=kind, first=raw.min_branch, last=raw.max_branch, name=text(raw.doc.name), note=text(raw.doc.note), **own
    )


def control_tables() -> list:
    """The sorted tables of controls, in order."""
    return [lib.cgpu_control_tables[i] for i in range(C.CGPU_CONTROL_TABLES)]


def table(kind: str) -> list[Row]:
    """All rows of a kind in the order of the tables, without the opaque controls."""
    tables = {
        "escape": lambda: [lib.cgpu_escapes],
        "control": control_tables,
        "class": lambda: [lib.cgpu_classes],
        "uvm": lambda: [lib.cgpu_uvm_calls],
    }[kind]()
    return [row(kind, t.row[i]) for t in tables for i in range(t.count)]


def opaque() -> list[Row]:
    """One row for all controls of a kind that cannot be distinguished."""
    t = lib.cgpu_controls_opaque
    return [row("control", t.row[i]) for i in range(t.count)]


def every() -> list[Row]:
    return [r for kind in KINDS for r in table(kind)]
