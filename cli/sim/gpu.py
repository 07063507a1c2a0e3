# SPDX-License-Identifier: MIT
"""One simulated GPU and the driver's controls on it. Each call takes time and acts in the middle of it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import native
from .model import MS, US, Container, Personality, Profile
from .requests import Request, stream

NOBODY = 2**32 - 1
LIST = 64  # channels in one DISABLE_CHANNELS
GIVE_UP_NS = 10_000 * MS  # time-out after which the driver reports the channel as still on the engine
CONTROL_SAMPLES = 64


@dataclass(frozen=True)
class Stretch:
    """An interval in which one client ran. @part: of the interval; below 1 where it is not known when within it."""

    client: int
    begin_ns: int
    end_ns: int
    part: float = 1.0


class Gpu:
    """Clients are numbered in the given order. Only this class advances the time."""

    def __init__(
        self,
        profile: Profile,
        personality: Personality,
        clients: Sequence[Container],
        length_ns: int,
        seed: int,
        one_cpu: bool = False,
    ) -> None:
        self.ffi, self.lib = native.load()
        self.profile, self.personality, self.one_cpu = profile, personality, one_cpu
        self.clients = tuple(clients)
        self.length_ns, self.seed = length_ns, seed
        machine = self.ffi.new("struct cgpu_sim_machine *")
        machine.ctxsw_ns = profile.ctxsw_us * US
        machine.timeslice_ns = profile.timeslice_us * US
        machine.stubborn_ns = personality.stubborn_ms * MS
        machine.no_preempt = personality.no_preempt
        machine.commit_required = personality.commit_required
        machine.seed = seed
        self.sim = self.ffi.gc(self.lib.cgpu_sim_new(machine, length_ns), self.lib.cgpu_sim_free)
        self._clock = self.lib.cgpu_sim_clock(self.sim)  # read some ten times in each of a run's turns
        # A client's figures may outlive this object: they hold the engine they lie in.
        self._client: list[Any] = []
        self.rng = random.Random(seed)
        self.calls = 0
        self.control_ns: deque[int] = deque(maxlen=CONTROL_SAMPLES)
        # Of freezes (True) and thaws, in lists of channels.
        self.latest_ns = {frozen: deque[int](maxlen=CONTROL_SAMPLES) for frozen in (True, False)}
        self._staged: dict[tuple[int, int], bool] = {}
        self._kept: list[Any] = []  # memory that the engine reads as long as it lives
        for number, one in enumerate(self.clients):
            if self.lib.cgpu_sim_add(self.sim, self._load(one, length_ns, seed)) != number:
                raise ValueError(f"the simulated GPU does not take {one}")
            struct = self.lib.cgpu_sim_client(self.sim, number)
            self._client.append(self.ffi.gc(struct, lambda _, sim=self.sim: None))

    def _load(self, one: Container, length_ns: int, seed: int) -> Any:
        load = self.ffi.new("struct cgpu_sim_load *")
        load.kernel_ns, load.spread_ns = round(one.kernel_us * US), round(one.spread_us * US)
        load.gap_ns, load.gap_spread_ns = round(one.gap_us * US), round(one.gap_spread_us * US)
        load.period_ns = round(1e9 / one.rate) if one.rate else 0
        load.on_ns, load.off_ns = round(one.on_ms * MS), round(one.off_ms * MS)
        load.start_ns, load.stop_ns = one.start_ns, one.stop_ns
        load.depth, load.processes, load.stubborn = one.depth, one.processes, one.stubborn
        if one.serves:
            load.requests = self._requests(one, length_ns, seed)
        return load

    def _requests(self, one: Container, length_ns: int, seed: int) -> Any:
        new, found = self.ffi.new, stream(one, length_ns, seed)
        requests = new("struct cgpu_sim_requests *")
        arrays = [new("u64[]", found.kernel_ns), new("u64[]", found.arrival_ns)]
        arrays += [new("u32[]", found.first), new("u32[]", found.count)]
        requests.kernel_ns, requests.arrival_ns, requests.first, requests.count = arrays
        requests.cpu_ns = round(one.cpu_ms * MS)
        requests.think_ns, requests.think_spread_ns = round(one.think_ms * MS), round(one.think_spread_ms * MS)
        requests.seed, requests.arrivals = found.seed, len(found.arrival_ns)
        self._kept += [requests, *arrays]
        return requests

    @property
    def now(self) -> int:
        now: int = self._clock[0]
        return now

    def client(self, number: int) -> Any:
        """Its struct cgpu_sim_client, by reference."""
        return self._client[number]

    def busy(self) -> list[int]:
        return [int(self.client(number).busy_ns) for number in range(len(self.clients))]

    def held(self) -> list[int]:
        """Time in which each client held the GPU: busy, or switching between its own processes."""
        return [int(self.client(number).held_ns) for number in range(len(self.clients))]

    def has_work(self, number: int) -> bool:
        """Has it a kernel queued or running, frozen or not?"""
        return bool(self.lib.cgpu_sim_working(self.sim, number))

    def on_engine(self) -> int | None:
        number = int(self.lib.cgpu_sim_on_engine(self.sim))
        return None if number == NOBODY else number

    def advance(self, to_ns: int) -> None:
        self.lib.cgpu_sim_advance(self.sim, to_ns)

    # Without a simulated duration: actions of the tenant, and of tests.

    def enable(self, number: int, enabled: bool) -> None:
        self.lib.cgpu_sim_enable(self.sim, number, 0, self.clients[number].processes, enabled)

    def end(self, number: int) -> None:
        self.lib.cgpu_sim_end(self.sim, number)

    def reopen(self, number: int) -> None:
        """After end(): a program like the first."""
        self.lib.cgpu_sim_reopen(self.sim, number)

    def stop_now(self, number: int) -> None:
        """Take the client off the engine without a call, as soon as its kernel can be preempted."""
        for first in self._lists(number):
            self._set_enabled(number, first, False)

    def set_timeslice(self, number: int, us: int) -> None:
        """Of each of its TSGs, without a call: in force from its next turn on."""
        self.lib.cgpu_sim_timeslice(self.sim, number, us * US)
        self.lib.cgpu_sim_commit(self.sim)

    def overlap(self, overlap_pct: int, turnaround_us: float = 0.0) -> None:
        """From now on no timeslices: kernels run at once, two or more at so many percent of the speed of one."""
        self.lib.cgpu_sim_overlap(self.sim, overlap_pct, round(turnaround_us * US))

    # The driver's controls.

    def _latency_ns(self, usual_us: int | None) -> int:
        own, rng = self.personality, self.rng
        tail_pct = self.profile.tail_pct if own.tail_pct is None else own.tail_pct
        if rng.random() * 100 < tail_pct:
            return (self.profile.tail_us if own.tail_us is None else own.tail_us) * US
        return int((usual_us or self.profile.control_us) * US * rng.uniform(0.9, 1.1))

    def _control(self, effect: Callable[[], bool], usual_us: int | None = None) -> bool:
        began, took = self.now, self._latency_ns(usual_us)
        self._wait(took // 2)
        done = effect()
        self._wait(took - took // 2)
        self.calls += 1
        self.control_ns.append(self.now - began)
        return done

    def _wait(self, ns: int) -> None:
        """Half of a call, which spins, then sleeps."""
        if self.one_cpu:
            self.lib.cgpu_sim_hold_clients(self.sim, self.now + min(ns, self.profile.control_spin_us * US))
        self.advance(self.now + ns)

    def _lists(self, number: int) -> range:
        """The first channel of each list."""
        return range(0, self.clients[number].processes, LIST)

    def _set_enabled(self, number: int, first: int, enabled: bool) -> bool:
        self.lib.cgpu_sim_enable(self.sim, number, first, LIST, enabled)
        if enabled:
            return True
        limit = self.now + GIVE_UP_NS
        self.lib.cgpu_sim_drain(self.sim, number, limit)
        return self.now < limit

    def freeze(self, number: int, frozen: bool) -> bool:
        """DISABLE_CHANNELS of all its channels, in lists; each call acts on the channels of its list."""

        def effect(first: int) -> bool:
            if self.personality.control_ineffective & 2:
                return True
            if self.personality.disable_needs_restart:
                self._staged[number, first] = not frozen
                return True
            return self._set_enabled(number, first, not frozen)

        usual_us = None if frozen else self.profile.thaw_us
        done = [self._control(lambda first=first: effect(first), usual_us) for first in self._lists(number)]  # type: ignore[misc]
        self.latest_ns[frozen].append(self.control_ns[-1])
        return all(done)

    def timeslice(self, number: int, us: int) -> bool:
        """SET_TIMESLICE on each of its TSGs; 0: the driver's own."""

        def effect() -> bool:
            if not self.personality.control_ineffective & 1:
                self.lib.cgpu_sim_timeslice(self.sim, number, us * US)
            return True

        for _ in range(self.clients[number].processes - 1):
            self._control(lambda: True, self.profile.set_timeslice_us)
        return self._control(effect, self.profile.set_timeslice_us)

    def commit(self, numbers: Sequence[int]) -> tuple[bool, int]:
        """RESTART_RUNLIST on a channel of these containers; on failure, on the next one. Gives whether one succeeded,
        and how long the failures took.
        """

        def effect() -> bool:
            if self.rng.random() * 100 < self.personality.err40_pct:
                return False
            for (number, first), enabled in self._staged.items():
                self._set_enabled(number, first, enabled)
            self._staged.clear()
            self.lib.cgpu_sim_commit(self.sim)
            return True

        refused_ns = 0
        for _ in range(sum(self.clients[number].processes for number in numbers)):
            if self._control(effect, self.profile.restart_us):
                return True, refused_ns
            refused_ns += self.control_ns[-1]
        return False, refused_ns

    # Measurements.

    def mark(self) -> None:
        """Start all figures at the current time."""
        self.lib.cgpu_sim_mark(self.sim)

    def close(self) -> None:
        self.lib.cgpu_sim_close(self.sim)

    def buckets(self, number: int, count: int) -> list[int]:
        """Nanoseconds held in each 100 ms since mark()."""
        out = self.ffi.new("u64[]", count)
        self.lib.cgpu_sim_buckets(self.sim, number, out, count)
        return list(out)

    def requests(self, number: int) -> list[Request]:
        """Those that ended since mark(), in the order of their ends; after close() also those that have not."""
        out = self.ffi.new("const struct cgpu_sim_request **")
        count = self.lib.cgpu_sim_requests_done(self.sim, number, out)
        if not count:
            return []
        words = memoryview(self.ffi.buffer(out[0], count * self.ffi.sizeof("struct cgpu_sim_request"))).cast("Q")
        return [Request(words[i], words[i + 1], bool(words[i + 2])) for i in range(0, 3 * count, 3)]

    @property
    def idle_loss_ns(self) -> int:
        """Since mark(): the engine stood idle and a container had work in its queue."""
        return int(self.lib.cgpu_sim_idle_loss_ns(self.sim))

    @property
    def switching_ns(self) -> int:
        """Since mark(): the engine switched from one process to another."""
        return int(self.lib.cgpu_sim_switching_ns(self.sim))

    def quantile_us(self, hist: Any, permille: int) -> float | None:
        if not hist.count:
            return None
        return int(self.lib.cgpu_sim_quantile(self.ffi.addressof(hist), permille)) / US

    def trace(self, from_ns: int, to_ns: int, merge_ns: int, most: int = NOBODY - 1) -> None:
        """Record who ran then, exact with merge_ns 0; stops after one interval more than most."""
        self.lib.cgpu_sim_trace(self.sim, from_ns, to_ns, merge_ns, most)

    def traced(self) -> list[Stretch]:
        out = self.ffi.new("const struct cgpu_sim_stretch **")
        count = self.lib.cgpu_sim_traced(self.sim, out)
        if not count:
            return []
        words = memoryview(self.ffi.buffer(out[0], count * self.ffi.sizeof("struct cgpu_sim_stretch"))).cast("Q")
        found = zip(words[0::4], words[1::4], words[2::4], words[3::4], strict=True)
        return [Stretch(client, begin, end, ran / (end - begin)) for begin, end, ran, client in found]
