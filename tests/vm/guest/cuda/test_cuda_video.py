# SPDX-License-Identifier: MIT
"""A decoder of NVIDIA's own libnvcuvid in a slice: made, charged, counted, limited, frozen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_box as c
import docker_box as d
import pytest
from slicebox import MIB, PROC, command, fb_used, until
from slicebox import nvclient as nv

pytestmark = pytest.mark.cuda

NAME = "3d" * 32
LIMIT = 1024 * MIB
STARTED: list[subprocess.Popen[str]] = []
ANSWER = bytearray()  #: of the last one, so far
SESSIONS = Path("/sys/module/cgpu_km/parameters/nvdec_sessions")


@pytest.fixture
def dev() -> Iterator[str]:
    """The nodes of a plain container; nothing of it may be left."""
    before = fb_used(0)
    command(f"create {NAME} gpu=0 memsize={LIMIT}")
    try:
        yield f"/dev/cgpu/{NAME[:12]}"
        while STARTED:
            STARTED.pop().kill()  # what a failed test has left
        until(lambda: stat("used_bytes") == 0)
        until(lambda: fb_used(0) == before)
    finally:
        command(f"destroy {NAME}")


def stat(name: str, of: str = NAME[:12]) -> int:
    text = (PROC / "0" / of / "stat").read_text()
    return int(dict(line.split(" ", 1) for line in text.splitlines())[name])


def start(*head: str, sessions: int = 1) -> subprocess.Popen[str]:
    argv = [*head, str(d.BUILD / "cuda/video"), "decode", str(sessions)]
    ANSWER.clear()
    pipe = subprocess.PIPE
    STARTED.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
    return STARTED[-1]


def said(run: subprocess.Popen[str]) -> dict[str, Any]:
    """What it has to say while its decoders are there."""
    assert run.stdout
    line = run.stdout.readline()
    assert line, run.communicate()
    found: dict[str, Any] = json.loads(line)
    return found


def end(run: subprocess.Popen[str]) -> dict[str, int]:
    rest, errors = run.communicate("\n", timeout=300)
    assert rest, errors
    after: dict[str, int] = json.loads(rest)["after"]
    return after


def frame(run: subprocess.Popen[str], timeout: float) -> dict[str, int] | None:
    """Another frame: its results, None if it has not ended in time."""
    assert run.stdin and run.stdout
    run.stdin.write("frame\n")
    run.stdin.flush()
    return answer(run, timeout)


def answer(run: subprocess.Popen[str], timeout: float) -> dict[str, int] | None:
    """The program prints each call's result as it comes: a part of the line says only that the frame has begun."""
    assert run.stdout
    until_s = time.monotonic() + timeout
    while b"\n" not in ANSWER:
        if not select.select([run.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
            return None
        ANSWER.extend(os.read(run.stdout.fileno(), 4096))
    found: dict[str, int] = json.loads(ANSWER)["frame"]
    ANSWER.clear()
    return found


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """The container has no weight under the policy that needs one, and the call that freezes it has returned."""
    weight = PROC / "0" / NAME[:12] / "weight"
    before = weight.read_text()
    weight.write_text("0")
    try:
        calls = stat("control_calls", of="")
        (PROC / "0/policy").write_text("2")
        until(lambda: stat("running") == 0 and stat("control_calls", of="") > calls)
        yield
    finally:
        (PROC / "0/policy").write_text("5")
        weight.write_text(before)


def frames_done() -> int:
    """By the simulated card's own count."""
    text = Path("/proc/driver/nvsim/0/tsgs").read_text()
    return sum(int(done) for done in re.findall(rf"engine={nv.NV2080_ENGINE_TYPE_NVDEC0} .*works=(\d+)", text))


def test_a_decoder_on_the_simulated_driver_alone() -> None:
    """nvsim knows what libnvcuvid asks of a driver: without that no result in a slice means anything."""
    run = start()
    made = said(run)
    assert made["steps"].pop("supported") == 1
    assert set(made["steps"].values()) == {0}, made
    assert (made["sessions"], made["frames"]) == (1, 1)
    assert set(end(run).values()) == {0}
    assert run.returncode == 0


def test_a_decoder_as_without_cgpu(dev: str) -> None:
    """Its channel's error notifier is a context DMA."""
    runs = []
    for head in ((), c.in_nodes(dev)):
        run = start(*head)
        made = said(run)
        if head:
            assert stat("nvdec") == 1
            assert stat("used_bytes") > 0
        runs.append((made, end(run), run.returncode))
    assert runs[1] == runs[0]
    assert (runs[1][0]["sessions"], runs[1][0]["frames"], runs[1][2]) == (1, 1, 0)
    assert stat("nvdec") == 0


def test_a_frame_waits_while_the_container_is_frozen(dev: str) -> None:
    """libnvcuvid gives it to the engine, which begins no work of the container; it is done after the thaw."""
    run = start(*c.in_nodes(dev))
    made = said(run)
    assert (made["sessions"], made["frames"]) == (1, 1)
    assert frame(run, 60) is not None
    with frozen():
        done = frames_done()
        assert frame(run, 2) is None
        assert frames_done() == done > 0
    thawed = answer(run, 60)
    assert thawed is not None and set(thawed.values()) == {0}
    assert frames_done() > done
    assert set(end(run).values()) == {0}
    assert run.returncode == 0


def test_decoders_at_the_limit(dev: str, kernel_log: Any) -> None:
    """The session that is one too many is refused, with a sentence; those before it work."""
    kernel_log.news()
    before = SESSIONS.read_text()
    SESSIONS.write_text("91")  # 80 to give: 38 are other containers' floors
    try:
        run = start(*c.in_nodes(dev), sessions=50)
        made = said(run)
        assert made["steps"]["cuvidCreateDecoder"] != 0
        assert (made["sessions"], made["frames"]) == (42, 1)
        assert (stat("nvdec"), stat("nvdec_left")) == (42, 0)
        assert re.search(r"1 sessions of NVDEC refused, it has 42 and may have 0 more", kernel_log.news())
        assert set(end(run).values()) == {0}
    finally:
        SESSIONS.write_text(before)
