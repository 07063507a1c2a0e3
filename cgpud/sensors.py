# SPDX-License-Identifier: MIT
"""The answer to `gpus`: every GPU as NVML has it, with memory, utilisation, temperature and power.

A query starts a child process, so the answer may be FRESH_S old, however many clients there are.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Any

from cgpu_common.cards import NvmlGpu, NvmlView
from cgpu_common.model import MEASURED, MIB, Card, Sensors
from cgpud.dependencies import NvmlSource

FRESH_S = 2.0
WAIT_S = 1.0
STALE_S = 5.0  # a value that is older is not known: the load of a card changes within a second


def row(gpu: NvmlGpu, now: float) -> dict[str, Any]:
    """@now: CLOCK_MONOTONIC."""
    age_s = 0.0 if gpu.read_at is None else now - gpu.read_at
    is_stale = age_s > STALE_S
    own = (not is_stale and gpu.sensors) or Sensors()
    card = Card(
        **{name: getattr(own, name) for name in MEASURED},
        processes=own.processes,
        uuid=gpu.uuid,
        pci=gpu.pci,
        name=gpu.name,
        total_bytes=gpu.total_mib * MIB,
        used_bytes=None if gpu.used_mib is None or is_stale else gpu.used_mib * MIB,
        lost=gpu.lost or ("no answer" if is_stale else ""),
        age_s=None if gpu.read_at is None else int(age_s),
    )
    return {"index": gpu.index, **asdict(card)}


class SensorReader:
    """Keeps the last answer of NVML. Concurrent requests share one query."""

    def __init__(self, source: NvmlSource) -> None:
        self._source = source
        self._view = NvmlView()
        self._until = 0.0
        self._one_at_a_time = asyncio.Lock()  # guards _view and _until

    async def answer(self) -> dict[str, Any]:
        async with self._one_at_a_time:
            if time.monotonic() >= self._until:
                self._view = await self._source.query(WAIT_S)
                self._until = time.monotonic() + FRESH_S
            view = self._view
        now = time.monotonic()
        return {"ok": True, "nvml": view.absent or view.silent, "gpus": [row(gpu, now) for gpu in view.gpus]}
