# SPDX-License-Identifier: MIT
"""The module's scheduler thread on a simulated GPU: do what the core's step machine says, and tell it the answer.

The core decides, and it is the core's loop (cgpu_km/core/sched_step.c) as in cgpu_km/sched/sched_thread.c.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any

from cgpu_common import policies
from cgpu_common.exits import CgpuError, Exit, allowed

from .gpu import Gpu
from .model import MS, NEVER_NS, US, Change, Container, S, Setup, in_digits
from .run_state import RunState
from .samples import Samples

FREEZE, TIMESLICE = 1, 2
BEGAN_NS = 1_000 * MS  # the core's clock when the engine's is 0
HELD_SHOWN = 5  # containers in an error
WAKE_NS = 30 * US  # how late a sleeping thread runs, on average. Assumed.

Round = tuple[int, list[int]]
_WHY = {
    errno.EINVAL: "out of range",
    errno.ENOSPC: "more weight than max_inst leaves",
    errno.EBUSY: "more containers or weight than that are in use",
    errno.EOPNOTSUPP: "the control it needs does not work here",
}


def bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


@dataclass(frozen=True, order=True)
class _Event:
    when_ns: int
    place: int  # among those of the same time
    act: Callable[[], None] = field(compare=False)


class Turns:
    """One GPU's scheduler and the thread that executes its plans."""

    def __init__(self, gpu: Gpu, setup: Setup, containers: Sequence[Container], changes: Sequence[Change] = ()) -> None:
        self.gpu, self.ffi, self.lib = gpu, gpu.ffi, gpu.lib
        self.containers = tuple(containers)
        self.t = self.ffi.new("struct cgpu_sched *")
        self.step = self.ffi.new("struct cgpu_step *")
        # Some hundred thousands of each in a run: none is made anew.
        self._plan = self.ffi.new("struct cgpu_step_event *", {"kind": self.lib.CGPU_STEP_EVENT_PLAN})
        self._answer = self.ffi.new("struct cgpu_step_event *", {"kind": self.lib.CGPU_STEP_EVENT_DONE})
        self._group = self.t.rr[0]
        self.turns = 0
        self.rounds: list[Round] = []
        self.notes: list[str] = []
        self.slot: list[int] = []
        self.granted: list[int] = []
        self._round = 0
        self._slice_is_set = setup.slice_us is not None
        self._restarts = setup.freeze_restart
        self._number: dict[int, int] = {}  # of the client that a slot is
        self.source: RunState | None = None
        self.samples: Samples | None = None
        self._configure(setup)
        if setup.source != "none":
            self.source = RunState(gpu, BEGAN_NS, WAKE_NS)
            self.source.use(self.slot)
        # Where the run state is known they change nothing.
        self.samples = None if self.source else Samples(gpu, self.t, BEGAN_NS, self.slot)
        # The next moment of each container, and the changes; at the same time in this order.
        self._events: list[_Event] = []
        self._moments = [one.moments(gpu.length_ns) for one in self.containers]
        for number in range(len(self.containers)):
            self._push_moment(number, self._open)
        for change in changes:
            self.at(round(change.at_ms * MS), partial(self._apply, change))

    # Set-up.

    def _check(self, err: int, what: str, values: str = "") -> None:
        """@values: the range, for a value out of it. CgpuError: of usage, unless the simulated driver is the reason."""
        if err:
            why, hint = _WHY.get(-err, errno.errorcode.get(-err, str(err))), values if err == -errno.EINVAL else ""
            if err == -errno.EOPNOTSUPP:
                raise CgpuError(Exit.REFUSED, what, why, hint)
            raise CgpuError(Exit.USAGE, "usage", f"{what}: {why}", hint)

    def _set(self, node: str, value: int) -> None:
        """A setting of the GPU."""
        err = getattr(self.lib, f"cgpu_sched_set_{node}")(self.t, value, self._clock())
        self._check(err, f"{node} {value}", allowed(node))

    def _configure(self, setup: Setup) -> None:
        lib, t, now = self.lib, self.t, self._clock()
        lib.cgpu_sched_init(t, now)
        lib.cgpu_sched_set_controls(t, (FREEZE | TIMESLICE) & ~_ineffective(setup.personality.control_ineffective), now)
        costs = lib.cgpu_sched_set_costs(t, setup.profile.ctxsw_us * US, setup.profile.timeslice_us, now)
        self._check(costs, f"the profile {setup.profile.key}")
        self._set("prio_ratio", setup.prio_ratio)
        slice_us = setup.slice_us
        if slice_us is None:
            card = setup.profile
            slice_us = self._auto_slice_us(card.control_us * US, (card.thaw_us or card.control_us) * US)
        self._set("slice_us", slice_us)
        self._set("policy", setup.policy)
        self._set("max_inst", setup.max_inst)
        for number, one in enumerate(self.containers):
            self._admit(number, one)
        self._number = {slot: number for number, slot in enumerate(self.slot)}
        self._tell(self._plan)
        self._plan.restarts = self._restarts

    def _auto_slice_us(self, freeze_ns: int, thaw_ns: int) -> int:
        """From what a hand-over takes. A third call makes slices longer."""
        card = self.gpu.profile
        restart_ns = (card.restart_us or card.control_us) * US if self._restarts else 0
        return int(self.lib.cgpu_sched_auto_slice_ns((freeze_ns + thaw_ns + restart_ns) // 2)) // US

    def _admit(self, number: int, one: Container) -> None:
        slot, granted = self.ffi.new("u32 *"), self.ffi.new("u32 *")
        what, now = f"container {one.name}", self._clock()
        add = self.lib.cgpu_sched_add(self.t, number + 1, one.weight or 1, one.highprio, now, slot, granted)
        if add == -errno.ENOSPC:
            raise self._full(f"{what}: weight {one.weight}")
        self._check(add, f"{what}: weight {one.weight}", f"0 to max_inst, {self.t.max_inst}")
        if not one.weight:
            self.lib.cgpu_sched_set_weight(self.t, slot[0], 0, now)
        if one.ceiling:
            set_ceiling = self.lib.cgpu_sched_set_ceiling(self.t, slot[0], one.ceiling, now)
            self._check(set_ceiling, f"{what}: ceiling {one.ceiling}", f"its weight to max_inst, {self.t.max_inst}")
        if one.weight and not granted[0]:
            self.notes.append(f"{one.name} has weight 0 and does not run: no weight was left for it")
        self.slot.append(slot[0])
        self.granted.append(granted[0] if one.weight else 0)
        self.gpu.enable(number, False)

    def _full(self, what: str) -> CgpuError:
        """The error for a container that max_inst has no room for: what is left, who holds the rest."""
        most, facts = int(self.t.max_inst), policies.of(int(self.t.policy))
        there = list(zip(self.containers, self.granted, strict=False))
        held = [f"{one.name} {weight}" for one, weight in there]
        names = ", ".join(held[:HELD_SHOWN]) + f" and {len(held) - HELD_SHOWN} more" * (len(held) > HELD_SHOWN)
        left = most - sum(self.granted)
        why = f"{left} of max_inst {most} is left" if len(there) < most else f"max_inst is {most} containers too"
        hint = f"--max-inst, under {facts.name} at most {facts.max_inst}"
        return CgpuError(Exit.USAGE, "usage", f"{what}: {why}; held by: {names or 'none'}", hint)

    # Events.

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Call @act at this moment of the run, after what containers do in the same."""
        heappush(self._events, _Event(when_ns, len(self.containers) + len(self._events), act))

    def _push_moment(self, number: int, opened: Callable[[int], None]) -> None:
        """The container's next opening, for which opened is called, or closing."""
        found = next(self._moments[number], None)
        if found is not None:
            when_ns, opens = found
            act = partial(self._moment, number, opened if opens else self._close)
            heappush(self._events, _Event(when_ns, number, act))

    def _moment(self, number: int, what: Callable[[int], None]) -> None:
        what(number)
        self._push_moment(number, self._reopen)

    def _set_channels(self, slot: int, count: int) -> None:
        self.lib.cgpu_sched_set_channels(self.t, slot, count, count, self._clock())
        if self.samples:
            self.samples.touched(slot)

    def _open(self, number: int) -> None:
        slot, count = self.slot[number], self.containers[number].processes
        self._set_channels(slot, count)
        if self.lib.cgpu_sched_is_frozen(self.t, slot):
            # In the ioctl that makes the channel, before its owner can submit work.
            self.gpu.freeze(number, True)
            if self._restarts:
                self.gpu.commit([number])
            self.gpu.enable(number, bool(self.gpu.personality.control_ineffective & 2))
        else:
            self.gpu.enable(number, True)

    def _reopen(self, number: int) -> None:
        self.gpu.reopen(number)
        self._open(number)

    def _close(self, number: int) -> None:
        self.gpu.end(number)
        self._set_channels(self.slot[number], 0)

    def _apply(self, change: Change) -> None:
        what = f"at {in_digits(change.at_ms)} ms: {change.node} {change.value}"
        if change.container is None:
            err = getattr(self.lib, f"cgpu_sched_set_{change.node}")(self.t, change.value, self._clock())
            self._slice_is_set |= change.node == "slice_us"
        else:
            number = next(i for i, one in enumerate(self.containers) if one.name == change.container)
            setter = getattr(self.lib, f"cgpu_sched_set_{change.node}")
            err = setter(self.t, self.slot[number], change.value, self._clock())
        self._check(err, what, allowed(change.node))

    # The thread.

    def _clock(self) -> int:
        return BEGAN_NS + self.gpu.now

    def _clients(self, mask: int) -> list[int]:
        """Slots of a plan, as the GPU numbers its clients; in the order of the slots, as the shell goes."""
        return [self._number[slot] for slot in bits(mask) if slot in self._number]

    def _freeze(self, mask: int, frozen: bool) -> int:
        done = 0
        for number in self._clients(mask):
            if self.gpu.freeze(number, frozen):
                done |= 1 << self.slot[number]
        return done

    def _tell(self, event: Any) -> None:
        """An event of the step machine, now; self.step is what it says then."""
        event.now_ns = self._clock()
        check = self.samples.check if self.samples else self.ffi.NULL
        self.lib.cgpu_sched_step(self.t, check, self.step, event)

    def _call(self, answer: Any) -> None:
        """Make the call that the step asks for."""
        lib, gpu, mask = self.lib, self.gpu, int(self.step.mask)
        if self.step.kind == lib.CGPU_STEP_TIMESLICE:
            for number in self._clients(mask):
                gpu.timeslice(number, self.step.plan.timeslice_us[self.slot[number]])
            answer.done = answer.called = mask
        elif self.step.kind == lib.CGPU_STEP_RESTART:
            answer.done, answer.refused_ns = gpu.commit(self._open_clients(mask))
        else:
            answer.done = self._freeze(mask, self.step.kind == lib.CGPU_STEP_FREEZE)

    def _act(self) -> None:
        while self.step.mask:
            answer = self._answer
            answer.begin_ns, answer.called, answer.refused_ns = self._clock(), 0, 0
            self._call(answer)
            answer.end_ns = self._clock()
            self._tell(answer)
        self.turns += 1

    def _open_clients(self, mask: int) -> list[int]:
        return [number for number in self._clients(mask) if self.t.slot[self.slot[number]].channels]

    def _follow_control(self) -> None:
        if self._slice_is_set or self.turns % 32:
            return
        freezes, thaws = (sorted(self.gpu.latest_ns[frozen]) for frozen in (True, False))
        if not freezes or not thaws or len(freezes) + len(thaws) < 32:
            return
        slice_us = self._auto_slice_us(freezes[(len(freezes) - 1) // 2], thaws[(len(thaws) - 1) // 2])
        self.lib.cgpu_sched_set_slice_us(self.t, slice_us, self._clock())

    def _note_round(self) -> None:
        now = int(self._group.round)
        if now != self._round:
            self._round = now
            self.rounds.append((self.gpu.now, self.gpu.held()))

    def _sleep_until(self, until_ns: int) -> int:
        """The engine's time at which the thread runs again, if nothing kicks it."""
        if self.step.until_ns == NEVER_NS:
            return until_ns
        late_ns = int(self.gpu.rng.expovariate(1 / WAKE_NS))
        return min(until_ns, int(self.step.until_ns) - BEGAN_NS + late_ns)

    def _sleep(self, until_ns: int) -> None:
        """Until the end of the plan or an event, or until a poll finds that the plan no longer fits."""
        # The engine's C code does not handle Ctrl-C: run it for a short time at once.
        wake_ns = min(self._sleep_until(until_ns), self.gpu.now + S)
        if self._events:
            wake_ns = min(wake_ns, self._events[0].when_ns)
        while self.samples and self.samples.next_ns < wake_ns:
            self.gpu.advance(self.samples.next_ns)
            self.samples.take()
        if self.source:
            self.source.sleep(self.t, self.step, wake_ns)
        else:
            self.gpu.advance(wake_ns)

    def run(self, until_ns: int) -> None:
        """Run until that time of the engine; calls in progress then are finished."""
        while self.gpu.now < until_ns:
            # Each may take time: with very many of them the run ends all the same.
            while self._events and self._events[0].when_ns <= self.gpu.now < until_ns:
                heappop(self._events).act()
            self._follow_control()
            if self.samples:
                self.samples.take()
            self._tell(self._plan)
            self._note_round()
            if self.step.mask:
                self._act()
            else:
                self._sleep(until_ns)

    @property
    def slice_us(self) -> int:
        return int(self.t.slice_ns) // US

    @property
    def thread_ns(self) -> int:
        """The time the calls spin and the polls take; the rest of its work is some microseconds per turn."""
        polls_ns = self.source.spent_ns if self.source else 0
        return 2 * self.gpu.profile.control_spin_us * US * self.gpu.calls + polls_ns

    @property
    def polls(self) -> int:
        return self.source.polls if self.source else 0


def _ineffective(control_ineffective: int) -> int:
    return (TIMESLICE if control_ineffective & 1 else 0) | (FREEZE if control_ineffective & 2 else 0)
