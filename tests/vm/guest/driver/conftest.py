# SPDX-License-Identifier: MIT
"""The card without cgpu; each test leaves its memory as before. At the end build/driver.json, as build/rm.json."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nvclient
import pytest

REPO = Path(__file__).resolve().parents[4]
REPORT = REPO / "build/driver.json"
DIFFERENCES = REPO / "tests/rm/differences.toml"
#: Beside those of tests/rm, which has no nvidia-uvm: test_a_channel_is_scheduled_after_its_registration.
OWN_DIFFERENCE = {
    "call": "GPFIFO_SCHEDULE: a channel of a space of nvidia-uvm, before UVM_REGISTER_CHANNEL",
    "rm": nvclient.NV_ERR_INVALID_STATE,
    "nvsim": nvclient.NV_OK,
    "reason": "RM schedules a channel when its context's buffers are mapped; nvsim has no such buffers",
}

STARTS = 3

checks: dict[str, bool] = {}
lost_bytes = 0


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


@pytest.fixture(scope="session")
def card(starts: list[bool]) -> Iterator[nvclient.Gpu]:
    """The GPU by NVIDIA's node, which counts the memory of all; RM keeps some of what a first context takes."""
    with nvclient.Node("nvidia0"), nvclient.Client() as client:
        with nvclient.Client() as first:
            space = first.gpu(0).space()
            channel = space.group(nvclient.ENGINE_GR0).channel(enable=False)
            nvclient.check("UVM_REGISTER_CHANNEL", space.bind(channel))
        yield client.gpu(0)


def free_bytes(card: nvclient.Gpu) -> int:
    return card.fb_info(nvclient.FB_HEAP_FREE)[0] << 10


@pytest.fixture(autouse=True)
def nothing_lost(card: nvclient.Gpu) -> Iterator[None]:
    global lost_bytes
    before = free_bytes(card)
    yield
    lost = before - free_bytes(card)
    lost_bytes += abs(lost)
    assert lost == 0, "bytes of video memory did not come back"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A check is a test function: it holds if it held with all parameters, during and after it."""
    if "driver/" not in report.nodeid:
        return
    name = report.nodeid.rpartition("::")[2].partition("[")[0]
    checks[name] = checks.get(name, True) and report.outcome == "passed"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report. A run of chosen tests is none."""
    if not checks or session.config.option.keyword:
        return
    version = Path("/proc/driver/nvidia/version").read_text()
    release = next(word for word in version.split() if word[:1].isdigit() and word.count(".") == 2)
    report = {
        "driver": {release.partition(".")[0]: release},
        "chips": os.environ["CHIPS"].split(","),
        "checks": dict(sorted(checks.items())),
        "differences_to_nvsim": [*tomllib.loads(DIFFERENCES.read_text())["difference"], OWN_DIFFERENCE],
        "heap_lost_bytes": lost_bytes,
        "ok": all(checks.values()) and not lost_bytes,
    }
    REPORT.write_text(json.dumps(report, indent=2) + "\n")
