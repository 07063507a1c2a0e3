# SPDX-License-Identifier: MIT
"""The run-state source: which containers have work, read by the CPU from the words of their channels.

NVIDIA's public manuals describe the words (dev_runlist.ref of GA100: NV_CHRAM_CHANNEL; dev_fifo.ref of TU104:
NV_PCCSR_CHANNEL); they were never seen on hardware. A container is busy if the word of any of its channels shows work,
and idle if each of them was read and shows none. The readings themselves are in poll.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

    def __init__(self, gpu: Gpu, began_ns: int, late_ns: int) -> None:
        """began_ns: the core's clock at the engine's 0; late_ns: how late a poll is, on average."""
        self.gpu = gpu
        self.struct: Any = gpu.ffi.new("struct cgpu_sim_poll *")
        self.struct.word_ns, self.struct.words, self.struct.wake_ns = READ_NS, CHANNELS, WAKE_COST_NS
        self.struct.began_ns, self.struct.late_ns = began_ns, late_ns
        self.struct.rng = gpu.rng.getrandbits(64)
        self.struct.step = gpu.ffi.addressof(gpu.lib, "cgpu_sched_step")

    def use(self, slots: Sequence[int]) -> None:
        """The core's slots of the clients."""
        for number, slot in enumerate(slots):
            self.struct.slot[number] = slot

    def sleep(self, t: Any, step: Any, to_ns: int) -> None:
        """Until then, reading as often as the step says, or until it asks for a plan."""
        self.gpu.lib.cgpu_sim_sleep(self.gpu.sim, self.struct, t, step, to_ns)

    @property
    def polls(self) -> int:
        return int(self.struct.polls)

    @property
    def spent_ns(self) -> int:
        return int(self.struct.spent_ns)
