# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""A GPU whose controls may be ineffective, sampled as the driver does, with a scheduler and its effect check."""

import random

from corelib import MS, NATIVE, C, Thread, Turn, ffi, lib, slots

IDLE, FOREIGN, LOW = C.CGPU_CHECK_IDLE, C.CGPU_CHECK_FOREIGN, C.CGPU_CHECK_LOW
TIMESLICE, RESTART = lib.CGPU_STEP_TIMESLICE, lib.CGPU_STEP_RESTART
PERIOD = 1000 * MS / 6
CALL = 3 * MS // 10
DEFAULT_US = 1024


class Tenant:
    """work: which part of the time it has work, in bursts of 40 ms. resists_ms: for how long it ignores a freeze.
    loose: from then on no freeze reaches its channels. kernel_us: it launches one such kernel at a time, and leaves the
    GPU for 20 us after each; 0: its queue is never empty.
    """

    def __init__(self, slot, tsgs, work, resists_ms, loose, kernel_us):
        self.slot, self.tsgs, self.work, self.resists_ms, self.loose = slot, tsgs, work, resists_ms, loose
        self.kernel_us = kernel_us
        self.on_until = 0

    def is_loose(self, now):
        return self.loose is not None and now >= self.loose * 1000 * MS

    def busy(self, now):
        return (now // (40 * MS) * 0.61803 + self.slot * 0.3) % 1 < self.work


class CheckGpu(Thread):
    """ineffective: CGPU_CTRL_* that move nothing. wrong: share of samples with a random name. uncommitted: restarts
    that fail; then freezes and thaws need one. jitter: of the sampler; without, rounds can be in step with it.
    switching: how many samples fall on a context switch.
    """

    restarts = True

    def __init__(self, policy, ineffective=0, seed=1, wrong=0.0, uncommitted=0.0, jitter=0.02, switching=0.0, **turn):
        self.turn = Turn(policy, **{"slice_ms": 10, "max_inst": 10, "switch_us": 70} | turn)
        self.check = ffi.new("struct cgpu_check *")
        lib.cgpu_check_init(self.check, self.turn.now)
        self.ineffective, self.wrong, self.uncommitted, self.jitter = ineffective, wrong, uncommitted, jitter
        self.rng = random.Random(seed)
        self.tenants, self.slices, self.commits = {}, {}, {}
        self.in_force, self.switching = 0, switching
        self.sample_at = self.turn.now + self.rng.random() * PERIOD
        self.poll_at = self.turn.now + 1000 * MS
        self.was, self.committed = IDLE, False  # at the last restart
        self.samples, self.findings, self.held_ms, self.loose = [], [], {}, set()

    def add(self, weight=1, tsgs=1, work=1.0, resists_ms=0, highprio=0, loose=None, kernel_us=0):
        slot = self.turn.add(weight, highprio, channels=tsgs)
        self.tenants[slot] = Tenant(slot, tsgs, work, resists_ms, loose, kernel_us)
        self.touch(slot)
        return slot

    def touch(self, slot):
        lib.cgpu_check_touched(self.check, self.turn.t, slot, self.turn.now)

    def allowed(self):
        """Slots that the hardware lets run."""
        if self.ineffective & 1:
            return set(self.tenants)
        run_mask = self.in_force if self.uncommitted else self.turn.t.run_mask
        return {i for i, tenant in self.tenants.items() if run_mask >> i & 1 or tenant.is_loose(self.turn.now)}

    def on(self, now):
        for tenant in self.tenants.values():
            if now < tenant.on_until:
                return tenant.slot
        allowed = self.allowed()
        runs = [t for slot, t in self.tenants.items() if slot in allowed and t.busy(now)]
        if len(runs) == 1 and runs[0].kernel_us and self.rng.random() * (runs[0].kernel_us + 20) < 20:
            return IDLE
        parts = [t.tsgs * min(self.slices.get(t.slot, DEFAULT_US), t.kernel_us or 1 << 30) for t in runs]
        # Where in the hardware's round it is, is as good as random at six samples a second.
        return self.rng.choices(runs, parts)[0].slot if runs else IDLE

    def answer(self, kind, mask):
        if kind == TIMESLICE:
            for slot in slots(mask) & set(self.tenants) if not self.ineffective & 2 else ():
                self.commits[slot] = self.step.plan.timeslice_us[slot] or DEFAULT_US
            return {"done": mask}
        if kind != RESTART:
            self.advance(self.turn.now + mask.bit_count() * CALL)
            return {"done": mask}
        self.advance(self.turn.now + CALL)
        self.was = self.on(self.turn.now)
        self.committed = self.rng.random() >= self.uncommitted
        return {"done": self.committed}

    def act(self):
        super().act()
        tenant = self.tenants.get(self.was)
        if tenant and tenant.resists_ms and self.step.plan.freeze_mask >> self.was & 1:
            tenant.on_until = max(tenant.on_until, self.turn.now + tenant.resists_ms * MS)
        if self.committed and self.commits:
            self.slices |= self.commits
            self.commits = {}
        if self.committed:
            self.in_force = self.turn.t.run_mask

    def advance(self, to):
        while self.sample_at <= to:
            slot = self.on(self.sample_at)
            if self.switching and len(self.allowed()) > 1 and self.rng.random() < self.switching:
                slot = IDLE
            if self.rng.random() < self.wrong:
                slot = self.rng.choice([*self.tenants, IDLE, FOREIGN])
            self.samples.append((int(self.sample_at), slot))
            self.sample_at += PERIOD * self.rng.uniform(1 - self.jitter, 1 + self.jitter)
        turn = self.turn
        if held := turn.t.held_mask:
            for slot in slots(held) & set(self.tenants):
                self.held_ms[slot] = self.held_ms.get(slot, 0) + (to - turn.now) / MS
        turn.now = int(to)

    def poll(self):
        """What the shell does once a second."""
        now, held = self.turn.now, self.check.held
        if held:
            lib.cgpu_check_hold(self.check, self.turn.t, 0, now)
        until = lib.cgpu_check_until_ns(self.turn.t, now)
        while self.samples and self.samples[0][0] <= until:
            lib.cgpu_check_sample(self.check, self.turn.t, *self.samples.pop(0))
        find = ffi.new("struct cgpu_check_finding *")
        lib.cgpu_check_evaluate(self.check, self.turn.t, now, find)
        if find.control:
            self.findings.append((find.control, find.moved))
            self.loose |= {slot for slot in self.tenants if find.loose >> slot & 1}
            lib.cgpu_sched_control_moved(self.turn.t, find.control, find.moved, now)
        if find.hold and self.turn.t.policy != NATIVE:
            lib.cgpu_check_hold(self.check, self.turn.t, find.hold, now)
        self.poll_at = now + (C.CGPU_CHECK_HOLD_MS if self.check.held else C.CGPU_CHECK_POLL_MS) * MS

    def run(self, seconds, stop=lambda: False):
        """Returns how long it ran, in seconds."""
        begin, end = self.turn.now, self.turn.now + int(seconds * 1000 * MS)
        while self.turn.now < end and not stop():
            if not self.plan():
                continue
            self.advance(min(self.step.plan.until_ns, self.poll_at, end))
            if self.turn.now >= self.poll_at:
                self.poll()
        return (self.turn.now - begin) / (1000 * MS)

    @property
    def policy(self):
        return self.turn.t.policy

    def enforced(self):
        return [self.turn.stat(slot).enforced for slot in self.tenants]
