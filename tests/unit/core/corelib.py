# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""The compiled core: `ffi`, `lib`, the headers' numbers as `C`, and a scheduler with Python manners."""

import errno
from functools import cached_property
from itertools import compress
from types import SimpleNamespace

import _build

from cgpu_common.policies import Policy

ffi, lib = _build.load()
C = SimpleNamespace(**_build.constants())
NEVER = 2**64 - 1
NO_SLOT = 2**32 - 1
FREEZE, TIMESLICE = 1, 2
FAIR, PREEMPTIVE, WEIGHTED, FIXED, SOFT, NATIVE, BURST, *_ = Policy
BITS = [1 << slot for slot in range(C.CGPU_SLOTS)]
POLICIES = range(lib.CGPU_POLICY_COUNT)
MS = 1_000_000


def slots(mask: int) -> set[int]:
    found = set()
    while mask:
        rest = mask & mask - 1
        found.add((mask ^ rest).bit_length() - 1)
        mask = rest
    return found


class CoreError(Exception):
    def __init__(self, err: int):
        super().__init__(errno.errorcode[-err])
        self.errno = -err


def check(err: int) -> None:
    if err:
        raise CoreError(err)


class Turn:
    """struct cgpu_sched with a clock. `step` does what the shell's thread does, in no time; a switch costs nothing."""

    def __init__(
        self, policy=PREEMPTIVE, slice_ms=20, max_inst=20, controls=FREEZE | TIMESLICE, now=1_000 * MS, switch_us=0
    ):
        self.now = now
        self._viewed = None
        self.t = ffi.new("struct cgpu_sched *")
        lib.cgpu_sched_init(self.t, now)
        lib.cgpu_sched_set_controls(self.t, controls, now)
        self.t.switch_ns = switch_us * 1000
        self.t.timeslice_default_us = 1024  # of the GPUs in simgpu.py
        check(lib.cgpu_sched_set_slice_us(self.t, int(slice_ms * 1000), now))
        check(lib.cgpu_sched_set_policy(self.t, policy, now))
        check(lib.cgpu_sched_set_max_inst(self.t, max_inst, now))
        self.cookies = 0

    def channels_now(self):
        """Of each slot. A read through cffi takes a microsecond, and the simulated GPUs look at all at every step."""
        if self._viewed is not self.t:
            each, first = ffi.sizeof("struct cgpu_sched_entity"), ffi.offsetof("struct cgpu_sched_entity", "channels")
            self._viewed = self.t
            self._channels = memoryview(ffi.buffer(self.t.slot)).cast("I")[first // 4 :: each // 4]
        return self._channels

    def add(self, weight=1, highprio=0, channels=0, tsgs=None):
        self.cookies += 1
        slot, granted = ffi.new("u32 *"), ffi.new("u32 *")
        check(lib.cgpu_sched_add(self.t, self.cookies, weight, highprio, self.now, slot, granted))
        if channels:
            self.channels(slot[0], channels, tsgs)
        return slot[0]

    def delete(self, slot):
        lib.cgpu_sched_del(self.t, slot, self.now)

    def channels(self, slot, channels, tsgs=None):
        lib.cgpu_sched_set_channels(self.t, slot, channels, channels if tsgs is None else tsgs, self.now)

    def set(self, what, *args):
        check(getattr(lib, f"cgpu_sched_set_{what}")(self.t, *args, self.now))

    def set_run_state(self, known, busy):
        return bool(lib.cgpu_sched_set_run_state(self.t, known, busy, self.now))

    def frozen(self, slot):
        return lib.cgpu_sched_is_frozen(self.t, slot)

    def stat(self, slot):
        st = ffi.new("struct cgpu_sched_stat *")
        lib.cgpu_sched_stat(self.t, slot, self.now, st)
        return st

    def next(self):
        plan = ffi.new("struct cgpu_sched_plan *")
        lib.cgpu_sched_next(self.t, self.now, plan)
        return plan

    def ack(self, plan, begin=None, frozen=None, thawed=None, run_mask=None, timeslices=None, restarted=0, more=0):
        ack = ffi.new("struct cgpu_sched_ack *")
        ack.begin_ns = self.now if begin is None else begin
        ack.frozen_ns = ack.begin_ns if frozen is None else frozen
        ack.thawed_ns = ack.begin_ns if thawed is None else thawed
        ack.restarted_ns = restarted
        ack.run_mask = plan.run_mask if run_mask is None else run_mask
        ack.timeslice_mask = plan.timeslice_mask if timeslices is None else timeslices
        ack.timeslice_more = more
        lib.cgpu_sched_ack(self.t, plan, ack)

    def step(self):
        """Plan, carry it out at once, and give the plan that then holds."""
        plan = self.next()
        if plan.freeze_mask or plan.thaw_mask or plan.timeslice_mask:
            self.ack(plan)
            again = self.next()
            assert not (again.freeze_mask or again.thaw_mask or again.timeslice_mask), "a plan must hold"
            assert again.run_mask == plan.run_mask
            again.freeze_mask, again.thaw_mask = plan.freeze_mask, plan.thaw_mask
            again.timeslice_mask = plan.timeslice_mask
            return again
        return plan

    def timeline(self, length_ms):
        """[(slots that may run, milliseconds)] for so long, controls taking no time."""
        out, end = [], self.now + int(length_ms * MS)
        while self.now < end:
            plan = self.step()
            assert plan.until_ns > self.now
            until = min(plan.until_ns, end)
            running = slots(plan.run_mask & self.opened_mask())
            if out and out[-1][0] == running:
                out[-1] = (running, out[-1][1] + (until - self.now) / MS)
            else:
                out.append((running, (until - self.now) / MS))
            self.now = until
        return out

    def opened_mask(self):
        return sum(compress(BITS, self.channels_now()))

    def shares(self, length_ms):
        """Part of the wall time in which each slot could run, alone or not."""
        got = {}
        for running, ms in self.timeline(length_ms):
            for slot in running:
                got[slot] = got.get(slot, 0) + ms / length_ms
        return got


def openers(count, *args, **more):
    """A scheduler with so many containers of weight 1 that have opened the GPU."""
    turn = Turn(*args, **more)
    for _ in range(count):
        turn.add(channels=1)
    return turn


EVENT = ffi.typeof("struct cgpu_step_event *")


class Thread:
    """The shell's thread for a scheduler with a clock, @turn: it drives the step machine. A subclass makes the calls:
    answer() gives the words of struct cgpu_step_event that say what became of one, and passes its time.
    """

    check = ffi.NULL
    restarts = False  # a freeze or thaw takes effect only with a restart

    @cached_property
    def step(self):
        return ffi.new("struct cgpu_step *")

    @cached_property
    def begins(self):
        return ffi.new(EVENT, {"kind": lib.CGPU_STEP_EVENT_PLAN})

    @cached_property
    def done(self):
        return ffi.new(EVENT, {"kind": lib.CGPU_STEP_EVENT_DONE})

    def tell(self, kind, **what):
        event = ffi.new(EVENT, {"kind": kind, "now_ns": self.turn.now, **what})
        lib.cgpu_sched_step(self.turn.t, self.check, self.step, event)

    def plan(self):
        """Plan, and make the calls. True: there were none, and the thread waits.

        Tens of thousands in a simulated minute: no event is made anew."""
        event, turn = self.begins, self.turn
        event.now_ns, event.restarts = turn.now, self.restarts
        lib.cgpu_sched_step(turn.t, self.check, self.step, event)
        waits = not self.step.mask
        if not waits:
            self.act()
        return waits

    def act(self):
        step, turn, event = self.step, self.turn, self.done
        while mask := step.mask:
            kind, event.begin_ns = step.kind, turn.now
            answer = self.answer(kind, mask)
            done = answer["done"]
            event.now_ns = event.end_ns = turn.now
            event.done, event.called = done, done if kind == lib.CGPU_STEP_TIMESLICE else 0
            event.more = event.part = event.refused_ns = 0
            if len(answer) > 1:
                for name, value in answer.items():
                    setattr(event, name, value)
            lib.cgpu_sched_step(turn.t, self.check, step, event)

    def answer(self, kind, mask):
        """As asked, in no time."""
        return {"done": mask}
