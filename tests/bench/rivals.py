# SPDX-License-Identifier: MIT
"""Published sharing rules of others, on the same simulated GPU as ours.

Written from descriptions, without their code. Each class names its source. Where a source leaves a choice open, the
class takes the one that favours the rival and documents it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cgpu_cli.sim.gpu import Gpu
from cgpu_cli.sim.model import MS, NEVER_NS, US, Container, S
from cgpu_cli.sim.turns import WAKE_NS, Round


class Rule:
    """Common to all: containers open and close the GPU; in between, step() acts."""

    name = ""
    source = ""
    control: str | None = None
    weights = True  # whether it supports weights

    def __init__(self, gpu: Gpu, containers: Sequence[Container], slice_us: int | None = None) -> None:
        self.gpu, self.containers = gpu, tuple(containers)
        self.slice_us = slice_us or 0
        self.open: list[int] = []
        self.turns = 0
        self.rounds: list[Round] = []
        moments = [(ns, opens, i) for i, one in enumerate(containers) for ns, opens in one.moments(gpu.length_ns)]
        self._events = deque(sorted(moments))
        self._seen: set[int] = set()
        for number in range(len(self.containers)):
            gpu.enable(number, False)

    @classmethod
    def fits(cls, containers: Sequence[Container]) -> bool:
        """Does it say anything about such a mix?"""
        return True

    def opened(self, number: int) -> None:
        self.gpu.enable(number, True)

    def closed(self, number: int) -> None:
        self.gpu.end(number)

    def step(self, until_ns: int) -> None:
        """Let time pass up to @until_ns or a decision, whichever is first."""
        self.gpu.advance(until_ns)

    def run(self, until_ns: int) -> None:
        while self.gpu.now < until_ns:
            while self._events and self._events[0][0] <= self.gpu.now:
                _, opens, number = self._events.popleft()
                if opens:
                    self.open.append(number)
                    if number in self._seen:
                        self.gpu.reopen(number)
                    self._seen.add(number)
                    self.opened(number)
                else:
                    self.open.remove(number)
                    self.closed(number)
            self.step(min(until_ns, self._events[0][0] if self._events else NEVER_NS))

    @property
    def thread_ns(self) -> int:
        return 2 * self.gpu.profile.control_spin_us * US * self.gpu.calls


class DriverRoundRobin(Rule):
    """The driver's own: TSGs in turn, 1.024 ms each, idle ones skipped; a process more is a turn more."""

    name = "driver-round-robin"
    source = "NVIDIA open-gpu-kernel-modules, kernel_fifo_gv100.c (timeslice 128 << 3 us)"
    weights = False


class VgpuStrictRoundRobin(Rule):
    """vGPU, strict round robin with averaging: turns at a fixed frequency, overshoots averaged over later turns.

    480 turns a second for up to 8, 960 above; averaging factor 33: of what a tenant has overshot in all, a 33rd is
    taken off each of its next turns. Its fixed share gives a larger vGPU more; here: as many times a turn as its
    weight. In its favour: its scheduler sits beside the engine, so switching takes no call, only the context switch.
    """

    name = "vgpu-strict-round-robin"
    source = "NVIDIA vGPU user guide (scheduling policies, strict round robin); NVML nvmlVgpuSchedulerSetParams_t"
    control = "timeslice"
    FACTOR = 33
    LEAST_PARTS = 8  # a turn is never cut below this part of itself

    def __init__(self, gpu: Gpu, containers: Sequence[Container], slice_us: int | None = None) -> None:
        super().__init__(gpu, containers, slice_us)
        self.debt_ns = [0] * len(self.containers)
        self.at = -1
        self.ends_ns = 0
        self.owner: int | None = None

    def opened(self, number: int) -> None:
        pass

    def closed(self, number: int) -> None:
        if self.owner == number:
            self.owner = None
        super().closed(number)

    def _turn_ns(self, number: int) -> int:
        hertz = 480 if len(self.open) <= 8 else 960
        whole = self.containers[number].weight * S // hertz
        less = min(self.debt_ns[number] // self.FACTOR, whole - whole // self.LEAST_PARTS)
        self.debt_ns[number] -= less
        return whole - less

    def _next(self) -> None:
        behind = [number for number in sorted(self.open) if number > self.at]
        if not behind:
            self.rounds.append((self.gpu.now, self.gpu.held()))
        self.at = self.owner = behind[0] if behind else min(self.open)
        self.ends_ns = self.gpu.now + self._turn_ns(self.owner)
        self.gpu.enable(self.owner, True)
        self.turns += 1

    def step(self, until_ns: int) -> None:
        if not self.open:
            self.gpu.advance(until_ns)
            return
        if self.owner is None:
            self._next()
        self.gpu.advance(min(until_ns, self.ends_ns))
        if self.gpu.now >= self.ends_ns and self.owner is not None:
            self.gpu.stop_now(self.owner)
            self.debt_ns[self.owner] += self.gpu.now - self.ends_ns
            self.owner = None


class TokenBucket(Rule):
    """A preloaded library that delays launches: a launch costs tokens, a watcher refills them every 120 ms by how far
    the utilisation of the last second is from the limit; a launch without tokens tries again after 10 ms.

    Queued work cannot be withdrawn. The limit is the weight's part of 100 %. Tokens are counted in blocks; assumed
    here: a kernel has one wave of blocks of 256 threads for each 100 us.
    """

    name = "token-bucket"
    source = "HAMi-core and its ancestor vcuda-controller (token bucket on launches; 120 ms, 10 ms, NVML window 1 s)"
    control = "launch"
    SAMPLE_NS, POLL_NS = 120 * MS, 10 * MS
    THREADS, FACTOR, SCALE, LEAST_DIFF = 2048, 32, 2560, 5

    def __init__(self, gpu: Gpu, containers: Sequence[Container], slice_us: int | None = None) -> None:
        super().__init__(gpu, containers, slice_us)
        whole = sum(one.weight for one in containers)
        self.limit = [100 * one.weight // whole for one in containers]
        self.total = gpu.profile.sm_count * self.THREADS * self.FACTOR
        self.share = [0] * len(self.containers)
        self.next_ns = 0
        self.seen: deque[list[int]] = deque(maxlen=S // self.SAMPLE_NS + 1)
        for number, one in enumerate(containers):
            client = gpu.client(number)
            client.gate_poll_ns = self.POLL_NS
            kernel_us = sum(one.request_us) / len(one.request_us) if one.request_us else one.kernel_us
            client.token_cost = max(1, round(kernel_us / 100 * gpu.profile.sm_count * self.THREADS / 256))

    def _utilisation(self, number: int, busy: list[int]) -> int:
        """Percent of the last second, as far as it has been watched."""
        first = self.seen[0] if self.seen else busy
        span = max(1, len(self.seen)) * self.SAMPLE_NS
        return max(0, 100 * (busy[number] - first[number]) // span)

    def _step_of(self, difference: int, limit: int) -> int:
        sms = self.gpu.profile.sm_count
        step = sms * sms * self.THREADS * difference // self.SCALE
        return step * difference * 2 // (limit + 1) if difference > limit // 2 else step

    def _sample(self) -> None:
        busy = self.gpu.busy()
        if self.seen and sum(busy) < sum(self.seen[-1]):
            self.seen.clear()  # figures were reset
        for number, limit in enumerate(self.limit):
            used = self._utilisation(number, busy)
            step = self._step_of(max(self.LEAST_DIFF, abs(limit - used)), limit)
            wanted = self.share[number] + (step if used <= limit else -step)
            self.share[number] = min(self.total, max(0, wanted))
            client = self.gpu.client(number)
            client.tokens = min(self.total, client.tokens + self.share[number])
        self.seen.append(busy)

    def step(self, until_ns: int) -> None:
        if self.gpu.now >= self.next_ns:
            self._sample()
            self.next_ns += self.SAMPLE_NS
        self.gpu.advance(min(until_ns, self.next_ns))


class FreezeNoDeficit(Rule):
    """Whole containers run one after the other, `weight` slices each by the wall clock, and an overrun is never
    compensated, as the vendor's page describes.

    In its favour: the same control as ours, in the same order, and what runs is preempted.
    """

    name = "freeze-no-deficit"
    source = "the vendor's published description of cGPU (slices of a fixed length, weight times a slice)"
    control = "freeze"

    def __init__(self, gpu: Gpu, containers: Sequence[Container], slice_us: int | None = None) -> None:
        super().__init__(gpu, containers, slice_us or 5000)
        self.owner: int | None = None
        self.ends_ns = 0

    def opened(self, number: int) -> None:
        self.gpu.enable(number, bool(self.gpu.personality.control_ineffective & 2))

    def closed(self, number: int) -> None:
        if self.owner == number:
            self.owner = None
        super().closed(number)

    def _next(self) -> None:
        last = self.owner
        behind = [number for number in sorted(self.open) if last is None or number > last]
        if not behind:
            self.rounds.append((self.gpu.now, self.gpu.held()))
        owner = behind[0] if behind else min(self.open)
        if owner != last:
            self.gpu.freeze(owner, False)
            if last is not None:
                self.gpu.freeze(last, True)
            self.gpu.commit([owner])
        self.owner = owner
        length = self.containers[owner].weight * self.slice_us * US
        self.ends_ns = self.gpu.now + length + int(self.gpu.rng.expovariate(1 / WAKE_NS))
        self.turns += 1

    def step(self, until_ns: int) -> None:
        if not self.open:
            self.gpu.advance(until_ns)
            return
        if self.owner is None or self.gpu.now >= self.ends_ns:
            self._next()
        self.gpu.advance(min(until_ns, self.ends_ns))


RIVALS = (DriverRoundRobin, VgpuStrictRoundRobin, TokenBucket, FreezeNoDeficit)
