# SPDX-License-Identifier: MIT
"""The driver's utilisation samples: the container on the engine, five times a second, as measured on an H100.

The module's effect check takes them once a second. Without a run state they are all that shows whether high priority
works (cgpu_km/core/sched_use.c). What else the check finds by them is not simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .gpu import Gpu
from .model import MS, S

PERIOD_NS = 200 * MS
READ_NS = 1 * S
IDLE = 2**32 - 1  # CGPU_CHECK_IDLE


class Samples:
    """Takes them on the engine's time, and passes them to the core as late as the module does."""

    def __init__(self, gpu: Gpu, began_ns: int, slots: Sequence[int]) -> None:
        """began_ns: the core's clock at the engine's 0."""
        self.gpu, self.began_ns, self.slots = gpu, began_ns, slots
        self.check: Any = gpu.ffi.new("struct cgpu_check *")
        gpu.lib.cgpu_check_init(self.check, began_ns)
        self.next_ns, self.read_ns = PERIOD_NS, READ_NS
        self.ring: list[tuple[int, int]] = []

    def pass_to(self, t: Any) -> None:
        """The engine's time is now: a call may have taken it past the next sample."""
        if self.gpu.now >= self.next_ns:
            number = self.gpu.on_engine()
            self.ring.append((self.began_ns + self.gpu.now, IDLE if number is None else self.slots[number]))
            self.next_ns = self.gpu.now - self.gpu.now % PERIOD_NS + PERIOD_NS
        if self.gpu.now >= self.read_ns:
            self.read_ns += READ_NS
            for at_ns, slot in self.ring:
                self.gpu.lib.cgpu_check_sample(self.check, t, at_ns, slot)
            self.ring.clear()
