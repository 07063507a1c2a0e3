# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The scheduler's thread as a step machine: which calls it asks for, and what it makes of the answers."""

import random

import pytest
from corelib import FIXED, FREEZE, MS, NATIVE, NEVER, POLICIES, PREEMPT, SOFT, TIMESLICE, Thread, Turn, ffi, lib
from statepage import STEP_HOLDS, STEP_WORDS, broken, fields

PLAN, DONE, READ = lib.CGPU_STEP_EVENT_PLAN, lib.CGPU_STEP_EVENT_DONE, lib.CGPU_STEP_EVENT_READ
EVENTS = {"plan": PLAN, "done": DONE, "read": READ}
SLICES, THAWS, FREEZES, RESTARTS = (
    getattr(lib, f"CGPU_STEP_{name}") for name in ("TIMESLICE", "THAW", "FREEZE", "RESTART")
)
CALL = 300_000


def raw(record):
    return {name: bytes(ffi.buffer(ffi.addressof(record[0], name))) for name in fields("struct cgpu_step")}


class Shell(Thread):
    """Each call takes 0.3 ms and succeeds, or has what @answers says of its kind. @asked: those of the last plan."""

    def __init__(self, turn, restarts=False, answers=None):
        self.turn, self.restarts, self.answers, self.asked = turn, restarts, answers or {}, []

    def tell(self, kind, **what):
        before = raw(self.step)
        super().tell(kind, **what)
        after = raw(self.step)
        writers = {word.name: {EVENTS[name] for name in word.writers} for word in STEP_WORDS}
        assert [name for name in after if after[name] != before[name] and kind not in writers[name]] == []
        assert broken(self.step, STEP_HOLDS) == []
        assert self.turn.t.inflight == (self.step.mask != 0)

    def answer(self, kind, mask):
        self.asked.append(kind)
        assert len(self.asked) <= 4
        self.turn.now += CALL
        return {"done": mask} | self.answers.get(kind, {})

    def plan(self):
        self.asked = []
        return super().plan()

    def hand_over(self):
        """The calls of the first plan from now on that freezes or thaws."""
        for _ in range(30):
            if self.plan():
                self.turn.now = self.step.until_ns
            elif {THAWS, FREEZES} & set(self.asked):
                return self.asked
        raise AssertionError("no hand-over")


def shell(policy=PREEMPT, restarts=False, controls=FREEZE, containers=2):
    """After its first plans."""
    made = Shell(Turn(policy, slice_ms=5, max_inst=2, controls=controls), restarts)
    for _ in range(containers):
        made.turn.add(channels=1)
    while not made.plan():
        pass
    return made


def test_each_word_of_the_record_is_on_the_page():
    assert sorted(word.name for word in STEP_WORDS) == sorted(fields("struct cgpu_step"))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("policy", [PREEMPT, FIXED])
def test_the_calls_of_a_hand_over_in_their_order(policy, restarts):
    one = shell(policy, restarts)
    calls = [THAWS, FREEZES] if policy == PREEMPT else [FREEZES, THAWS]
    began = one.turn.now = one.step.until_ns
    assert one.hand_over() == calls + [RESTARTS] * restarts
    first, second = (one.step.ack.thawed_ns, one.step.ack.frozen_ns)[:: 1 if policy == PREEMPT else -1]
    assert (one.step.ack.begin_ns, first, second) == (began, began + CALL, began + 2 * CALL)
    assert one.step.ack.restarted_ns == (began + 2 * CALL + CALL // 2 if restarts else 0)
    assert one.step.kind == lib.CGPU_STEP_PLAN


def test_timeslices_come_first_and_are_no_part_of_a_freeze():
    one = Shell(Turn(PREEMPT, slice_ms=5))
    for tsgs in (1, 3):
        one.turn.add(highprio=tsgs == 1, channels=tsgs)
    began = one.turn.now
    assert not one.plan()
    assert one.asked[0] == SLICES
    assert one.asked[-1] == RESTARTS, "they need one"
    assert one.step.ack.begin_ns == began + CALL


def test_timeslices_that_go_on_with_the_next_plan_wait_for_their_restart():
    one = Shell(Turn(SOFT))
    for tsgs in (1, 3):
        one.turn.add(channels=tsgs)
    one.answers = {SLICES: {"done": 0, "more": 0b11}}
    assert not one.plan()
    assert one.asked == [SLICES, THAWS]
    one.answers = {}
    assert not one.plan()
    assert one.asked == [SLICES, RESTARTS]


@pytest.mark.parametrize("refused_ns", [0, CALL])
def test_without_its_restart(refused_ns):
    """Refused, no call took effect, and all are repeated; on no channel, nothing can run, and they count as made."""
    one = shell(PREEMPT, restarts=True)
    before = one.turn.t.run_mask
    one.answers = {RESTARTS: {"done": 0, "refused_ns": refused_ns}}
    asked = one.hand_over()
    assert (one.turn.t.run_mask == before) == bool(refused_ns)
    assert sum(one.turn.stat(slot).failed for slot in range(2)) == (2 if refused_ns else 0)
    one.turn.now += 2 * MS
    assert one.plan() != bool(refused_ns)
    assert one.asked == (asked if refused_ns else [])


def test_what_a_restart_was_refused_for_is_no_time_of_the_turn():
    one = shell(PREEMPT, restarts=True)
    began = one.turn.now = one.step.until_ns
    one.answers = {RESTARTS: {"refused_ns": CALL // 3}}
    one.hand_over()
    ack = one.step.ack
    assert (ack.begin_ns, ack.thawed_ns, ack.frozen_ns) == tuple(began + CALL // 3 + n * CALL for n in range(3))


def test_a_wait_has_the_lateness_of_its_plan():
    one = shell(PREEMPT)
    waits = [one.step.until_ns - one.step.plan.until_ns]
    for _ in range(20):
        one.hand_over()
        while not one.plan():
            pass
        waits.append(one.step.until_ns - one.step.plan.until_ns)
        assert waits[-1] == one.step.plan.late_ns
    assert any(waits)
    alone = shell(PREEMPT, containers=1)
    assert alone.step.until_ns == NEVER


def test_a_reading_that_fits_goes_on_waiting():
    one = shell(PREEMPT, containers=2)
    assert one.step.poll_ns
    one.tell(READ, known=0b11, busy=0b11)
    assert one.step.kind == lib.CGPU_STEP_PLAN, "now it is known"
    while not one.plan():
        pass
    until = one.step.until_ns
    one.turn.now += 1000
    one.tell(READ, known=0b11, busy=0b11)
    assert (one.step.kind, one.step.until_ns) == (lib.CGPU_STEP_WAIT, until)


def test_an_answer_to_nothing_changes_nothing():
    one = shell(PREEMPT)
    before, state = raw(one.step), bytes(ffi.buffer(one.turn.t))
    one.tell(DONE, begin_ns=one.turn.now, end_ns=one.turn.now, done=3)
    assert (raw(one.step), bytes(ffi.buffer(one.turn.t))) == (before, state)


class Twin(Shell):
    """Beside the machine, what it does in few words: a plan, all its calls, one acknowledgement to a second state."""

    def __init__(self, turn, rng):
        super().__init__(turn, restarts=rng.random() < 0.5)
        self.rng, self.other = rng, ffi.new("struct cgpu_sched *")
        self.answered = {}

    def answer(self, kind, mask):
        begin, full = self.turn.now, self.rng.random() < 0.8
        what = super().answer(kind, mask)
        self.turn.now += self.rng.randrange(8 * MS)
        if kind == RESTARTS:
            what = {"done": full, "refused_ns": self.rng.choice([0, (self.turn.now - begin) // 2])}
        elif not full:
            what = {"done": mask & self.rng.getrandbits(25)}
        self.answered[kind] = what | {"begin": begin, "end": self.turn.now}
        return what

    def plan(self):
        ffi.buffer(self.other)[:] = ffi.buffer(self.turn.t)
        self.answered, plan, began = {}, ffi.new("struct cgpu_sched_plan *"), self.turn.now
        lib.cgpu_sched_next(self.other, began, plan)
        waits = super().plan()
        if not waits:
            self.acknowledge(plan, began)
        assert bytes(ffi.buffer(self.other)) == bytes(ffi.buffer(self.turn.t))
        return waits

    def acknowledge(self, plan, began):
        none = {"done": 0, "refused_ns": 0}
        thaw, freeze, slices, restart = (self.answered.get(kind, none) for kind in (THAWS, FREEZES, SLICES, RESTARTS))
        undone = restart["refused_ns"] and not restart["done"]
        shift = restart["refused_ns"] if self.restarts else 0
        begin = slices.get("end") or min(thaw.get("begin", NEVER), freeze.get("begin", NEVER))
        ack = ffi.new("struct cgpu_sched_ack *")
        ack.begin_ns = begin + shift
        ack.thawed_ns, ack.frozen_ns = (one.get("end", begin) + shift for one in (thaw, freeze))
        ack.restarted_ns = (restart["begin"] + restart["end"]) // 2 if restart["done"] else 0
        ack.timeslice_mask = 0 if undone else slices["done"]
        failed = (
            plan.freeze_mask & ~(0 if undone else freeze["done"]),
            plan.thaw_mask & ~(0 if undone else thaw["done"]),
        )
        ack.run_mask = (plan.run_mask | failed[0]) & ~failed[1]
        lib.cgpu_sched_ack(self.other, plan, ack)


@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_a_plan_its_calls_and_one_acknowledgement(policy):
    """To the bit, whatever fails."""
    rng, calls = random.Random(policy), 0
    for _ in range(6):
        turn = Turn(policy, slice_ms=5, controls=FREEZE | TIMESLICE)
        for _ in range(rng.randrange(2, 6)):
            turn.add(1, rng.random() < 0.2, channels=rng.randrange(1, 70))
        twin = Twin(turn, rng)
        for _ in range(60):
            if not twin.plan():
                calls += len(twin.asked)
            elif rng.random() < 0.3:
                slot = rng.choice([0, 1])
                turn.channels(slot, 0 if turn.t.slot[slot].channels else rng.randrange(1, 9))
            else:
                turn.now = min(twin.step.until_ns, turn.now + 10 * MS)
    assert calls > (5 if policy == NATIVE else 50)
