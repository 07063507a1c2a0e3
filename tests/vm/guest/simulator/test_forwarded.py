# SPDX-License-Identifier: MIT
"""nvforward and nvforwardd under abuse: cgpu_km in User-Mode Linux, in this machine, whose driver is nvsim.

What each step does is in tests/forward/abuse.py. After each nothing is left here: no process, no memory of the card.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import home
import nvclient
import pytest

REPO = Path(__file__).resolve().parents[4]

pytestmark = [pytest.mark.bare, pytest.mark.needs("uml")]  # User-Mode Linux runs in User-Mode Linux

HOME = home.Home(
    linux=REPO / "build/kernels/uml/linux",
    modules=REPO / "build/modules/uml",
    nvforwardd=REPO / "build/client/nvforwardd",
    environment={"PATH": os.environ["PATH"], "HOME": "/tmp", "CARD_IS_SIMULATED": "1"},
)
LIMIT_S = 400
CTX_MS = Path("/sys/module/nvsim/parameters/ctx_ms")


def forwarders() -> list[int]:
    """Processes of nvforwardd."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "exe").readlink().name == "nvforwardd":
                found.append(int(folder.name))
        except OSError:  # it has just ended, or is the kernel's
            continue
    return found


def free_bytes() -> int:
    with nvclient.Client() as rm:
        return rm.gpu().memory()["free"]


def until(condition, why: str, limit_s: float = 20) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, why
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = free_bytes()
    yield
    until(lambda: not forwarders(), "a process of nvforwardd is left")
    assert free_bytes() == before


def play(folder: Path, *step: str) -> home.Outcome:
    outcome = home.play(HOME, folder, list(step), LIMIT_S)
    for line in outcome.results:
        print(json.dumps(line))
    for name in ("inside.log", "console.log", "nvforwardd.log"):
        print(f"---- {name}\n{(folder / step[0] / name).read_text(errors='replace')[-3000:]}")
    return outcome


def is_good(outcome: home.Outcome) -> None:
    assert outcome.why == ""
    assert outcome.results
    assert [one for one in outcome.results if one["ok"] is not True] == []


@pytest.mark.parametrize("step", ["odd", "pinned", "events"])
def test_a_step_of_abuse(tmp_path: Path, step: str) -> None:
    is_good(play(tmp_path, step))


@pytest.mark.more
@pytest.mark.parametrize("step", ["deaths 12", "crowd 40"])
def test_many_processes(tmp_path: Path, step: str) -> None:
    is_good(play(tmp_path, *step.split()))


@pytest.mark.more
def test_a_call_of_the_driver_that_takes_seconds(tmp_path: Path) -> None:
    slow_ms = 4000
    was = CTX_MS.read_text()
    CTX_MS.write_text(str(slow_ms))
    try:
        is_good(play(tmp_path, "hung", str(slow_ms / 1000)))
    finally:
        CTX_MS.write_text(was)


def test_nvforwardd_dies(tmp_path: Path) -> None:
    """The step comes to its end by itself, and the module can be unloaded."""
    results = tmp_path / "lost/results.jsonl"

    def kill() -> None:
        until(lambda: results.exists() and "ready" in results.read_text(), "the step does not begin", LIMIT_S)
        for pid in forwarders():
            with contextlib.suppress(ProcessLookupError):  # it has ended with the first one
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = play(tmp_path, "lost")
    killer.join()
    is_good(outcome)
