# SPDX-License-Identifier: MIT
"""The run state: which containers have work by the engine's words, and when the simulated thread reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from commands import refused, simulate, simulated

from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, US, Container, Personality, S, Setup, profile
from cgpu_cli.sim.run_state import CHANNELS, READ_NS, WAKE_COST_NS
from cgpu_cli.sim.turns import BEGAN_NS, WAKE_NS, Turns

A100 = profile("a100")
STEADY = Personality(tail_pct=0)
# One kernel of 1 ms, then 3 ms without; the first at 1 ms.
SPARSE = Container("sparse", kernel_us=1000, depth=1, gap_us=3000, start_ms=1)
BUSY = Container("busy", kernel_us=500, depth=64)


def machine(*containers: Container) -> Gpu:
    return Gpu(A100, STEADY, containers, 2 * S, 1)


def test_who_has_work() -> None:
    gpu = machine(SPARSE)
    switch = A100.ctxsw_us * US
    seen, end = [], 2 * MS + switch
    for at_ns in (0, MS - 1, MS, MS + switch, end - 1, end, end + 3 * MS - 1, end + 3 * MS):
        gpu.advance(at_ns)
        seen.append(gpu.has_work(0))
    assert seen == [False, False, True, True, True, False, False, True]


def test_a_frozen_one_has_the_work_that_it_queued() -> None:
    gpu = machine(SPARSE, BUSY)
    gpu.stop_now(0)
    gpu.stop_now(1)
    gpu.advance(3 * MS)
    assert [gpu.has_work(i) for i in range(2)] == [True, True]
    gpu.end(1)
    assert [gpu.has_work(i) for i in range(2)] == [True, False]
    assert not gpu.has_work(5), "there is none"


def test_every_process_counts() -> None:
    """Of two processes that take turns on the engine one always has a kernel."""
    gpu = machine(Container("c", kernel_us=1000, depth=1, gap_us=1000, processes=2))
    for at_ms in range(1, 50):
        gpu.advance(at_ms * MS)
        assert gpu.has_work(0)


class Core:
    """The core's functions, with plans that request a poll, and a record of the readings."""

    def __init__(self, turns: Turns, poll_ns: int, answer: bool = False) -> None:
        self.lib, self.poll_ns, self.answer = turns.lib, poll_ns, answer
        self.plans: list[int] = []
        self.read: list[tuple[int, int, int]] = []
        self.tsgs: list[int] = []
        turns.lib = self
        if turns.source:
            kind = "void(struct cgpu_sched *, struct cgpu_check *, struct cgpu_step *, struct cgpu_step_event *)"
            self.callback = turns.ffi.callback(kind, self.cgpu_sched_step)
            turns.source.struct.step = self.callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lib, name)

    def cgpu_sched_step(self, t: Any, check: Any, step: Any, event: Any) -> None:
        if event.kind == self.lib.CGPU_STEP_EVENT_READ:
            self.read.append((event.known, event.busy, event.now_ns))
            self.tsgs = list(event.tsgs)
            step.kind = self.lib.CGPU_STEP_PLAN if self.answer else step.kind
            return
        self.lib.cgpu_sched_step(t, check, step, event)
        if event.kind == self.lib.CGPU_STEP_EVENT_PLAN:
            step.poll_ns = self.poll_ns
            self.plans.append(event.now_ns)


def with_core(source: str, poll_ns: int, answer: bool = False) -> tuple[Turns, Core]:
    setup = Setup(A100, 1, 20_000, run_state=source, personality=STEADY)
    containers = (BUSY, SPARSE)
    turns = Turns(machine(*containers), setup, containers)
    core = Core(turns, poll_ns, answer)
    turns.run(200 * MS)
    return turns, core


def test_a_read_counts_the_tsgs_that_have_work() -> None:
    """Each process has one. Those of idle processes are none."""
    containers = (replace(BUSY, processes=3), BUSY, Container("idle", processes=3, rate=1, kernel_us=1))
    turns = Turns(machine(*containers), Setup(A100, 5, personality=STEADY), containers)
    core = Core(turns, 0)
    turns.run(40 * MS)
    assert turns.source
    turns.gpu.lib.cgpu_sim_read(turns.gpu.sim, turns.source.struct, turns.t, turns.step)
    assert [core.tsgs[slot] for slot in turns.slot] == [3, 1, 0]


def test_a_read_takes_its_time() -> None:
    """A busy container costs the word that shows it, an idle one all of its words, one without channels none."""
    containers = (BUSY, SPARSE, Container("idle", processes=3, rate=1, kernel_us=1), replace(BUSY, start_ms=900))
    turns = Turns(machine(*containers), Setup(A100, 5, personality=STEADY), containers)
    core = Core(turns, 0)
    turns.run(2 * MS)
    before, source = turns.gpu.now, turns.source
    assert source
    turns.gpu.lib.cgpu_sim_read(turns.gpu.sim, source.struct, turns.t, turns.step)
    first, second, third, _ = (1 << slot for slot in turns.slot)
    known, busy, at_ns = core.read[0]
    assert (known, busy) == (first | second | third, first | second)
    assert source.spent_ns == turns.gpu.now - before == WAKE_COST_NS + READ_NS * (1 + 1 + 3 * CHANNELS)
    assert at_ns == BEGAN_NS + turns.gpu.now
    assert source.polls == 1


def test_polls_are_as_far_apart_as_the_plan_says() -> None:
    turns, core = with_core("chram", 100 * US)
    gaps = [later[2] - sooner[2] for sooner, later in zip(core.read, core.read[1:], strict=False)]
    # From one reading's begin to the next one's; the readings end 1 to 9 words later for each container.
    assert min(gaps) >= 50 * US - 16 * READ_NS
    assert max(gaps) > 140 * US, "each interval is drawn"
    assert sum(gaps) / len(gaps) == pytest.approx(100 * US + WAKE_NS, rel=0.1)
    assert turns.polls == len(core.read) > 1000
    first, second = (1 << slot for slot in turns.slot)
    assert {known for known, _, _ in core.read} <= {first, first | second}, "of those that have opened the GPU"
    assert {busy for _, busy, _ in core.read} == {first, first | second}
    assert turns.thread_ns == 2 * A100.control_spin_us * US * turns.gpu.calls + turns.source.spent_ns  # type: ignore[union-attr]


def test_a_poll_that_fits_makes_no_plan() -> None:
    fits, other = with_core("chram", 100 * US)[1], with_core("chram", 100 * US, True)[1]
    assert len(fits.plans) < len(fits.read) / 5
    assert len(other.plans) >= len(other.read)


@pytest.mark.parametrize(("source", "poll_ns"), [("none", 100 * US), ("chram", 0)])
def test_nothing_is_read_without_a_source_or_a_wish(source: str, poll_ns: int) -> None:
    turns, core = with_core(source, poll_ns)
    assert core.read == []
    assert turns.polls == 0


def test_the_same_seed_polls_the_same() -> None:
    assert with_core("chram", 100 * US)[1].read == with_core("chram", 100 * US)[1].read


SHORT = ("--seconds", "0.2", "--container", "count=2")


def test_the_source_is_the_cards_unless_it_is_given() -> None:
    assert [profile(name).run_state for name in ("a100", "h100", "h200", "t4")] == ["chram", "chram", "chram", "pccsr"]
    for words, source in (((), "chram"), (("--profile", "t4"), "pccsr"), (("--run-state", "none"), "none")):
        assert simulated(*SHORT, *words)[0]["run_state"] == source
    assert "never seen on hardware" in simulate(*SHORT).stdout
    assert "Run state: none\n" in simulate(*SHORT, "--run-state", "none").stdout


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--run-state", "sampler"), "run_state='sampler' is no source (chram, pccsr, none)"),
        (
            ("--run-state", "chram", "--profile", "t4"),
            "run_state=chram: a t4 has no such words of channels (pccsr, none)",
        ),
        (
            ("--run-state", "pccsr", "--profile", "a100"),
            "run_state=pccsr: a a100 has no such words of channels (chram, none)",
        ),
    ],
)
def test_sources_that_cannot_be(argv: tuple[str, ...], why: str) -> None:
    refused(simulate(*SHORT, *argv), why)


@pytest.mark.parametrize(("think_ms", "most_calls"), [(0.4, 350), (1, 0), (4, 0)])
@pytest.mark.parametrize("seed", [1, 2])
def test_without_a_run_state_high_priority_below_its_ceiling_is_not_frozen(
    think_ms: float, most_calls: int, seed: int
) -> None:
    """The samples show it within seconds, for one near its quota now and then not: 0 to 312 calls by the seed, of the
    430 that periods take."""
    high = Container("high", highprio=True, request_us=(1000.0,), think_ms=think_ms)
    gpu = Gpu(A100, STEADY, (high, BUSY), 32 * S, seed)
    turns = Turns(gpu, Setup(A100, 1, prio_ratio=80, run_state="none"), (high, BUSY))
    turns.run(1 * S)
    assert gpu.calls > 15, "the quota's periods"
    turns.run(12 * S)
    gpu.mark()
    calls, began = gpu.calls, gpu.now
    turns.run(30 * S)
    assert gpu.calls - calls <= most_calls
    assert [int(turns.t.slot[slot].timeslice_us) for slot in turns.slot] == [8192, 512]
    assert gpu.busy()[0] / (gpu.now - began) > 0.18


@pytest.mark.parametrize("card", ["a100", "h100"])
@pytest.mark.parametrize("seed", [1, 2])
def test_without_a_run_state_high_priority_that_always_works_has_its_ceiling(card: str, seed: int) -> None:
    """In each second from the first on, within two points."""
    high = Container("high", highprio=True, kernel_us=500, depth=64)
    gpu = Gpu(profile(card), STEADY, (high, BUSY), 12 * S, seed)
    turns = Turns(gpu, Setup(profile(card), 1, prio_ratio=80, run_state="none"), (high, BUSY))
    for second in range(12):
        gpu.mark()
        turns.run((second + 1) * S)
        got = [ns / S for ns in gpu.held()]
        assert 0.78 <= got[0] <= 0.8 and got[1] > 0.2
