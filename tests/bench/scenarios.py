# SPDX-License-Identifier: MIT
"""The traces that every rule is run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cgpu_cli.sim.model import Container, Personality

PLAIN = {"kernel_us": 500, "depth": 64}
SHORT = {"kernel_us": 100, "depth": 1}
DEEP = {"kernel_us": 300, "depth": 150}
LONG = {"kernel_us": 20_000, "depth": 2}
STARVED = {"kernel_us": 300, "depth": 1, "gap_us": 2000, "gap_spread_us": 2000}


@dataclass(frozen=True)
class Scenario:
    """saturating: everybody always has work, so that shares are the scheduler's doing alone."""

    name: str
    containers: tuple[Container, ...]
    saturating: bool = True
    personality: str = "default"

    @property
    def high(self) -> int | None:
        return next((i for i, one in enumerate(self.containers) if one.highprio), None)

    @property
    def max_inst(self) -> int:
        return 25 if sum(one.weight for one in self.containers) > 20 else 20


def many(weights: Sequence[int], **load: float) -> tuple[Container, ...]:
    return tuple(Container(f"c{i}", weight, **load) for i, weight in enumerate(weights))  # type: ignore[arg-type]


PERSONALITIES = {
    "default": Personality(),
    "timeslices inert": Personality(lever_inert=1),
    "windows inert": Personality(lever_inert=2),
    "no commit needed": Personality(commit_required=0),
    "restart fails 27 %": Personality(err40_pct=27),
    "tail 5 ms on 30 %": Personality(tail_us=5000, tail_pct=30),
    "disable needs restart": Personality(disable_needs_restart=1),
    "no preemption": Personality(no_preempt=1),
    "stubborn kernel": Personality(stubborn_ms=1000),
}


def _personalities() -> list[Scenario]:
    found = []
    for name in PERSONALITIES:
        containers = many([1, 2], **PLAIN)
        if name == "stubborn kernel":
            containers = (replace(containers[0], kernel_us=50_000, depth=2, stubborn=True), containers[1])
        if name != "default":
            found.append(Scenario("1:2", containers, personality=name))
    return found


HIGH = Container("high", highprio=True, kernel_us=1000, depth=4, on_ms=15, off_ms=67)

SCENARIOS = (
    Scenario("1:1", many([1, 1], **PLAIN)),
    Scenario("1:2", many([1, 2], **PLAIN)),
    Scenario("3:1", many([3, 1], **PLAIN)),
    Scenario("3:2:1", many([3, 2, 1], **PLAIN)),
    Scenario("16:1", many([16, 1], **PLAIN)),
    Scenario("25 equal", many([1] * 25, **PLAIN)),
    Scenario("1:2 short queue", many([1, 2], **SHORT)),
    Scenario("1:2 deep queue", many([1, 2], **DEEP)),
    Scenario("1:2 long kernels", many([1, 2], **LONG)),
    Scenario(
        "3:2:1 mixed",
        (
            Container("deep", 3, **DEEP),  # type: ignore[arg-type]
            Container("long", 2, **LONG),  # type: ignore[arg-type]
            Container("quick", 1, kernel_us=100, depth=4),
        ),
    ),
    Scenario("forkers", (Container("one", **PLAIN), Container("forks", processes=40, kernel_us=500, depth=2))),  # type: ignore[arg-type]
    Scenario(
        "bursts",
        (Container("steady", **DEEP), Container("bursty", kernel_us=300, depth=16, on_ms=30, off_ms=70)),  # type: ignore[arg-type]
        saturating=False,
    ),
    Scenario(
        "join and leave",
        (*many([1, 1], **PLAIN), Container("guest", start_ms=4000, stop_ms=8000, **PLAIN)),  # type: ignore[arg-type]
        saturating=False,
    ),
    Scenario("CPU-starved", (Container("fed", **DEEP), Container("starved", **STARVED)), saturating=False),  # type: ignore[arg-type]
    Scenario("high priority", (HIGH, *many([1, 1, 1, 1], **PLAIN)), saturating=False),
    *_personalities(),
)
QUICK = {"1:2", "3:2:1", "16:1", "25 equal", "1:2 short queue", "1:2 deep queue", "1:2 long kernels", "3:2:1 mixed",
         "forkers", "high priority"}  # fmt: skip
