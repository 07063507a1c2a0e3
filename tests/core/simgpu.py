# SPDX-License-Identifier: MIT OR GPL-2.0
"""A GPU, its lever and the shell's thread on a timeline of whole nanoseconds.

It says what each container *really* got: the lever takes effect somewhere inside its call, not
when it is acknowledged, wake-ups are late, calls fail. The engine sees only what the shell sees.
All containers here are busy from open to close; several at once share by TSGs x timeslice.
"""

import random
from dataclasses import dataclass, field

from corelib import MS, NEVER, Turn, ffi, lib, slots

US = 1_000


@dataclass
class Lever:
    """How long a freeze or thaw takes: p50 0.4 ms, tails to 5 ms, as reported for PREEMPT and DISABLE."""

    p50_us: int = 400
    sigma: float = 0.35
    tail: float = 0.001
    tail_us: int = 5000
    fail: float = 0.0
    wake_us: int = 60

    def latency_ns(self, rng) -> int:
        if rng.random() < self.tail:
            return int(self.tail_us * US * rng.uniform(0.5, 1.0))
        us = self.p50_us * rng.lognormvariate(0.0, self.sigma)
        return int(min(max(us, 250), self.tail_us) * US)

    def wake_ns(self, rng) -> int:
        return int(rng.expovariate(1 / self.wake_us) * US)


@dataclass
class SimGpu:
    turn: Turn
    lever: Lever = field(default_factory=Lever)
    seed: int = 1
    real: int = 0  # who really runs
    got: dict = field(default_factory=dict)  # slot -> ns of GPU
    calls: int = 0

    def __post_init__(self):
        self.rng = random.Random(self.seed)
        self.real = self.turn.t.run_mask
        self.plan = ffi.new("struct cgpu_turn_plan *")
        self.acked = ffi.new("struct cgpu_turn_ack *")

    def pass_to(self, until: int) -> None:
        turn = self.turn
        length, turn.now = until - turn.now, until
        running = slots(self.real & turn.opened_mask())
        pull = {}
        for i in running:
            s = turn.t.slot[i]
            pull[i] = s.tsgs * (s.timeslice_us or 1024)
        for i in running:
            self.got[i] = self.got.get(i, 0) + length * pull[i] / sum(pull.values())

    def call(self, mask: int, thaw: bool, done: int) -> int:
        """One lever call per container of @mask; gives what was acknowledged."""
        for i in slots(mask):
            self.calls += 1
            took = self.lever.latency_ns(self.rng)
            at = int(took * self.rng.random())
            self.pass_to(self.turn.now + at)
            if self.rng.random() >= self.lever.fail:
                done |= 1 << i
                self.real = self.real | 1 << i if thaw else self.real & ~(1 << i)
            self.pass_to(self.turn.now + took - at)
        return done

    def act(self) -> None:
        plan, ack, turn = self.plan, self.acked, self.turn
        begin = turn.now
        done, at = 0, {False: begin, True: begin}
        for thaw in (True, False) if plan.thaw_first else (False, True):
            mask = plan.thaw_mask if thaw else plan.freeze_mask
            if mask:
                done = self.call(mask, thaw, done)
                at[thaw] = turn.now
        failed = (plan.thaw_mask | plan.freeze_mask) & ~done
        silent = plan.run_mask & ~turn.opened_mask()
        self.real = self.real | silent
        ack.begin_ns, ack.frozen_ns, ack.thawed_ns = begin, at[False], at[True]
        ack.run_mask = plan.run_mask ^ failed
        ack.timeslice_mask = plan.timeslice_mask
        lib.cgpu_turn_ack(turn.t, plan, ack)

    def run(self, length_ms: float) -> None:
        end = self.turn.now + int(length_ms * MS)
        while self.turn.now < end:
            lib.cgpu_turn_next(self.turn.t, self.turn.now, self.plan)
            if self.plan.freeze_mask | self.plan.thaw_mask | self.plan.timeslice_mask:
                self.act()
                continue
            until = self.plan.until_ns
            if until == NEVER:
                self.pass_to(end)
                return
            assert until > self.turn.now, "a plan that is over at once"
            self.pass_to(min(end, until + self.plan.late_ns + self.lever.wake_ns(self.rng)))

    def rounds(self, rota=0) -> int:
        return self.turn.t.rota[rota].round

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
            lib.cgpu_turn_next(self.turn.t, self.turn.now, self.plan)
            if self.plan.freeze_mask | self.plan.thaw_mask | self.plan.timeslice_mask:
                self.act()
                continue
            self.pass_to(self.plan.until_ns + self.plan.late_ns + self.lever.wake_ns(self.rng))

    def share_errors(self, weights: dict) -> dict:
        """Relative error of each container's part against its weight's part."""
        total, sum_w = sum(self.got.values()), sum(weights.values())
        return {i: self.got.get(i, 0) / total / (w / sum_w) - 1 for i, w in weights.items()}
