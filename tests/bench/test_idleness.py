# SPDX-License-Identifier: MIT
"""docs/reference/policies.md, section 9: time unused while a container sleeps, and its wait when it wakes.

And docs/develop/scheduler.md: the gain of a busy container from another that leaves the GPU.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scenarios import DOCUMENTED

from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, Container, Personality, S, Setup, profile
from cgpu_cli.sim.turns import Turns

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "reference/policies.md").read_text()
A100 = profile("a100")
SECONDS = 30


def part_of_the_busy(card: str, other: Container) -> float:
    """The part of an always busy container beside another, in percent of its half."""
    containers = (Container("busy", kernel_us=500, depth=64), other)
    gpu = Gpu(profile(card), Personality(tail_pct=0), containers, 11 * S, 1)
    turns = Turns(gpu, Setup(profile(card), 1, 5000, run_state="none"), containers)
    turns.run(S)
    gpu.mark()
    turns.run(11 * S)
    return 200 * gpu.held()[0] / (gpu.now - S)


def test_what_the_page_says_of_overlaps() -> None:
    """The use of time that one container leaves while both can run."""
    page = (DOCS / "develop/scheduler.md").read_text()
    section = " ".join(page.split("\n## What the account does not see")[1].split("\n## ")[0].split())
    short, idle = Container("short", kernel_us=100, depth=1), Container("idle", kernel_us=500, on_ms=1, off_ms=1e6)
    deep = re.search(r"at 5 ms ([\d.]+) % of its part", section)
    assert deep
    over = re.search(r"up to ([\d.]+) % more than its part at 5 ms \(H200; A100 ([\d.]+)\)", section)
    assert over
    assert part_of_the_busy("a100", short) == pytest.approx(float(deep[1]), abs=0.3)
    assert part_of_the_busy("h200", idle) == pytest.approx(100 + float(over[1]), abs=0.3)
    assert part_of_the_busy("a100", idle) == pytest.approx(100 + float(over[2]), abs=0.3)


def rows() -> list[list[str]]:
    lines = PAGE.split("\n## 9. ")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]


def run(policy: int, count: int, on_ms: float, off_ms: float) -> Gpu:
    sleeper = Container("sleeper", kernel_us=500, depth=64, on_ms=on_ms, off_ms=off_ms)
    containers = (sleeper, *(Container(f"c{i}", kernel_us=500, depth=64) for i in range(count - 1)))
    gpu = Gpu(A100, Personality(), containers, (SECONDS + 1) * S, 1)
    turns = Turns(gpu, Setup(A100, policy, 10_000, 10, run_state="none"), containers)
    turns.run(S)
    gpu.mark()
    turns.run((SECONDS + 1) * S)
    return gpu


def test_every_policy_is_there() -> None:
    assert [int(row[0]) for row in rows()] == list(DOCUMENTED)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_what_stays_unused(row: list[str]) -> None:
    gpu = run(int(row[0]), 2, 200, 1e6)
    assert 100 * (1 - sum(gpu.held()) / (SECONDS * S)) == pytest.approx(float(row[1].rstrip(" %")), abs=2.5)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
@pytest.mark.parametrize("count", [2, 4])
def test_until_it_runs(row: list[str], count: int) -> None:
    """Never longer than in the page, and not much shorter, else the page's bound would be too loose."""
    client = run(int(row[0]), count, 203, 390).client(0)
    waits = [hist.max_ns / MS for hist in (client.wake, client.wake_frozen) if hist.count]
    bound_ms = float(row[3] if count == 2 else row[4])
    assert 0.35 * bound_ms < max(waits) <= bound_ms
