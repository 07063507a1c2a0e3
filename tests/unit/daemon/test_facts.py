# SPDX-License-Identifier: MIT
"""Admission uses current facts: NVML is queried again, starts are admitted one by one, weight 0 is reported."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import Card, Library
from fakelink import FakeLink, example_gpus
from fakes import VARIABLES, Node
from structlog.testing import capture_logs

from cgpu_common import gpus, toolkit
from cgpu_common.model import MIB
from cgpu_common.server import Request
from cgpu_common.wire import Message
from cgpud import env, inventory

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
HALF = ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=3")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch, node: Node) -> Library:
    """NVML with the GPU that the kernel lists."""
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
    """NVML returns the current and the pending mode; the pending one does not count. Most cards have no MIG."""
    nvml.cards[0].answers["MigMode"] = mode
    (gpu,) = gpus.query()
    assert (gpu.mig, gpu.name, gpu.pci) == (mig, "Tesla T4", example_gpus()[0].pci)
    assert nvml.open == 0, "NVML is closed again"


@pytest.mark.parametrize("feature", [None, 0, 1])
async def test_confidential_computing_is_refused(node: Node, nvml: Library, feature: int | None) -> None:
    nvml.confidential = feature
    async with node.running():
        said = (await node.prepare(ID)).get("error", "")
        assert said.startswith("GPU 0 has Confidential Computing on, which cannot be sliced") == (feature == 1)
        assert bool(node.link.calls) == (feature != 1)


async def test_a_gpu_in_mig_mode_is_refused(node: Node, nvml: Library) -> None:
    nvml.cards[0].answers["MigMode"] = (1, 1)
    async with node.running():
        assert (await node.prepare(ID))["error"] == "GPU 0 is in MIG mode, which cannot be sliced"
        assert not node.link.calls


async def test_nvml_is_asked_again(node: Node, nvml: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at every start, because a query can take a second. A change by an administrator is seen within a minute."""
    now = [1000.0]
    monkeypatch.setattr(inventory, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async with node.running():
        assert (await node.prepare(ID, HALF))["ok"]
        looks = nvml.looks
        now[0] += 0.5
        assert (await node.prepare(OTHER, HALF))["ok"]
        assert nvml.looks == looks, "the last answer is recent enough"
        nvml.cards[0].answers["MigMode"] = (1, 1)
        now[0] += 60
        assert "is in MIG mode" in (await node.prepare("third", HALF))["error"]
        assert nvml.looks == looks + 1
        nvml.cards[0].answers["MigMode"] = (0, 0)
        now[0] += 60
        assert (await node.prepare("third", HALF))["ok"]


# ---- one after the other ----


async def test_starts_at_the_same_moment(node: Node) -> None:
    """All requests reach the daemon before the first one has read the kernel's sums."""

    node.link = FakeLink(example_gpus(2))
    async with node.running() as daemon:
        asked = [
            Request(Message("prepare", f"{n:064x}", str(node.bundle(f"{n:064x}", VARIABLES))), os.getpid(), None)
            for n in range(12)
        ]
        replies = await asyncio.gather(*map(daemon.handle, asked))
        assert sum(reply["ok"] for reply in replies) == len(node.link.containers) == 2
        for gpu in await node.link.gpus():
            assert (gpu.limits or 0) <= gpu.total


# ---- weight 0 ----


@pytest.mark.parametrize(
    ("policy", "about"),
    [
        (2, "under policy 2 (weighted) it does not run until an administrator raises its weight"),
        (5, "policy 5 (native) ignores weights, so it runs; under any other policy weight 0 is no compute"),
    ],
)
async def test_weight_0_is_reported(node: Node, policy: int, about: str) -> None:
    """In the reply and in the log, with the effect of weight 0 under the policy in force."""

    node.link = FakeLink((replace(example_gpus()[0], max_inst=3, policy=policy),))
    async with node.running():
        assert "warning" not in await node.prepare(ID, (*HALF, "ALIYUN_COM_GPU_SCHD_WEIGHT=3"))
        with capture_logs() as lines:
            reply = await node.prepare(OTHER, HALF)
        assert reply["ok"]
        assert reply["action"] == "edited"
        warning = reply["warning"]
        assert f"GPU 0 has no weight left, so the container gets weight 0: {about}; held by: " in warning
        assert warning.endswith(f"held by: {ID[:12]} 3")
        (line,) = [line for line in lines if line["event"] == "admitted, but"]
        assert line == {"event": "admitted, but", "log_level": "warning", "id": OTHER, "warning": warning}
        assert [slot.weight for slot in node.link.containers[OTHER].slots] == [0]
        assert [slot.limit for slot in node.link.containers[OTHER].slots] == [3021 * MIB]


# ---- values without effect ----


async def reply_and_log(node: Node, variables: Sequence[str], policy: int = 5) -> tuple[dict, list]:
    """The reply to one start, and the lines that it logs."""
    node.link = FakeLink((replace(example_gpus()[0], policy=policy),))
    async with node.running():
        with capture_logs() as lines:
            reply = await node.prepare(ID, variables)
        return reply, list(lines)


@pytest.mark.parametrize(
    ("policy", "variable", "hint"),
    [
        (5, "SCHD_WEIGHT=3", "policy 5 (native) ignores the size of a weight: 3 has the same effect as 1"),
        (0, "SCHD_WEIGHT=3", "policy 0 (fair) ignores the size of a weight: 3 has the same effect as 1"),
        (5, "HIGH_PRIO=1", "policy 5 (native) ignores high priority"),
        (2, "SCHD_WEIGHT=3", None),
        (0, "HIGH_PRIO=1", None),
        (5, "SCHD_WEIGHT=1", None),
    ],
)
async def test_a_value_that_the_policy_ignores_is_in_the_log(
    node: Node, policy: int, variable: str, hint: str | None
) -> None:
    reply, lines = await reply_and_log(node, (*HALF, f"ALIYUN_COM_GPU_{variable}"), policy)
    assert (reply["ok"], "warning" in reply) == (True, False)
    hints = [line["hint"] for line in lines if line["event"] == "without effect"]
    assert hints == ([f"ALIYUN_COM_GPU_{variable} on GPU 0: {hint}"] if hint else [])


UNSIZED = (
    "ALIYUN_COM_GPU_VISIBLE_DEVICES without ALIYUN_COM_GPU_MEM_CONTAINER gives no slice: default_memsize of "
    "/proc/cgpu_km counts only with default_memsize_mib in [gpu] of cgpu.toml"
)


@pytest.mark.parametrize(
    ("variables", "warning"),
    [
        (
            ("ALIYUN_COM_GPU_MEM_CONTAINR=6", "ALIYUN_COM_GPU_MEM_DEV=15"),
            (
                "ALIYUN_COM_GPU_MEM_DEV without ALIYUN_COM_GPU_MEM_CONTAINER: the container has no slice and no limit; "
                "not a variable of cGPU, ignored: ALIYUN_COM_GPU_MEM_CONTAINR "
                "(did you mean ALIYUN_COM_GPU_MEM_CONTAINER?)"
            ),
        ),
        ((*HALF, "ALIYUN_COM_GPU_XYZZY=1"), "not a variable of cGPU, ignored: ALIYUN_COM_GPU_XYZZY"),
        ((*HALF, "ALIYUN_COM_GPU_MEM_POD=6", "ALIYUN_COM_GPU_MEM_ASSIGNED=true"), None),
        (
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES=0",),
            UNSIZED,
        ),
        (("CGPU_DISABLE=1", "ALIYUN_COM_GPU_VISIBLE_DEVICES=0"), None),
        (("ALIYUN_COM_GPU_MEM_CONTAINER=0", "ALIYUN_COM_GPU_VISIBLE_DEVICES=0"), None),
        (HALF, None),
    ],
)
async def test_a_variable_without_effect_is_reported(
    node: Node, variables: tuple[str, ...], warning: str | None
) -> None:
    reply, lines = await reply_and_log(node, variables)
    assert reply["ok"]
    assert reply.get("warning") == warning
    named = [line["warning"] for line in lines if line["event"] == "unknown variable"]
    unknown = [one for one in (warning or "").split("; ") if one.startswith("not a variable")]
    assert named == unknown


def test_many_unknown_variables_are_cut() -> None:
    text = env.unknown({f"{env.PREFIX}{'Q' * 4000}{n}": "" for n in range(1000)})
    assert text is not None
    assert text.endswith("and 996 more")
    assert len(text) < 500


def test_the_toolkit_is_found_by_its_programs_or_specifications(tmp_path: Path) -> None:
    assert toolkit.found(tmp_path) is None
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/other.yaml").touch()
    assert toolkit.found(tmp_path) is None
    (tmp_path / "etc/cdi/nvidia.yaml").touch()
    assert toolkit.found(tmp_path) == str(tmp_path / "etc/cdi/nvidia.yaml")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/nvidia-ctk").touch()
    assert toolkit.found(tmp_path) == str(tmp_path / "usr/bin/nvidia-ctk")
