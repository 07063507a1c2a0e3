# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""A GPU whose containers are not always busy, and the shell's thread that reads their run state.

Time passes in ticks, several at once where nothing changes in between. The hardware gives a timeslice to each
container that is thawed and has work. A control takes `call_us` and acts in its middle. What is simulated is the
engine, not the driver.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from corelib import EVENT, MS, Thread, Turn, ffi, lib, slots

US = 1_000
TICK_NS = 10 * US


@dataclass
class Load:
    """Work of one container; @arrivals gives (time, length) in order, None: it always has some. @due_ns: when the next
    arrives; None: not before work ends, or never."""

    arrivals: Iterable[tuple[int, int]] | None = None
    queue: list[tuple[int, int]] = field(default_factory=list)  # (arrival, what is left)
    latency_us: list[float] = field(default_factory=list)
    got_ns: int = 0

    def __post_init__(self) -> None:
        self._next = iter(self.arrivals or ())
        self.expect(next(self._next, None))

    def expect(self, arrival: tuple[int, int] | None) -> None:
        self._due, self.due_ns = arrival, arrival[0] if arrival else None

    def arrive(self, now: int) -> None:
        while self._due and self._due[0] <= now:
            self.queue.append(self._due)
            self.expect(next(self._next, None))

    @property
    def busy(self) -> bool:
        return self.arrivals is None or bool(self.queue)

    def run(self, now: int, ns: int) -> None:
        """The work under way; not of one that always has some."""
        arrival, left = self.queue[0]
        if left > ns:
            self.queue[0] = arrival, left - ns
            return
        self.queue.pop(0)
        self.latency_us.append((now + ns - arrival) / US)


def every(period_ms: float, length_ms: float, start_ms: float = 0, until_ms: float = 60_000) -> list[tuple[int, int]]:
    """Arrivals one after the other; times from 0."""
    count = int((until_ms - start_ms) / period_ms)
    return [(int((start_ms + i * period_ms) * MS), int(length_ms * MS)) for i in range(count)]


@dataclass
class DemandGpu(Thread):
    turn: Turn
    loads: dict[int, Load]
    call_us: int = 300
    timeslice_us: int = 2048
    known: Callable[[int], bool] = lambda slot: True
    chooses: bool = False  # each time anew, not only where a timeslice or work ends
    frozen_shows: bool = True  # the word of a frozen channel shows work that it got

    def __post_init__(self) -> None:
        self.began = self.turn.now
        self.turn.t.timeslice_default_us = self.timeslice_us
        self.rng = random.Random(1)
        self.real = self.turn.t.run_mask
        self.on: int | None = None
        self.slice_left = 0
        self.set_us: dict[int, int] = {}
        self.idle_ns = 0  # nothing ran although something had work
        self.polls = self.calls = self.read_ns = 0
        self.arriving = [load for load in self.loads.values() if load.arrivals is not None]
        self.reading = ffi.new(EVENT, {"kind": lib.CGPU_STEP_EVENT_READ})

    @property
    def time_ns(self) -> int:
        return self.turn.now - self.began

    def _choose(self) -> int | None:
        """The one on the engine, until its timeslice or its work ends; else the next in turn, with a timeslice."""
        on = self.on
        if on in self.loads and self.slice_left > 0 and self.real >> on & 1 and self.loads[on].busy:
            return on
        ready = [i for i, load in self.loads.items() if self.real >> i & 1 and load.busy]
        later = [i for i in ready if on is None or i > on]
        chosen = (later or ready or [None])[0]
        if chosen is not None:
            us = self.set_us.get(chosen) or self.timeslice_us
            self.slice_left = us * US * max(1, self.turn.t.slot[chosen].tsgs)
        return chosen

    def pass_to(self, until: int) -> None:
        """Whole ticks to the next arrival, the end of the work under way or of its timeslice, again and again. A test's
        time is nearly all here: nothing is called that need not be."""
        turn, loads, real, began, arriving = self.turn, self.loads, self.real, self.began, self.arriving
        now, until, chooses = turn.now - began, until - began, self.chooses
        while now < until:
            first = until
            for load in arriving:
                due = load.due_ns
                if due is not None and due <= now:
                    load.arrive(now)
                    due = load.due_ns
                if due is not None and due < first:
                    first = due
            on = self.on
            load = loads.get(on)
            if chooses or not (
                load and self.slice_left > 0 and real >> on & 1 and (load.arrivals is None or load.queue)
            ):
                self.on = on = self._choose()
                load = loads.get(on)
            length = first - now
            if load:
                if self.slice_left < length:
                    length = self.slice_left
                if load.arrivals is not None and load.queue[0][1] < length:
                    length = load.queue[0][1]
            length = -(-length // TICK_NS) * TICK_NS if length > TICK_NS else TICK_NS
            if load:
                load.got_ns += length
                if load.arrivals is not None:
                    load.run(now, length)
                self.slice_left -= length
            elif any(load.busy for load in loads.values()):
                self.idle_ns += length
            now += length
        turn.now = began + now

    def _call(self, mask: int, thaw: bool) -> None:
        for i in slots(mask):
            self.calls += 1
            self.pass_to(self.turn.now + self.call_us * US // 2)
            self.acts(i, thaw)
            self.real = self.real | 1 << i if thaw else self.real & ~(1 << i)
            self.pass_to(self.turn.now + self.call_us * US // 2)

    def acts(self, slot: int, thaw: bool) -> None:
        """Right before the call for @slot takes effect."""

    def answer(self, kind: int, mask: int) -> dict[str, int]:
        if kind == lib.CGPU_STEP_RESTART:
            return {"done": 0}  # it needs none
        if kind != lib.CGPU_STEP_TIMESLICE:
            self._call(mask, kind == lib.CGPU_STEP_THAW)
            return {"done": mask}
        for i in slots(mask):
            self.pass_to(self.turn.now + self.call_us * US)
            self.set_us[i] = self.step.plan.timeslice_us[i]
        return {"done": mask}

    def poll(self) -> None:
        """Thousands in a simulated second: no event is made anew, and a load in which nothing arrives is not asked."""
        self.polls += 1
        event, self.read_ns = self.reading, self.turn.now
        now, known, busy = self.time_ns, 0, 0
        shows = -1 if self.frozen_shows else self.real
        for load in self.arriving:
            load.arrive(now)  # a tick begins with what arrives in it
        for i, load in self.loads.items():
            if self.known(i):
                known |= 1 << i
            if load.arrivals is None or load.queue:
                busy |= 1 << i
        event.now_ns, event.known, event.busy = self.read_ns, known, busy & shows
        lib.cgpu_sched_step(self.turn.t, self.check, self.step, event)

    def _from(self, low: int, high: int) -> int:
        """As random's randint, in a third of its time."""
        bits = (high - low + 1).bit_length()
        found = self.rng.getrandbits(bits)
        while found > high - low:
            found = self.rng.getrandbits(bits)
        return low + found

    def run(self, length_ms: float) -> DemandGpu:
        end = self.turn.now + int(length_ms * MS)
        while self.turn.now < end:
            if self.plan():
                self._sleep(end)
            else:
                self.real |= self.step.plan.run_mask & ~self.turn.opened_mask()
        return self

    def _sleep(self, end: int) -> None:
        """To the plan's end or the first reading after which it does not fit."""
        step, turn, wait = self.step, self.turn, lib.CGPU_STEP_WAIT
        assert step.plan.until_ns > turn.now, "a plan that is over at once"
        until = min(end, step.until_ns)
        while turn.now < until and step.kind == wait:
            poll_ns = step.poll_ns
            if poll_ns:
                poll_ns = self._from(poll_ns // 2, 3 * poll_ns // 2)
            at = max(self.read_ns + poll_ns, turn.now) if poll_ns else until
            self.pass_to(min(until, at))
            if poll_ns and at <= until:
                self.poll()

    def share(self, slot: int) -> float:
        return self.loads[slot].got_ns / self.time_ns

    def p99_us(self, slot: int) -> float:
        latency = sorted(self.loads[slot].latency_us)
        return latency[int(len(latency) * 0.99)]
