# SPDX-License-Identifier: MIT
"""The driver's utilisation samples: the container on the engine, five times a second, as measured on an H100.

The module's effect check takes them once a second. Without a run state they are all that shows whether high priority
works (cgpu_km/core/sched_use.c). What else the check finds by them is not simulated.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from .gpu import Gpu
from .model import MS, S

PERIOD_NS = 200 * MS
READ_NS = 1 * S  # CGPU_CHECK_POLL_MS
JITTER = 0.02  # of the sampler; without it work that never varies would be in step with it
IDLE = 2**32 - 1  # CGPU_CHECK_IDLE


class Samples:
    """Takes them on the engine's time, and passes them to the core when the module reads them."""

    def __init__(self, gpu: Gpu, t: Any, began_ns: int, slots: Sequence[int]) -> None:
        """began_ns: the core's clock at the engine's 0."""
        self.gpu, self.lib, self.t, self.began_ns, self.slots = gpu, gpu.lib, t, began_ns, slots
        self.check: Any = gpu.ffi.new("struct cgpu_check *")
        self.lib.cgpu_check_init(self.check, began_ns)
        # Of its own: the loads are drawn as without it.
        self.rng = random.Random(gpu.seed)
        self.next_ns, self.read_ns = int(PERIOD_NS * self.rng.random()), READ_NS
        self.ring: deque[tuple[int, int]] = deque()

    def _clock(self) -> int:
        return self.began_ns + self.gpu.now

    def touched(self, slot: int) -> None:
        self.lib.cgpu_check_touched(self.check, self.t, slot, self._clock())

    def take(self) -> None:
        """It is time for one, or calls have taken the engine's time past it."""
        if self.gpu.now >= self.next_ns:
            number = self.gpu.on_engine()
            self.ring.append((self._clock(), IDLE if number is None else self.slots[number]))
            self.next_ns = self.gpu.now + int(PERIOD_NS * self.rng.uniform(1 - JITTER, 1 + JITTER))
        if self.gpu.now < self.read_ns:
            return
        self.read_ns += READ_NS
        until_ns = self.lib.cgpu_check_until_ns(self.t, self._clock())
        while self.ring and self.ring[0][0] <= until_ns:
            self.lib.cgpu_check_sample(self.check, self.t, *self.ring.popleft())
