# SPDX-License-Identifier: MIT
"""A channel that speaks methods, as NVIDIA's own libraries do, and a file that waits for its engine's interrupts."""

from __future__ import annotations

import ctypes
import itertools
import select
import struct
import sys

from slicebox import REPO

sys.path.insert(0, str(REPO / "tests/nvsim/push"))

import nvclient as nv
from machine import halves, inc
from qmd import TURING, V02_03

__all__ = ["TURING", "Pusher", "halves", "inc", "listen", "release"]

OS_EVENT = 0x79
GRAPHICS_INTERRUPT = 12 | 0x38000000  # NV2080_NOTIFIERS_GRAPHICS; NONSTALL_INTR, SUBDEVICE_SPECIFIC, WITHOUT_EVENT_DATA


class Pusher:
    """A channel of nvclient with methods as segments; semaphores are its slots, QMDs follow its segments."""

    ENTRIES = 512

    def __init__(self, group: nv.Group):
        self.channel = group.channel(entries=self.ENTRIES)
        self.at = self.channel.pb_at
        self.put = 0
        self.qmd_at = self.channel.pb_at + 12 * 1024

    def sem(self, slot: int) -> int:
        return self.channel.va + slot * 16

    def value(self, slot: int) -> int:
        return self.channel.cpu.read32(slot * 16)

    def when(self, slot: int) -> int:
        return self.channel.cpu.read64(slot * 16 + 8)

    def qmd(self, **fields: int) -> int:
        """Its address."""
        for i, word in enumerate(struct.unpack("<64I", V02_03.make(y=1, z=1, **fields))):
            self.channel.cpu.write32(self.qmd_at + 4 * i, word)
        self.qmd_at += 256
        return self.channel.va + self.qmd_at - 256

    def push(self, *parts: list[int], ring: bool = True) -> None:
        """One segment."""
        words = list(itertools.chain(*parts))
        for i, word in enumerate(words):
            self.channel.cpu.write32(self.at + 4 * i, word)
        va = self.channel.va + self.at
        self.channel.cpu.write64(self.channel.ring_at + 8 * self.put, va | len(words) << 42)
        self.at += 4 * len(words)
        self.put += 1
        assert self.at <= self.channel.pb_at + 12 * 1024
        self.channel.cpu.write32(self.channel.userd_at + nv.NV_USERD_GPPUT, self.put)
        if ring:
            self.channel.ring()

    def done(self) -> bool:
        return not self.channel.pending()


def release(va: int, value: int) -> list[int]:
    """With the time."""
    return inc(0, 0x5C, va & 0xFFFFFFFF, va >> 32, value, 0, 1 | 1 << 25)


class EventParams(ctypes.Structure):
    """NV0005_ALLOC_PARAMETERS"""

    _fields_ = [
        ("parent_client", ctypes.c_uint32),
        ("source", ctypes.c_uint32),
        ("cls", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
        ("data", ctypes.c_uint64),
    ]


def listen(gpu: nv.Gpu, events: nv.Ctl) -> select.poll:
    """Of the file, which has an event of the graphics engine from now on: NV01_EVENT_OS_EVENT."""
    events.register(gpu.rm.ctl)
    arg = nv.OsEvent(client=gpu.rm.handle, fd=events.fd)
    events.call(nv.NV_ESC_ALLOC_OS_EVENT, arg)
    nv.check("ALLOC_OS_EVENT", arg.status)
    params = EventParams(gpu.rm.handle, gpu.subdevice, OS_EVENT, GRAPHICS_INTERRUPT, events.fd)
    nv.check("RM_ALLOC(0x79)", gpu.rm.alloc(OS_EVENT, gpu.subdevice, params)[0])
    poll = select.poll()
    poll.register(events.fd, select.POLLIN | select.POLLPRI)
    return poll
