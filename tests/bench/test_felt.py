# SPDX-License-Identifier: MIT
"""Users' experience in make bench-sched: the figures of requests, the scenarios, and bars that are not in force yet."""

from __future__ import annotations

import sched
from dataclasses import replace
from typing import Any

import pytest
import scenarios
import sched_sim
from scenarios import FELT, Bars, Scenario, service
from sched_sim import OURS, Cell, measure

from cgpu_cli.sim.model import Container, Personality, S

STEADY = Personality(tail_pct=0)
# 5 ms each 50 ms, and then as long to think.
CLOSED = Container("closed", highprio=True, request_us=(500.0,) * 10, depth=10, think_ms=45)
TRAIN = Container("train", kernel_us=300, depth=150)


def scenario(*containers: Container, **more: Any) -> Scenario:
    return Scenario("x", containers, False, **more)


def row(trace: Scenario, policy: int, rule: str = OURS) -> dict[str, Any]:
    return measure(Cell(trace, "a100", rule, policy if rule == OURS else None, None), 1, own=STEADY).row


def test_alone_is_the_measure() -> None:
    """Under native a lone container has its figures alone, and misses no bar."""
    found = row(scenario(CLOSED), 5)
    assert found["request_p99_of_alone_pct"] == 100
    assert found["request_p50_us"] == found["request_p99_us"] == 5000
    assert found["low_of_rest_pct"] is None
    assert found["idle_loss_pct"] == 0
    assert found["share_from_fair_pp"] == pytest.approx(0, abs=0.01)


def test_beside_another_by_the_drivers_turns() -> None:
    """5 ms of kernels against turns of 1.024 ms of another and two switches of 85 us: five to six of them."""
    found = row(scenario(CLOSED, TRAIN), 5)
    turn_us = 1024 + 2 * 85
    assert 5000 + 4 * turn_us <= found["request_p50_us"] <= 5000 + 6 * turn_us
    assert found["request_p99_of_alone_pct"] == pytest.approx(100 * found["request_p99_us"] / 5000)
    switches = 100 * 10 * 85 / 50_000  # ten in a round of 50 ms
    assert found["low_of_rest_pct"] == pytest.approx(100 - switches, abs=0.5)
    assert found["switch_pct"] == pytest.approx(switches, abs=0.5)
    assert found["idle_loss_pct"] == 0


def test_without_a_control_a_sleeping_owner_wastes_its_turn() -> None:
    """Strict turns: the one without work keeps its half, and the other waits with a full queue."""
    found = row(scenario(replace(CLOSED, think_ms=10_000), TRAIN), 0, "vgpu-strict-round-robin")
    assert found["idle_loss_pct"] == pytest.approx(50, abs=3)
    assert found["share_from_fair_pp"] == pytest.approx(52, abs=4)


def test_the_worst_with_priority_is_the_rows() -> None:
    slow = replace(CLOSED, name="slow", request_us=(500.0,) * 40, depth=40)
    low = replace(CLOSED, name="low", highprio=False, request_us=(100.0,))
    found = row(scenario(CLOSED, slow, low, TRAIN), 5)
    alone = {name: sched_sim.felt_alone("a100", one, 1, 10 * S)[1] for name, one in (("c", CLOSED), ("s", slow))}
    ratios = [100 * found["request_p99_us"] / one.p99_us for one in alone.values() if one.p99_us]
    assert found["request_p99_of_alone_pct"] in [pytest.approx(ratio) for ratio in ratios]


def test_of_several_seeds_the_worst() -> None:
    base = {"share_bound_1s_pp": None, "share_error_1s_pp": None}
    one = base | {"request_p99_of_alone_pct": 104.0, "low_of_rest_pct": 95.0, "idle_loss_pct": 0.5}
    two = base | {"request_p99_of_alone_pct": 109.0, "low_of_rest_pct": 91.0, "idle_loss_pct": 1.5}
    assert sched_sim.worst_of([one, two]) == two


def test_no_figure_of_requests_is_null() -> None:
    found = row(scenario(TRAIN), 5)
    assert found["request_p99_us"] is found["request_p99_of_alone_pct"] is None
    assert found["bar_request_p99"] is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_p99_of_alone_pct", 110.1),
        ("request_p99_of_alone_pct", None),
        ("low_of_rest_pct", 89.9),
        ("idle_loss_pct", 2.01),
    ],
)
def test_a_bar_fails_the_bench_in_force(name: str, value: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {
        "rule": OURS, "profile": "a100", "personality": "default", "scenario": "x", "policy": 1, "slice_us": 9000,
        "default_slice": True, "request_p99_of_alone_pct": 110.0, "low_of_rest_pct": 90.0, "idle_loss_pct": 2.0,
        "sched_thread_cpu_pct": 3.0, "run_state_cpu_pct": 1.0,
    }  # fmt: skip
    for enforced in (False, True):
        bars = Bars(request_p99=True, low_of_rest=True, idle_loss=True, enforced=enforced)
        monkeypatch.setattr(sched, "SCENARIOS", (scenario(TRAIN, bars=bars),))
        assert sched.missed(good) == sched.not_in_force(good) == []
        bad = good | {name: value}
        assert (len(sched.missed(bad)), len(sched.not_in_force(bad))) == ((1, 0) if enforced else (0, 1))
        for other in ({"policy": 5}, {"profile": "t4"}, {"rule": "token-bucket", "policy": None}):
            assert sched.missed(bad | other) == sched.not_in_force(bad | other) == []


def test_the_drivers_p99_is_a_bar_on_the_cards_that_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = scenario(CLOSED, TRAIN, bars=Bars(below_driver=("a100",)), cards=("a100", "h100"), policies=(2,), seconds=2)
    monkeypatch.setattr(sched, "SCENARIOS", (trace,))
    rows = list(sched.sim_rows(("a100",), (trace,), 1, lines=False, rivals=False))
    driver, ours = rows[0], rows[-1]
    assert (driver["rule"], driver["p99_of_driver_pct"], ours["rule"]) == ("driver-round-robin", 100, OURS)
    assert ours["p99_of_driver_pct"] == pytest.approx(100 * ours["request_p99_us"] / driver["request_p99_us"])
    for value, found in ((70.0, []), (70.1, ["p99_of_driver_pct"]), (None, ["p99_of_driver_pct"])):
        assert list(sched.felt_missed(ours | {"p99_of_driver_pct": value})) == found
    assert sched.felt_missed(ours | {"p99_of_driver_pct": 80.0, "profile": "h100"}) == {}


def test_the_row_names_a_bar_in_force() -> None:
    bars = Bars(request_p99=True)
    trace = scenario(CLOSED, TRAIN, bars=replace(bars, enforced=False), seconds=2)
    assert row(trace, 1)["bar_request_p99"] is False
    trace = replace(trace, bars=bars)
    assert row(trace, 1)["bar_request_p99"] is True
    assert row(trace, 5)["bar_request_p99"] is False


def test_polls_are_not_calls() -> None:
    found = row(scenario(CLOSED, TRAIN, seconds=2), 1)
    calls = found["control_calls_per_s"] * 2 * 50e-6 * 100
    assert found["sched_thread_cpu_pct"] == pytest.approx(calls)
    assert found["run_state_cpu_pct"] > 0
    assert row(scenario(CLOSED, TRAIN, seconds=2), 5)["run_state_cpu_pct"] == 0, "native reads none"


def test_a_service_has_the_load_that_it_says() -> None:
    for load_pct in (3, 8, 10):
        held, found = sched_sim.felt_alone("h200", service("s", load_pct), 1, 60 * S)
        assert 100 * held == pytest.approx(load_pct, rel=0.15)
        assert found.per_s == pytest.approx(load_pct * 2, rel=0.15)


def test_the_scenarios_are_there() -> None:
    names = {one.name for one in FELT}
    assert {"short kernels first", "LLM first", "one first at 10 %", "three first at 8 %", "eight at 8 %",
            "three at 3 %", "LLM beside training", "notebooks", "churn", "changes at 10 Hz"} == names  # fmt: skip
    assert "1:7:13" in {one.name for one in scenarios.SCENARIOS}
    for one in FELT:
        cells = [cell for group in sched_sim.cells(("a100", "h200", "t4"), (5000,), [one]) for cell in group]
        assert {cell.card for cell in cells} == {"a100", "h200"}
        assert {cell.slice_us for cell in cells if cell.rule == OURS} == {None}
    eight = next(one for one in FELT if one.name == "eight at 8 %")
    assert eight.bars.below_driver == ("a100", "h100") and set(eight.cards or ()) == {"a100", "h100", "h200"}


def test_the_llm_alone_takes_about_300_ms() -> None:
    worst = max(sched_sim.felt_alone("a100", scenarios.LLM, seed, 30 * S)[1].p99_us or 0 for seed in (1, 2, 3))
    assert 250_000 < worst < 350_000


@pytest.mark.parametrize("card", ["a100", "h100"])
def test_eight_services_wait_less_than_by_the_drivers_turns(card: str) -> None:
    """Of 3000 requests each: in 30 s a burst or two decide."""
    eight = replace(next(one for one in FELT if one.name == "eight at 8 %"), seconds=180)
    ours = measure(Cell(eight, card, OURS, 1), 7).row
    driver = measure(Cell(eight, card, "driver-round-robin"), 7).row
    assert ours["request_p99_us"] < 0.7 * driver["request_p99_us"]
    assert ours["control_calls_per_s"] < 2, "a freeze a second at most finds kernels that resist, and its thaw"
