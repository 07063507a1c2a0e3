# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""How many TSGs of a container work at once decides, not how many there are. Simulated."""

from __future__ import annotations

import pytest
from corelib import BURST, FREEZE, MS, PREEMPTIVE, SOFT, TIMESLICE, WEIGHTED, Turn, ffi, lib
from demandgpu import Closed, DemandGpu, Load, every
from test_gaps import by_chance

BOTH = FREEZE | TIMESLICE
KNOWN = [PREEMPTIVE, WEIGHTED, BURST]


def beside(policy: int, high: Load, low: Load, tsgs: tuple[int, int], prio_ratio: int = 80) -> DemandGpu:
    """High priority of so many TSGs, and another container."""
    turn = Turn(policy, slice_ms=6, controls=BOTH, switch_us=205)
    turn.set("prio_ratio", prio_ratio)
    ids = [turn.add(highprio=first, channels=count) for first, count in zip((1, 0), tsgs, strict=True)]
    return DemandGpu(turn, dict(zip(ids, (high, low), strict=True)))


def seen(sim: DemandGpu, slot: int) -> set[tuple[int, int]]:
    """Whether it may run, and its timeslice, over a while."""
    found = set()
    for _ in range(400):
        sim.run(1)
        found.add((sim.turn.t.run_mask >> slot & 1, sim.turn.t.slot[slot].timeslice_us))
    return found


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize("tsgs", [1, 4, 8])
def test_a_process_of_several_tsgs_is_one_that_works_in_one(policy, tsgs):
    """With 4 TSGs it had timeslices of two switches, with 8 it was frozen for each request."""
    sim = beside(policy, Load(every(5, 1)).works_in(1), Load().works_in(1), (1, tsgs))
    sim.run(1500)
    assert seen(sim, 1) == {(1, 90)}


@pytest.mark.parametrize("policy", [*KNOWN, SOFT])
@pytest.mark.parametrize("count", [2, 4, 6])
def test_several_that_work_at_once_are_frozen_while_high_priority_works(policy, count):
    """In timeslices among themselves they lost more of each gap, and a request waited for all of them."""
    sim = beside(policy, Load(every(5, 1)).works_in(1), Load().works_in(count), (1, count))
    sim.run(1500)
    assert {runs for runs, _ in seen(sim, 1)} == {0, 1}


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize(("count", "runs"), [(2, {1}), (4, {1}), (6, {0, 1})])
def test_gaps_too_short_for_calls_are_lent_by_the_hardware(policy, count, runs):
    """Frozen, two at once had nothing of gaps of 1 ms but what high priority's budget leaves."""
    sim = beside(policy, Closed(1000, 1000).works_in(1), Load().works_in(count), (1, count), prio_ratio=95)
    sim.run(1500)
    assert {each for each, _ in seen(sim, 1)} == runs
    assert sim.idle_ns < sim.time_ns / 100 or count > 4


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize(("per_s", "length_ms", "most"), [(1000, 0.3, 0.06), (1500, 0.2, 0.02)])
def test_gaps_by_chance_are_lent_by_the_hardware_if_calls_leave_most_of_them_idle(policy, per_s, length_ms, most):
    """Beside requests of 0.3 ms at 1,000/s a fifth of the GPU idled for freezes and thaws."""
    sim = beside(policy, Load(by_chance(5, per_s, length_ms, 6)).works_in(1), Load().works_in(2), (1, 2), 95)
    sim.run(1500)
    before = sim.idle_ns
    sim.run(3000)
    assert sim.idle_ns - before < most * 3000 * MS


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize("count", [2, 4])
def test_without_gaps_several_run_beside_high_priority(policy, count):
    """There was none to lend by calls: high priority was frozen for what they are due, and requests waited 18 ms."""
    sim = beside(policy, Load().works_in(2), Load().works_in(count), (2, count))
    sim.run(3100)
    assert {each for each, _ in seen(sim, 1)} == {1}


def beside_several(
    policy: int, count: int, gap_us: float, tsgs: int, prio_ratio: int, work_us: float = 1000
) -> DemandGpu:
    """So many of high priority, each with such pieces and gaps, and a training."""
    turn = Turn(policy, slice_ms=6, controls=BOTH, switch_us=205)
    turn.set("prio_ratio", prio_ratio)
    ids = [turn.add(highprio=1, channels=1) for _ in range(count)] + [turn.add(channels=tsgs)]
    loads = [*(Closed(work_us, gap_us).works_in(1) for _ in range(count)), Load().works_in(tsgs)]
    return DemandGpu(turn, dict(zip(ids, loads, strict=True)))


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize("tsgs", [2, 4])
def test_gaps_of_several_high_ones_are_those_of_all(policy, tsgs):
    """By those of each calls lent them. Of two with gaps of 1.6 ms few are left of more than one: the training had 2.5
    %, and 13 of the GPU idled."""
    sim = beside_several(policy, 2, 1600, tsgs, 95).run(1500)
    before = sim.idle_ns
    assert {runs for runs, _ in seen(sim, 2)} == {1}
    assert sim.idle_ns - before < sim.time_ns / 100


@pytest.mark.parametrize("policy", KNOWN)
def test_high_priority_is_not_frozen_for_high_priority_while_others_run(policy):
    """Those with pieces of more than 2 ms waited for each other's turns, and the training had the gaps of the one whose
    turn it was."""
    sim = beside_several(policy, 3, 4000, 1, 95, work_us=3000).run(1500)
    frozen = 0
    for _ in range(400):
        sim.run(1)
        frozen += ~sim.turn.t.run_mask & 0b111 != 0
    assert frozen < 60


@pytest.mark.parametrize("policy", KNOWN)
def test_several_high_ones_have_the_quota(policy):
    """While it was used up each of them was charged for all of the time, and the training had 40 to 47 %."""
    sim = beside_several(policy, 3, 1000, 1, 80).run(3000)
    had = sim.loads[3].got_ns
    sim.run(4000)
    assert (sim.loads[3].got_ns - had) / (4000 * MS) == pytest.approx(0.22, abs=0.03)


def several(policy: int, prio_ratio: int, high: list[Load], low: Load) -> DemandGpu:
    """Some of high priority and one without, each of one TSG."""
    turn = Turn(policy, slice_ms=6, controls=BOTH, switch_us=205)
    turn.set("prio_ratio", prio_ratio)
    ids = [turn.add(highprio=1, channels=1) for _ in high] + [turn.add(channels=1)]
    return DemandGpu(turn, {one: load.works_in(1) for one, load in zip(ids, [*high, low], strict=True)})


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize("high", [(), (20_000, 1000)], ids=["always", "20 in 21 ms"])
def test_a_quota_that_stops_several_stops_each(policy, high):
    """The hardware begins with the same TSG after each pause, and its timeslice was longer than the time to the next
    one: beside one that always works, pieces of 1 ms had 0.1 % and a p99 of 1.7 s."""
    first = Closed(*high) if high else Load()
    sim = several(policy, 80, [first, Closed(1000, 2000)], Load()).run(1500)
    assert sim.parts(5000)[1] > 0.06


@pytest.mark.parametrize("policy", KNOWN)
def test_a_quota_of_several_leaves_no_idle_time_beside_short_work(policy):
    """They were frozen for work of 1 ms with pauses as long: the GPU idled for 23 % of the time."""
    sim = several(policy, 50, [Closed(2000, 1000), Closed(2000, 1000)], Closed(1000, 1000)).run(1500)
    before = sim.idle_ns
    sim.run(4000)
    assert sim.idle_ns - before < 0.08 * 4000 * MS


@pytest.mark.parametrize("policy", KNOWN)
def test_the_gaps_of_high_priority_are_no_credit_beside_a_crowd(policy):
    """Six TSGs are frozen at the end of each gap, and a whole round of theirs was credited for it: at prio_ratio 20
    high priority had 69 %."""
    sim = beside(policy, Closed(5000, 1500).works_in(1), Load().works_in(6), (1, 6), prio_ratio=20).run(1500)
    assert sim.parts(6000)[0] < 0.3


@pytest.mark.parametrize("policy", KNOWN)
def test_a_nap_of_others_changes_no_timeslice(policy):
    """In each pause of a training high priority whose quota was used up had long timeslices again: 80 % at prio_ratio
    20. What the training leaves of its 64 % is 36."""
    sim = beside(policy, Load().works_in(1), Closed(8000, 4500).works_in(1), (1, 1), prio_ratio=20).run(1500)
    assert sim.parts(4000)[0] < 0.55


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize(("low", "frozen"), [((200, 2000), {1}), (None, {0, 1})])
def test_a_quota_that_is_used_up_leaves_the_pauses_of_others(policy, low, frozen):
    """High priority with gaps of 0.3 ms was frozen for others that slept for most of that, and the GPU idled."""
    other = Closed(*low) if low else Load()
    sim = beside(policy, Closed(300, 300).works_in(1), other.works_in(1), (1, 1)).run(2500)
    assert {runs for runs, _ in seen(sim, 0)} == frozen


@pytest.mark.parametrize("policy", KNOWN)
def test_a_quota_that_is_used_up_freezes_for_none_that_sleep(policy):
    """High priority with gaps of 0.1 ms was frozen in the pauses of the training too."""
    sim = beside(policy, Closed(100, 100).works_in(1), Closed(8000, 4500).works_in(1), (1, 1)).run(2500)
    frozen = 0
    for _ in range(1000):
        sim.run(1)
        frozen += sim.turn.t.asleep_mask >> 1 & ~sim.turn.t.run_mask & 1
    assert frozen < 20


@pytest.mark.parametrize(("tsgs", "timeslice_us", "theirs_us"), [(1, 90, 810), (2, 410, 820), (4, 410, 1640)])
def test_a_gap_is_a_round_of_each_tsg_at_least(tsgs, timeslice_us, theirs_us):
    """And a switch before each. Of two at work, of whose timeslices only one counted, each second had 13 to 26 % at
    prio_ratio 80."""
    turn = Turn(BURST, controls=BOTH, switch_us=205)
    high, low = turn.add(highprio=1, channels=1), turn.add(channels=tsgs)
    t = turn.t
    t.slot[low].timeslice_us, t.run_mask, t.known_mask, t.busy_mask, t.high_gap_ns = timeslice_us, 3, 3, 3, 1
    before = t.prio_budget_ns
    lib.cgpu_prio_charge_handover(t, high, MS, MS)
    assert t.prio_budget_ns - before == theirs_us * 1000 - MS


@pytest.mark.parametrize("policy", KNOWN)
def test_a_crowd_has_its_part_beside_short_gaps(policy):
    """Each gap was charged as if the crowd had a timeslice of it, and that had 12 %, in other mixes 4."""
    turn = Turn(policy, slice_ms=6, controls=BOTH, switch_us=85)
    turn.set("prio_ratio", 80)
    ids = [turn.add(highprio=first, channels=count) for first, count in ((1, 2), (0, 6))]
    loads = [Load(by_chance(3, 2000, 0.3, 6)).works_in(1), Load().works_in(6)]
    sim = DemandGpu(turn, dict(zip(ids, loads, strict=True))).run(2000)
    assert sim.parts(3000)[1] > 0.16


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize(("high", "low"), [((4, 1), (1, 1)), ((1, 1), (4, 1)), ((4, 1), (8, 1)), ((4, 4), (1, 1))])
@pytest.mark.parametrize("prio_ratio", [80, 95])
def test_a_ceiling_holds_however_many_tsgs_there_are(policy, high, low, prio_ratio):
    """High priority of 4 TSGs that works in one had 48 % of an H100 instead of 80: its timeslice was a quarter."""
    sim = beside(policy, Load().works_in(high[1]), Load().works_in(low[1]), (high[0], low[0]), prio_ratio)
    sim.run(2000)
    assert sim.parts(4000)[0] == pytest.approx(prio_ratio / 100, abs=0.012)


@pytest.mark.parametrize("policy", KNOWN)
@pytest.mark.parametrize(("counts", "weights"), [((2, 1), (1, 1)), ((4, 1), (1, 1)), ((6, 1), (1, 1)), ((4, 1), (3, 1)),
                                                 ((4, 1), (1, 3)), ((4, 2), (1, 1))])  # fmt: skip
def test_trainings_beside_high_priority_have_their_weights(policy, counts, weights):
    """However many of their TSGs work at once. Of two equal ones that of four had 4 of 62 % beside requests of 1 ms at
    300/s: it lost what was left of its turn whenever high priority woke."""
    turn = Turn(policy, slice_ms=9, controls=BOTH, switch_us=205)
    turn.set("prio_ratio", 95)
    weights = (1, 1) if policy == PREEMPTIVE else weights
    high = turn.add(highprio=1, channels=1)
    ids = [turn.add(weight, channels=count) for weight, count in zip(weights, counts, strict=True)]
    loads = [Load(by_chance(1, 300, 1, 12)).works_in(1), *(Load().works_in(count) for count in counts)]
    sim = DemandGpu(turn, dict(zip((high, *ids), loads, strict=True))).run(2000)
    _, one, other = sim.parts(8000)
    assert one / other == pytest.approx(weights[0] / weights[1], rel=0.2)
    assert one + other > 0.6


@pytest.mark.parametrize("policy", KNOWN)
def test_services_of_several_tsgs_run_beside_one_another(policy):
    """Eight that work in one of 4 TSGs each were frozen in each other's turns, with a p99 of 149 ms on an H100; as
    with one TSG each it is 47."""
    p99_us = []
    for tsgs in (1, 4):
        turn = Turn(policy, slice_ms=9, controls=BOTH, switch_us=205)
        ids = [turn.add(channels=tsgs) for _ in range(8)]
        loads = [Load(by_chance(i, 16, 5, 10)).works_in(1) for i in ids]
        sim = DemandGpu(turn, dict(zip(ids, loads, strict=True))).run(8000)
        p99_us.append(max(map(sim.p99_us, ids)))
        assert {turn.t.slot[i].at_work for i in ids} == {1}
    assert p99_us[1] < 1.15 * p99_us[0]


# ---- the count ----

ALWAYS, BUSY = 0b01, 0b10


class Readings:
    """Two containers, the first with high priority, that both may run."""

    def __init__(self, tsgs: int = 4, policy: int = WEIGHTED) -> None:
        self.turn = Turn(policy, slice_ms=6, switch_us=205)
        self.turn.add(highprio=1, channels=1)
        self.low = self.turn.add(channels=tsgs)
        self.event = ffi.new("struct cgpu_step_event *", {"kind": lib.CGPU_STEP_EVENT_READ, "known": 0b11})
        self.step = ffi.new("struct cgpu_step *")
        self.turn.t.run_mask = 0b11

    def read(self, tsgs: int, times: int = 1, high: bool = False, frozen: bool = False) -> Readings:
        for _ in range(times):
            self.turn.now += MS // 10
            self.turn.t.run_mask = 0b01 if frozen else 0b11
            self.event.busy = (BUSY if tsgs else 0) | (ALWAYS if high else 0)
            self.event.tsgs[self.low], self.event.now_ns = tsgs, self.turn.now
            lib.cgpu_sched_step(self.turn.t, ffi.NULL, self.step, self.event)
        return self

    @property
    def found(self) -> int:
        return self.turn.t.slot[self.low].at_work


def test_a_number_needs_some_readings():
    one = Readings().read(1, 15)
    assert one.found == 0
    assert one.read(1).found == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 255])
def test_the_number_of_each_reading(count):
    assert Readings().read(count, 64).found == count


def test_a_second_one_counts_from_a_third_of_the_time_on():
    rarely, often = Readings().read(1, 64), Readings().read(1, 64)
    for _ in range(100):
        rarely.read(2).read(1, 4)
        often.read(2).read(1, 1)
    assert (rarely.found, often.found) == (1, 2)


def test_fewer_count_after_a_while():
    """Each change can be calls."""
    one = Readings().read(4, 64)
    assert one.read(1, 3000).found == 4
    assert one.read(1, 1200).found == 1
    assert one.read(4, 200).found == 4, "more do at once"


def test_what_waits_for_high_priority_is_not_counted():
    one = Readings().read(1, 64)
    assert one.read(4, 3000, high=True).found == 1
    assert one.read(1).read(4, 3000, frozen=True).found == 1
    one.read(1)
    one.turn.t.prio_throttled = 1
    assert one.read(4, 200, high=True).found == 4, "both have their part of the time"


def test_what_waits_is_counted_where_high_priority_always_works():
    """By the number of TSGs the account took a container of 4 for one that has its part."""
    assert Readings().read(1, 16, high=True).found == 1
    assert Readings().read(1, 64).read(4, 4500, high=True).found == 4


def test_what_sleeps_and_what_is_not_counted_changes_nothing():
    one = Readings().read(3, 64)
    one.event.tsgs[one.low] = 0
    one.turn.now += 500 * MS
    assert one.read(0, 100).found == 3
    lib.cgpu_sched_set_run_state(one.turn.t, 0b11, BUSY, one.turn.now)
    assert one.found == 3


def test_a_number_makes_a_plan():
    """It decides who runs beside high priority."""
    one = Readings().read(1, 64)
    one.step.kind = lib.CGPU_STEP_WAIT
    one.read(1, 10)
    assert one.step.kind == lib.CGPU_STEP_WAIT
    one.read(4, 20)
    assert one.step.kind == lib.CGPU_STEP_PLAN


def test_one_that_closed_the_gpu_begins_anew():
    one = Readings().read(4, 64)
    one.turn.channels(one.low, 0)
    assert one.found == 0
    one.turn.channels(one.low, 4)
    assert one.read(1, 16).found == 1
