# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""Kernels that delay their preemption: what a container gets by them is taken back. Simulated."""

import pytest
from corelib import BURST, FREEZE, MS, PREEMPTIVE, WEIGHTED, Turn, lib
from demandgpu import DemandGpu, Load, every
from simgpu import A100, STEADY, US, Control, TimeslicedGpu
from test_gaps import Steps
from test_run_state import BOTH


class Stubborn(TimeslicedGpu):
    """Kernels of some slots run to their end: no other has the GPU before, and no freeze is answered."""

    switch_ns = 85 * US

    def __init__(self, turn, kernel_us, control=A100, seed=1, part=1.0):
        super().__init__(turn, control, seed)
        self.kernel_ns = {slot: int(us * US) for slot, us in kernel_us.items()}
        self.part = part  # of the freezes that are delayed

    def rest_ns(self, slot):
        """Of the kernel under way."""
        return -self.got.get(slot, 0) % self.kernel_ns[slot] if slot in self.kernel_ns else 0

    def pick(self, running, now):
        rest = self.rest_ns(self.current)
        if self.current in running and rest:
            self.slice_end = now + rest
        else:
            super().pick(running, now)

    def call(self, mask, thaw, done):
        rest = 0 if thaw or not mask >> (self.current or 0) & 1 else self.rest_ns(self.current)
        if rest and self.rng.random() < self.part:
            self.pass_to(self.turn.now + rest)
        return super().call(mask, thaw, done)


def shares(kernels_ms, weights=(1, 1), slice_ms=10, seconds=20, **more):
    """Of the GPU, without the first two seconds, and the slots' preempt_slow."""
    policy = WEIGHTED if len(set(weights)) > 1 else PREEMPTIVE
    turn = Turn(policy, slice_ms=slice_ms, controls=FREEZE, switch_us=70, max_inst=25)
    made = [turn.add(weight, channels=1) for weight in weights]
    kernel_us = {slot: ms * 1000 for slot, ms in zip(made, kernels_ms, strict=True) if ms}
    sim = Stubborn(turn, kernel_us, **more)
    sim.run(2000)
    before = dict(sim.got)  # kernels go on where they are
    sim.run(seconds * 1000)
    got = [sim.got[slot] - before[slot] for slot in made]
    return [one / sum(got) for one in got], [turn.stat(slot).preempt_slow for slot in made]


@pytest.mark.parametrize("slice_ms", [5, 10])
@pytest.mark.parametrize("kernel_ms", [0.5, 1, 2, 5.5, 10.5, 12, 20])
def test_a_kernel_that_resists_gains_no_time(kernel_ms, slice_ms):
    """Also one in step with the slices, which a freeze meets right before its end."""
    (bad, good), _ = shares([kernel_ms, 0], slice_ms=slice_ms)
    assert 0.94 < bad / good < 1.03


@pytest.mark.parametrize("weights", [(1, 3), (3, 1)])
def test_by_weight(weights):
    (bad, good), _ = shares([10.5, 0], weights)
    assert bad / good == pytest.approx(weights[0] / weights[1], rel=0.03)


def test_of_three_the_two_that_do_not_resist_are_nearly_equal():
    (bad, one, other), _ = shares([10.5, 0, 0], (1, 1, 1))
    assert bad == pytest.approx(1 / 3, rel=0.03)
    assert one == pytest.approx(other, rel=0.04)


def test_where_all_resist_alike_none_gains():
    (one, other), _ = shares([1.5, 1.5])
    assert one == pytest.approx(other, rel=0.02)


@pytest.mark.parametrize("part", [0.3, 0.5, 0.8])
def test_resisting_now_and_then(part):
    """A quarter of the freezes is enough to be seen."""
    (bad, good), _ = shares([1.5, 0], slice_ms=5, part=part)
    assert bad / good < 1.06


TAIL = Control(p50_us=300, sigma=0.06, tail=0.2, tail_us=1900, wake_us=30, middle=True)


@pytest.mark.parametrize("control", [A100, STEADY, Control(), TAIL], ids=["slow calls", "steady", "uneven", "tail"])
@pytest.mark.parametrize("weights", [(1, 1), (1, 16), (1,) * 25], ids=str)
def test_none_is_suspected_where_none_resists(control, weights):
    """Freezes of different length by chance, and the driver's slow calls: equal as before, and by weight."""
    got, slow = shares([0] * len(weights), weights, slice_ms=5, control=control)
    assert slow.count(0) >= len(slow) - 1
    # Of 25 each has 160 turns, of which one call in five is slow.
    error = 0.04 if control is TAIL and len(weights) > 2 else 0.02
    for one, weight in zip(got, weights, strict=True):
        assert one == pytest.approx(weight / sum(weights), rel=error)


def long_share(kernel_ms, *others):
    """Of slot 0, over whole kernels, beside one that always works and @others."""
    turn = Turn(PREEMPTIVE, slice_ms=6, controls=FREEZE, switch_us=70)
    loads = [Load(), Load(), *others]
    sim = DemandGpu(turn, {turn.add(channels=1): load for load in loads}, kernel_ns=kernel_ms * MS)
    marks = []
    for kernels in (4, 9):
        while loads[0].got_ns < kernels * kernel_ms * MS:
            sim.run(10)
        marks.append([load.got_ns for load in loads])
    got = [after - before for before, after in zip(*marks, strict=True)]
    return got[0] / sum(got)


@pytest.mark.parametrize("kernel_ms", [300, 1000, 2500])
def test_a_debt_is_not_refunded_beside_one_that_sleeps(kernel_ms):
    """Recent use is of 0.4 s: a slot that waits for a debt lacks nothing, although it had less than its part of that.
    The sleeper may be the same tenant's."""
    assert long_share(kernel_ms, Load(every(700, 1, 1500))) < long_share(kernel_ms) + 0.01


@pytest.mark.parametrize("kernel_ms", [20, 100, 300])
@pytest.mark.parametrize(
    ("policy", "weights", "most"), [(PREEMPTIVE, (1, 1), 0.53), (PREEMPTIVE, (1, 1, 1), 0.36), (BURST, (10, 90), 0.16)]
)
def test_a_debt_is_not_paid_by_the_pauses_of_others(kernel_ms, policy, weights, most):
    """Trainings that wait 4.5 ms after each step: a kernel of one that resists would begin in each of their pauses, had
    the pause paid for the last one."""
    turn = Turn(policy, slice_ms=6, controls=FREEZE, switch_us=70)
    turn.set("max_inst", 100 if policy == BURST else 25)
    loads = [Load(), *(Steps(19, 4.5) for _ in weights[1:])]
    ids = [turn.add(weight, channels=1) for weight in weights]
    sim = DemandGpu(turn, dict(zip(ids, loads, strict=True)), kernel_ns=kernel_ms * MS)
    sim.run(3000)
    assert sim.parts(8000)[0] < most


def test_one_that_slow_calls_made_look_so_has_its_part():
    """Some wake and some sleep whenever a turn ends. A debt of 2 ms and two slow calls were enough for no grant
    for seconds."""
    turn = Turn(PREEMPTIVE, slice_ms=9, controls=BOTH, switch_us=70)
    loads = [Load(), Load(), Steps(60, 4.5), Steps(3, 6), Steps(8, 3), Steps(0.5, 6), Steps(2, 6), Steps(5, 6)]
    sim = DemandGpu(turn, {turn.add(channels=1): load for load in loads})
    sim.run(1000)
    before, began = [load.got_ns for load in loads], sim.time_ns
    for _ in range(60):
        turn.t.slot[2].slow_freezes = turn.t.slot[6].slow_freezes = 72
        sim.run(50)
    got = [(load.got_ns - ns) / (sim.time_ns - began) for load, ns in zip(loads, before, strict=True)]
    assert got[2] > 0.8 / len(loads)
    assert got[6] > 0.8 / len(loads)


@pytest.mark.parametrize(
    ("kernel_ms", "training", "service"),
    [(1, Load, every(7, 1)), (3, lambda: Steps(5, 2), every(7, 1)), (7, lambda: Steps(5, 2), every(1e6, 1))],
)
def test_one_that_wakes_beside_kernels_that_resist_is_not_charged_for_them(kernel_ms, training, service):
    """Two of equal weight, one of which resists, and a third that sleeps: they have what it leaves in equal parts."""
    turn = Turn(PREEMPTIVE, slice_ms=6, controls=BOTH, switch_us=70)
    loads = [Load(), training(), Load(service)]
    sim = DemandGpu(turn, {turn.add(channels=1): load for load in loads}, kernel_ns=kernel_ms * MS)
    sim.run(3000)
    resists, other, _ = sim.parts(6000)
    assert resists < other + 0.05


def parts_beside(kernel_ms, weights, *loads):
    """What each has, slot 0 of kernels that run to their end, after the first seconds."""
    turn = Turn(BURST, slice_ms=9, controls=BOTH, switch_us=205, max_inst=100)
    ids = [turn.add(weight, channels=1) for weight in weights]
    sim = DemandGpu(turn, dict(zip(ids, loads, strict=True)), kernel_ns=kernel_ms * MS).run(8000)
    return sim.parts(12_000)


@pytest.mark.parametrize(("kernel_ms", "other"), [(12, (19, 10)), (20, (2, 2)), (20, (19, 4.5)), (50, (2, 2))])
def test_one_with_gaps_that_resists_is_found(kernel_ms, other):
    """Those with gaps run beside each other, and none was frozen. By timeslices the account gave each a half of the
    GPU, of which one had 75 % by kernels of 20 ms."""
    resists, _ = parts_beside(kernel_ms, (50, 50), Steps(kernel_ms, 5), Steps(*other))
    assert resists < 0.53


@pytest.mark.parametrize(
    ("kernel_ms", "weights", "other"),
    [
        (4, (10, 90), (2, 2)),
        (5, (10, 90), (2, 2)),
        (5, (50, 50), (2, 2)),
        (7, (10, 90), (19, 4.5)),
        (20, (10, 90), (2, 2)),
        (20, (50, 50), (2, 2)),
        (100, (10, 90), (19, 4.5)),
        (100, (90, 10), (19, 10)),
        (500, (40, 60), (2, 2)),
    ],
)
def test_one_that_resists_has_its_part_of_the_pauses_of_others(kernel_ms, weights, other):
    """A kernel that began in each pause kept the GPU from the one that woke: 65 % at weights of 10 : 90."""
    resists, _ = parts_beside(kernel_ms, weights, Load(), Steps(*other))
    assert weights[0] / 100 - 0.03 < resists < weights[0] / 100 + 0.04


@pytest.mark.parametrize("kernel_ms", [5, 8, 20])
@pytest.mark.parametrize("other", [Load, lambda: Steps(5, 2)])
def test_of_three_one_that_resists_has_its_third(kernel_ms, other):
    """Neither what the third one leaves, nor less than its part."""
    resists, *_ = parts_beside(kernel_ms, (1, 1, 1), Load(), other(), Load(every(7, 1)))
    assert 0.32 < resists < 0.37


def test_others_that_sleep_for_long_leave_it_the_gpu():
    """By its kernel of 20 ms it delays one that works once a second by little."""
    resists, other = parts_beside(20, (50, 50), Load(), Load(every(1000, 20)))
    assert resists > 0.8
    assert other > 0.0195


@pytest.mark.parametrize(
    ("kernel_ms", "sleep_ms", "least", "most"), [(5, 18, 0.9, 0.95), (8, 30, 0.92, 0.97), (8, 12, 0.22, 0.29)]
)
def test_others_that_usually_sleep_for_long_leave_it_the_gpu(kernel_ms, sleep_ms, least, most):
    """Only what came after four of its kernels was left in each pause: beside 1 ms in 31 kernels of 8 ms had 27 % and
    the GPU idled for 70. Beside shorter pauses it delays each piece."""
    resists, other = parts_beside(kernel_ms, (25, 75), Load(), Steps(1, sleep_ms))
    assert least < resists < most
    assert other > 0.85 / (1 + sleep_ms)


def test_services_are_not_probed():
    """Their work is over within a timeslice."""
    turn = Turn(PREEMPTIVE, slice_ms=9, controls=BOTH, switch_us=205)
    sim = DemandGpu(turn, {turn.add(channels=1): Load(every(62.5, 5, 7.1 * i)) for i in range(8)}).run(3000)
    calls = sim.calls
    sim.run(3000)
    assert sim.calls == calls


@pytest.mark.parametrize("kernel_ms", [20, 100])
@pytest.mark.parametrize("prio_ratio", [80, 95])
def test_low_priority_that_resists_is_found_and_kept_back(kernel_ms, prio_ratio):
    """Beside high priority none is frozen: each of its requests waited for a whole kernel, and nothing showed it."""
    turn = Turn(PREEMPTIVE, slice_ms=6, controls=BOTH, switch_us=70)
    turn.set("prio_ratio", prio_ratio)
    low, high = turn.add(channels=1), turn.add(highprio=True, channels=1)
    loads = {low: Load(), high: Load(every(10, 1, until_ms=13_000))}
    sim = DemandGpu(turn, loads, kernel_ns=kernel_ms * MS)
    sim.run(3000)
    before = loads[high].got_ns
    sim.run(8000)
    assert turn.stat(low).preempt_slow > 0
    assert (loads[high].got_ns - before) / (8000 * MS) > 0.095, "a request of 1 ms each 10 ms"
    assert loads[low].got_ns / sim.time_ns < (100 - prio_ratio) / 100 + 0.3


def test_short_work_of_high_priority_is_not_probed():
    turn = Turn(PREEMPTIVE, slice_ms=6, controls=BOTH, switch_us=70)
    low, high = turn.add(channels=1), turn.add(highprio=True, channels=1)
    sim = DemandGpu(turn, {low: Load(), high: Load(every(10, 5))}).run(3000)
    calls = sim.calls
    sim.run(3000)
    assert sim.calls == calls


def test_the_usual_freeze_is_kept_by_the_next_core_and_bounded():
    turn = Turn(PREEMPTIVE, slice_ms=5, controls=FREEZE)
    bad = turn.add(channels=1)
    turn.add(channels=1)
    sim = Stubborn(turn, {bad: 20_000})
    sim.run(20_000)
    first, second = turn.t.slot[0], turn.t.slot[1]
    assert first.freeze_ns == pytest.approx(2_048_000, abs=50_000)
    assert 200_000 < second.freeze_ns < 500_000
    assert first.freezes == second.freezes == 128
    turn.delete(bad)
    assert turn.add(channels=1) == bad and turn.t.slot[bad].freezes == 0


@pytest.mark.parametrize(("took_ms", "points"), [(1, 0), (3, 8), (8, 8), (9, 96), (500, 96)])
def test_one_freeze_beyond_the_drivers_tail_is_proof(took_ms, points):
    """Where timeslices hold high priority it is hardly frozen: a second proof may never come."""
    turn = Turn(PREEMPTIVE, slice_ms=6, switch_us=70)
    slot = turn.add(channels=1)
    lib.cgpu_resist_note(turn.t, 1 << slot, int(took_ms * MS))
    assert turn.t.slot[slot].slow_freezes == points
    assert lib.cgpu_resist_is_slow(turn.t, turn.t.slot + slot) == (points == 96)


@pytest.mark.parametrize(("usual_us", "late"), [(300, False), (700, True)])
def test_a_long_freeze_is_late_where_the_slots_freezes_are_long(usual_us, late):
    """By a single one the driver's tail would be charged to whoever it falls on."""
    turn = Turn(PREEMPTIVE, slice_ms=6, switch_us=70)
    slot, other = turn.add(channels=1), turn.add(channels=1)
    for _ in range(200):
        lib.cgpu_resist_note(turn.t, 1 << slot, usual_us * US)
        lib.cgpu_resist_note(turn.t, 1 << other, 300 * US)
    lib.cgpu_resist_note(turn.t, 1 << slot, 1900 * US)
    assert lib.cgpu_resist_is_late(turn.t, 1 << slot, 1900 * US) == late


def test_a_freeze_of_many_at_once_is_no_proof():
    """25 containers that begin together are frozen by one call, which takes longer than one that meets no kernel."""
    turn = Turn(PREEMPTIVE, slice_ms=5, controls=FREEZE, max_inst=25)
    slots = [turn.add(channels=1) for _ in range(3)]
    lib.cgpu_resist_note(turn.t, 0b110, 20 * MS)
    assert [turn.t.slot[slot].slow_freezes for slot in slots] == [0, 8, 8]
    assert not any(lib.cgpu_resist_is_slow(turn.t, turn.t.slot + slot) for slot in slots)
