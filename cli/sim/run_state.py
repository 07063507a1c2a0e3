# SPDX-License-Identifier: MIT
"""The run-state source: which containers have work, read by the CPU from the words of their channels.

NVIDIA's public manuals describe the words (dev_runlist.ref of GA100: NV_CHRAM_CHANNEL); they were never seen on
hardware. A container is busy if the word of any of its channels shows work, and idle if each of them was read and shows
none. Reading ends at the first word that shows work: the rest cannot change the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from .gpu import Gpu
from .model import US

# What libcuda 550 makes with a compute object for one context, in the recorded calls of a process.
CHANNELS = 8
# Estimate. A read over PCIe is not posted: the processor waits for its round trip of about a microsecond.
READ_NS = 1 * US
# Estimate. Sleeping until the next poll and waking up costs the thread so much processor time.
WAKE_COST_NS = 2 * US


class RunState:
    """Reads the run state of a GPU's containers. A read takes time, during which the GPU runs on."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.polls = 0
        self.spent_ns = 0

    def busy(self, number: int) -> bool:
        """The word that showed work the last time is read first, so that a busy container costs one read."""
        processes = self.gpu.clients[number].processes
        found = self.gpu.has_work(number)
        self._spend(READ_NS * (1 if found else CHANNELS * processes))
        return found

    def read(self, numbers: Iterable[int]) -> list[int]:
        """Those of the containers that have work."""
        self.polls += 1
        self._spend(WAKE_COST_NS)
        return [number for number in numbers if self.busy(number)]

    def _spend(self, ns: int) -> None:
        self.spent_ns += ns
        self.gpu.advance(self.gpu.now + ns)
