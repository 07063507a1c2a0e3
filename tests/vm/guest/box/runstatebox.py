# SPDX-License-Identifier: MIT
"""Clients whose channels are registered with nvidia-uvm, and what the module reads of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nvclient
from slicebox import PROC, Box

RUN_STATE = Path("/sys/module/cgpu_km/parameters/run_state")
#: In this time the module counts enough contradictions to give the source up: 8, one in 100 ms at most. The other is
#: how long a test waits for it.
COUNTED_S, GIVEN_UP_S = 1.5, 20.0
LONG_NS = 400_000_000

#: The simulated driver's `chram_fault`.
ONES, REFUSED, STUCK, NO_ADDRESS, ZEROS = 1, 2, 3, 4, 5


def stat(gpu: int = 0) -> dict[str, str]:
    return dict(line.split() for line in (PROC / str(gpu) / "stat").read_text().splitlines())


def state(gpu: int = 0) -> tuple[str, int, int]:
    """Source, number of slots with known state, number of those with work: read anew from the GPU."""
    now = stat(gpu)
    return now["run_state_source"], int(now["run_state_known"]), int(now["run_state_busy"])


def errors(gpu: int = 0) -> int:
    return int(stat(gpu)["run_state_errors"])


@dataclass
class Opened:
    """A client in a container, with channels that may be registered with nvidia-uvm."""

    rm: nvclient.Client
    gpu: nvclient.Gpu
    space: nvclient.Space
    channels: list[nvclient.Channel]

    def register(self, channel: nvclient.Channel) -> None:
        assert self.space.uvm.register_channel(self.gpu.uuid, self.rm, channel.handle) == 0

    def unregister(self, channel: nvclient.Channel) -> None:
        assert self.space.uvm.unregister_channel(self.rm, channel.handle) == 0


@contextlib.contextmanager
def opened(box: Box, channels: int = 1, registered: bool = True) -> Iterator[Opened]:
    with box.client() as rm:
        gpu = rm.gpu(0)
        space = gpu.space()
        group = space.group()
        made = Opened(rm, gpu, space, [group.channel(entries=16) for _ in range(channels)])
        for channel in made.channels if registered else []:
            made.register(channel)
        yield made


def drained_s(client: Opened, works: int = 120, length_ns: int = 10_000_000) -> float:
    """How long so many kernels take, with never less than a few queued."""
    channel = client.channels[0]
    began = time.monotonic()
    for _ in range(works // 12):
        for _ in range(12):
            channel.submit(length_ns)
        channel.wait()
    return time.monotonic() - began
