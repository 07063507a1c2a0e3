# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""A GPU, its control and the shell's thread on a timeline of whole nanoseconds.

It counts the GPU time that each container *really* got: the control takes effect somewhere inside its call, not
when it is acknowledged, wake-ups are late, calls fail. The engine sees only what the shell sees.
All containers here are busy from open to close; several at once share by TSGs x timeslice.
"""

import random
from dataclasses import dataclass, field

from corelib import MS, NEVER, Thread, Turn, lib, slots

US = 1_000


@dataclass
class Control:
    """How long a freeze or thaw takes: p50 0.4 ms, tails to 5 ms, as reported for PREEMPT and DISABLE. It takes effect
    anywhere inside, or in the middle."""

    p50_us: int = 400
    sigma: float = 0.35
    tail: float = 0.001
    tail_us: int = 5000
    fail: float = 0.0
    wake_us: int = 60
    middle: bool = False

    def latency_ns(self, rng) -> int:
        if rng.random() < self.tail:
            return int(self.tail_us * US * (1 if self.middle else rng.uniform(0.5, 1.0)))
        us = self.p50_us * rng.lognormvariate(0.0, self.sigma)
        return int(min(max(us, 250), self.tail_us) * US)

    def effect_ns(self, took_ns: int, rng) -> int:
        return took_ns // 2 if self.middle else int(took_ns * rng.random())

    def wake_ns(self, rng) -> int:
        return int(rng.expovariate(1 / self.wake_us) * US) if self.wake_us else 0


# What the profiles of tests/nvsim assume: 0.3 ms, 3 calls in 100 take 5.2 ms, the effect is in the middle.
A100 = Control(p50_us=300, sigma=0.06, tail=0.03, tail_us=5200, wake_us=30, middle=True)
# Always about the same.
STEADY = Control(p50_us=440, sigma=0.04, tail=0, wake_us=0, middle=True)


@dataclass
class SimGpu(Thread):
    turn: Turn
    control: Control = field(default_factory=Control)
    seed: int = 1
    real: int = 0  # mask of the slots that really run
    got: dict = field(default_factory=dict)  # slot -> ns of GPU
    calls: int = 0

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.real = self.turn.t.run_mask

    def pass_to(self, until: int) -> None:
        turn = self.turn
        length, turn.now = until - turn.now, until
        running = slots(self.real & turn.opened_mask())
        pull = {}
        for i in running:
            s = turn.t.slot[i]
            pull[i] = s.tsgs * (s.timeslice_us or 1024)
        total = sum(pull.values())
        for i in running:
            self.got[i] = self.got.get(i, 0) + length * pull[i] / total

    def call(self, mask: int, thaw: bool, done: int) -> int:
        """One control call per container of @mask; gives what was acknowledged."""
        for i in slots(mask):
            self.calls += 1
            took = self.control.latency_ns(self.rng)
            at = self.control.effect_ns(took, self.rng)
            self.pass_to(self.turn.now + at)
            if self.rng.random() >= self.control.fail:
                done |= 1 << i
                self.real = self.real | 1 << i if thaw else self.real & ~(1 << i)
            self.pass_to(self.turn.now + took - at)
        return done

    def answer(self, kind, mask):
        if kind == lib.CGPU_STEP_TIMESLICE:
            return {"done": mask}
        if kind == lib.CGPU_STEP_RESTART:
            return {"done": self.restart()}
        return {"done": self.call(mask, kind == lib.CGPU_STEP_THAW, 0)}

    def restart(self) -> bool:
        """RESTART_RUNLIST after the calls. False: none was made."""
        return False

    def run(self, length_ms: float) -> None:
        end = self.turn.now + int(length_ms * MS)
        while self.turn.now < end:
            self.go_on(end)

    def go_on(self, end: int = NEVER) -> None:
        """A plan and its calls, or a wait."""
        if not self.plan():
            self.real |= self.step.plan.run_mask & ~self.turn.opened_mask()
            return
        assert self.step.plan.until_ns > self.turn.now, "a plan that is over at once"
        if self.step.until_ns == NEVER:
            self.pass_to(end)
        else:
            self.pass_to(min(end, self.step.until_ns + self.control.wake_ns(self.rng)))

    def rounds(self, rr=0) -> int:
        return self.turn.t.rr[rr].round

    def run_whole_rounds(self, about_ms: float) -> float:
        """From one round's beginning to the one nearest @about_ms; gives milliseconds."""
        self.run_round()
        self.got.clear()
        began = self.turn.now
        last = began
        while True:
            self.run_round()
            length = self.turn.now - last
            last = self.turn.now
            if last - began + length / 2 >= about_ms * MS:
                return (last - began) / MS

    def run_round(self) -> None:
        now = self.rounds()
        while self.rounds() == now:
            self.go_on()

    def share_errors(self, weights: dict) -> dict:
        """Relative error of each container's part against its weight's part."""
        total, sum_w = sum(self.got.values()), sum(weights.values())
        return {i: self.got.get(i, 0) / total / (w / sum_w) - 1 for i, w in weights.items()}


class TimeslicedGpu(SimGpu):
    """If several may run, timeslices in turn decide, as on hardware, each TSG its own, and each switch to
    another container costs; RESTART_RUNLIST, one more call, ends the slice."""

    restarts = True
    slice_end = 0
    current = None
    tsg = 0  # which of its TSGs
    ready = 0  # the switch to it is over then
    switch_ns = 0

    def wants(self) -> set:
        return slots(self.real & self.turn.opened_mask())

    def pick(self, running: set, now: int) -> None:
        """The next in turn begins a slice."""
        behind = [i for i in running if self.current is not None and i > self.current]
        chosen = min(behind or running)
        self.tsg += 1
        if self.current in running and self.tsg < self.turn.t.slot[self.current].tsgs:
            chosen = self.current
        else:
            self.tsg = 0
        self.ready = now + self.switch_ns * (chosen != self.current)
        self.current = chosen
        self.slice_end = self.ready + (self.turn.t.slot[chosen].timeslice_us or 1024) * US

    def notice(self, now: int) -> None:
        """What happens at @now."""

    def event_ns(self, begin: int) -> int:
        """When something happens next, the current one running from @begin."""
        return NEVER

    def ran(self, slot: int, begin: int, end: int) -> None:
        self.got[slot] = self.got.get(slot, 0) + end - begin

    def pass_to(self, until):
        now, self.turn.now = self.turn.now, until
        while now < until:
            self.notice(now)
            running = self.wants()
            if running and (self.current not in running or now >= self.slice_end):
                self.pick(running, now)
            begin = max(now, self.ready)
            stop = min(until, max(self.event_ns(begin), now + 1))
            if running:
                stop = min(stop, self.slice_end)
                if stop > begin:
                    self.ran(self.current, begin, stop)
            now = stop

    def restart(self):
        if not self.restarts:
            return False
        took = self.control.latency_ns(self.rng)
        at = self.control.effect_ns(took, self.rng)
        self.pass_to(self.turn.now + at)
        self.slice_end = self.turn.now
        self.pass_to(self.turn.now + took - at)
        return True


class Listed(TimeslicedGpu):
    """A call takes 64 channels: a container runs from its first list that is thawed to its last that is frozen."""

    switch_ns = 85 * US

    def __post_init__(self):
        super().__post_init__()
        self.calls_ns = {}  # slot -> of the thread, in calls of its freezes and thaws

    def lists(self, slot):
        for _ in range(-(-self.turn.t.slot[slot].channels // 64) - 1):
            self.calls += 1
            self.pass_to(self.turn.now + self.control.latency_ns(self.rng))

    def call(self, mask, thaw, done):
        for i in slots(mask):
            began = self.turn.now
            if not thaw:
                self.lists(i)
            done = super().call(1 << i, thaw, done)
            if thaw:
                self.lists(i)
            self.calls_ns[i] = self.calls_ns.get(i, 0) + self.turn.now - began
        return done


class BurstGpu(TimeslicedGpu):
    """One container sleeps and wakes for a burst of work; the others always have some."""

    sleeper = 0
    burst_us = 3_000
    sleep_us = 20_000
    switch_ns = 85 * US

    def __post_init__(self):
        super().__post_init__()
        self.work = 0
        self.wake = self.turn.now + 50 * MS
        self.frozen = False
        self.slept_at = self.woke_at = None
        self.takeover_us = {"free": [], "frozen": []}  # from its waking to its first work
        self.give_back_us = []  # from its last work to that of another one

    def wants(self):
        return super().wants() - (set() if self.work else {self.sleeper})

    def notice(self, now):
        if not self.work and now >= self.wake:
            self.work, self.woke_at, self.frozen = self.burst_us * US, now, False
        if self.woke_at is not None and not self.real >> self.sleeper & 1:
            self.frozen = True

    def event_ns(self, begin):
        if not self.work:
            return self.wake
        return begin + self.work if self.current == self.sleeper else NEVER

    def ran(self, slot, begin, end):
        super().ran(slot, begin, end)
        if slot != self.sleeper:
            if self.slept_at is not None:
                self.give_back_us.append((begin - self.slept_at) / US)
            self.slept_at = None
            return
        if self.woke_at is not None:
            self.takeover_us["frozen" if self.frozen else "free"].append((begin - self.woke_at) / US)
        self.woke_at = self.slept_at = None
        self.work -= end - begin
        if not self.work:
            self.slept_at = end
            self.wake = end + int(self.sleep_us * US * self.rng.uniform(0.2, 1.8))
