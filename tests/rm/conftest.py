# SPDX-License-Identifier: MIT
"""One machine for each driver and chip, kept for the session; after each test the card must be as before it.

At the end build/rm.json: {driver, chips, checks, heap_lost_bytes, ok}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from client import Client
from rm import BRANCHES, CHIPS, Rm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

REPORT = ROOT / "build/rm.json"


class Machine:
    """A started machine, its files of this test, and an observer that stays."""

    def __init__(self, branch: str, chip: str):
        self.branch, self.chip = branch, chip
        self.rm = Rm(branch, chip)
        self.started = self.rm.start()
        self.clients: list[Client] = []
        self.lost_bytes = 0
        if self.started:
            self._warm_up()
            self.observer = Client(self.rm).gpu()
            self.free_bytes = self.observer.heap_free()

    def _warm_up(self) -> None:
        """RM keeps some of what its first channel takes."""
        first = Client(self.rm)
        first.gpu().context()
        first.close()

    def client(self) -> Client:
        """A client whose file is closed after the test."""
        self.clients.append(Client(self.rm))
        return self.clients[-1]

    def settle(self) -> int:
        """Close what the test has opened; bytes of video memory that did not come back."""
        for client in self.clients:
            client.close()
        self.clients = []
        lost = self.free_bytes - self.observer.heap_free()
        self.free_bytes -= lost
        self.lost_bytes += abs(lost)
        self.rm.seen()
        return lost


machines: dict[tuple[str, str], Machine] = {}
checks: dict[str, bool] = {}


@pytest.fixture(params=[(branch, chip) for branch in BRANCHES for chip in CHIPS], ids=lambda p: "-".join(p))
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine of each driver and chip."""
    yield from lend(*request.param)


@pytest.fixture(
    params=[(branch, chip) for branch in BRANCHES for chip in ("TU104", "GA100")], ids=lambda p: "-".join(p)
)
def some_machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """One with each of the two ways in which RM takes a context's memory, for what does not depend on the chip."""
    yield from lend(*request.param)


def lend(branch: str, chip: str) -> Iterator[Machine]:
    here = machines.get((branch, chip))
    if not here or here.rm.process.poll() is not None:
        here = machines[branch, chip] = Machine(branch, chip)
    assert here.started, here.rm.messages()[-4000:]
    yield here
    assert here.settle() == 0, "bytes of video memory did not come back"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A check is a test function: it holds if it held for all drivers and chips, during and after it."""
    name = report.nodeid.rpartition("::")[2].partition("[")[0]
    checks[name] = checks.get(name, True) and report.outcome == "passed"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report."""
    for machine in machines.values():
        machine.rm.__exit__()
    if not checks:
        return
    lost = sum(machine.lost_bytes for machine in machines.values())
    used = sorted(machines)
    report = {
        "driver": {branch: release(branch) for branch in BRANCHES},
        "chips": [chip for chip in CHIPS if any(key[1] == chip for key in used)],
        "checks": dict(sorted(checks.items())),
        "heap_lost_bytes": lost,
        "ok": all(checks.values()) and not lost and len(used) == len(BRANCHES) * len(CHIPS),
    }
    REPORT.write_text(json.dumps(report, indent=2) + "\n")


def release(branch: str) -> str:
    """The exact release: of the unpacked source."""
    return next((ROOT / f"build/nvidia/driver-{branch}/usr/src").iterdir()).name.rpartition("-")[2]
