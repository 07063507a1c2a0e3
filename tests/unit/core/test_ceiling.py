# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Ceilings under burst: what a container has above its guaranteed part, and not more. Simulated."""

from __future__ import annotations

import errno

import pytest
from corelib import BURST, FAIR, FIXED, MS, NATIVE, PREEMPTIVE, SOFT, WEIGHTED, C, CoreError, Turn, ffi, lib
from demandgpu import ALL, Closed, DemandGpu, Load, every
from hypothesis import given, settings
from hypothesis import strategies as st
from simgpu import A100, Control, SimGpu

IDLE = []


def gpu(*containers, policy=BURST, slice_ms=6.0, max_inst=100, call_us=300, **more):
    """Containers of (weight, ceiling, load), with more keys for DemandGpu; high priority where the load is a tuple."""
    turn = Turn(policy, slice_ms=slice_ms, max_inst=max_inst, switch_us=70)
    loads = {}
    for weight, ceiling, load in containers:
        high = isinstance(load, tuple)
        slot = turn.add(weight, highprio=int(high), channels=1)
        if ceiling:
            turn.set("ceiling", slot, ceiling)
        loads[slot] = load[0] if high else load
    return DemandGpu(turn, loads, call_us=call_us, **more)


def busy():
    return Load()


def over_seconds(sim, seconds=4, step_ms=50):
    """The least and the greatest percentage of each container in any second that begins at a multiple of @step_ms."""
    sim.run(500)
    steps = {slot: [] for slot in sim.loads}
    for _ in range(seconds * 1000 // step_ms):
        before = {slot: load.got_ns for slot, load in sim.loads.items()}
        sim.run(step_ms)
        for slot, load in sim.loads.items():
            steps[slot].append(load.got_ns - before[slot])
    count = 1000 // step_ms
    out = []
    for got in steps.values():
        parts = [sum(got[i : i + count]) / (10 * MS) for i in range(len(got) - count + 1)]
        out.append((min(parts), max(parts)))
    return out


def test_high_priority_is_not_frozen_for_others_that_their_ceilings_pause():
    """Its quota was used up, and theirs too: no container had the GPU for seconds."""
    sim = gpu((1, 10, busy()), (1, 10, busy()), (1, 0, (Closed(50, 50),))).run(1000)
    sim.turn.t.prio_budget_ns = -150 * MS
    *others, (least, _) = over_seconds(sim, seconds=2)
    assert least > 33, "of 50"
    assert all(least > 8 and most < 11.5 for least, most in others)


@pytest.mark.parametrize(("pauses", "leaves"), [(2, True), (60, False)])
def test_a_ceiling_is_charged_by_the_work_of_each_tsg_beside_several(pauses, leaves):
    """High priority of two TSGs shows work all the time, though each leaves the GPU after a short piece. By timeslices
    a container beside it had 19 % under a ceiling of 10."""
    turn = Turn(BURST, slice_ms=6, max_inst=100, switch_us=70)
    high, low = turn.add(1, highprio=1, channels=2), turn.add(1, channels=1)
    turn.set("ceiling", low, 10)
    t, counts = turn.t, ffi.new("u8[25]")
    t.run_mask = t.known_mask = t.busy_mask = 1 << high
    counts[high] = 2
    for number in range(400):
        counts[high] = 1 if number % pauses == 0 else 2
        turn.now += MS // 10
        lib.cgpu_at_work_note(t, counts, turn.now)
    t.run_mask = t.known_mask = t.busy_mask = t.on_mask = 1 << high | 1 << low
    t.slot[high].timeslice_us, t.slot[low].timeslice_us = 4000, 2000
    assert lib.cgpu_at_work_leaves(t.slot + high) == leaves
    before = t.slot[low].ceiling_budget_ns
    lib.cgpu_ceiling_charge_before(t, t.busy_mask, t.busy_mask, False, 2 * MS)
    assert (before - t.slot[low].ceiling_budget_ns) / MS == pytest.approx(0.95 if leaves else 0.5, abs=0.04)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("ceiling", [1, 2, 5, 10, 30, 50, 60, 75, 90, 99])
def test_one_that_is_alone_has_its_ceiling_in_each_second(ceiling, known):
    ((least, most),) = over_seconds(gpu((1, ceiling, busy()), known=ALL * known))
    assert ceiling - 1 < least
    assert most < ceiling + 1


@pytest.mark.parametrize("others", [[], [(10, 0, Load(IDLE))]], ids=["alone", "beside an idle opener"])
@pytest.mark.parametrize(
    ("work_us", "gap_us", "ceiling"), [(140, 400, 10), (180, 320, 10), (150, 300, 30), (220, 900, 5), (500, 2000, 5)]
)
def test_small_pieces_of_work_are_held_to_the_ceiling(work_us, gap_us, ceiling, others):
    """They come and go between the readings of one that sleeps, and would have twice and three times as much."""
    (least, most), *_ = over_seconds(gpu((5, ceiling, Closed(work_us, gap_us)), *others), seconds=3)
    assert most < ceiling + 1
    assert least > 0.85 * ceiling


@pytest.mark.parametrize("others", [[], [(10, 0, Load(IDLE))]], ids=["alone", "beside an idle opener"])
@pytest.mark.parametrize(
    ("work_us", "gap_us", "ceiling"), [(140, 400, 30), (220, 900, 25), (100, 2000, 10), (1000, 3000, 30)]
)
def test_small_pieces_below_the_ceiling_are_not_held_up(work_us, gap_us, ceiling, others):
    """Gaps that are too short to be lent are no use of the GPU while none waits for it."""
    sim = gpu((5, ceiling, Closed(work_us, gap_us)), *others).run(3000)
    assert sim.share(0) > 0.98 * work_us / (work_us + gap_us)
    assert throttled(sim, 0) == 0


PIECES = {
    "1 in 4 beside 1 in 3": [(every(4, 1), 0), (every(3, 1), 0)],
    "beside two": [(every(4, 1), 0), (every(3, 1), 0), (every(3, 0.7), 0)],
    "in step": [(1000, 3000), (1000, 2000)],
    "longer than a timeslice": [(5000, 15000), (1000, 2000)],
    "beside shorter ones": [(1000, 3000), (300, 600)],
    "beside ones with short gaps": [(1000, 3000), (30, 30)],
    "beside two with short gaps": [(1000, 3000), (100, 100), (100, 100)],
}


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("mix", PIECES)
def test_pieces_of_work_beside_others_are_held_to_the_ceiling(mix, last):
    """Of pieces shorter than the timeslices the first on the GPU has all, by the timeslices it would have a part."""
    loads = [Closed(*one) if isinstance(one[0], int) else Load(one[0]) for one in PIECES[mix]]
    containers = [(5, 10, loads[0]), *((10, 0, load) for load in loads[1:])]
    found = over_seconds(gpu(*(containers[::-1] if last else containers)), seconds=3)
    least, most = found[-1 if last else 0]
    assert most < 11
    assert least > 8


@pytest.mark.parametrize("gap_us", [10, 20, 30])
@pytest.mark.parametrize(("work_us", "pause_us"), [(300, 1000), (1000, 3000), (2000, 5000), (4000, 1000)])
def test_pieces_of_work_beside_kernels_are_held_to_the_ceiling(work_us, pause_us, gap_us):
    """Kernels of 30 us lose the GPU in the next of their gaps. By the timeslices one that wakes would have a part."""
    sim = gpu((5, 10, Closed(work_us, pause_us)), (50, 0, Closed(30, gap_us)))
    (_, most), (others, _) = over_seconds(sim, seconds=3)
    assert most < 10.7
    assert others > 0.85 * 100 * 30 / (30 + gap_us)


def test_gaps_that_others_wait_for_are_charged():
    """It keeps its turn in them: beside one that always works its ceiling holds for both together."""
    sim = gpu((10, 10, Closed(140, 400)), (10, 0, busy())).run(2000)
    assert sim.share(0) < 0.11
    assert sim.share(1) > 0.88


@pytest.mark.parametrize(
    ("containers", "parts"),
    [
        ([(10, 30, busy), (10, 0, lambda: Load(IDLE))], [30, 0]),
        ([(50, 60, busy), (10, 0, busy)], [60, 40]),
        ([(10, 20, busy), (10, 30, busy), (10, 0, busy)], [20, 30, 50]),
        ([(20, 20, busy), (20, 0, busy), (40, 0, busy)], [20, 80 / 3, 160 / 3]),
        ([(10, 20, busy), (10, 30, busy)], [20, 30]),
        ([(50, 50, busy), (50, 0, busy)], [50, 50]),
        ([(50, 60, busy), *[(10, 0, busy)] * 5], [50, 10, 10, 10, 10, 10]),
        ([(10, 90, busy), (10, 0, busy)], [50, 50]),
        ([(10, 10, lambda: Load(every(50, 10))), (10, 0, busy)], [10, 90]),
        ([(10, 40, lambda: (Load(),)), (20, 0, busy)], [40, 60]),
        ([(10, 0, lambda: (Load(every(50, 10)),)), (10, 20, busy)], [20, 20]),
    ],
    ids=str,
)
def test_what_is_above_a_ceiling_goes_to_the_others_by_weight(containers, parts):
    got = over_seconds(gpu(*[(weight, ceiling, load()) for weight, ceiling, load in containers]))
    for (weight, ceiling, _), (least, most), part in zip(containers, got, parts, strict=True):
        assert (least + most) / 2 == pytest.approx(part, abs=0.8), weight
        if ceiling:
            assert most < ceiling + 1


@pytest.mark.parametrize("slice_ms", [1, 5, 10, 30])
@pytest.mark.parametrize("seed", range(3))
def test_slow_calls_are_charged(slice_ms, seed):
    """Control calls with the tails of the profiles, two that always work; nothing is known of their work."""
    turn = Turn(BURST, slice_ms=slice_ms, max_inst=100, switch_us=70)
    for weight, ceiling in ((30, 40), (20, 0)):
        turn.set("ceiling", turn.add(weight, channels=1), ceiling)
    sim = SimGpu(turn, A100, seed)
    sim.run(1000)
    for _ in range(6):
        sim.got.clear()
        sim.run(1000)
        assert sim.got[0] / (10 * MS) < 41
        assert sim.got[0] / (10 * MS) > 30


@pytest.mark.parametrize("known", [True, False])
def test_a_ceiling_is_kept_beside_one_that_may_be_idle(known):
    """Unknown: in an overlap, and beside high priority, the other one may have left it all of the time."""
    for other in (Load(IDLE), (Load(IDLE),), (Load(every(50, 10)),)):
        got = over_seconds(gpu((10, 30, busy()), (10, 0, other), known=ALL * known))
        assert got[0][1] < 31
        assert got[0][0] > 15


def test_a_ceiling_costs_the_guaranteed_part_little_where_nothing_is_known():
    got = over_seconds(gpu((50, 50, busy()), (50, 0, busy()), known=0))
    assert got[0][0] > 46
    assert got[0][1] < 51


def test_a_request_within_the_budget_is_not_held_up():
    """Small requests of a container with a low ceiling: the time in which it sleeps is saved for them, up to 7 ms."""
    sim = gpu((5, 10, Load(every(100, 5, 20))), (50, 0, busy())).run(500)
    sim.loads[0].forget()
    assert sim.run(4000).p99_us(0) < 5000 + 1500


def test_sleeping_saves_no_more_than_a_budget():
    """100 ms of work after two seconds without: no more than the ceiling of the second, and 1 % of it."""
    sim = gpu((5, 20, Load([(2000 * MS, 900 * MS)]))).run(2000)
    sim.run(1000)
    assert sim.loads[0].got_ns == pytest.approx(200 * MS, abs=10 * MS)


def throttled(sim, slot):
    return sim.turn.stat(slot).throttled_ns


@pytest.mark.parametrize("known", [True, False])
def test_time_without_budget_is_throttled(known):
    """Of one that is alone all of its waits but the calls; of one that has a ceiling and never reaches it nothing."""
    sim = gpu((1, 30, busy()), known=ALL * known).run(500)
    before, got, waited = throttled(sim, 0), sim.loads[0].got_ns, sim.turn.stat(0).wait_ns
    sim.run(4000)
    lost = throttled(sim, 0) - before
    assert lost / (4000 * MS) == pytest.approx(0.70, abs=0.03)
    assert lost <= sim.turn.stat(0).wait_ns - waited <= 4000 * MS - (sim.loads[0].got_ns - got) + 12 * MS
    beside = gpu((10, 90, busy()), (10, 0, busy()), known=ALL * known).run(4000)
    assert (throttled(beside, 0), throttled(beside, 1)) == (0, 0)
    assert beside.turn.stat(0).wait_ns > 1000 * MS, "out of turn"


def test_one_without_work_is_not_throttled():
    """It has used up its budget, and sleeps afterwards: only the time in which it has work counts."""
    sim = gpu((5, 10, Load(every(1000, 20))), (5, 0, busy())).run(4000)
    works = 4 * 20 * MS
    assert 0 < throttled(sim, 0) < 4000 * MS / 2
    assert throttled(sim, 0) + sim.loads[0].got_ns <= sim.turn.stat(0).wait_ns + works
    idle = gpu((5, 10, Load(IDLE)), (5, 0, busy())).run(2000)
    assert throttled(idle, 0) == 0


def test_throttled_time_goes_on_between_two_plans_and_stays():
    """What a reader sees between two plans, after the ceiling is gone, and in the next core."""
    turn = Turn(BURST, slice_ms=6, max_inst=100)
    slot = turn.add(10, channels=1)
    turn.set("ceiling", slot, 10)
    while not turn.t.capped_mask or turn.t.run_mask:
        turn.step()
        turn.now += MS
    first = throttled_at(turn, slot)
    turn.now += 3 * MS
    assert throttled_at(turn, slot) == first + 3 * MS
    turn.set("ceiling", slot, 0)
    turn.step()
    kept = throttled_at(turn, slot)
    turn.now += 50 * MS
    turn.step()
    assert throttled_at(turn, slot) == kept >= first + 3 * MS
    fresh = ffi.new("struct cgpu_sched *")
    assert lib.cgpu_sched_migrate(fresh, turn.t, C.CGPU_SCHED_VERSION) == 0
    assert fresh.slot[slot].throttled_ns == kept


def throttled_at(turn, slot):
    return turn.stat(slot).throttled_ns


@pytest.mark.parametrize("policy", [FAIR, PREEMPTIVE, WEIGHTED, FIXED, SOFT, NATIVE])
def test_it_is_kept_and_ignored_by_the_other_policies(policy):
    with_it, without = (gpu((1, c, busy()), (1, 0, busy()), policy=policy, max_inst=10) for c in (1, 0))
    assert with_it.turn.t.slot[0].ceiling == 1
    for sim in (with_it, without):
        sim.run(1000)
    assert with_it.share(0) == without.share(0)
    assert throttled(with_it, 0) == 0


def test_policies_change_while_it_is_frozen():
    sim = gpu((2, 4, busy()), max_inst=20)
    while not sim.turn.t.capped_mask:
        sim.run(1)
    sim.turn.set("policy", PREEMPTIVE)
    assert sim.turn.step().run_mask & 1
    sim.turn.set("policy", BURST)
    assert sim.turn.step().run_mask & 1, "a full budget"


@pytest.mark.parametrize(
    ("what", "value"),
    [("ceiling", 9), ("ceiling", 101), ("ceiling", 2**32 + 50), ("ceiling", 2**64 - 1), ("weight", 41)],
)
def test_what_is_out_of_range_changes_nothing(what, value):
    turn = Turn(BURST, max_inst=100)
    slot = turn.add(10)
    turn.set("ceiling", slot, 40)
    with pytest.raises(CoreError) as refused:
        turn.set(what, slot, value)
    assert refused.value.errno == errno.EINVAL
    assert (turn.t.slot[slot].weight, turn.t.slot[slot].ceiling) == (10, 40)


def test_no_slot_of_that_number():
    turn = Turn(BURST, max_inst=100)
    for slot in (0, C.CGPU_SLOTS, 2**32 - 1):
        with pytest.raises(CoreError):
            turn.set("ceiling", slot, 50)


def test_it_ends_with_its_container():
    turn = Turn(BURST, max_inst=100)
    slot = turn.add(10, channels=1)
    turn.set("ceiling", slot, 10)
    turn.timeline(100)
    turn.delete(slot)
    assert turn.add(50, channels=1) == slot
    assert turn.t.slot[slot].ceiling == 0
    assert not (turn.t.capped_mask | turn.t.ceiling_mask)
    assert turn.shares(200)[slot] == pytest.approx(1)


def set_again(turn, i):
    turn.set("ceiling", 0, 20 + i % 2)


def set_with_a_weight(turn, i):
    """As where a weight above the ceiling before is set."""
    turn.set("ceiling", 0, 0)
    turn.set("weight", 0, 10 + i % 2)
    turn.set("ceiling", 0, 20)


@pytest.mark.parametrize("write", [set_again, set_with_a_weight])
def test_setting_it_again_gives_no_new_budget(write):
    """Each millisecond."""
    sim = gpu((10, 20, busy()))
    sim.run(500)
    before = sim.loads[0].got_ns
    for i in range(1000):
        write(sim.turn, i)
        sim.run(1)
    assert (sim.loads[0].got_ns - before) / (1000 * MS) < 0.215


def test_a_first_one_begins_with_a_full_budget():
    """Also where the container has run for long without, or used up one that was taken away."""
    sim = gpu((10, 0, busy())).run(500)
    sim.turn.set("ceiling", 0, 20)
    before = sim.loads[0].got_ns
    sim.run(20)
    assert 8 * MS < sim.loads[0].got_ns - before < 10 * MS, "7 ms, and what comes meanwhile"


@pytest.mark.parametrize(
    "naps",
    [
        [(50, 1.5, 0.3)],
        [(10, 1.5, 0.1)] * 5,
        [(25, 23.5, 19), (25, 50, 5)],
        [(50, 50, 5)],
    ],
    ids=str,
)
def test_a_ceiling_that_is_not_reached_changes_nothing(naps):
    """Of one that sleeps, beside one that always works: no pause, no call and no timeslice is another."""

    def run(ceiling):
        works = [
            (weight, ceiling, Load(every(period, length, 0.3 * i))) for i, (weight, period, length) in enumerate(naps)
        ]
        sim = gpu((50, 0, busy()), *works).run(3000)
        return [load.got_ns for load in sim.loads.values()], sim.calls, sim.turn.t.slot[0].timeslice_us

    assert run(99) == run(0)


def test_closing_and_opening_gives_no_new_budget():
    sim = gpu((10, 20, busy()), (10, 0, Load(IDLE)))
    sim.run(500)
    before = sim.loads[0].got_ns
    for _ in range(1000):
        sim.turn.channels(0, 0)
        sim.turn.step()
        sim.turn.channels(0, 1)
        sim.real = sim.real & ~1 if sim.turn.frozen(0) else sim.real | 1  # as the module does with a new channel
        sim.run(1)
    assert (sim.loads[0].got_ns - before) / (1000 * MS) < 0.21


def test_a_turn_goes_on_after_two_that_woke():
    """Slot 2 cuts the turn of slot 0 when it has budget again, and slot 3 that of slot 2 when it wakes."""
    turn = Turn(BURST, slice_ms=12, max_inst=100, switch_us=70)
    cut, _, capped, sleeper = (turn.add(weight, channels=1) for weight in (20, 20, 20, 30))
    turn.set("ceiling", capped, 24)
    group = turn.t.rr[0]

    def tick(awake):
        turn.step()
        owner = group.curr
        turn.now += MS // 10
        turn.set_run_state(0b1111, 0b0111 | awake << sleeper)
        return owner

    for i in range(20_000):
        owner = tick(i % 3000 < 30)
        if i > 6000 and i % 3000 > 1000 and (owner, group.resume) == (capped, cut):
            break
    else:
        pytest.fail("no turn was cut")
    owners = [tick(i < 20) for i in range(200)]
    order = [owner for i, owner in enumerate(owners) if not i or owner != owners[i - 1]]
    assert order[:3] == [capped, sleeper, cut]


def test_a_kernel_that_resists_is_waited_for():
    """A freeze of 200 ms is paid back: over seconds the ceiling holds, and the wait is bounded."""
    turn = Turn(BURST, slice_ms=6, max_inst=100)
    turn.set("ceiling", turn.add(10, channels=1), 30)
    sim = SimGpu(turn, Control(p50_us=200_000, sigma=0, tail=0, tail_us=400_000, wake_us=0, middle=True))
    sim.run(1000)
    sim.got.clear()
    sim.run(20_000)
    assert sim.got[0] / (20_000 * MS) < 0.32


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 40), st.booleans()), min_size=1, max_size=5),
    st.sampled_from([3.0, 6.0, 20.0]),
    st.booleans(),
)
def test_no_mix_exceeds_its_ceilings(mix, slice_ms, known):
    """Busy ones and such that work 7 of 40 ms, with any weights and ceilings: none gets more than its ceiling, and no
    time that a container may use is lost beyond the hand-overs."""
    containers = [
        (weight, max(weight, ceiling) if ceiling else 0, busy() if works else Load(every(40, 7, 3 * i)))
        for i, (weight, ceiling, works) in enumerate(mix)
    ]
    sim = gpu(*containers, slice_ms=slice_ms, known=ALL * known)
    for (_, ceiling, _), (_, most) in zip(containers, over_seconds(sim, 2, 100), strict=True):
        assert not ceiling or most < ceiling + 1
    if known and any(works and not containers[i][1] for i, (_, _, works) in enumerate(mix)):
        assert sim.idle_ns / sim.time_ns < 0.05
