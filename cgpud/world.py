# SPDX-License-Identifier: MIT
"""What the daemon is put into. Its parts are made by __main__, and by tests."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from cgpud import gpus
from cgpud.link import KernelLink
from cgpud.model import NvmlGpu
from cgpud.store import Store
from cgpud.watch import Facts


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class World:
    """Everything outside, so that a test can bring its own."""

    link: KernelLink
    store: Store
    facts: Facts
    nvml: Callable[[], tuple[NvmlGpu, ...]] = gpus.query
    draining: Callable[[], bool] = lambda: False  # cgpu drain: docs/upgrade.md
    clock: Callable[[], float] = boottime
    random: Callable[[int], int] = secrets.randbits
    tend: Callable[[], None] = lambda: None  # at each reconcile, to what may have been cleared away
