# SPDX-License-Identifier: MIT
"""NVML's values of the GPUs: from cgpud, else from a child process, since a call into NVML may never return.

cgpud's answer may be two seconds old. A daemon of an earlier version has no such answer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from cgpu_common.model import MIB, Card, Names, ProcessUse
from cgpu_common.proc import LIVE, Paths

from . import daemon

T = TypeVar("T")

CHILD_S = 3.0
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from cgpu_common.gpus import answer; answer(sensors=True)"


class Background(Generic[T]):
    """A call in a thread, which is left behind if it does not return in time."""

    def __init__(self, call: Callable[[], T], default: T) -> None:
        self._found = default
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._found = call()
        except Exception:  # an answer of any form is none; a traceback of a thread would be part of the screen
            return

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def take(self, wait_s: float) -> T:
        """The result, or the default after wait_s."""
        self._thread.join(wait_s)
        return self._found


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def of_row(row: Mapping[str, Any]) -> Card:
    """One row of cgpud's answer. A value of another type is as one that is missing."""
    read: dict[Any, Callable[[Any], Any]] = {"str": _text, "int | None": _number, "float | None": _percentage}
    plain = {one.name: read[one.type](row.get(one.name)) for one in fields(Card) if one.type in read}
    return Card(**plain, processes=_processes(row.get("processes")))


def _percentage(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 100
    return float(value) if known else None


def _processes(rows: Any) -> tuple[ProcessUse, ...]:
    """A row of another form is left out."""
    there = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
    values = ([_number(one.get(key.name)) for key in fields(ProcessUse)] for one in there)
    return tuple(ProcessUse(*(value or 0 for value in found)) for found in values if None not in found)


def _of_child(gpu: Mapping[str, Any]) -> Card:
    """A GPU as the child writes it: cgpu_common.model.NvmlGpu."""
    own = gpu.get("sensors")
    total, used = _number(gpu.get("total_mib")), _number(gpu.get("used_mib"))
    sizes = {
        "total_bytes": total * MIB if total is not None else None,
        "used_bytes": used * MIB if used is not None else None,
    }
    return of_row({**gpu, **(own if isinstance(own, dict) else {}), **sizes})


def by_child() -> list[Card]:
    """Queries NVML in a process of its own."""
    import json  # slow to import, both
    import subprocess

    command = [sys.executable, "-I", "-c", PROGRAM, str(Path(__file__).resolve().parents[1])]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=CHILD_S, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [_of_child(line["gpu"]) for line in lines if isinstance(line, dict) and isinstance(line.get("gpu"), dict)]


def read(paths: Paths) -> list[Card]:
    """By cgpud, else by a child if the module is the running one and the driver is loaded."""
    answer = daemon.request(paths, "gpus")
    if answer is not None:
        return [of_row(row) for row in daemon.rows(answer, "gpus")]
    return by_child() if paths.proc == LIVE and (paths.driver / "version").exists() else []


def names(rows: Iterable[Mapping[str, Any]]) -> dict[str, Names]:
    """Of the containers in cgpud's status, by the kernel's id; of those that share a claim's slice the last one's."""
    out = {}
    for row in rows:
        found = row.get("names")
        if isinstance(found, dict):
            out[_text(daemon.kernel_id(row))] = Names(*(_text(found.get(key)) for key in ("name", "pod", "namespace")))
    return out
