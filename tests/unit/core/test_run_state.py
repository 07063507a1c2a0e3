# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""What is idle is lent and had back; high priority runs alone while it has work. Simulated."""

from __future__ import annotations

from functools import cache

import pytest
from corelib import BURST, FAIR, FIXED, FREEZE, MS, NATIVE, PREEMPTIVE, SOFT, TIMESLICE, WEIGHTED, Turn, openers, slots
from demandgpu import Closed, DemandGpu, Load, every
from hypothesis import example, given, settings
from hypothesis import strategies as st

BOTH = FREEZE | TIMESLICE


def gpu(policy, *loads, slice_ms=6.0, weights=None, high=(), controls=BOTH, prio_ratio=80, tsgs=None, **more):
    turn = Turn(policy, slice_ms=slice_ms, controls=controls, switch_us=70)
    turn.set("prio_ratio", prio_ratio)
    ids = [
        turn.add((weights or [1] * len(loads))[i], highprio=i in high, channels=(tsgs or [1] * len(loads))[i])
        for i in range(len(loads))
    ]
    return DemandGpu(turn, dict(zip(ids, loads, strict=True)), **more)


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_an_idle_openers_time_is_lent(policy):
    sim = gpu(policy, Load(), Load([])).run(1000)
    assert sim.share(0) > 0.99


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_a_crowd_beside_high_priority_keeps_the_drivers_timeslices(policy):
    """It is frozen while high priority works. In timeslices of two switches it lost a third of the rest."""
    sim = gpu(policy, Load(every(20, 2)), Load(), high=(0,), tsgs=[1, 6])
    sim.run(100)
    seen = set()
    for _ in range(400):
        sim.run(1)
        seen.add((sim.turn.t.run_mask >> 1 & 1, sim.turn.t.slot[1].timeslice_us))
    assert seen == {(0, 0), (1, 0)}


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_three_small_ones_lose_little(policy):
    small = [Load(every(100, 3, 20 + 7 * i)) for i in range(3)]
    sim = gpu(policy, Load(), *small).run(4000)
    assert sim.idle_ns / sim.time_ns < 0.02
    assert sim.share(0) == pytest.approx(0.91, abs=0.02)
    for i in (1, 2, 3):
        assert sim.share(i) == pytest.approx(0.03, abs=0.001)
        assert sim.p99_us(i) < 3000 + 3 * 1000


def test_without_a_source_the_turn_is_lost():
    sim = gpu(PREEMPTIVE, Load(), Load([]), known=0).run(1000)
    assert sim.share(0) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("policy", [FAIR, FIXED])
def test_caps_are_not_lent(policy):
    sim = gpu(policy, Load(), Load([]), slice_ms=5).run(1000)
    assert sim.share(0) == pytest.approx(0.05, rel=0.03)


def nap_before_the_end(turn_ms, nap_ms):
    """Busy for most of a turn, then idle, again and again."""
    return every(turn_ms, turn_ms - nap_ms)


PRETENDERS = {
    "idle just before a slice's end": nap_before_the_end(12, 6.5),
    "wakes in the middle of the other's turn": every(9, 6),
    "one kernel per reading": every(0.06, 0.05),
    "one kernel per two readings": every(0.11, 0.1),
    "a little more than its part": every(30, 20),
    "twice a slice": every(24, 13),
}


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
@pytest.mark.parametrize("how", PRETENDERS)
def test_pretending_gains_nothing(policy, how):
    """What it gets beyond half would be the honest one's."""
    sim = gpu(policy, Load(), Load(PRETENDERS[how])).run(6000)
    assert sim.share(0) > 0.49
    assert sim.share(1) < 0.505


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_busy_ones_divide_as_before(policy):
    sim = gpu(policy, Load(), Load(), Load([]), weights=None if policy == PREEMPTIVE else [1, 3, 2]).run(6000)
    ratio = sim.share(1) / sim.share(0)
    assert ratio == pytest.approx(1 if policy == PREEMPTIVE else 3, rel=0.01)
    assert sim.idle_ns / sim.time_ns < 0.01


@pytest.mark.parametrize("policy", [FAIR, FIXED])
def test_what_was_read_under_another_policy_is_forgotten(policy):
    """Asleep when it was read last, it has work now: its cap holds, and what it gets is counted."""
    turn = openers(3, PREEMPTIVE, slice_ms=5, max_inst=3)
    for _ in range(200):
        turn.step()
        turn.set_run_state(7, 3)
        turn.now += 100_000
    assert turn.t.asleep_mask == 4
    turn.set("policy", policy)
    turn.timeline(500)
    before = turn.stat(2).gpu_ns
    assert turn.shares(1500)[2] == pytest.approx(1 / 3, rel=0.02)
    assert turn.stat(2).gpu_ns - before == pytest.approx(500 * MS, rel=0.02)


@pytest.mark.parametrize("policy", [FAIR, FIXED])
def test_caps_hold_while_sleep_is_known(policy):
    """A reading for another reason makes no turn longer: the time of one that sleeps is used up all the same."""
    turn = openers(2, policy, slice_ms=5, max_inst=2)
    got = {0: 0, 1: 0}
    for _ in range(20_000):
        plan = turn.step()
        for slot in slots(plan.run_mask & 3):
            got[slot] += 1
        turn.now += 100_000
        turn.set_run_state(3, 1)
    assert got[0] == pytest.approx(got[1], rel=0.03)


@pytest.mark.parametrize("gone", [lambda turn: turn.channels(1, 0), lambda turn: turn.delete(1)])
def test_the_next_in_a_slot_is_not_asleep(gone):
    turn = openers(2, PREEMPTIVE, slice_ms=6)
    for _ in range(200):
        turn.step()
        turn.set_run_state(3, 1)
        turn.now += 100_000
    assert turn.t.asleep_mask == 2
    gone(turn)
    if not turn.t.slot[1].cookie:
        assert turn.add(1) == 1
    turn.channels(1, 1)
    assert not (turn.t.asleep_mask | turn.t.known_mask) & 2
    assert turn.shares(1000)[0] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("policy", [FAIR, FIXED, PREEMPTIVE, WEIGHTED, BURST])
def test_high_priority_lends_among_itself(policy):
    """The caps of fixed rounds are the others'. An idle high-priority one takes no turns from a busy one."""
    sim = gpu(policy, Load(), Load([]), Load(), high=[0, 1]).run(2000)
    alone = gpu(policy, Load(), Load(), high=[0]).run(2000)
    assert sim.share(0) == pytest.approx(alone.share(0), rel=0.02)
    assert sim.share(2) == pytest.approx(alone.share(1), rel=0.05)


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_a_nap_in_each_turn_gains_nothing(policy):
    """It sleeps before its turn is used up and wakes with a rest of it, never with a new one."""
    sim = gpu(policy, Load(), Closed(5000, 1000)).run(4000)
    assert sim.share(0) > 0.49
    assert sim.share(1) < 0.505


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_one_that_always_works_is_frozen_in_longer_work(policy):
    """It runs beside work of others for 2 ms, a call later at most, and not in the rest of it."""
    sim = gpu(policy, Load(), Load(every(100, 10))).run(2000)
    beside = []
    for _ in range(500):
        sim.run(1)
        if (since_ns := sim.loads[1].since_ns()) is not None:
            beside.append((sim.time_ns - since_ns, sim.real & 1))
    assert any(runs for age_ns, runs in beside if age_ns < 2 * MS)
    assert not any(runs for age_ns, runs in beside if age_ns > 4 * MS)


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_the_gaps_of_one_cost_another_that_sleeps_nothing(policy):
    """Too short to be lent, a gap is the turn's: one that lends its own turn keeps all of its credit."""
    turn = openers(3, policy, slice_ms=6)
    for _ in range(1000):
        turn.step()
        turn.set_run_state(7, 3)
        turn.now += 50_000
    assert turn.t.asleep_mask == 4
    turn.step()
    owner = turn.t.rr[0].curr
    sleeper, working = turn.t.slot[2], turn.t.slot[owner]
    before = sleeper.deficit_ns, working.deficit_ns
    turn.now += 20_000
    turn.set_run_state(7, 3 & ~(1 << owner))
    turn.now += 20_000
    turn.set_run_state(7, 3)
    assert sleeper.deficit_ns == before[0]
    assert working.deficit_ns == before[1] - 40_000


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_one_that_wakes_has_one_grant_at_most(policy):
    """However often it slept in the round: what it lent it has once."""
    turn = openers(2, policy, slice_ms=6)
    turns = 0
    for i in range(20_000):
        before = turn.t.rr[0].curr
        turn.step()
        if turn.t.rr[0].curr == 1 and before == 0:
            assert turn.t.slot[1].deficit_ns <= 6 * MS
            turns += 1
        turn.now += 50_000
        turn.set_run_state(3, 3 if i % 50 < 30 else 1)
    assert turns > 100


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_a_frozen_slot_is_not_read_as_idle(policy):
    """What a frozen channel shows is not documented: without work in each reading, it has its turn all the same."""
    turn = openers(2, policy, slice_ms=6)
    got = {0: 0, 1: 0}
    for _ in range(400):
        plan = turn.step()
        running = plan.run_mask & 3
        turn.set_run_state(3, running)
        assert turn.t.asleep_mask == 0
        for slot in slots(running):
            got[slot] += 1
        turn.now += 500_000
    assert got[0] == pytest.approx(got[1], rel=0.05)


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, SOFT])
def test_high_priority_in_short_kernels_runs_as_if_alone(policy):
    alone = gpu(policy, Closed(100, 20)).run(2000)
    sim = gpu(policy, Closed(100, 20), Load(), high=[0], prio_ratio=95).run(4000)
    assert len(sim.loads[0].latency_us) / 2 > 0.9 * len(alone.loads[0].latency_us)


@cache
def kernels_alone(gap_us):
    return len(gpu(PREEMPTIVE, Closed(100, gap_us)).run(300).loads[0].latency_us)


@settings(max_examples=40, deadline=None)
@example(slice_us=5000, call_us=700, part=0.2)
@example(slice_us=8000, call_us=1000, part=0.1)
@given(
    slice_us=st.integers(5000, 20_000),
    call_us=st.integers(200, 1500),
    part=st.floats(0.01, 0.4),  # of what counts as a nap: between two readings a whole kernel may go unseen
)
def test_short_gaps_are_not_lent_again_and_again(slice_us, call_us, part):
    """By calls. The hardware lends them, and a kernel waits for a timeslice of 150 us and the tick of this GPU."""
    gap_us = int(part * slice_us / 8) // 10 * 10
    loads = Closed(100, gap_us), Load()
    sim = gpu(PREEMPTIVE, *loads, high=[0], prio_ratio=95, slice_ms=slice_us / 1000, call_us=call_us).run(300)
    learned, calls = len(sim.loads[0].latency_us), sim.calls
    sim.run(300)
    slower = (100 + gap_us) / (100 + gap_us + 160)
    assert len(sim.loads[0].latency_us) - learned > 0.97 * slower * kernels_alone(gap_us)
    assert sim.calls - calls < 60, "a hand-over in 10 ms at most"


@pytest.mark.parametrize("calls_ms", [0.1, 3])
def test_the_calls_that_lend_are_no_sleep(calls_ms):
    """Nothing was read in them: one that works again after them napped, and must sleep for longer to be lent again."""
    turn = Turn(PREEMPTIVE, slice_ms=8, controls=FREEZE)
    a, b = turn.add(channels=1), turn.add(channels=1)
    turn.step()
    owner = turn.t.rr[0].curr
    other = a + b - owner
    while not turn.t.asleep_mask:
        turn.now += MS // 20
        turn.set_run_state(1 << a | 1 << b, 1 << other)
    turn.set_run_state(1 << a | 1 << b, 1 << other)
    before = turn.t.slot[owner].idle_need_us
    plan = turn.next()
    assert plan.thaw_mask == 1 << other
    began, turn.now = turn.now, turn.now + int(calls_ms * MS)
    turn.ack(plan, begin=began, frozen=began, thawed=turn.now)
    turn.next()
    turn.now += MS // 20
    turn.set_run_state(1 << a | 1 << b, 1 << a | 1 << b)
    assert turn.t.slot[owner].idle_need_us == 2 * before


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, SOFT])
@pytest.mark.parametrize("ratio", [20, 50, 80, 95])
def test_the_ceiling_holds_over_a_second(policy, ratio):
    sim = gpu(policy, Load(), Load(), high=[0], prio_ratio=ratio).run(5000)
    got = sim.parts(4000)
    assert got[0] == pytest.approx(ratio / 100, abs=0.01)
    assert sum(got) > 0.98


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, SOFT, BURST])
def test_closing_and_opening_gives_no_new_budget(policy):
    sim = gpu(policy, Load(), Load(), high=[0], prio_ratio=50).run(2000)
    before = {i: load.got_ns for i, load in sim.loads.items()}
    for _ in range(8):
        sim.run(250)
        sim.turn.channels(0, 0)
        sim.turn.next()
        sim.turn.channels(0, 1)
    high, low = (load.got_ns - before[i] for i, load in sim.loads.items())
    assert high / (high + low) < 0.6


@pytest.mark.parametrize("policy", [FAIR, PREEMPTIVE, WEIGHTED, FIXED, SOFT, BURST])
def test_an_idle_high_priority_one_costs_nothing(policy):
    """Beside a high-priority container that never launches, others have what they have without it."""
    with_it = gpu(policy, Load(), Load(), Load([]), high=[2]).run(2000)
    without = gpu(policy, Load(), Load()).run(2000)
    for i in (0, 1):
        assert with_it.share(i) == pytest.approx(without.share(i), rel=0.02, abs=0.002), "caps are 0.05"


@pytest.mark.parametrize("policy", [FAIR, PREEMPTIVE, WEIGHTED, FIXED, SOFT, BURST])
def test_takeover(policy):
    """From the launch to the beginning: a reading, and a control that freezes the other."""
    sim = gpu(policy, Load(every(50, 2, 20)), Load(), high=[0], call_us=300).run(4000)
    assert sim.p99_us(0) < 2000 + 300 + 200


def test_three_high_priority_ones_beside_training():
    loads = [Load(every(60, 5, 20 + 11 * i)) for i in range(3)]
    sim = gpu(WEIGHTED, *loads, Load(), high=[0, 1, 2]).run(4000)
    assert max(sim.p99_us(i) for i in range(3)) < 5000 + 1200
    assert sim.share(3) > 0.9 * (1 - sum(sim.share(i) for i in range(3)))


def test_eight_models():
    """No call for each request, which ends within its first timeslice."""
    loads = [[Load(every(62 + i, 5, 8 * i)) for i in range(8)] for _ in range(2)]
    sim, native = gpu(PREEMPTIVE, *loads[0]).run(6000), gpu(NATIVE, *loads[1]).run(6000)
    mine, theirs = (sorted(us for load in one.loads.values() for us in load.latency_us) for one in (sim, native))
    assert mine[len(mine) // 2] <= 1.02 * theirs[len(theirs) // 2]
    assert mine[-1] < 8 * 5000, "each of the others once"
    assert sim.idle_ns / sim.time_ns < 0.001


@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
@pytest.mark.parametrize("tsgs", [1, 2, 8, 16])
@pytest.mark.parametrize("period_ms", [12, 22, 100])
def test_one_that_naps_gains_nothing_beside_small_ones(policy, tsgs, period_ms):
    """It sleeps often enough to run beside the others, with as many TSGs as it likes. All want more than a third."""
    loads = [Load(every(period_ms, period_ms - 1)), Load(every(40, 18)), Load(every(41, 18.5))]
    sim = gpu(policy, *loads, tsgs=[tsgs, 1, 1]).run(6000)
    for i in range(3):
        assert sim.share(i) == pytest.approx(1 / 3, abs=0.004)


@pytest.mark.parametrize("tsgs", [1, 2, 8, 16])
def test_small_requests_beside_one_that_naps(tsgs):
    """However many TSGs it has, no later than in the hardware's round of four, a switch included."""
    loads = [Load(every(16, 14)), Load(every(100, 5, 10)), Load(every(103, 5, 30))]
    sim = gpu(PREEMPTIVE, *loads, tsgs=[tsgs, 1, 1]).run(6000)
    assert max(sim.p99_us(1), sim.p99_us(2)) < 4.5 * 5000


def test_ones_that_always_work_are_not_beside_each_other():
    """From the begin, also beside one that sleeps now and then."""
    turn = openers(3, PREEMPTIVE, slice_ms=6)
    for i in range(4000):
        plan = turn.step()
        assert len(slots(plan.run_mask & 3)) <= 1
        turn.now += 50_000
        turn.set_run_state(7, 7 if i % 200 < 60 else 3)


@pytest.mark.parametrize("slice_ms", [5, 10])
@pytest.mark.parametrize("weights", [[1, 7, 13], [50, 50], [1, 99], [10, 30, 60]])
def test_burst_weights_are_percentages(weights, slice_ms):
    turn = Turn(BURST, slice_ms=slice_ms, max_inst=100, switch_us=0)
    ids = [turn.add(weight, channels=1) for weight in weights]
    sim = DemandGpu(turn, {i: Load() for i in ids}).run(20_000)
    for i, weight in zip(ids, weights, strict=True):
        assert sim.share(i) == pytest.approx(weight / sum(weights), rel=0.03 if weight == 1 else 0.01)


@pytest.mark.parametrize(
    ("weights", "turns_ms"), [([10, 30, 60], [5, 15, 30]), ([20, 20], [5, 5]), ([10, 90], [5, 45]), ([5, 95], [5, 95])]
)
def test_burst_grants_are_scaled(weights, turns_ms):
    """The least grant is one slice, however large the weights are."""
    turn = Turn(BURST, slice_ms=5, max_inst=100)
    for weight in weights:
        turn.add(weight, channels=1)
    turn.timeline(1000)
    for running, ms in turn.timeline(1000)[1:-1]:
        assert ms == pytest.approx(turns_ms[min(running)], abs=0.2)


def test_burst_rounds_are_twenty_slices():
    turn = Turn(BURST, slice_ms=5, max_inst=100)
    for weight in (1, 99):
        turn.add(weight, channels=1)
    turn.timeline(1000)
    assert max(ms for _, ms in turn.timeline(4000)) < 2 * 20 * 5


def test_burst_floor_against_short_queues_and_many_processes():
    """30 % whenever it has work, 100 % of the rest by weight: depth 1 beside forty processes."""
    turn = Turn(BURST, slice_ms=6, max_inst=100, switch_us=70)
    turn.add(30, channels=1)
    turn.add(70, channels=40)
    alone = Closed(2000, 20)
    sim = DemandGpu(turn, {0: alone, 1: Load()}).run(6000)
    assert sim.share(0) > 0.29


def test_burst_lends_what_is_idle():
    turn = Turn(BURST, slice_ms=6, max_inst=100)
    for weight in (10, 30, 60):
        turn.add(weight, channels=1)
    sim = DemandGpu(turn, {0: Load(), 1: Load(), 2: Load([])}).run(6000)
    assert sim.share(0) == pytest.approx(0.25, rel=0.02)
    assert sim.share(1) == pytest.approx(0.75, rel=0.02)


def test_a_state_known_now_and_then_is_no_new_quota():
    """High priority that always works hides its state for 20 ms in each 40."""
    sim = gpu(PREEMPTIVE, Load(), Load(), high=[0], prio_ratio=50)
    sim.c.hides_ns = 20 * MS
    sim.run(6000)
    assert sim.share(0) < 0.56


def test_high_priority_alone_is_accounted():
    turn = Turn(PREEMPTIVE, slice_ms=6)
    high, low = turn.add(highprio=1, channels=1), turn.add(channels=1)
    sim = DemandGpu(turn, {high: Load([]), low: Load()}).run(200)
    turn.channels(low, 0)
    before = turn.stat(high).gpu_ns
    sim.loads = {high: Load()}
    sim.run(500)
    assert turn.stat(high).gpu_ns - before >= 499 * MS


@pytest.mark.parametrize(("period_ms", "work_ms"), [(0.125, 0.1), (0.13, 0.12), (0.15, 0.125)])
def test_gaps_that_fall_on_the_readings_hide_nothing(period_ms, work_ms):
    """A reading without work brings the next one sooner: work in step with that would be charged for the gaps only."""
    sim = gpu(PREEMPTIVE, Load(every(period_ms, work_ms, 1, 5000)), Load(), high=[0], prio_ratio=20).run(2000)
    high, low = sim.parts(2000)
    assert high < 0.24
    assert low > 0.7


@pytest.mark.parametrize("policy", [PREEMPTIVE, SOFT, BURST])
def test_work_that_a_frozen_channel_does_not_show_is_run(policy):
    """The others sleep when high priority begins to work without a break; then they get work."""
    late = Load([(500 * MS, 60_000 * MS)])
    sim = gpu(policy, Load(every(60_000, 60_000, 20)), late, high=[0], prio_ratio=50, frozen_shows=False).run(5000)
    assert sim.share(1) > 0.3
