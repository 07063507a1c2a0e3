# SPDX-License-Identifier: MIT
"""Everything outside of the daemon that it uses. __main__ makes the parts, or a test."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cgpu_common.cards import NvmlView
from cgpu_common.link import KernelLink
from cgpud.granted import Decider
from cgpud.kube import KubeClient
from cgpud.mps_control import Control
from cgpud.nvml import SENSORS, Nvml
from cgpud.store import Store
from cgpud.watch import Facts


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NvmlSource(Protocol):
    """NVML. nvml.py implements it with a child process."""

    async def query(self, wait_s: float) -> NvmlView: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Dependencies:
    """Injected, so that a test can replace each of them."""

    link: KernelLink
    store: Store
    facts: Facts
    nvml: NvmlSource = field(default_factory=Nvml)
    sensors: NvmlSource = field(default_factory=lambda: Nvml(SENSORS))
    decider: Decider = field(default_factory=KubeClient)
    mps: Control = field(default_factory=Control)
    draining: Callable[[], bool] = lambda: False  # cgpu drain: docs/user/upgrade.md
    clock: Callable[[], float] = boottime
    random: Callable[[int], int] = secrets.randbits
    restore_socket: Callable[[], None] = lambda: None  # at each reconcile: /run may have been cleared
