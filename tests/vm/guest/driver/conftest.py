# SPDX-License-Identifier: MIT
"""The card without cgpu; each test leaves its memory as before. At the end build/driver.json, as build/rm.json.

It has the outcome of every boot with this driver so far: one, two, a pair and exact time, 550 and 535.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import nvclient
import pytest
from driver_box import free_bytes

REPO = Path(__file__).resolve().parents[4]
REPORT = REPO / "build/driver.json"
#: Of each boot and branch; a whole run of scripts/test-levels begins without them.
PARTS = REPO / "build/junit"
#: Where nvsim answers otherwise (tests/rm/walk.py finds no call): test_a_channel_is_scheduled_after_its_registration.
OWN_DIFFERENCE = {
    "call": "GPFIFO_SCHEDULE: a channel of a space of nvidia-uvm, before UVM_REGISTER_CHANNEL",
    "rm": nvclient.NV_ERR_INVALID_STATE,
    "nvsim": nvclient.NV_OK,
    "reason": "RM schedules a channel when its context's buffers are mapped; nvsim has no such buffers",
}

STARTS = 3

checks: dict[str, bool] = {}
lost_bytes = 0


def nodes() -> list[str]:
    return [f"nvidia{number}" for number in range(len(os.environ["CHIPS"].split(",")))]


@pytest.fixture(scope="session")
def starts() -> list[bool]:
    """The driver's starts in this boot before anything holds the GPU, each ended by the close of its only file."""
    done = []
    for _ in range(STARTS):
        try:
            with nvclient.Node("nvidia0"), nvclient.Client() as client:
                client.gpu(0)
            done.append(True)
        except (OSError, nvclient.RmError):
            done.append(False)
    return done


class Cards:
    """The GPUs by NVIDIA's nodes, which count the memory of all; RM keeps some of what a first context takes."""

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self.gpus: list[nvclient.Gpu] = []

    def open(self) -> list[nvclient.Gpu]:
        if self.gpus:
            return self.gpus
        for node in nodes():
            self._held.enter_context(nvclient.Node(node))
        with nvclient.Client() as first:
            for number in range(len(nodes())):
                space = first.gpu(number).space()
                channel = space.group(nvclient.NV2080_ENGINE_TYPE_GRAPHICS).channel(enable=False)
                nvclient.check("UVM_REGISTER_CHANNEL", space.bind(channel))
        client = self._held.enter_context(nvclient.Client())
        self.gpus = [client.gpu(number) for number in range(len(nodes()))]
        return self.gpus

    def close(self) -> None:
        """Nothing of these holds the driver any more."""
        self._held.close()
        self.gpus = []


CARDS = Cards()


@pytest.fixture
def cards(starts: list[bool]) -> list[nvclient.Gpu]:
    return CARDS.open()


@pytest.fixture
def no_cards() -> None:
    CARDS.close()


@pytest.fixture
def card(cards: list[nvclient.Gpu]) -> nvclient.Gpu:
    return cards[0]


@pytest.fixture(autouse=True)
def nothing_lost(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a test that leaves the driver loaded and its cards open."""
    global lost_bytes
    if "no_cards" in request.fixturenames:
        yield
        return
    cards = request.getfixturevalue("cards")
    before = [free_bytes(card) for card in cards]
    yield
    lost = [was - free_bytes(card) for was, card in zip(before, cards, strict=True)]
    lost_bytes += sum(map(abs, lost))
    assert not any(lost), "bytes of video memory did not come back"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A check is a test function: it holds if it held with all parameters, during and after it."""
    if "driver/" not in report.nodeid:
        return
    name = report.nodeid.rpartition("::")[2].partition("[")[0]
    checks[name] = checks.get(name, True) and report.outcome == "passed"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write this boot's part and put the report together. A run of chosen tests is none."""
    CARDS.close()
    if not checks or session.config.option.keyword:
        return
    version = Path("/proc/driver/nvidia/version").read_text()
    release = next(word for word in version.split() if word[:1].isdigit() and word.count(".") == 2)
    branch = release.partition(".")[0]
    part = {"driver": {branch: release}, "chips": os.environ["CHIPS"].split(","), "checks": checks, "lost": lost_bytes}
    name = f"{session.config.option.boot}-{branch}"
    PARTS.mkdir(parents=True, exist_ok=True)
    (PARTS / f"driver-{name}.part").write_text(json.dumps(part))
    parts = [json.loads(path.read_text()) for path in sorted(PARTS.glob("driver-*.part"))]
    held: dict[str, bool] = {}
    for name, ok in [pair for part in parts for pair in part["checks"].items()]:
        held[name] = held.get(name, True) and ok
    lost = sum(part["lost"] for part in parts)
    report = {
        "driver": {branch: release for part in parts for branch, release in part["driver"].items()},
        "chips": sorted({chip for part in parts for chip in part["chips"]}),
        "checks": dict(sorted(held.items())),
        "differences_to_nvsim": [OWN_DIFFERENCE],
        "heap_lost_bytes": lost,
        "ok": all(held.values()) and not lost,
    }
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
