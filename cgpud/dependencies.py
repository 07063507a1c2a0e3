# SPDX-License-Identifier: MIT
"""Everything outside of the daemon that it uses. __main__ makes the parts, or a test."""

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
class Dependencies:
    """Injected, so that a test can replace each of them."""

    link: KernelLink
    store: Store
    facts: Facts
    nvml: Callable[[], tuple[NvmlGpu, ...]] = gpus.query
    draining: Callable[[], bool] = lambda: False  # cgpu drain: docs/user/upgrade.md
    clock: Callable[[], float] = boottime
    random: Callable[[int], int] = secrets.randbits
    restore_socket: Callable[[], None] = lambda: None  # at each reconcile: /run may have been cleared
