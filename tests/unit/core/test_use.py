# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""High priority without a run state: what the driver's utilisation samples show of it, and what follows."""

from random import Random

import pytest
from checkgpu import CheckGpu
from corelib import (
    BURST,
    FAIR,
    FIXED,
    MS,
    NEVER,
    PREEMPTIVE,
    SOFT,
    TIMESLICE,
    WEIGHTED,
    C,
    Thread,
    Turn,
    ffi,
    lib,
    slots,
)
from simgpu import Control, SimGpu

PERIOD = 200 * MS  # of the driver's samples


class Sampled(Thread):
    """High priority beside another one; samples are read once a second, as the module does, and name what is given.

    on: a function of the scheduler that gives a slot, or None for an idle engine.
    """

    def __init__(self, prio_ratio=80, policy=PREEMPTIVE, tsgs=1, others=1, phase=20 * MS):
        self.turn = Turn(policy, switch_us=205)
        self.turn.set("prio_ratio", prio_ratio)
        self.high = self.turn.add(highprio=1, channels=tsgs)
        self.low = [self.turn.add(channels=1) for _ in range(others)]
        self.check = ffi.new("struct cgpu_check *")
        lib.cgpu_check_init(self.check, self.turn.now)
        self.next, self.read, self.ring = self.turn.now + phase, self.turn.now + 1_000 * MS, []
        self.frozen_ns = 0

    def runs(self):
        return slots(self.turn.t.run_mask & self.turn.opened_mask())

    def run(self, seconds, on):
        """Returns the part of the time in which high priority was frozen."""
        begin, end, frozen = self.turn.now, self.turn.now + int(seconds * 1_000 * MS), 0
        while self.turn.now < end:
            if not self.plan():
                continue
            until = min(self.step.plan.until_ns, self.next, self.read, end)
            frozen += (until - self.turn.now) * (self.high not in self.runs())
            self.turn.now = until
            if self.turn.now >= self.next:
                slot = on(self)
                self.ring.append((self.next, C.CGPU_CHECK_IDLE if slot is None else slot))
                self.next += PERIOD
            if self.turn.now >= self.read:
                self.read += 1_000 * MS
                for at, slot in self.ring:
                    lib.cgpu_check_sample(self.check, self.turn.t, at, slot)
                self.ring = []
        return frozen / (end - begin)


def high(gpu):
    return gpu.high if gpu.high in gpu.runs() else gpu.low[0]


def idle(gpu):
    return None


def low(gpu):
    return gpu.low[0]


@pytest.mark.parametrize("on", [low, idle])
@pytest.mark.parametrize("policy", [PREEMPTIVE, WEIGHTED, BURST])
def test_high_priority_that_uses_little_is_not_frozen(policy, on):
    """From the first samples that are read; its timeslices stay 16:1, and no call is made."""
    gpu = Sampled(policy=policy)
    assert gpu.run(0.9, on) > 0.15, "the ceiling's periods, as long as no sample came"
    gpu.run(0.2, on)
    assert gpu.run(20, on) == 0
    plan = gpu.turn.next()
    assert (plan.timeslice_us[gpu.high], plan.timeslice_us[gpu.low[0]]) == (8192, 512)
    assert plan.until_ns < NEVER, "another thread takes the samples"


@pytest.mark.parametrize(("tsgs", "long_us"), [(1, 8192), (2, 8192), (3, 5461), (4, 4096), (8, 2048)])
@pytest.mark.parametrize("prio_ratio", [80, 95])
def test_several_processes_that_use_little_have_longer_timeslices(prio_ratio, tsgs, long_us):
    """A request then ends within few of them. Together they are 32 times those of the others at most."""
    gpu = Sampled(prio_ratio, tsgs=tsgs)
    gpu.run(10, idle)
    plan = gpu.turn.next()
    assert (plan.timeslice_us[gpu.high], plan.timeslice_us[gpu.low[0]]) == (long_us, 512)
    gpu.run(20, high)
    whole_us = 65536 if prio_ratio == 80 else 8192
    assert gpu.turn.next().timeslice_us[gpu.high] == whole_us // tsgs, "it always works: as before"


@pytest.mark.parametrize("others", [2, 4, 10])
def test_a_slow_freeze_of_another_one_freezes_no_high_priority(others):
    """By timeslices alone, and one call in a thousand is the driver's tail: no period is needed for that."""
    turn = Turn(PREEMPTIVE, slice_ms=6, switch_us=205)
    turn.set("prio_ratio", 95)
    high = turn.add(highprio=1, channels=1)
    for _ in range(others):
        turn.add(channels=1)
    gpu = SimGpu(turn, Control(p50_us=400, tail=0.001))
    gpu.run(1000)
    before, slow = turn.stat(high).wait_ns, 0
    for _ in range(200):
        gpu.run(100)
        slow += any(turn.t.slot[i].slow_freezes for i in range(1, others + 1))
    assert slow and turn.stat(high).wait_ns == before


def test_a_period_ends_where_timeslices_hold_high_priority():
    """Kernels that delay their freezes, and then none do: what passes without a period is no part of the next one."""
    turn = Turn(PREEMPTIVE, slice_ms=6, switch_us=205)
    turn.set("prio_ratio", 95)
    high, low = turn.add(highprio=1, channels=1), turn.add(channels=1)
    turn.add(channels=1)

    def frozen_ms(slow, length_ms):
        before = turn.stat(high).wait_ns
        for _ in range(length_ms):
            turn.t.slot[low].slow_freezes = slow
            turn.timeline(1)
        return (turn.stat(high).wait_ns - before) / MS

    assert frozen_ms(96, 2000) > 50
    assert frozen_ms(0, 2000) < 5, "what was left of a period"
    assert turn.t.prio_period_ns == 0
    assert frozen_ms(96, 90) == 0


def test_work_of_no_container_beside_it_may_be_half_of_all():
    """It may be that of high priority, so it counts as such; only with so much of it a ceiling of 80 is reached."""
    gpu, rng = Sampled(), Random(1)

    def half(one):
        return C.CGPU_CHECK_FOREIGN if rng.random() < 0.5 else None

    gpu.run(20, half)
    assert gpu.run(60, half) == 0


def test_high_priority_that_always_works_is_held_by_periods():
    """From the first moment on: the credit that it begins with is none until a sample finds it idle."""
    gpu = Sampled()
    assert gpu.run(5, high) == pytest.approx(0.2, abs=0.005)
    assert gpu.run(30, high) == pytest.approx(0.2, abs=0.005)


@pytest.mark.parametrize("policy", [FAIR, FIXED, SOFT])
def test_other_policies_keep_their_periods(policy):
    """The caps of fixed rounds are for each 100 ms; under soft all others are in the hardware's round."""
    gpu = Sampled(policy=policy)
    assert gpu.run(20, idle) > 0.15


@pytest.mark.parametrize(("prio_ratio", "frozen"), [(20, 0.8), (50, 0.5), (74, 0.26)])
def test_a_low_ceiling_does_not_depend_on_samples(prio_ratio, frozen):
    """One that stops for each sample, and works else, would have 94 %."""
    gpu = Sampled(prio_ratio=prio_ratio)
    assert gpu.run(30, idle) == pytest.approx(frozen, abs=0.02)


def test_what_it_left_is_soon_used_up():
    """Idle for a minute, it passes its ceiling by half a second of the GPU, and by its work until samples are read."""
    gpu = Sampled()
    gpu.run(60, idle)
    free = 0
    while gpu.run(0.5, high) == 0:
        free += 0.5
    assert 1 <= free <= 4, "all the time on the engine: 240 % at 20 a sample, and a reading"
    assert gpu.run(20, high) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("phase_ms", range(0, 100, 10))
def test_samples_do_not_fall_into_the_same_place_of_all_periods(phase_ms):
    """They are as far apart as two periods: where high priority is frozen, or has what came meanwhile to do."""
    gpu = Sampled(phase=phase_ms * MS)
    gpu.run(5, high)
    seen = set()

    def on(one):
        seen.add((one.turn.now - one.turn.t.prio_period_ns) // (10 * MS))
        return one.high

    frozen = gpu.run(10, on)
    assert len(seen) >= 8 and frozen == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("phase_ms", range(0, 100, 10))
def test_samples_at_one_place_of_the_periods_decide_nothing(phase_ms):
    """The first second's after none came for a while: all of them may fall where another one has its timeslice."""
    gpu = Sampled(phase=phase_ms * MS)
    gpu.run(2, idle)
    resumes, gpu.next = gpu.next + 8_000 * MS, NEVER
    gpu.run(8, idle)
    gpu.next = resumes
    gpu.run(1.05, idle)
    assert gpu.run(0.9, high) > 0.1


def test_without_samples_periods_hold_it():
    gpu = Sampled()
    gpu.run(5, idle)
    assert gpu.run(1, idle) == 0
    gpu.next = NEVER
    gpu.run(6, idle)
    assert gpu.run(2, idle) > 0.1


def reopen(gpu):
    gpu.turn.channels(gpu.high, 0)
    gpu.turn.channels(gpu.high, 1)


def test_a_service_that_starts_again_is_not_frozen():
    """Nothing had the GPU open for a minute, so no sample was read."""
    gpu = Sampled()
    gpu.run(3, idle)
    for slot in (gpu.high, gpu.low[0]):
        gpu.turn.channels(slot, 0)
    gpu.turn.now += 60_000 * MS
    gpu.next, gpu.read = gpu.turn.now + PERIOD, gpu.turn.now + 1_000 * MS
    for slot in (gpu.low[0], gpu.high):
        gpu.turn.channels(slot, 1)
    assert gpu.run(10, idle) == 0


@pytest.mark.parametrize("every", [0.5, 1, 3])
def test_opening_again_gives_no_credit(every):
    gpu = Sampled()
    gpu.run(6, high)
    frozen = []
    for _ in range(int(12 / every)):
        reopen(gpu)
        frozen.append(gpu.run(every, high))
    assert sum(frozen) / len(frozen) == pytest.approx(0.2, abs=0.03)


def test_opening_again_without_samples_gives_no_time():
    """What counts as one is the first opening after a sample only."""
    gpu = Sampled()
    gpu.run(3, idle)
    gpu.next = NEVER
    reopen(gpu)
    gpu.run(4, idle)
    for _ in range(4):
        reopen(gpu)
        gpu.run(1, idle)
    for _ in range(4):
        reopen(gpu)
        assert gpu.run(2, idle) > 0.1


@pytest.mark.parametrize("slot", ["high", "foreign"])
def test_one_that_is_closed_when_samples_are_read_pays_for_them(slot):
    gpu = Sampled()
    gpu.run(3, idle)
    before = gpu.turn.t.use_credit
    for _ in range(2):
        gpu.run(0.4, lambda one: one.high if slot == "high" else C.CGPU_CHECK_FOREIGN)
        gpu.turn.channels(gpu.high, 0)
        gpu.run(0.6, low)
        gpu.turn.channels(gpu.high, 1)
    assert before - gpu.turn.t.use_credit >= 40, "20 % of each of two samples a second"


def test_work_of_no_container_counts_as_that_of_high_priority():
    """Its process may have channels that another one made."""
    gpu = Sampled()
    assert gpu.run(20, lambda _: C.CGPU_CHECK_FOREIGN) > 0.15


def test_work_of_one_process_in_two_other_containers_takes_nothing_from_high_priority():
    """A tenant without high priority decides which of its containers' files a process has."""
    gpu = Sampled(others=2)
    gpu.run(2, lambda _: C.CGPU_CHECK_LOW)
    assert gpu.run(20, lambda _: C.CGPU_CHECK_LOW) == 0
    before = gpu.turn.t.use_credit
    gpu.turn.channels(gpu.high, 0)
    gpu.run(2, lambda _: C.CGPU_CHECK_LOW)
    assert gpu.turn.t.use_credit == before, "it is not that of one that has closed the GPU either"


def test_a_crowd_with_high_priority_is_held_by_periods():
    """Of 60 TSGs none has less than a millisecond: 16:1 would become 120:1."""
    gpu = Sampled(tsgs=60)
    assert gpu.run(20, idle) > 0.15


@pytest.mark.parametrize(("at_once", "least", "most"), [(None, 0.19, 0.21), (1, 0, 0), (5, 0.19, 0.21)])
def test_idle_processes_beside_high_priority_hold_it_only_where_nothing_tells(at_once, least, most):
    """A process that works and 16 that idle have 17 TSGs: taken for a crowd, they have a part of each 100 ms to
    themselves. Not where a run state shows how many work, though none shows high priority's."""
    gpu = Sampled()
    (one,) = gpu.low
    gpu.turn.channels(one, 17)
    event = ffi.new("struct cgpu_step_event *", {"kind": lib.CGPU_STEP_EVENT_READ, "known": 1 << one, "busy": 1 << one})
    event.tsgs[one] = at_once or 0
    frozen = 0
    for number in range(200):
        for _ in range(20 if at_once else 0):
            event.now_ns = gpu.turn.now = gpu.turn.now + MS // 10
            lib.cgpu_sched_step(gpu.turn.t, ffi.NULL, gpu.step, event)
        part = gpu.run(0.05, low)
        frozen += part / 100 if number >= 100 else 0
    assert least <= frozen <= most


@pytest.mark.parametrize("prio_ratio", [80, 95])
def test_a_new_tsg_is_no_reason_to_freeze(prio_ratio):
    """Its timeslice is set by the plan that would freeze its container."""
    gpu = Sampled(prio_ratio=prio_ratio)
    gpu.run(10, idle)
    for slot, count in ((gpu.high, 2), (gpu.low[0], 2), (gpu.high, 3)):
        gpu.turn.channels(slot, count)
        plan = gpu.turn.step()
        assert not plan.freeze_mask and plan.timeslice_mask
    assert gpu.run(1, idle) == 0


def test_a_known_run_state_takes_no_samples():
    gpu = Sampled()
    gpu.run(3, high)
    before = gpu.turn.t.use_credit
    both = 1 << gpu.high | 1 << gpu.low[0]
    gpu.turn.set_run_state(both, both)
    gpu.turn.step()
    for _ in range(20):
        gpu.turn.now += PERIOD
        lib.cgpu_check_sample(gpu.check, gpu.turn.t, gpu.turn.now, C.CGPU_CHECK_IDLE)
    assert gpu.turn.t.use_credit == before


@pytest.mark.parametrize("work", [0.1, 0.4, 0.55])
@pytest.mark.parametrize("seed", range(4))
def test_the_effect_check_and_the_ceiling_by_samples_agree(work, seed):
    """A GPU that is sampled by chance: high priority that works so much is not frozen, and no control is in doubt."""
    gpu = CheckGpu(PREEMPTIVE, seed=seed)
    gpu.turn.set("prio_ratio", 80)
    one = gpu.add(highprio=1, work=work)
    gpu.add()
    gpu.run(30)
    got, now = gpu.turn.stat(one).gpu_ns, gpu.turn.now
    gpu.run(60)
    assert gpu.turn.stat(one).gpu_ns - got > 0.93 * (gpu.turn.now - now) * 0.94
    assert not {(TIMESLICE, 0), (1, 0)} & set(gpu.findings)


@pytest.mark.parametrize("prio_ratio", [75, 80, 90])
@pytest.mark.parametrize("seed", range(4))
def test_always_working_by_chance_it_has_its_ceiling(prio_ratio, seed):
    """Lucky samples let it pass the ceiling for seconds, and seldom."""
    gpu = CheckGpu(PREEMPTIVE, seed=seed)
    gpu.turn.set("prio_ratio", prio_ratio)
    one, other = gpu.add(highprio=1), gpu.add()
    gpu.run(5)
    begin = [gpu.turn.stat(slot).gpu_ns for slot in (one, other)]
    gpu.run(120)
    got = [gpu.turn.stat(slot).gpu_ns - ns for slot, ns in zip((one, other), begin, strict=True)]
    assert got[0] / sum(got) < prio_ratio / 100 + 0.02


class Loaded(Sampled):
    """A machine with too much to do: steps and calls of the thread, and the reading of samples, come late by chance, in
    milliseconds. High priority works while @works of the time in seconds is true; the hardware gives timeslices."""

    def __init__(self, step=(0, 0), call=(0, 0), read=(0, 0), works=lambda at_s: True):
        super().__init__()
        self.step_ms, self.call_ms, self.read_ms, self.works = step, call, read, works
        self.rng, self.real, self.us, self.on, self.left = Random(1), self.turn.t.run_mask, {}, None, 0
        self.got_ns = dict.fromkeys((self.high, *self.low), 0)

    def late(self, ms):
        return int(self.rng.uniform(*ms) * MS)

    def engine(self):
        ready = [i for i in self.got_ns if self.real >> i & 1 and (i != self.high or self.works(self.turn.now / 1e9))]
        if self.on not in ready or self.left <= 0:
            later = [i for i in ready if self.on is not None and i > self.on]
            self.on = (later or ready or [None])[0]
            self.left = self.us.get(self.on, 2048) * 1000
        return self.on

    def go(self, until):
        while self.turn.now < until:
            on = self.engine()
            length = min(until - self.turn.now, self.left, MS, max(self.next - self.turn.now, 1))
            self.turn.now += length
            self.left -= length
            if on is not None:
                self.got_ns[on] += length
            if self.turn.now >= self.next:
                self.ring.append((self.next, C.CGPU_CHECK_IDLE if on is None else on))
                self.next += PERIOD

    def answer(self, kind, mask):
        for i in slots(mask) if kind != lib.CGPU_STEP_RESTART else ():
            took = 300_000 + self.late(self.call_ms)
            self.go(self.turn.now + took // 2)
            if kind == lib.CGPU_STEP_TIMESLICE:
                self.us[i] = self.step.plan.timeslice_us[i]
            self.real = self.real | 1 << i if kind == lib.CGPU_STEP_THAW else self.real
            self.real = self.real & ~(1 << i) if kind == lib.CGPU_STEP_FREEZE else self.real
            self.go(self.turn.now + took - took // 2)
        return {"done": mask}

    def run(self, seconds):
        """Returns the part that high priority had."""
        begin, had, end = self.turn.now, self.got_ns[self.high], self.turn.now + int(seconds * 1_000 * MS)
        while self.turn.now < end:
            if not self.plan():
                continue
            self.go(min(self.step.plan.until_ns + self.late(self.step_ms), max(self.read, self.turn.now + 1), end))
            if self.turn.now >= self.read:
                self.read = self.turn.now + 1_000 * MS + self.late(self.read_ms)
                until = lib.cgpu_check_until_ns(self.turn.t, self.turn.now)
                while self.ring and self.ring[0][0] <= until:
                    lib.cgpu_check_sample(self.check, self.turn.t, *self.ring.pop(0))
        return (self.got_ns[self.high] - had) / (self.turn.now - begin)


@pytest.mark.parametrize(
    "late",
    [
        {"step": (5, 50)},
        {"call": (5, 50)},
        {"read": (0, 3000)},
        {"step": (5, 50), "call": (50, 400), "read": (0, 3000)},
    ],
    ids=str,
)
def test_a_thread_that_comes_late_lets_high_priority_have_no_more(late):
    """What a late freeze gives it is taken from its next periods, and samples of that time show that it works."""
    gpu = Loaded(**late)
    gpu.run(5)
    parts = [gpu.run(1) for _ in range(20)]
    assert sum(parts) / len(parts) < 0.805
    assert max(parts) < 0.86
    assert not gpu.turn.t.use_credit


def test_what_a_starved_program_left_it_may_use_later():
    """Its process had no processor for some seconds: the GPU was the others', and it has credit for 2.4 s, by 16:1."""
    gpu = Loaded(works=lambda at_s: at_s % 20 < 10)
    gpu.run(19)
    parts = [gpu.run(1) for _ in range(10)]
    assert 0.93 < max(parts) < 0.96
    assert sum(part > 0.85 for part in parts) <= 4
    assert sum(parts[5:9]) / 4 < 0.805
