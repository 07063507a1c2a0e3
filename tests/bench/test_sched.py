# SPDX-License-Identifier: MIT
"""The rivals' rules, the figures and the bars of make bench-sched."""

from __future__ import annotations

import json
import math
import sched
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import rivals
import scenarios
import sched_sim
import sched_vm
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Failed, unknown
from sched_sim import FIELDS, OURS, Cell, measure

from cgpu_cli.sim import figures
from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, Container, Personality, S, Setup, profile
from cgpu_cli.sim.turns import Turns

A100 = profile("a100")
BUSY = Container("busy", kernel_us=500, depth=64)


def shares(rule: type[rivals.Rule], *containers: Container, own: Personality | None = None) -> list[float]:
    gpu = Gpu(A100, own or Personality(tail_pct=0), containers, 5 * S, 1)
    rule(gpu, containers).run(5 * S)
    return [100 * ns / gpu.now for ns in gpu.held()]


# Each rule behaves as its source describes.


def test_the_driver_knows_no_weights_and_counts_processes() -> None:
    one, other = shares(rivals.DriverRoundRobin, replace(BUSY, weight=3), BUSY)
    assert one == pytest.approx(other, abs=0.5)
    one, forks = shares(rivals.DriverRoundRobin, BUSY, replace(BUSY, processes=3))
    assert forks / one == pytest.approx(3, rel=0.15)


def test_strict_turns_have_a_frequency() -> None:
    for count, hertz in ((4, 480), (9, 960)):
        containers = [replace(BUSY, name=str(i)) for i in range(count)]
        gpu = Gpu(A100, Personality(), containers, S, 1)
        rule = rivals.VgpuStrictRoundRobin(gpu, containers)
        rule.run(S)
        assert rule.turns == pytest.approx(hertz, abs=1)
    one, idle = shares(rivals.VgpuStrictRoundRobin, BUSY, replace(BUSY, rate=1, kernel_us=1))
    assert one < 50, "strict: the turn of one that idles is its own"
    assert idle < 0.1


def test_averaging_pays_overshoots_back() -> None:
    """Kernels of 1.5 ms that cannot be preempted, against turns of 2.08 ms."""
    long = replace(BUSY, kernel_us=1500, depth=4)
    one, other = shares(rivals.VgpuStrictRoundRobin, long, BUSY, own=Personality(no_preempt=1))
    gpu = Gpu(A100, Personality(no_preempt=1), (long, BUSY), 5 * S, 1)
    rule = rivals.VgpuStrictRoundRobin(gpu, (long, BUSY))
    rule.FACTOR = 10**9  # never paid back
    rule.run(5 * S)
    assert one / other < 0.95 * gpu.held()[0] / gpu.held()[1]


def test_tokens_hold_a_limit_on_average_and_not_at_once() -> None:
    containers = (replace(BUSY, weight=1, depth=4), replace(BUSY, name="b", weight=3, depth=4))
    gpu = Gpu(A100, Personality(), containers, 30 * S, 1)
    rule = rivals.TokenBucket(gpu, containers)
    assert rule.limit == [25, 75]
    rule.run(S)
    assert 0 <= min(rule.share) <= max(rule.share) <= rule.total
    gpu.mark()
    rule.run(21 * S)
    found = figures.windows([gpu.buckets(i, 200) for i in range(2)])
    parts = [100 * window[0] / S for window in found]
    assert 15 < sum(parts) / len(parts) < 40
    assert max(parts) - min(parts) > 5, "it swings"


def test_freezes_without_a_deficit_give_the_small_one_too_much() -> None:
    one, two = shares(rivals.FreezeNoDeficit, BUSY, replace(BUSY, name="b", weight=2))
    assert 1.6 < two / one < 1.95


def test_without_restarts_a_third_of_the_calls_is_saved() -> None:
    """freeze_restart=0, on a GPU that does not need it: the same shares."""
    two, calls = (BUSY, replace(BUSY, name="b", weight=2, processes=3)), []
    for restarts in (True, False):
        gpu = Gpu(A100, Personality(tail_pct=0), two, 6 * S, 1)
        Turns(gpu, Setup(A100, 2, 10_000, freeze_restart=restarts), two).run(6 * S)
        one, other = gpu.held()
        assert other / one == pytest.approx(2, rel=0.01)
        calls.append(gpu.calls)
    assert calls[1] / calls[0] == pytest.approx(2 / 3, rel=0.02)
    auto = [Turns(Gpu(A100, Personality(), two, S, 1), Setup(A100, 2, freeze_restart=on), two) for on in (True, False)]
    assert [turns.slice_us for turns in auto] == [9000, 6000]


def test_the_slice_follows_a_freeze_and_a_thaw() -> None:
    """On an H100 a freeze takes twice a thaw: of one figure for both the median would be now one, now the other."""
    two, card = (BUSY, replace(BUSY, name="b")), profile("h100")
    turns = Turns(Gpu(card, Personality(commit_required=0), two, 6 * S, 1), Setup(card, 1), two)
    seen = []
    for second in range(2, 7):
        turns.run(second * S)
        seen.append(turns.slice_us)
    assert max(seen) - min(seen) < 0.1 * min(seen)
    assert seen[-1] == pytest.approx(10 * (609 + 304), rel=0.05)


def test_a_lone_container_has_it_all_without_a_call() -> None:
    gpu = Gpu(A100, Personality(), (BUSY,), S, 1)
    rule = rivals.FreezeNoDeficit(gpu, (BUSY,))
    rule.run(S)
    assert gpu.calls <= 3
    assert gpu.held()[0] > 0.99 * S


def test_forking_beyond_a_list_buys_and_costs_nothing() -> None:
    """More than 64 processes are frozen list by list."""
    trace = scenarios.Scenario("x", (BUSY, replace(BUSY, name="forks", depth=4, processes=256)))
    row = measure(Cell(trace, "a100", OURS, 1, 5000), 1, own=Personality(tail_pct=0)).row
    assert row["ratio_error_pct"] <= sched.BAR_RATIO_PCT


def test_switches_among_ones_own_are_no_holes() -> None:
    """Under 3 the expected part is the one that the load holds alone, because shares are of held time."""
    forks = Container("forks", 10, kernel_us=100, depth=4, processes=40)
    found = sched_sim.alone("a100", forks)
    assert found.busy < 0.95 < 0.99 < found.held
    trace = scenarios.Scenario("x", (forks, replace(BUSY, weight=6)))
    row = measure(Cell(trace, "a100", OURS, 3, 5000), 1, own=Personality(tail_pct=0)).row
    assert sched.missed(row) == []


containers = st.lists(
    st.builds(
        Container,
        name=st.uuids().map(str),
        weight=st.integers(1, 5),
        kernel_us=st.floats(20, 20_000),
        depth=st.integers(1, 30),
        processes=st.integers(1, 3),
        start_ms=st.sampled_from([0.0, 0.0, 200.0]),
        stop_ms=st.sampled_from([None, 700.0]),
        on_ms=st.just(20.0),
        off_ms=st.sampled_from([0.0, 33.0]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None)
@given(rule=st.sampled_from(rivals.RIVALS), clients=containers, seed=st.integers(0, 9), stubborn=st.booleans())
def test_a_rule_makes_no_time_and_repeats_itself(
    rule: type[rivals.Rule], clients: list[Container], seed: int, stubborn: bool
) -> None:
    def once() -> tuple[list[int], int, list[tuple[int, list[int]]]]:
        gpu = Gpu(A100, Personality(no_preempt=stubborn), clients, S, seed)
        who = rule(gpu, clients)
        for moment in (300 * MS, 600 * MS, S):
            who.run(moment)
        assert sum(gpu.held()) <= gpu.now
        assert gpu.now >= S
        return gpu.held(), gpu.now, who.rounds

    held, now, rounds = once()
    assert all(a[0] <= b[0] for a, b in pairwise(rounds))
    assert once() == (held, now, rounds)


# Figures.


def test_ratio_error_is_the_worst_pair() -> None:
    assert figures.ratio_error_pct([100, 200], [1, 2]) == 0
    assert figures.ratio_error_pct([100, 180], [1, 2]) == pytest.approx(100 / 9)
    assert figures.ratio_error_pct([100, 100, 110], [1, 1, 1]) == pytest.approx(10)
    assert figures.ratio_error_pct([0, 100], [1, 1]) == figures.ratio_error_pct([0, 0], [1, 1]) == math.inf
    assert figures.ratio_error_pct([5], [1]) is None


def test_whole_rounds_are_the_nearest() -> None:
    rounds = [(t, [t]) for t in (0, 30, 60, 90, 120)]
    assert figures.whole_rounds(rounds, 10, 50) == ((30, [30]), (90, [90]))
    assert figures.whole_rounds(rounds, 100, 50) is None


def test_windows_and_their_errors() -> None:
    found = figures.windows([[50 * MS] * 10 + [60 * MS], [50 * MS] * 10 + [40 * MS]])
    assert found == [[500 * MS, 500 * MS], [510 * MS, 490 * MS]]
    assert figures.share_error_pp(found[1], [0.5, 0.5], of_wall=False) == pytest.approx([1, 1])
    assert figures.share_error_pp(found[1], [0.5, 0.49], of_wall=True) == pytest.approx([1, 0])
    assert figures.cap_excess_pp(found, [0.5, 0.5]) == pytest.approx(1)
    bounds = figures.share_bounds_pp([5 * MS, 10 * MS], [1 / 3, 2 / 3], 0.2)
    assert bounds == pytest.approx([0.2 + 1 / 3, 0.2 + 1 / 3])
    assert figures.worst_share_error(found, [0.5, 0.5], [0.4, 2.0], of_wall=False) == pytest.approx((1, 0.4))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 25 * MS), min_size=12, max_size=12), min_size=1, max_size=4))
def test_windows_keep_every_nanosecond(buckets: list[list[int]]) -> None:
    found = figures.windows(buckets)
    assert len(found) == 3
    for at, window in enumerate(found):
        assert sum(window) == sum(sum(one[at : at + 10]) for one in buckets) <= S


# Rows and bars.


def cell(name: str, policy: int | None = 2, rule: str = OURS, slice_us: int | None = 10_000) -> Cell:
    scenario = next(one for one in scenarios.SCENARIOS if one.name == name and one.personality == "default")
    return Cell(scenario, "a100", rule, policy, slice_us)


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    return measure(cell("1:2"), 1).row


def test_a_row_has_its_fields(row: dict[str, Any]) -> None:
    assert list(row)[: len(FIELDS)] == list(FIELDS)
    assert row["simulated"] is True
    assert (row["where"], row["rule"], row["control"]) == ("sim", "ours", "freeze")
    assert 0 <= row["ratio_error_pct"] < 10
    assert 95 < row["aggregate_pct"] <= 100
    assert row["cap_excess_pp"] is None
    assert row["takeover_us"] is None


def test_the_same_seed_is_the_same_row(row: dict[str, Any]) -> None:
    assert measure(cell("1:2"), 1).row == row
    assert measure(cell("1:2"), 2).row != row


def test_ours_is_nearer_than_no_credit(row: dict[str, Any]) -> None:
    other = measure(cell("1:2", None, "freeze-no-deficit"), 1).row
    assert row["ratio_error_pct"] < other["ratio_error_pct"] / 2


def test_what_does_not_apply_is_null() -> None:
    native = measure(cell("bursts", 5, slice_us=None), 1).row
    assert native["ratio_error_pct"] is None
    assert native["control"] is None
    refused = Cell(replace(cell("1:2").scenario, personality="freezes ineffective"), "a100", OURS, 2, 5000)
    assert "the control it needs does not work here" in measure(refused, 1).row["refused"]
    high = measure(cell("high priority"), 1).row
    assert 0 < high["takeover_us"] < 5000
    assert high["reclaim_us"] is not None


@pytest.mark.parametrize(
    ("policy", "name", "value"),
    [
        (1, "ratio_error_pct", 1.01),
        (2, "ratio_error_pct", 1.01),
        (2, "share_error_1s_pp", 0.9),
        (2, "aggregate_pct", 98.6),
        (3, "cap_excess_pp", 0.51),
    ],
)
def test_each_bar_can_be_missed(policy: int, name: str, value: float) -> None:
    good = {
        "rule": OURS, "profile": "a100", "personality": "default", "scenario": "1:2", "policy": policy,
        "slice_us": 10_000, "ratio_error_pct": 1.0, "share_error_1s_pp": 0.8, "share_bound_1s_pp": 0.87,
        "aggregate_pct": 98.66, "cap_excess_pp": 0.5, "takeover_us": None, "sched_thread_cpu_pct": 9.0,
    }  # fmt: skip
    assert sched.missed(good) == []
    assert len(sched.missed(good | {name: value})) == 1
    assert sched.missed(good | {name: value, "rule": "token-bucket"}) == []
    assert sched.missed(good | {name: value, "profile": "t4"}) == []
    assert len(sched.missed(good | {"default_slice": True})) == 1, "the thread's time is judged at the default slice"


GOOD = {
    "rule": OURS, "profile": "a100", "personality": "default", "scenario": "1:2", "policy": 2, "where": "sim",
    "slice_us": 10_000, "ratio_error_pct": 1.0, "share_error_1s_pp": 0.8, "share_bound_1s_pp": 0.87,
    "aggregate_pct": 98.66, "cap_excess_pp": 0.5, "takeover_us": 900.0, "sched_thread_cpu_pct": 4.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ({"policy": 1}, ["ratio_error_pct", "share_error_1s_pp", "aggregate_pct"]),
        ({"policy": 2}, ["ratio_error_pct", "share_error_1s_pp", "aggregate_pct"]),
        ({"policy": 3}, ["ratio_error_pct", "share_error_1s_pp", "cap_excess_pp"]),
        ({"policy": 3, "scenario": "bursts"}, ["cap_excess_pp"]),
        ({"policy": 2, "scenario": "bursts"}, []),
        ({"policy": 0}, []),
        ({"policy": 2, "scenario": "high priority"}, ["takeover_us"]),
        ({"policy": 4, "scenario": "high priority", "default_slice": True}, ["takeover_us", "sched_thread_cpu_pct"]),
        ({"policy": 5, "scenario": "high priority"}, []),
        ({"policy": 2, "default_slice": True}, ["sched_thread_cpu_pct"]),
        ({"policy": 1, "scenario": "1:2 on an H100", "profile": "h100"}, ["ratio_error_pct"]),
    ],
)
def test_no_figure_is_a_miss_where_the_row_has_the_bar(cell: dict[str, Any], names: list[str]) -> None:
    row = GOOD | cell
    assert sched.missed(row) == []
    figures_of = ("ratio_error_pct", "share_error_1s_pp", "aggregate_pct", "cap_excess_pp", "takeover_us",
                  "sched_thread_cpu_pct")  # fmt: skip
    for name in figures_of:
        assert list(sched.bars_missed(row | {name: None})) == ([name] if name in names else []), name
    assert list(sched.bars_missed(row | dict.fromkeys(figures_of))) == names
    assert all("is missing" in text for text in sched.missed(row | dict.fromkeys(figures_of)))
    assert list(sched.bars_missed(row | {"share_bound_1s_pp": None})) == [one for one in names if "share" in one]


def test_a_starved_container_misses_the_bar() -> None:
    assert list(sched.bars_missed(GOOD | {"ratio_error_pct": math.inf})) == ["ratio_error_pct"]
    found, problems, _ = sched.report([GOOD | {"ratio_error_pct": math.inf}], {}, 0.0, 1, False)
    assert "ratio_error_pct inf" in problems[0] and not found["ok"]


def test_a_refused_policy_is_a_problem_where_it_is_judged() -> None:
    row = sched_sim.head(cell("1:2")) | {"refused": "the control it needs does not work here"}
    found, problems, known = sched.report([row], {}, 0.0, 1, False)
    assert problems == [f"MISSED: {sched.where(row)}: the policy was refused: {row['refused']}"]
    assert not found["ok"] and not known and not found["not_in_force"]
    assert sched.line(row)[-1] == "MISSED"
    assert sched.missed(row | {"personality": "freezes ineffective"}) == []


def test_the_readings_of_the_run_state_have_a_figure() -> None:
    assert sched.reading_missed(GOOD | {"run_state_cpu_pct": 5.0}) == {}
    assert sched.reading_missed(GOOD) == sched.reading_missed(GOOD | {"run_state_cpu_pct": 5.1})
    assert sched.reading_missed(GOOD | {"where": "vm"}) == {}, "a machine measures none"


def test_no_rows_are_a_problem() -> None:
    assert sched.report([], {}, 0.0, 1, False)[1] == ["no rows were measured"]


def test_a_name_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown(["1:2"], ["1:2", "16:1"], "scenario") is None
    monkeypatch.setattr("sys.argv", ["sched.py", "--only", "1:2", "--only", "3:2:1 mixd"])
    with pytest.raises(SystemExit, match="no scenario is called '3:2:1 mixd', the nearest is '3:2:1 mixed'"):
        sched.main()
    with pytest.raises(Failed, match="called 'a10', the nearest is 'a100'"):
        sched_vm.chosen(["a10"])


def test_cells_of_a_machine_by_name() -> None:
    assert sched_vm.chosen([]) == sched_vm.CELLS
    assert {one.profile for one in sched_vm.chosen(["h200"])} == {"h200"}
    assert len(sched_vm.chosen([], quick=True)) == 2
    with pytest.raises(Failed, match="no cell is of h200 and 16:1"):
        sched_vm.chosen(["h200", "16:1"])
    with pytest.raises(Failed, match="no cell of --quick is of 16:1"):
        sched_vm.chosen(["16:1"], quick=True)


def test_takeover_and_decisions_have_bars() -> None:
    high = measure(cell("high priority"), 1).row
    assert sched.missed(high | {"takeover_us": 1301.0})
    assert sched.missed_decisions({2: {1: 200.0, 25: 999.0}}) == []
    assert len(sched.missed_decisions({2: {1: 20.0, 25: 1001.0}, 3: {1: 20.0, 25: 30.0}})) == 2


def test_the_worst_of_several_seeds() -> None:
    base = {"ratio_error_pct": 1.0, "aggregate_pct": 99.0, "share_error_1s_pp": 0.5, "share_bound_1s_pp": 0.4,
            "policy": 2}  # fmt: skip
    other = base | {"ratio_error_pct": 0.5, "aggregate_pct": 98.0, "share_error_1s_pp": 0.6, "share_bound_1s_pp": 0.8}
    assert sched_sim.worst_of([base, other]) == base | {"aggregate_pct": 98.0}


def test_no_figure_of_one_seed_is_the_worst() -> None:
    base = {"ratio_error_pct": 1.0, "aggregate_pct": 99.0, "share_error_1s_pp": 0.5, "share_bound_1s_pp": 0.4,
            "takeover_us": 900.0, "takeover_throttled_us": 5000.0}  # fmt: skip
    for name in ("ratio_error_pct", "aggregate_pct", "takeover_us", "share_error_1s_pp"):
        for rows in ([base, base | {name: None}], [base | {name: None}, base]):
            assert sched_sim.worst_of(rows) == base | {name: None}
    nothing = base | {"share_error_1s_pp": None, "share_bound_1s_pp": None}
    assert sched_sim.worst_of([nothing, base]) == base | {"share_error_1s_pp": None}
    assert sched_sim.worst_of([nothing, nothing]) == nothing
    unbound = base | {"share_bound_1s_pp": None}
    assert sched_sim.worst_of([unbound, unbound | {"share_error_1s_pp": 0.6}])["share_error_1s_pp"] == 0.6
    assert sched_sim.worst_of([base, base | {"takeover_throttled_us": None}]) == base, "not every run comes to it"
    assert sched_sim.worst_of([base | {"ratio_error_pct": math.inf}, base])["ratio_error_pct"] == math.inf
    assert sched_sim.worst_of([base, {"policy": 2, "refused": "why"}]) == {"policy": 2, "refused": "why"}


def test_a_container_without_requests_is_the_furthest() -> None:
    rows = [{"request_p99_us": 5.0, "request_p99_of_alone_pct": 900.0},
            {"request_p99_us": None, "request_p99_of_alone_pct": None}]  # fmt: skip
    assert max(rows, key=sched_sim.furthest) == rows[1]


def test_nothing_is_compared_with_a_driver_without_figures() -> None:
    assert sched.percent(5.0, 10.0) == 50.0
    assert sched.percent(None, 10.0) is sched.percent(5.0, None) is sched.percent(5.0, 0.0) is None


def test_rows_of_a_machine(tmp_path: Path, row: dict[str, Any]) -> None:
    path = tmp_path / "vm.json"
    path.write_text(json.dumps({"results": [row | {"where": "vm"}]}))
    assert sched.vm_rows(path)[0]["where"] == "vm"
    assert sched.vm_rows(None) == []
    assert "cgpu 2 (vm)" in sched.table(sched.vm_rows(path))
    path.write_text(json.dumps([row]))
    with pytest.raises(SystemExit):
        sched.vm_rows(path)
    path.write_text("[]")
    with pytest.raises(SystemExit, match="has no rows"):
        sched.vm_rows(path)


def test_scenarios_are_those_that_were_asked_for() -> None:
    names = {one.name for one in scenarios.SCENARIOS}
    assert {"1:1", "1:2", "3:1", "3:2:1", "16:1", "25 equal", "bursts", "forkers", "high priority"} <= names
    assert names >= scenarios.QUICK
    assert {one.personality for one in scenarios.SCENARIOS} == set(scenarios.PERSONALITIES)


def test_fewer_rivals_change_no_row_of_ours() -> None:
    """bench-quick runs of the others' rules only those that a bar compares with, and judges the same figures."""
    high = Container("high", highprio=True, request_us=(500.0,) * 10, depth=10, think_ms=45, think_spread_ms=5)
    trace = scenarios.Scenario("x", (high, scenarios.TRAIN), False, seconds=2, policies=(2, 4), slices=(None,))
    whole = list(sched.sim_rows(("a100",), [trace], 1, lines=False))
    few = list(sched.sim_rows(("a100",), [trace], 1, lines=False, rivals=False))
    assert [row for row in whole if row["rule"] in (OURS, *sched.COMPARED)] == few
    assert {row["rule"] for row in few} == {OURS, "driver-round-robin", "timeslices-16-1"}
    assert len(whole) > len(few)
    assert all(row["low_of_plain_pct"] for row in few if row["rule"] == OURS)
