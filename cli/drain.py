# SPDX-License-Identifier: MIT
"""Refuse new slices: cgpud checks a file in /run/cgpu at every start of a container (docs/user/upgrade.md).

A file instead of a request: it stays in force when the daemon is restarted or replaced, and ends at the next boot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cgpu_common.exits import CgpuError, Exit, not_permitted
from cgpu_common.model import Container
from cgpu_common.proc import Paths, containers, ended, engine_name, is_loaded

from .names import shown_ids

POLL_S = 0.5
STILL_REFUSED = "new starts are still refused: cgpu uncordon"


def is_on(paths: Paths) -> bool:
    return paths.drain.exists()


def begin(paths: Paths) -> bool:
    """True if it was off."""
    if is_on(paths):
        return False
    try:
        paths.run.mkdir(mode=0o755, parents=True, exist_ok=True)
        paths.drain.touch(mode=0o644)
    except PermissionError as err:
        raise not_permitted(str(paths.drain)) from err
    return True


def undo(paths: Paths) -> bool:
    """True if it was on."""
    try:
        paths.drain.unlink()
    except FileNotFoundError:
        return False
    except PermissionError as err:
        raise not_permitted(str(paths.drain)) from err
    return True


def remaining(paths: Paths) -> tuple[Container, ...]:
    """The containers, with dying and held ones; none without the module."""
    return (*containers(paths), *ended(paths)) if is_loaded(paths) else ()


def names_of(paths: Paths, found: Sequence[Container]) -> list[str]:
    """gpu_test1 (012b2edccd7a, GPU 0), for each."""
    shown = shown_ids([one.id for one in found])
    return [_name_of(paths, one, shown[one.id]) for one in found]


def _name_of(paths: Paths, container: Container, shown: str) -> str:
    name = engine_name(paths, container.id)
    gpus = ", ".join(f"GPU {number}" for number, _ in container.gpus)
    words = [shown, gpus, *(["dying"] if container.dying else [])]
    return f"{name} ({', '.join(words)})" if name else f"{words[0]} ({', '.join(words[1:])})"


def row(paths: Paths, container: Container) -> dict[str, object]:
    return {
        "id": container.id,
        "name": engine_name(paths, container.id),
        "gpus": [number for number, _ in container.gpus],
        "dying": container.dying,
    }


def wait(paths: Paths, timeout_s: float | None, report: Callable[[str], None]) -> None:
    """Wait for the end of all containers. Reports changes. Draining goes on after a time-out."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    reported: tuple[str, ...] = ()
    while there := remaining(paths):
        names = tuple(names_of(paths, there))
        if names != reported:
            report(f"waiting for {len(names)}: {'; '.join(names)}")
            reported = names
        if end is not None and time.monotonic() >= end:
            raise CgpuError(
                Exit.REFUSED,
                "drain",
                f"after {timeout_s:g} s still there: {'; '.join(names)}",
                STILL_REFUSED,
            )
        time.sleep(POLL_S)
