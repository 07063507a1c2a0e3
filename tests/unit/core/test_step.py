# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The scheduler's thread as a step machine: which calls it asks for, and what it makes of the answers."""

import random

import pytest
from corelib import (
    BURST,
    FIXED,
    FREEZE,
    MS,
    NATIVE,
    NEVER,
    POLICIES,
    PREEMPTIVE,
    SOFT,
    TIMESLICE,
    Thread,
    Turn,
    ffi,
    lib,
    openers,
)
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


def shell(policy=PREEMPTIVE, restarts=False, controls=FREEZE, containers=2):
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
@pytest.mark.parametrize("policy", [PREEMPTIVE, FIXED])
def test_the_calls_of_a_hand_over_in_their_order(policy, restarts):
    one = shell(policy, restarts)
    calls = [THAWS, FREEZES] if policy == PREEMPTIVE else [FREEZES, THAWS]
    began = one.turn.now = one.step.until_ns
    assert one.hand_over() == calls + [RESTARTS] * restarts
    first, second = (one.step.ack.thawed_ns, one.step.ack.frozen_ns)[:: 1 if policy == PREEMPTIVE else -1]
    assert (one.step.ack.begin_ns, first, second) == (began, began + CALL, began + 2 * CALL)
    assert one.step.ack.restarted_ns == (began + 2 * CALL + CALL // 2 if restarts else 0)
    assert one.step.kind == lib.CGPU_STEP_PLAN


def test_timeslices_come_first_and_are_no_part_of_a_freeze():
    one = Shell(Turn(PREEMPTIVE, slice_ms=5))
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


def opened(policy=SOFT, tsgs=2, **other):
    """A container beside another one, after its first plans and a second."""
    made = Shell(Turn(policy, slice_ms=5))
    made.turn.add(1, channels=1, **other)
    slot = made.turn.add(1, channels=tsgs)
    while not made.plan():
        pass
    made.turn.now += 1000 * MS
    while not made.plan():
        pass
    return made, slot


def asked_in(one, length_ms, each_ms=0.0, event=lambda number: None, answers=None):
    """How often each call was made in so long, with an event each so often."""
    asked, end, number = [], one.turn.now + length_ms * MS, 0
    due = one.turn.now if each_ms else NEVER
    one.answers = answers or {}
    while one.turn.now < end:
        if one.plan():
            one.turn.now = max(one.turn.now, min(one.step.until_ns, due, end))
        asked += one.asked
        if one.turn.now >= due:
            number += 1
            event(number)
            due = one.turn.now + int(each_ms * MS)
    return {kind: asked.count(kind) for kind in set(asked)}


@pytest.mark.parametrize("weight", [1, 0])
@pytest.mark.parametrize(("policy", "other"), [(SOFT, {}), (PREEMPTIVE, {"highprio": 1})])
def test_a_channel_makes_no_call(policy, other, weight):
    """Of a TSG that has its timeslice, frozen or not: it comes and goes, each 2 ms."""
    one, slot = opened(policy, **other)
    one.turn.set("weight", slot, weight)
    asked_in(one, 1000)
    assert SLICES not in asked_in(one, 1000)
    asked = asked_in(one, 1000, 2, lambda number: one.turn.channels(slot, 2 + number % 2, 2))
    assert not {SLICES, RESTARTS} & set(asked)


def test_a_restart_comes_for_a_timeslice_that_was_set_only():
    one, slot = opened()
    one.turn.channels(slot, 3, 3)
    assert set(asked_in(one, 100, answers={SLICES: {"called": 0}})) == {SLICES}
    one.turn.channels(slot, 3, 3)
    assert asked_in(one, 100)[RESTARTS] == 1


def test_restarts_for_new_tsgs_are_apart():
    """The first at once. A TSG comes and one goes, so that the timeslice stays; each is set soon."""
    one, slot = opened()
    began = one.turn.now
    one.turn.channels(slot, 2, 2)
    assert asked_in(one, 2) == {SLICES: 1, RESTARTS: 1}
    assert began <= one.turn.t.restarted_ns < began + 2 * MS
    asked = asked_in(one, 1000, 2, lambda number: one.turn.channels(slot, 2, 2))
    assert 45 <= asked[RESTARTS] <= 50
    assert asked[SLICES] >= 300
    asked_in(one, 100)
    for _ in range(2):
        one.turn.channels(slot, 2, 2)
        assert asked_in(one, 2)[SLICES] == 1, "its timeslice"
    assert one.turn.t.unrestarted_mask == 1 << slot
    assert asked_in(one, 30)[RESTARTS] == 1, "and its restart, though nothing else happens"
    assert one.turn.t.unrestarted_mask == 0


def test_a_change_of_the_policy_does_not_wait_for_its_restart():
    one, slot = opened()
    one.turn.channels(slot, 2, 2)
    assert asked_in(one, 2)[RESTARTS] == 1
    one.turn.channels(slot, 2, 2)
    assert RESTARTS not in asked_in(one, 2)
    one.turn.set("policy", PREEMPTIVE)
    one.turn.set("highprio", 0, 1)
    assert asked_in(one, 2)[RESTARTS] == 1
    assert one.turn.t.unrestarted_mask == 0, "one restart is for all"


def test_a_restart_that_is_put_off_and_then_refused_is_repeated():
    one, slot = opened()
    for _ in range(2):
        one.turn.channels(slot, 2, 2)
        asked_in(one, 2)
    refused = {SLICES: {"called": 0}, RESTARTS: {"done": 0, "refused_ns": CALL}}
    assert 3 <= asked_in(one, 100, answers=refused)[RESTARTS] <= 8
    assert one.turn.t.ts_failed_mask == 1 << slot
    assert asked_in(one, 100, answers={SLICES: {"called": 0}})[RESTARTS] == 1
    assert (one.turn.t.ts_failed_mask, one.turn.t.unrestarted_mask) == (0, 0)


@pytest.mark.parametrize("refused_ns", [0, CALL])
def test_without_its_restart(refused_ns):
    """Refused, no call took effect, and all are repeated; on no channel, nothing can run, and they count as made."""
    one = shell(PREEMPTIVE, restarts=True)
    before = one.turn.t.run_mask
    one.answers = {RESTARTS: {"done": 0, "refused_ns": refused_ns}}
    asked = one.hand_over()
    assert (one.turn.t.run_mask == before) == bool(refused_ns)
    assert sum(one.turn.stat(slot).failed for slot in range(2)) == (2 if refused_ns else 0)
    one.turn.now += 2 * MS
    assert one.plan() != bool(refused_ns)
    assert one.asked == (asked if refused_ns else [])


def test_what_a_restart_was_refused_for_is_no_time_of_the_turn():
    one = shell(PREEMPTIVE, restarts=True)
    began = one.turn.now = one.step.until_ns
    one.answers = {RESTARTS: {"refused_ns": CALL // 3}}
    one.hand_over()
    ack = one.step.ack
    assert (ack.begin_ns, ack.thawed_ns, ack.frozen_ns) == tuple(began + CALL // 3 + n * CALL for n in range(3))


def test_a_wait_has_the_lateness_of_its_plan():
    one = shell(PREEMPTIVE)
    waits = [one.step.until_ns - one.step.plan.until_ns]
    for _ in range(20):
        one.hand_over()
        while not one.plan():
            pass
        waits.append(one.step.until_ns - one.step.plan.until_ns)
        assert waits[-1] == one.step.plan.late_ns
    assert any(waits)
    alone = shell(PREEMPTIVE, containers=1)
    assert alone.step.until_ns == NEVER


def test_a_reading_that_fits_goes_on_waiting():
    one = shell(PREEMPTIVE, containers=2)
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
    one = shell(PREEMPTIVE)
    before, state = raw(one.step), bytes(ffi.buffer(one.turn.t))
    one.tell(DONE, begin_ns=one.turn.now, end_ns=one.turn.now, done=3)
    assert (raw(one.step), bytes(ffi.buffer(one.turn.t))) == (before, state)


class Faulty(Shell):
    """Thaws of @bad fail, of those of @part for some channels only. @real_ns: how long each slot ran."""

    bad = part = 0

    def __init__(self, turn):
        super().__init__(turn)
        self.real, self.real_ns = set(), dict.fromkeys(range(25), 0)

    def pass_to(self, until):
        for slot in self.real:
            self.real_ns[slot] += (until - self.turn.now) // len(self.real)
        self.turn.now = until

    def answer(self, kind, mask):
        self.asked.append(kind)
        self.pass_to(self.turn.now + CALL // 2)
        failed = mask & self.bad if kind == THAWS else 0
        if kind == THAWS:
            self.real |= {slot for slot in range(25) if (mask & ~failed | failed & self.part) >> slot & 1}
        elif kind == FREEZES:
            self.real -= {slot for slot in range(25) if mask >> slot & 1}
        self.pass_to(self.turn.now + CALL // 2)
        return {"done": mask & ~failed, "part": failed & self.part if kind == THAWS else 0}

    def run(self, length_ms):
        end = self.turn.now + length_ms * MS
        while self.turn.now < end:
            if self.plan():
                self.pass_to(min(self.step.until_ns, end))
            assert broken(self.turn.t) == []


def faulty(policy, count, **what):
    one = Faulty(Turn(policy, slice_ms=5, max_inst=100 if policy == BURST else 4))
    for _ in range(count):
        one.turn.add(10 if policy == BURST else 1, channels=1)
    for name, value in what.items():
        setattr(one, name, value)
    return one


def test_a_container_alone_whose_thaw_fails_for_some_channels_has_its_ceiling():
    one = faulty(BURST, 1, bad=1, part=1)
    one.turn.set("ceiling", 0, 10)
    one.run(10_000)
    assert one.turn.t.slot[0].failed > 10
    assert one.turn.stat(0).gpu_ns == pytest.approx(one.real_ns[0], rel=0.1)
    assert 900 * MS < one.real_ns[0] < 1500 * MS


@pytest.mark.parametrize("count", [2, 4])
def test_channels_that_a_failed_thaw_let_run_are_charged_and_frozen_at_the_end_of_the_turn(count):
    one = faulty(PREEMPTIVE, count, bad=1, part=1)
    one.run(4000)
    got = [one.real_ns[slot] / sum(one.real_ns.values()) for slot in range(count)]
    assert got == pytest.approx([1 / count] * count, rel=0.1)
    assert one.turn.stat(0).gpu_ns == pytest.approx(one.real_ns[0], rel=0.1)
    assert one.turn.stat(0).failed > 10
    assert one.turn.stat(0).unsure_ns > 0


def test_a_thaw_that_fails_for_all_channels_later_takes_none_of_those_that_run():
    one = faulty(PREEMPTIVE, 1, bad=1, part=1)
    one.run(20)
    assert (one.turn.t.part_thawed_mask, one.turn.t.run_mask & 1) == (1, 1)
    one.part = 0
    one.run(200)
    assert (one.turn.t.part_thawed_mask, one.turn.t.run_mask & 1) == (1, 1)
    one.bad = 0
    one.run(200)
    assert (one.turn.t.part_thawed_mask, one.turn.t.freeze_unknown_mask, one.turn.t.run_mask & 1) == (0, 0, 1)


def test_a_freeze_does_not_wait_until_a_thaw_is_repeated():
    one = faulty(PREEMPTIVE, 2, bad=1, part=1)
    one.turn.set("slice_us", 20_000)
    while 0 not in one.real:
        one.run(1)
    began = one.turn.now
    one.turn.t.slot[0].retry_ns = began + 1000 * MS
    while 0 in one.real:
        one.run(1)
    assert one.turn.now - began < 25 * MS


def test_a_channel_that_is_refused_puts_off_no_other_ones_freeze():
    """All calls for slot 0 fail, now once in 64 ms. The freeze of slot 1 fails once, and is repeated after 1 ms."""
    turn = openers(3, PREEMPTIVE, slice_ms=5)
    turn.now = turn.step().until_ns

    def go_on(fails=0):
        """To the next plan with calls, of which freezes of @fails, and all for slot 0, are refused."""
        while not (plan := turn.next()).freeze_mask | plan.thaw_mask | plan.timeslice_mask:
            assert plan.until_ns > turn.now, "nothing is called for, and nothing is waited for"
            turn.now = plan.until_ns
        bad = (plan.freeze_mask | plan.thaw_mask) & 1 | plan.freeze_mask & fails
        turn.ack(plan, run_mask=plan.run_mask ^ bad)
        return plan

    def until_called(mask, fails=0):
        for _ in range(300):
            if go_on(fails).freeze_mask & mask:
                return
        pytest.fail("no freeze")

    while turn.t.slot[0].retries < 6:
        go_on()
    until_called(2, fails=2)
    failed = turn.now
    assert turn.t.freeze_unknown_mask == 0b11
    until_called(2)
    assert turn.now - failed == MS
    assert turn.t.slot[1].retries == 0
    until_called(1)
    assert turn.now - failed > 10 * MS, "slot 0 is not called for more often by that"


def test_a_hand_over_of_others_says_nothing_of_a_call_that_failed():
    """One that could not be frozen runs on and is charged."""
    turn = openers(3, PREEMPTIVE, slice_ms=5)
    turn.now = turn.step().until_ns
    plan = turn.next()
    assert (plan.freeze_mask, plan.thaw_mask) == (0b001, 0b010)
    turn.ack(plan, run_mask=0b011)
    turn.t.slot[0].retry_ns = turn.now + 1000 * MS
    while not (plan := turn.next()).thaw_mask:
        turn.now = plan.until_ns
    assert (plan.freeze_mask, plan.thaw_mask) == (0b010, 0b100)
    turn.ack(plan)
    assert (turn.t.run_mask, turn.t.freeze_unknown_mask) == (0b101, 0b001)


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
        if undone or RESTARTS not in self.answered:
            ack.unrestarted_mask = slices["done"] & plan.timeslice_mask | plan.unrestarted_mask
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
