# SPDX-License-Identifier: MIT
"""The traces that every rule is run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cgpu_cli.sim.model import Change, Container, Personality, S
from cgpu_common import policies

PLAIN = {"kernel_us": 500, "depth": 64}
SHORT = {"kernel_us": 100, "depth": 1}
DEEP = {"kernel_us": 300, "depth": 150}
LONG = {"kernel_us": 20_000, "depth": 2}
STARVED = {"kernel_us": 300, "depth": 1, "gap_us": 2000, "gap_spread_us": 2000}


DOCUMENTED = tuple(number for number, facts in policies.TABLE.items() if facts.documented)


@dataclass(frozen=True)
class Bars:
    """Bars for users' experience, under policies 1 and 2. `enforced`: a miss fails the bench; else it is only printed.

    request_p99: the 99th percentile of a request's latency is within 10 % of its value alone. low_of_rest: containers
    without high priority have at least 90 % of the time that those with it leave. idle_loss: the engine is idle for
    at most 2 % of the time while a container has work.

    For work with gaps, under each policy of ours. part: the container with the most weight has at least 90 % of its
    part, or of what it can use if that is less, and all together do at least the work that they do under the driver's
    turns.
    below_driver: on these cards p99 of the container furthest from alone is at most 70 % of what it is under the
    driver's turns.
    steady: it has 99 % of it, and 94 % in each second. rest: containers without high priority have at least 15 % of the
    time, and the engine is idle for at most 10 % of it while a container has work. above_plain: they have more than
    beside high priority at plain timeslices of 16:1.
    """

    request_p99: bool = False
    low_of_rest: bool = False
    idle_loss: bool = False
    part: bool = False
    steady: bool = False
    rest: bool = False
    above_plain: bool = False
    below_driver: tuple[str, ...] = ()
    enforced: bool = True


@dataclass(frozen=True)
class Scenario:
    """saturating: every container always has work, so that only the scheduler sets shares. cards, slices: a part."""

    name: str
    containers: tuple[Container, ...]
    saturating: bool = True
    personality: str = "default"
    seconds: int = 10
    prio_ratio: int = 80
    changes: tuple[Change, ...] = ()
    policies: tuple[int, ...] = DOCUMENTED
    slices: tuple[int | None, ...] | None = None
    cards: tuple[str, ...] | None = None
    bars: Bars = Bars()

    @property
    def length_ns(self) -> int:
        return self.seconds * S

    @property
    def high(self) -> int | None:
        return next((i for i, one in enumerate(self.containers) if one.highprio), None)

    @property
    def max_inst(self) -> int:
        weights = sum(one.weight for one in self.containers)
        return 20 if weights <= 20 else 25 if weights <= 25 else 100


def many(weights: Sequence[int], **load: float) -> tuple[Container, ...]:
    return tuple(Container(f"c{i}", weight, **load) for i, weight in enumerate(weights))  # type: ignore[arg-type]


PERSONALITIES = {
    "default": Personality(),
    "timeslices ineffective": Personality(control_ineffective=1),
    "freezes ineffective": Personality(control_ineffective=2),
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


def service(name: str, load_pct: float, kernels: int = 10, high: bool = False) -> Container:
    """A model that answers requests of 500 us kernels, queued at once, with this load on the GPU."""
    lengths = (500.0,) * kernels
    return Container(
        name, highprio=high, request_us=lengths, depth=kernels, requests_per_s=1e4 * load_pct / sum(lengths)
    )


def felt(
    name: str, *containers: Container, bars: Bars, cards: tuple[str, ...] = ("a100", "h200"), **more: object
) -> Scenario:
    """Users' experience: at the slice that the module chooses, on the cards with bars."""
    return Scenario(name, containers, False, policies=(1, 2, 5, 6), slices=(None,), cards=cards, bars=bars, **more)  # type: ignore[arg-type]


HIGH = Container("high", highprio=True, kernel_us=1000, depth=4, on_ms=15, off_ms=67)

TRAIN = Container("train", **DEEP)  # type: ignore[arg-type]
# 20 ms of prefill, then 400 kernels of decoding with a gap of the CPU after each: 112 ms, and alone a p99 of 220 to
# 330 ms at 2 a second.
LLM = Container("llm", request_us=(20_000.0,) + (200.0,) * 400, depth=1, gap_us=30, requests_per_s=2)
QUICK_KERNELS = Container("quick", highprio=True, request_us=(100.0,), think_ms=0.02, depth=1)
NOTEBOOKS = (
    Container("first", kernel_us=500, depth=16, on_ms=1500, off_ms=4500),
    Container("second", kernel_us=500, depth=16, on_ms=1000, off_ms=3500, start_ms=300),
)
GUESTS = tuple(Container(f"guest{i}", kernel_us=500, depth=8, churn_ms=50, start_ms=17 * i) for i in range(4))
# Ten a second, on two containers in turn.
WRITES = tuple(Change(100.0 * i, "weight", 1 + i % 4 // 2, ("c0", "c1")[i % 2]) for i in range(1, 120))
BESIDE = Bars(request_p99=True, low_of_rest=True, idle_loss=True)
# The engine is idle for 2.4 % of the time in the gaps of the decoding alone, while the training has work.
BESIDE_LLM = Bars(request_p99=True, low_of_rest=True)
CONSERVING = Bars(idle_loss=True)

FELT = (
    felt("short kernels first", QUICK_KERNELS, TRAIN, bars=Bars(request_p99=True), prio_ratio=95),
    felt("LLM first", replace(LLM, highprio=True), TRAIN, bars=BESIDE_LLM, seconds=30),
    felt("one first at 10 %", service("first", 10, high=True), *many([1, 1], **PLAIN), bars=BESIDE, seconds=90),
    felt(
        "three first at 8 %",
        *(service(f"first{i}", 8, high=True) for i in range(3)),
        *many([1, 1], **PLAIN),
        bars=Bars(low_of_rest=True, idle_loss=True),
        seconds=30,
    ),
    felt(
        "eight at 8 %",
        *(service(f"model{i}", 8) for i in range(8)),
        bars=replace(CONSERVING, below_driver=("a100", "h100")),
        cards=("a100", "h100", "h200"),
        seconds=30,
    ),
    felt("three at 3 %", *(service(f"model{i}", 3) for i in range(3)), TRAIN, bars=CONSERVING, seconds=30),
    felt("LLM beside training", LLM, TRAIN, bars=Bars(), seconds=30),
    felt("notebooks", *NOTEBOOKS, bars=CONSERVING, seconds=30),
    # Under policy 2 the slices of a container that has closed the GPU pass unused.
    felt("churn", *many([1, 2], **PLAIN), *GUESTS, bars=replace(CONSERVING, enforced=False)),
    felt("changes at 10 Hz", *many([1, 2], **PLAIN), bars=CONSERVING, changes=WRITES),
)


# Work with gaps.


def training(name: str, weight: int, step_ms: float, gap_ms: float, processes: int = 1) -> Container:
    """Steps of 500 us kernels, queued at once. Before the next one the CPU waits for the end, and prepares it."""
    kernels = round(2 * step_ms)
    return Container(
        name, weight, request_us=(500.0,) * kernels, depth=kernels, think_ms=gap_ms, think_spread_ms=gap_ms / 10,
        processes=processes,
    )  # fmt: skip


def pieces(name: str, weight: int, start_ms: float) -> Container:
    """1 ms of work in 7."""
    return Container(name, weight, kernel_us=1000, depth=1, on_ms=1, off_ms=6, start_ms=start_ms)


def small(name: str, length_ms: float, per_s: float) -> Container:
    """A service with high priority and requests of this length, of kernels of up to 500 us."""
    kernels = max(1, round(2 * length_ms))
    lengths = (1000 * length_ms / kernels,) * kernels
    return Container(name, highprio=True, request_us=lengths, depth=kernels, requests_per_s=per_s)


def launches(kernels: int, **more: float) -> Container:
    """A service with high priority that waits for each of its kernels: 100 us, and 20 us until the next."""
    return Container("high", highprio=True, request_us=(100.0,) * kernels, depth=1, gap_us=20, **more)  # type: ignore[arg-type]


def gap(name: str, *containers: Container, bars: Bars, **more: object) -> Scenario:
    return Scenario(f"gap: {name}", containers, False, slices=(None,), cards=GAP_CARDS, bars=bars, **more)  # type: ignore[arg-type]


# A context switch is 205 us there.
H100 = tuple(
    Scenario(
        f"{name} on an H100", many(weights, **PLAIN), policies=(1, 2), slices=(5000, 20_000, None), cards=("h100",)
    )
    for name, weights in (("1:2", (1, 2)), ("3:2:1", (3, 2, 1)), ("16:1", (16, 1)))
)

GAP_CARDS = ("a100", "h100")
PARTS = Bars(part=True)
PERCENT = {"policies": (6,), "bars": PARTS}
FEW = {"policies": (2, 6), "bars": PARTS}
SMALL = {"policies": (1, 2, 6), "bars": Bars(request_p99=True, above_plain=True), "prio_ratio": 95}
LAUNCHES = {"policies": (1, 2, 6), "bars": BESIDE_LLM, "prio_ratio": 95}
GAPS = (
    gap("10:90 trainings, 4.5 ms", training("a", 10, 19, 4.5), training("b", 90, 19, 4.5), **PERCENT),
    gap("10:90 trainings, 10 ms", training("a", 10, 100, 10), training("b", 90, 100, 10), **PERCENT),
    gap("10:90 trainings, two processes", training("a", 10, 19, 4.5, 2), training("b", 90, 19, 4.5), **PERCENT),
    gap("1:2 trainings, 2.2 ms", training("a", 1, 19, 2.2), training("b", 2, 19, 2.2), **FEW),
    gap("1:2 trainings, 10 ms", training("a", 1, 50, 10), training("b", 2, 50, 10), **FEW),
    gap("service beside a training", service("service", 10), training("train", 1, 19, 4.5), policies=(2, 6),
        bars=Bars()),
    gap("50 beside five of 10", Container("v", 50, **DEEP), *(pieces(f"n{i}", 10, 1.3 * i) for i in range(5)),
        policies=(6,), bars=Bars(steady=True)),
    gap("50 beside ten of 5", Container("v", 50, **DEEP), *(pieces(f"n{i}", 5, 0.7 * i) for i in range(10)),
        policies=(6,), bars=Bars(steady=True, enforced=False)),
    *(gap(f"high priority, {work_ms:g} and {gap_ms:g} ms",
          Container("high", highprio=True, request_us=(1000 * work_ms,), think_ms=gap_ms, depth=1), TRAIN,
          policies=(1, 2, 6), bars=Bars(rest=True))
      for work_ms, gap_ms in ((0.1, 0.4), (1, 0.4), (1, 1), (5, 2))),
    *(gap(f"high priority, {work_ms:g} and 0 to {2 * gap_ms:g} ms",
          Container("high", highprio=True, request_us=(1000 * work_ms,), think_ms=gap_ms, think_spread_ms=gap_ms,
                    depth=1),
          TRAIN, policies=(1, 2, 6), bars=Bars(rest=True))
      for work_ms, gap_ms in ((0.3, 0.4), (0.1, 0.6), (1, 1))),
    *(gap(f"requests of {length_ms:g} ms", small("high", length_ms, per_s), TRAIN, seconds=30, **SMALL)
      for length_ms, per_s in ((1, 300), (2, 100), (5, 20))),
    gap("requests of an LLM", replace(LLM, highprio=True), TRAIN, seconds=30, **SMALL),
    gap("requests of 100 kernels", launches(100, requests_per_s=8), TRAIN, seconds=30, **LAUNCHES),
    # 128 of them in a row are as slow as the slowest 15 ms.
    gap("kernels without a pause", launches(128, think_ms=0.02), TRAIN, policies=(1, 2, 6), prio_ratio=95,
        bars=Bars(request_p99=True)),
    # Of 100 calls 1 to 3 take as long as a request.
    gap("requests of ten kernels", launches(10, requests_per_s=100), TRAIN,
        **LAUNCHES | {"bars": replace(BESIDE_LLM, enforced=False)}),
)  # fmt: skip

SCENARIOS = (
    Scenario("1:1", many([1, 1], **PLAIN)),
    Scenario("1:2", many([1, 2], **PLAIN)),
    Scenario("3:1", many([3, 1], **PLAIN)),
    Scenario("3:2:1", many([3, 2, 1], **PLAIN)),
    Scenario("16:1", many([16, 1], **PLAIN)),
    Scenario("1:7:13", many([1, 7, 13], **PLAIN)),
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
    *FELT,
    *GAPS,
    *H100,
)
QUICK = {"1:2", "3:2:1", "16:1", "25 equal", "1:2 short queue", "1:2 deep queue", "1:2 long kernels", "3:2:1 mixed",
         "forkers", "CPU-starved", "high priority", "LLM first", "one first at 10 %", "eight at 8 %",
         *(one.name for one in (*GAPS, *H100))}  # fmt: skip
