# SPDX-License-Identifier: MIT
"""Published rules for a service beside training, and kernels that run at once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import scenarios
import sched_sim
from beside import RULES, MpsOverlap, Plain8, TallyPriority, TgsRateControl
from hypothesis import given, settings
from hypothesis import strategies as st
from rivals import Rule
from scenarios import Scenario
from sched_sim import Cell, measure
from test_sched import containers

from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, Container, Personality, S, profile
from cgpu_cli.sim.requests import Requests

A100 = profile("a100")
STEADY = Personality(tail_pct=0)
BUSY = Container("busy", kernel_us=500, depth=8)
# The spread keeps its arrivals from falling on the ends of the others' kernels.
HIGH = Container("high", highprio=True, request_us=(500.0,) * 10, depth=10, think_ms=45, think_spread_ms=5)
QUICK = Container("quick", highprio=True, request_us=(100.0,), think_ms=0.02, depth=1)


def after(rule: type[Rule], *clients: Container, seconds: int = 5) -> Gpu:
    gpu = Gpu(A100, STEADY, clients, seconds * S, 1)
    rule(gpu, clients).run(seconds * S)
    return gpu


def requests(gpu: Gpu) -> Requests:
    return Requests.of(gpu.requests(0), gpu.now)


@pytest.mark.parametrize(("count", "each"), [(1, 100), (2, 62.5), (5, 25)])
def test_kernels_at_once_have_more_than_one_gpu_together(count: int, each: float) -> None:
    gpu = after(MpsOverlap, *(replace(BUSY, name=str(i)) for i in range(count)))
    assert [100 * ns / gpu.now for ns in gpu.busy()] == [pytest.approx(each, abs=0.1)] * count
    assert sum(gpu.held()) == gpu.now, "each holds an equal part"
    assert gpu.switching_ns == gpu.idle_loss_ns == 0


def test_plain_timeslices_favour_the_greatest_weight_where_none_has_high_priority() -> None:
    light, heavy, high = replace(BUSY, name="light"), replace(BUSY, name="heavy", weight=9), replace(HIGH, weight=1)
    held = after(Plain8, light, heavy).held()
    assert held[1] / held[0] == pytest.approx(8, rel=0.05)
    assert Plain8.fits((high, heavy)) and not Plain8.fits((light, replace(light, name="other")))
    held = after(Plain8, high, heavy, light).held()
    assert held[1] == pytest.approx(held[2], rel=0.05), "beside high priority a weight is nothing"


def test_alone_the_overlap_costs_nothing() -> None:
    assert requests(after(MpsOverlap, HIGH)).p99_us == 5000
    assert requests(after(MpsOverlap, HIGH, BUSY)).p99_us == pytest.approx(8000, rel=0.01)


def test_the_overlap_is_the_one_measured() -> None:
    """24 ms a request and 8 a second beside training on an H100: measured 1.74 of alone, and 89 % of the steps."""
    card = profile("h100")
    service = Container("service", request_us=(100.0,) * 200, depth=1, gap_us=20, requests_per_s=8)
    gpu = Gpu(card, Personality(), (service, scenarios.TRAIN), 25 * S, 1)
    MpsOverlap(gpu, (service, scenarios.TRAIN)).run(25 * S)
    alone = sched_sim.felt_alone("h100", service, 1, 25 * S)[1].p50_us or 0.0
    assert (requests(gpu).p50_us or 0.0) / alone == pytest.approx(1.6, abs=0.15)
    assert 100 * gpu.busy()[1] / gpu.now == pytest.approx(89, abs=2)


def test_high_priority_waits_for_blocks_only() -> None:
    gpu = after(TallyPriority, HIGH, BUSY)
    found = requests(gpu)
    assert found.p99_us == pytest.approx(5031.6)
    assert gpu.busy()[0] + gpu.busy()[1] == pytest.approx(gpu.now, rel=1e-6), "the others have all the rest"
    gpu = after(TallyPriority, QUICK, BUSY)
    assert requests(gpu).p99_us == pytest.approx(131.6), "each pause of 20 us is used, and costs a turnaround"


def test_several_with_high_priority_run_at_once() -> None:
    gpu = after(TallyPriority, HIGH, replace(HIGH, name="other"), BUSY)
    assert 9000 < (requests(gpu).max_us or 0.0) <= 10031.6, "at half the speed each"


def test_the_rate_follows_what_the_productive_job_launches() -> None:
    gpu = Gpu(A100, STEADY, (QUICK, BUSY), 10 * S, 1)
    rule = TgsRateControl(gpu, (QUICK, BUSY))
    rule.run(5 * S)
    assert 0 < rule.rate[1] < rule.full[1] / 2, "short kernels are launched more slowly beside others"
    idle = replace(HIGH, think_ms=1000.0)
    gpu = Gpu(A100, STEADY, (idle, BUSY), 10 * S, 1)
    rule = TgsRateControl(gpu, (idle, BUSY))
    rule.run(5 * S)
    assert rule.rate[1] > rule.full[1] / 2
    gpu.mark()
    rule.run(6 * S)
    assert rule.launched > 0, "figures that start again lose nothing"


def test_rules_are_run_where_they_say_something() -> None:
    named = {one.name: one for one in scenarios.SCENARIOS if one.personality == "default"}
    for name, expected in (("1:2", set()), ("LLM beside training", {"mps-overlap"}),
                           ("LLM first", {"mps-overlap", "tgs-rate-control", "tally-priority"})):  # fmt: skip
        (group,) = sched_sim.cells(("a100",), (5000,), [named[name]])
        ours = {"mps-overlap", "tgs-rate-control", "tally-priority"}
        assert {cell.rule for cell in group} & ours == expected


def test_a_row_of_each() -> None:
    trace = Scenario("x", (HIGH, scenarios.TRAIN), False, seconds=2)
    rows: dict[str, dict[str, Any]] = {}
    for rule in RULES:
        rows[rule.name] = measure(Cell(trace, "a100", rule.name), 1, own=STEADY).row
    json.dumps(rows)
    p99 = {name: row["request_p99_of_alone_pct"] for name, row in rows.items()}
    assert p99["tally-priority"] < p99["mps-overlap"] < p99["driver-round-robin"]
    assert rows["mps-overlap"]["low_of_rest_pct"] == pytest.approx(100, abs=0.1)


@settings(max_examples=40, deadline=None)
@given(
    rule=st.sampled_from((MpsOverlap, TallyPriority, TgsRateControl)),
    clients=containers,
    first=st.sets(st.integers(0, 4)),
    seed=st.integers(0, 9),
)
def test_a_rule_makes_no_time_and_repeats_itself(
    rule: type[Rule], clients: list[Container], first: set[int], seed: int
) -> None:
    mixed = [replace(one, highprio=i in first) for i, one in enumerate(clients)]

    def once() -> tuple[list[int], list[int], int]:
        gpu = Gpu(A100, Personality(), mixed, S, seed)
        who = rule(gpu, mixed)
        for moment in (300 * MS, 600 * MS, S):
            who.run(moment)
        assert sum(gpu.held()) <= gpu.now
        assert sum(gpu.busy()) <= 1.25 * gpu.now
        return gpu.held(), gpu.busy(), gpu.now

    assert once() == once()
