# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""A GPU whose controls may be ineffective, sampled as the driver does, with a scheduler and its effect check; what it
does is in checked.c."""

import random

from corelib import MS, NATIVE, NEVER, C, Turn, ffi, lib

IDLE, FOREIGN, LOW = C.CGPU_CHECK_IDLE, C.CGPU_CHECK_FOREIGN, C.CGPU_CHECK_LOW
PERIOD = 1000 * MS / 6
WORDS, MORE = 1 << 14, 1 << 16  # random ones: more than a second needs; how many are drawn at once


class CheckGpu:
    """ineffective: CGPU_CTRL_* that move nothing. wrong: share of samples with a random name. uncommitted: restarts
    that fail; then freezes and thaws need one. jitter: of the sampler; without, rounds can be in step with it.
    switching: how many samples fall on a context switch.
    """

    def __init__(self, policy, ineffective=0, seed=1, wrong=0.0, uncommitted=0.0, jitter=0.02, switching=0.0, **turn):
        self.turn = Turn(policy, **{"slice_ms": 10, "max_inst": 10, "switch_us": 70} | turn)
        self.check = ffi.new("struct cgpu_check *")
        lib.cgpu_check_init(self.check, self.turn.now)
        self.rng = random.Random(seed)
        self.c = ffi.new("struct checked_gpu *", {"turn": self.turn.t, "check": self.check, "was": IDLE})
        self.c.ineffective, self.c.wrong, self.c.uncommitted = ineffective, wrong, uncommitted
        self.c.jitter, self.c.switching = jitter, switching
        self.c.sample_ns = self.turn.now + self.rng.random() * PERIOD
        self.words = b""
        self.poll_at = self.turn.now + 1000 * MS
        self.tenants, self.findings, self.loose = {}, [], set()

    def add(self, weight=1, tsgs=1, work=1.0, resists_ms=0, highprio=0, loose=None, kernel_us=0):
        """work: which part of the time it has work, in bursts of 40 ms. resists_ms: for how long it ignores a freeze.
        loose: from this second on no freeze reaches its channels. kernel_us: it launches one such kernel at a time, and
        leaves the GPU for 20 us after each; 0: its queue is never empty."""
        slot = self.turn.add(weight, highprio, channels=tsgs)
        one = ffi.new("struct checked_tenant *", {"slot": slot, "tsgs": tsgs, "work": work, "kernel_us": kernel_us})
        one.resists_ns, one.loose_ns = resists_ms * MS, NEVER if loose is None else loose * 1000 * MS
        self.tenants[slot] = one
        self.touch(slot)
        return slot

    def touch(self, slot):
        lib.cgpu_check_touched(self.check, self.turn.t, slot, self.turn.now)

    def poll(self):
        """What the shell does once a second."""
        now, held, gpu = self.turn.now, self.check.held, self.c
        if held:
            lib.cgpu_check_hold(self.check, self.turn.t, 0, now)
        until = lib.cgpu_check_until_ns(self.turn.t, now)
        taken = [(gpu.sample[i].at_ns, gpu.sample[i].slot) for i in range(gpu.samples)]
        later = [sample for sample in taken if sample[0] > until]
        for at, slot in taken[: len(taken) - len(later)]:
            lib.cgpu_check_sample(self.check, self.turn.t, at, slot)
        gpu.samples = len(later)
        for i, sample in enumerate(later):
            gpu.sample[i] = sample
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
        """Returns how long it ran, in seconds. A stop is noticed when the shell has polled."""
        begin, end, gpu = self.turn.now, self.turn.now + int(seconds * 1000 * MS), self.c
        gpu.tenants = len(self.tenants)
        for i, one in enumerate(self.tenants.values()):
            gpu.tenant[i] = one
        while self.turn.now < end and not stop():
            if gpu.words - gpu.next_word < WORDS:
                self.words = self.words[4 * gpu.next_word :] + self.rng.randbytes(4 * MORE)
                gpu.word, gpu.words, gpu.next_word = ffi.from_buffer("u32[]", self.words), len(self.words) // 4, 0
            gpu.now_ns, gpu.poll_ns = self.turn.now, self.poll_at
            assert not lib.checked_run(gpu, end)
            self.turn.now = gpu.now_ns
            if self.turn.now >= self.poll_at:
                self.poll()
        return (self.turn.now - begin) / (1000 * MS)

    @property
    def held_ms(self):
        """By slot, of those that were held."""
        return {slot: one.held_ns / MS for slot, one in self.tenants.items() if one.held_ns}

    @property
    def policy(self):
        return self.turn.t.policy

    def enforced(self):
        return [self.turn.stat(slot).enforced for slot in self.tenants]
