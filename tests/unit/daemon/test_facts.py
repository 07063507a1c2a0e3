# SPDX-License-Identifier: MIT
"""What admission knows is what is: NVML's modes, asked again and again; one start after the other; weight 0 is said."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import Card, Library
from fakes import VARIABLES, Node
from structlog.testing import capture_logs

from cgpud import gpus, inventory
from cgpud.fakelink import FakeLink, example_gpus
from cgpud.model import MIB
from cgpud.server import Request
from cgpud.wire import Message

Run = Callable[[Coroutine[Any, Any, None]], None]
ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
HALF = ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=3")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, node: Node) -> Library:
    """With the GPU that the kernel has."""
    (gpu,) = example_gpus()
    answers = {
        "PciInfo": SimpleNamespace(busId=b"0000" + gpu.pci.encode()),
        "Name": "Tesla T4",
        "UUID": gpu.uuid,
        "MinorNumber": gpu.nv_minor,
        "MemoryInfo": SimpleNamespace(total=gpu.total, used=0),
    }
    stand_in = Library([Card(0, **answers)])
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    node.nvml = gpus.query
    return stand_in


# ---- NVML ----


@pytest.mark.parametrize(
    ("mode", "mig"), [((1, 1), True), ((1, 0), True), ((0, 1), False), ((0, 0), False), (None, False)], ids=str
)
def test_mig_is_what_is_in_force(nvml: Library, mode: tuple[int, int] | None, mig: bool) -> None:
    """And not what is pending; most cards do not have it."""
    nvml.cards[0].answers["MigMode"] = mode
    (gpu,) = gpus.query()
    assert (gpu.mig, gpu.name, gpu.pci) == (mig, "Tesla T4", example_gpus()[0].pci)
    assert nvml.open == 0, "NVML is closed again"


def test_a_gpu_in_mig_mode_is_refused(node: Node, run: Run, nvml: Library) -> None:
    async def main() -> None:
        nvml.cards[0].answers["MigMode"] = (1, 1)
        async with node.running():
            assert (await node.prepare(ID))["error"] == "GPU 0 is in MIG mode, which cannot be sliced"
            assert not node.link.calls

    run(main())


def test_nvml_is_asked_again(node: Node, run: Run, nvml: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every start, for it can take a second; within a minute of an administrator's change."""
    now = [1000.0]
    monkeypatch.setattr(inventory, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def main() -> None:
        async with node.running():
            assert (await node.prepare(ID, HALF))["ok"]
            looks = nvml.looks
            now[0] += 0.5
            assert (await node.prepare(OTHER, HALF))["ok"]
            assert nvml.looks == looks, "its word is fresh"
            nvml.cards[0].answers["MigMode"] = (1, 1)
            now[0] += 60
            assert "is in MIG mode" in (await node.prepare("third", HALF))["error"]
            assert nvml.looks == looks + 1
            nvml.cards[0].answers["MigMode"] = (0, 0)
            now[0] += 60
            assert (await node.prepare("third", HALF))["ok"]

    run(main())


# ---- one after the other ----


def test_starts_at_the_same_moment(node: Node, run: Run) -> None:
    """All of them in the daemon before the first one has the kernel's sums."""

    async def main() -> None:
        node.link = FakeLink(example_gpus(2))
        async with node.running() as daemon:
            asked = [
                Request(Message("prepare", f"{n:064x}", str(node.bundle(f"{n:064x}", VARIABLES))), os.getpid())
                for n in range(12)
            ]
            replies = await asyncio.gather(*map(daemon.handle, asked))
            assert sum(reply["ok"] for reply in replies) == len(node.link.containers) == 2
            for gpu in await node.link.gpus():
                assert (gpu.limits or 0) <= gpu.total

    run(main())


# ---- weight 0 ----


def test_weight_0_is_said_aloud(node: Node, run: Run) -> None:
    """Such a container starts and never computes: who started it hears it, and who reads the log."""

    async def main() -> None:
        node.link = FakeLink((replace(example_gpus()[0], max_inst=3),))
        async with node.running():
            assert "warning" not in await node.prepare(ID, (*HALF, "ALIYUN_COM_GPU_SCHD_WEIGHT=3"))
            with capture_logs() as lines:
                reply = await node.prepare(OTHER, HALF)
            assert reply["ok"]
            assert reply["action"] == "edited"
            warning = reply["warning"]
            assert "GPU 0 has no weight left, so the container gets weight 0 and no compute at all" in warning
            assert warning.endswith(f"held by: {ID[:12]} 3")
            (line,) = [line for line in lines if line["event"] == "weight 0"]
            assert line == {"event": "weight 0", "log_level": "warning", "id": OTHER, "warning": warning}
            assert [slot.weight for slot in node.link.containers[OTHER].slots] == [0]
            assert [slot.limit for slot in node.link.containers[OTHER].slots] == [3021 * MIB]

    run(main())
