# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""A GPU whose containers are not always busy, and the shell's thread that reads their run state. What it
does is in demand.c.

Time passes in ticks of 10 us, several at once where nothing changes in between. The hardware gives a timeslice to each
container that is thawed and has work. A control takes `call_us` and acts in its middle. What is simulated is the
engine, not the driver.
"""

from __future__ import annotations

import random
from array import array

from corelib import MS, NEVER, Turn, ffi, lib

US = 1_000
ALL = 0xFFFFFFFF  #: slots

#: Readings are at random times. More of them than this have the same ones again.
WORDS = random.Random(1).randbytes(1 << 20)


class Load:
    """Work of one container; @arrivals gives (time, length) in order, None: it always has some."""

    def __init__(self, arrivals: list[tuple[int, int]] | None = None) -> None:
        self.c = ffi.new("struct demand_load *", {"always": arrivals is None, "due_ns": NEVER})
        if arrivals:
            self._arrivals = array("Q", [number for arrival in arrivals for number in arrival])
            self.c.arrivals = ffi.from_buffer("u64[]", self._arrivals)
            self.c.count, self.c.due_ns = len(arrivals), arrivals[0][0]

    def __del__(self) -> None:
        self.forget()

    @property
    def got_ns(self) -> int:
        return self.c.got_ns

    def works_in(self, tsgs: int) -> Load:
        """So many of its TSGs have work when it has, and the readings show it."""
        self.c.at_once = tsgs
        return self

    @property
    def latency_us(self) -> list[float]:
        """Of each request so far."""
        return [ns / US for ns in ffi.unpack(self.c.latency_ns, self.c.latencies)] if self.c.latencies else []

    def forget(self) -> None:
        """The requests so far."""
        lib.demand_free(self.c)

    def since_ns(self) -> int | None:
        """When the work under way arrived."""
        return self.c.arrivals[2 * self.c.done] if self.c.arrived != self.c.done else None


class Closed(Load):
    """A closed loop: each kernel is launched @gap_us after the end of the one before. A request has so many @kernels,
    and after it @idle_us are free."""

    def __init__(self, kernel_us: float, gap_us: float, kernels: int = 1, idle_us: float | None = None) -> None:
        super().__init__([])
        self.c.piece_ns, self.c.gap_ns, self.c.pieces, self.c.due_ns = int(kernel_us * US), int(gap_us * US), kernels, 0
        self.c.idle_ns = self.c.gap_ns if idle_us is None else int(idle_us * US)


def every(period_ms: float, length_ms: float, start_ms: float = 0, until_ms: float = 60_000) -> list[tuple[int, int]]:
    """Arrivals one after the other; times from 0."""
    count = int((until_ms - start_ms) / period_ms)
    return [(int((start_ms + i * period_ms) * MS), int(length_ms * MS)) for i in range(count)]


class DemandGpu:
    """known: slots whose run state can be read. frozen_shows: the word of a frozen channel shows work that it got.
    kernel_ns: of slot 0, which run to their end."""

    def __init__(
        self,
        turn: Turn,
        loads: dict[int, Load],
        call_us=300,
        timeslice_us=2048,
        known=ALL,
        frozen_shows=True,
        kernel_ns=0,
    ) -> None:
        self.turn = turn
        turn.t.timeslice_default_us = timeslice_us
        self.c = ffi.new(
            "struct demand_gpu *",
            {
                "turn": turn.t,
                "began_ns": turn.now,
                "real": turn.t.run_mask,
                "call_ns": call_us * US,
                "timeslice_us": timeslice_us,
                "known": known,
                "frozen_shows": frozen_shows,
                "kernel_ns": kernel_ns,
                "on": -1,
                "word": ffi.from_buffer("u32[]", WORDS),
                "words": len(WORDS) // 4,
            },
        )
        self.loads = loads

    @property
    def loads(self) -> dict[int, Load]:
        return self._loads

    @loads.setter
    def loads(self, loads: dict[int, Load]) -> None:
        assert len({*map(id, loads.values())}) == len(loads), "two containers with one load"
        self._loads = loads
        self.c.loads = len(loads)
        for i, (slot, load) in enumerate(loads.items()):
            load.c.slot, self.c.load[i] = slot, load.c

    @property
    def real(self) -> int:
        """The slots that may run, as a mask."""
        return self.c.real

    @real.setter
    def real(self, mask: int) -> None:
        self.c.real = mask

    @property
    def calls(self) -> int:
        return self.c.calls

    @property
    def idle_ns(self) -> int:
        """Nothing ran although something had work."""
        return self.c.idle_ns

    @property
    def time_ns(self) -> int:
        return self.turn.now - self.c.began_ns

    def run(self, length_ms: float) -> DemandGpu:
        self.c.now_ns = self.turn.now
        failed = lib.demand_run(self.c, self.turn.now + int(length_ms * MS))
        self.turn.now = self.c.now_ns
        assert failed != 1, "a plan that is over at once"
        assert not failed, "no memory"
        return self

    def parts(self, length_ms: float) -> list[float]:
        """What each has of the next milliseconds."""
        before, began = [load.got_ns for load in self.loads.values()], self.turn.now
        self.run(length_ms)
        return [
            (load.got_ns - had) / (self.turn.now - began) for load, had in zip(self.loads.values(), before, strict=True)
        ]

    def share(self, slot: int) -> float:
        return self.loads[slot].got_ns / self.time_ns

    def p99_us(self, slot: int) -> float:
        latency = sorted(self.loads[slot].latency_us)
        return latency[int(len(latency) * 0.99)]
