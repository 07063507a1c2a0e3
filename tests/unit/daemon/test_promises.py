# SPDX-License-Identifier: MIT
"""Grants that are decided when a container starts, exact ones, those of a claim that pods share, and whole GPUs."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fakelink import FakeLink, example_gpus
from fakes import Node, eventually
from test_grants import POD, annotate

from cgpu_common.cards import NvmlView
from cgpu_common.config import Config
from cgpu_common.cookie import make_cookie
from cgpu_common.errors import Refused
from cgpu_common.model import MIB, SlotWant
from cgpu_common.settings import Caps, GpuSettings
from cgpud import oci
from cgpud.kube import KubeClient
from cgpud.reconcile import IDLE_S

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
THIRD = "00112233445566ff" * 4
PROMISE = ("ALIYUN_COM_GPU_GRANT=kube",)
GPU = [gpu.uuid for gpu in example_gpus(2)]
EXACT = {
    "subject": POD,
    "variables": {"ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_IDX": "1"},
    "slots": [{"gpu": GPU[1], "memory_mib": 1537, "weight": 5}],
}
CLAIM = "claim-eaf56863-c5c3-4c1c-9fcc-21e54688fcd0"


@dataclass
class FakeDecider:
    """cgpu-kube: a grant for every pod, or the reason against it."""

    grant: dict[str, Any] = field(default_factory=lambda: dict(EXACT))
    why: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)

    async def decide(self, subject: dict[str, str], wait_s: float) -> dict[str, Any]:
        self.asked.append(subject)
        await asyncio.sleep(0)
        if self.why:
            raise Refused(self.why)
        return {**self.grant, "subject": subject}


@pytest.fixture
def decider(node: Node) -> FakeDecider:
    node.link = FakeLink(example_gpus(2))
    node.decider = found = FakeDecider()
    return found


def environment(node: Node, container_id: str) -> list[str]:
    env: list[str] = node.spec(container_id)["process"]["env"]
    return env


# ---- promises ----

AUTHORS = [
    (),
    ("CGPU_DISABLE=true",),
    ("ALIYUN_COM_GPU_MEM_CONTAINER=15", "ALIYUN_COM_GPU_MEM_DEV=15", "NVIDIA_VISIBLE_DEVICES=all"),
    ("ALIYUN_COM_GPU_MEM_CONTAINER=0",),
    ("ALIYUN_COM_GPU_SCHD_WEIGHT=20", "ALIYUN_COM_GPU_HIGH_PRIO=1"),
    ("ALIYUN_COM_GPU_GRANT=", "ALIYUN_COM_GPU_MEM_IDX=0"),
]


@pytest.mark.parametrize("env", AUTHORS, ids=str)
async def test_a_promised_slice_is_decided_once_and_not_by_the_author(
    node: Node, decider: FakeDecider, env: tuple[str, ...]
) -> None:
    async with node.running():
        for _ in range(2):
            reply = await node.ask(op="prepare", id=ID, bundle=annotate(node, ID, (*PROMISE, *env)))
            assert reply["action"] == "edited"
            (slot,) = node.link.containers[ID].slots
            assert (slot.gpu, slot.limit, slot.weight, slot.highprio) == (1, 1537 * MIB, 5, False)
            entries = [entry for entry in environment(node, ID) if entry.startswith(("ALIYUN", "CGPU"))]
            assert set(entries) - set(PROMISE) - {"ALIYUN_COM_GPU_GRANT="} == {
                f"{name}={value}" for name, value in EXACT["variables"].items()
            }
            await node.ask(op="release", id=ID, cookie=node.cookie(ID))
        assert decider.asked == [POD], "the second start has the kept grant"


async def test_an_ended_containers_grant_makes_way(
    node: Node, decider: FakeDecider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod with hundreds of init containers leaves the other pods of the node their grants: a container that ended is
    asked for again when it starts again, and one that runs, or was given its grant, keeps it."""
    monkeypatch.setattr("cgpud.grants.GRANTS_MAX", 3)
    given = {**EXACT, "subject": {"namespace": "x", "pod": "y", "container": "z"}}

    async def start(number: int) -> dict[str, Any]:
        found = f"{number:064x}"
        return await node.ask(
            op="prepare", id=found, bundle=annotate(node, found, PROMISE, pod=f"p{number}", uid=f"u-{number}")
        )

    async def pods() -> set[str]:
        return {one["pod"] for one in (await node.ask(op="grants"))["grants"]}

    async with node.running():
        assert (await node.ask(op="grant", grant={**given, "asked": True}))["ok"]
        assert (await start(1))["ok"], "it stays"
        for number in range(2, 6):
            assert (await start(number))["ok"], number
            await node.ask(op="release", id=f"{number:064x}", cookie=node.cookie(f"{number:064x}"))
            assert await pods() == {"y", "p1", f"p{number}"}
    async with node.running():  # the records say it after a restart of the daemon too
        assert (await start(6))["ok"] and await pods() == {"y", "p1", "p6"}
        error = (await start(7))["error"]
        assert error == "there are 3 grants already, each given or of a container that is there"
        assert await pods() == {"y", "p1", "p6"} and len(node.link.containers) == 2
        decider.asked.clear()
        await node.ask(op="release", id=f"{6:064x}", cookie=node.cookie(f"{6:064x}"))
        assert (await start(2))["ok"] and [one["pod"] for one in decider.asked] == ["p2"]
    assert len(list((node.directory / "state/grants").glob("*.json"))) == 3


async def test_without_an_answer_a_promised_container_does_not_start(node: Node, decider: FakeDecider) -> None:
    decider.why = "pod team-a/train-0 is not bound to this node"
    directory = annotate(node, ID, (*PROMISE, "CGPU_DISABLE=true"))
    before = (Path(directory) / "config.json").read_bytes()
    async with node.running():
        assert (await node.ask(op="prepare", id=ID, bundle=directory))["error"] == decider.why
        assert (await node.ask(op="status"))["grants"] == 0
        decider.why = ""
        assert (await node.ask(op="prepare", id=ID, bundle=directory))["ok"]
    assert before != (Path(directory) / "config.json").read_bytes()


@pytest.mark.parametrize("change", [{"uid": ""}, {"pod": ""}, {"container": ""}, {"namespace": ""}])
async def test_a_promise_to_no_pod_is_refused(node: Node, decider: FakeDecider, change: dict[str, str]) -> None:
    async with node.running():
        bundle = annotate(node, ID, PROMISE, **change)
        assert "config.json names no pod" in (await node.ask(op="prepare", id=ID, bundle=bundle))["error"]
    assert not decider.asked and not node.link.containers


BAD = [
    ({"slots": [{"gpu": "0", "memory_mib": 1}]}, "whole UUID"),
    ({"slots": [{"gpu": GPU[0], "memory_mib": 0}]}, "1 to"),
    ({"slots": [{"gpu": GPU[0], "memory_mib": 1, "weight": 0}]}, "weight"),
    ({"slots": [{"gpu": GPU[0], "memory_mib": 1}] * 2}, "another GPU"),
    ({"slots": [{"gpu": GPU[0], "memory_mib": 1, "weight": 5, "ceiling": 4}]}, "a ceiling from its weight, 5, to 100"),
    ({"slots": [], "claim": "x"}, "needs slots"),
    ({"claim": "a b"}, "letters"),
    ({"whole": GPU[0]}, "has no slots"),
    ({"variables": {"PATH": "/"}}, "a grant has the variables"),
    ({"slots": [{"gpu": GPU[0], "memory_mib": 1, "more": 1}]}, "not a grant"),
]


@pytest.mark.parametrize(("change", "why"), BAD, ids=str)
async def test_a_bad_decision_is_refused(node: Node, decider: FakeDecider, change: dict[str, Any], why: str) -> None:
    decider.grant = {**EXACT, **change}
    async with node.running():
        reply = await node.ask(op="prepare", id=ID, bundle=annotate(node, ID, PROMISE))
        assert why in reply["error"]
    assert not node.link.containers


async def test_the_sentence_of_a_full_gpu_names_the_holders(node: Node, decider: FakeDecider) -> None:
    async with node.running():
        decider.grant = {**EXACT, "slots": [{"gpu": GPU[1], "memory_mib": 10000}]}
        assert (await node.ask(op="prepare", id=ID, bundle=annotate(node, ID, PROMISE)))["ok"]
        error = (await node.ask(op="prepare", id=OTHER, bundle=annotate(node, OTHER, PROMISE, pod="p2")))["error"]
        assert error.endswith(
            "GPU 1 has 5109 of its 15109 MiB left and 10000 MiB were requested; "
            f"held by: {ID[:12]} (team-a/train-0) 10000 MiB"
        )


async def test_caps_hold_for_exact_grants(node: Node, decider: FakeDecider) -> None:
    node.config = Config(container=Caps(max_weight=4, files={"max_weight": "/f"}))
    async with node.running():
        reply = await node.ask(op="prepare", id=ID, bundle=annotate(node, ID, PROMISE))
        assert reply["error"] == (
            "the grant for team-a/train-0/main asks for weight 5, and 4 is allowed: max_weight = 4 in [container] of /f"
        )


# ---- claims ----


async def start(node: Node, container_id: str, pod: str, group: str) -> None:
    reply = await node.ask(op="prepare", id=container_id, bundle=annotate(node, container_id, PROMISE, pod=pod))
    assert reply["ok"], reply
    process = node.process(group)
    assert (await node.bind(container_id, process.pid)) == {"ok": True}


def sources(node: Node, container_id: str) -> set[str]:
    return {mount["source"] for mount in node.spec(container_id)["mounts"] if mount["source"].startswith("/dev/cgpu/")}


async def test_containers_of_a_claim_share_one_slice(node: Node, decider: FakeDecider) -> None:
    decider.grant = {**EXACT, "claim": CLAIM}
    async with node.running():
        await start(node, ID, "a", "/a")
        await start(node, OTHER, "b", "/b")
        (slice_,) = node.link.containers.values()
        assert (slice_.id, slice_.slots[0].limit) == (CLAIM, 1537 * MIB)
        assert sources(node, ID) == sources(node, OTHER) != set()
        assert node.cookie(ID) != node.cookie(OTHER)
        assert {one["slice"] for one in (await node.ask(op="status"))["containers"]} == {CLAIM}
        await node.ask(op="release", id=ID, cookie=node.cookie(ID))
        assert CLAIM in node.link.containers, "the other pod still has it"
    async with node.running() as daemon:  # a restart of the daemon
        assert set(node.link.containers) == {CLAIM}
        await start(node, THIRD, "c", "/c")
        assert len(node.link.containers) == 1
        for container_id in (OTHER, THIRD):
            await node.ask(op="release", id=container_id, cookie=node.cookie(container_id))
        assert not node.link.containers and not daemon.records
        await start(node, ID, "a", "/a2")
        assert set(node.link.containers) == {CLAIM}, "the claim is used again"


async def test_a_claim_whose_records_are_lost_keeps_its_slice(node: Node, decider: FakeDecider) -> None:
    """/run/cgpu is cleared, and cgpud restarted: no cgroup has the claim's id, and an idle slice has no open file."""
    decider.grant = {**EXACT, "claim": CLAIM}
    groups = {ID: f"/kubepods/pod-a/cri-containerd-{ID}.scope", OTHER: f"/kubepods/pod-b/crio-{OTHER}.scope"}
    async with node.running():
        for container_id, group in groups.items():
            await start(node, container_id, group[-70], group)
        (slice_,) = node.link.containers.values()
    shutil.rmtree(node.directory / "state")
    for pid, group in node.facts.groups.items():
        node.facts.slices[pid] = slice_.dir
        node.facts.groups[pid] = f"{group}/app" if group == groups[OTHER] else group
    node.process("/elsewhere")
    async with node.running() as daemon:
        assert {record.id: record.cgroup and record.cgroup.path for record in daemon.records.values()} == groups
        node.now += 10 * IDLE_S
        await daemon.reconcile()
        assert set(node.link.containers) == {CLAIM}
        await start(node, THIRD, "c", "/c")
        assert set(node.link.containers) == {CLAIM}, "a new pod joins it"
        await node.ask(op="release", id=THIRD, cookie=node.cookie(THIRD))
        for group in groups.values():
            assert set(node.link.containers) == {CLAIM}
            node.populate(group, False)
            await eventually(lambda path=group: path not in str(daemon.records), "the member ends")
        await eventually(lambda: not node.link.containers, "with the last one")


@pytest.mark.parametrize("case", ["no cgroup of its own", "None beside one cgroup", "unreadable", "no process"])
async def test_an_orphan_of_a_claim_that_cannot_be_watched(
    node: Node, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept as long as a process sees it, or may see it."""
    slice_ = await node.link.create(CLAIM, make_cookie(1), [SlotWant(0, 0, MIB)])
    process = node.process("/")
    node.facts.groups[process.pid] = None  # type: ignore[assignment]
    if case in ("no cgroup of its own", "None beside one cgroup"):
        node.facts.slices[process.pid] = slice_.dir
    if case == "None beside one cgroup":
        node.facts.slices[node.process(f"/kubepods/pod-a/cri-containerd-{ID}.scope").pid] = slice_.dir
    async with node.running() as daemon:
        if case == "unreadable":

            def fail(pid: int) -> str:
                raise PermissionError(errno.EACCES, "no", f"/proc/{pid}/mountinfo")

            monkeypatch.setattr(node.facts, "mounts", fail)
        for _ in range(3):
            node.now += IDLE_S
            await daemon.reconcile()
        assert not daemon.records
        assert (CLAIM in node.link.containers) == (case != "no process")
        monkeypatch.undo()
        node.facts.slices.clear()
        for _ in range(2):
            node.now += IDLE_S
            await daemon.reconcile()
        assert not node.link.containers


async def test_members_that_end_at_once_destroy_the_slice_once(node: Node, decider: FakeDecider) -> None:
    decider.grant = {**EXACT, "claim": CLAIM}
    async with node.running() as daemon:
        await asyncio.gather(start(node, ID, "a", "/a"), start(node, OTHER, "b", "/b"), start(node, THIRD, "c", "/c"))
        assert len(node.link.containers) == 1
        for group in ("/a", "/b", "/c"):
            node.populate(group, False)
        await eventually(lambda: not daemon.records, "released")
        assert [call[0] for call in node.link.calls].count("destroy") == 1
        assert not node.link.containers


async def test_a_slice_that_the_kernel_lost_ends_every_member(node: Node, decider: FakeDecider) -> None:
    decider.grant = {**EXACT, "claim": CLAIM}
    async with node.running() as daemon:
        await start(node, ID, "a", "/a")
        await start(node, OTHER, "b", "/b")
        (slice_,) = node.link.containers.values()
        await node.link.destroy(slice_.id, slice_.cookie)
        await eventually(lambda: not daemon.records, "no record")


async def test_a_failed_start_of_a_member_leaves_the_slice(
    node: Node, decider: FakeDecider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Refused("no space")

    decider.grant = {**EXACT, "claim": CLAIM}
    async with node.running() as daemon:
        await start(node, ID, "a", "/a")
        directory = annotate(node, OTHER, PROMISE, pod="b")
        monkeypatch.setattr("cgpud.bundle.write", fail)
        assert (await node.ask(op="prepare", id=OTHER, bundle=directory))["error"] == "no space"
        assert set(node.link.containers) == {CLAIM} and len(daemon.records) == 1


async def test_a_claim_of_another_size_is_refused_while_the_slice_exists(node: Node, decider: FakeDecider) -> None:
    decider.grant = {**EXACT, "claim": CLAIM}
    async with node.running():
        await start(node, ID, "a", "/a")
        decider.grant = {**EXACT, "claim": CLAIM, "slots": [{"gpu": GPU[1], "memory_mib": 1538}]}
        reply = await node.ask(op="prepare", id=OTHER, bundle=annotate(node, OTHER, PROMISE, pod="b"))
        assert "exists with other GPUs or another size" in reply["error"]


# ---- whole GPUs ----


def nodes(tmp_path: Path, names: tuple[str, ...]) -> Path:
    dev = tmp_path / "dev"
    dev.mkdir()
    for place, name in enumerate(names):
        (dev / name).symlink_to(("/dev/null", "/dev/zero", "/dev/full")[place])
    return dev


async def test_a_whole_gpu_has_its_own_nodes_and_no_slice(node: Node, decider: FakeDecider, tmp_path: Path) -> None:
    node.facts.dev = nodes(tmp_path, ("nvidiactl", "nvidia-uvm", "nvidia1"))
    decider.grant = {"variables": {"ALIYUN_COM_GPU_MEM_IDX": "1"}, "whole": GPU[1]}
    async with node.running():
        directory = annotate(node, ID, (*PROMISE, "CGPU_DISABLE=0"))
        reply = await node.ask(op="prepare", id=ID, bundle=directory)
        closed = reply.pop("closed")
        assert reply == {"ok": True, "action": "edited"}
        spec = node.spec(ID)
        check = spec["hooks"]["createContainer"][-1]
        assert check["args"] == ["cgpu-runtime", "hook", "check", f"--closed={closed}"]
        found = {one["path"]: (one["major"], one["minor"]) for one in spec["linux"]["devices"]}
        number = Path("/dev/full").stat().st_rdev
        assert found["/dev/nvidia1"] == (os.major(number), os.minor(number))
        assert "/dev/nvidia0" not in found
        assert not node.link.containers
        assert "ALIYUN_COM_GPU_MEM_IDX=1" in environment(node, ID)
        # A slice on it: no whole GPU any more.
        await node.ask(op="grant", grant={**EXACT, "subject": {**POD, "pod": "z"}})
        assert (await node.ask(op="prepare", id=OTHER, bundle=annotate(node, OTHER, PROMISE, pod="z")))["ok"]
        reply = await node.ask(op="prepare", id=THIRD, bundle=annotate(node, THIRD, PROMISE, pod="c"))
        assert "GPU 1 has 1 slices" in reply["error"]


async def test_a_whole_gpu_is_refused_where_it_may_not_be(node: Node, decider: FakeDecider, tmp_path: Path) -> None:
    node.facts.dev = nodes(tmp_path, ("nvidiactl",))
    decider.grant = {"variables": {}, "whole": GPU[1]}
    async with node.running() as daemon:
        reply = await node.ask(op="prepare", id=ID, bundle=annotate(node, ID, PROMISE))
        assert reply["error"].startswith("/dev/nvidia1 cannot be read")
        daemon.config = replace(daemon.config, gpu=GpuSettings(unsliced="refuse"))
        reply = await node.ask(op="prepare", id=ID, bundle=annotate(node, ID, PROMISE))
        assert 'GPU 1 is shared in slices only (unsliced = "refuse"' in reply["error"]


@pytest.mark.parametrize("config", ["", "/etc/cgpu/hook.toml"])
async def test_nvidias_hook_brings_a_whole_gpu_no_other(
    node: Node, decider: FakeDecider, tmp_path: Path, config: str
) -> None:
    """Its legacy hook reads the variable, which the pod's author may set to all after the device plugin's `none`."""
    node.facts.dev = nodes(tmp_path, ("nvidiactl", "nvidia1"))
    decider.grant = {"variables": {}, "whole": GPU[1]}
    async with node.running() as daemon:
        daemon.config = replace(daemon.config, legacy_hook_config=config)
        directory = annotate(node, ID, (*PROMISE, "NVIDIA_VISIBLE_DEVICES=all"))
        path = Path(directory) / "config.json"
        spec = json.loads(path.read_text())
        hook = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
        path.write_text(json.dumps({**spec, "hooks": {"prestart": [hook]}}))
        reply = await node.ask(op="prepare", id=ID, bundle=directory)
        if not config:
            assert "NVIDIA's legacy prestart hook would mount the whole GPU" in reply["error"]
            return
        spec = json.loads(path.read_text())
        (tamed,) = spec["hooks"]["prestart"]
        assert tamed["args"] == ["nvidia-container-runtime-hook", f"-config={config}", "prestart"]
        visible = [one for one in environment(node, ID) if one.startswith("NVIDIA_VISIBLE_DEVICES=")]
        assert visible == ["NVIDIA_VISIBLE_DEVICES=none"]
        assert spec["hooks"]["createContainer"][-1]["args"][2:] == ["check", f"--closed={reply['closed']}"]
        assert spec["linux"]["readonlyPaths"][-1] == "/proc/driver"


@pytest.mark.parametrize("level", ["", "rwm"])
async def test_what_must_be_closed_to_a_whole_gpu(
    node: Node, decider: FakeDecider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """Every GPU's numbers but those that it has; nothing to a privileged container, which has every device."""
    node.facts.dev = nodes(tmp_path, ("nvidiactl", "nvidia1"))
    found = [("/dev/nvidiactl", 195, 255), ("/dev/nvidia-uvm", 511, 0), ("/dev/nvidia1", 195, 1)]
    monkeypatch.setattr(node.facts, "real_nodes", lambda _minor: tuple(found))
    decider.grant = {"variables": {}, "whole": GPU[1]}
    async with node.running():
        directory = annotate(node, ID, PROMISE)
        path = Path(directory) / "config.json"
        spec = json.loads(path.read_text())
        if level:
            spec["linux"]["resources"] = {"devices": [{"allow": True, "access": level}]}
            path.write_text(json.dumps(spec))
        reply = await node.ask(op="prepare", id=ID, bundle=directory)
        closed = "" if level else "195:0-0,195:2-31,195:254-254,226:0-63,226:128-191,511:1-1"
        assert reply.get("closed", "") == closed
        spec["annotations"]["org.systemd.property.DeviceAllow"] = "[('char-nvidia', 'rw')]"
        path.write_text(json.dumps(spec))
        reply = await node.ask(op="prepare", id=ID, bundle=directory)
        assert reply["ok"] if level else "DeviceAllow changes the device rules" in reply["error"]


def test_edit_whole_removes_every_other_gpu() -> None:
    spec = {
        "linux": {
            "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}, {"path": "/dev/x"}],
            "resources": {"devices": [{"allow": False}, {"allow": True, "type": "c", "major": 195, "minor": 0}]},
        },
        "mounts": [{"destination": "/dev/nvidiactl", "type": "bind", "source": "/dev/nvidiactl"}],
    }
    out = oci.edit_whole(spec, {195}, [("/dev/nvidia1", 195, 1)], None)
    assert [one["path"] for one in out["linux"]["devices"]] == ["/dev/x", "/dev/nvidia1"]
    assert [one.get("minor") for one in out["linux"]["resources"]["devices"]] == [None, 1]
    assert out["mounts"] == []
    assert out["linux"]["readonlyPaths"] == ["/proc/driver"], "root of a container would write the driver's registry"


# ---- what an orchestrator asks ----


async def test_the_gpus_as_admission_sees_them(node: Node, decider: FakeDecider) -> None:
    first, second = example_gpus(2)
    node.link = FakeLink((replace(first, driver_free=14000 * MIB), replace(second, overcommit=200)))
    async with node.running():
        reply = await node.ask(op="capacity")
        assert reply["module"] and [one["uuid"] for one in reply["gpus"]] == GPU
        assert [one["slice_mib"] for one in reply["gpus"]] == [14000 + 472, 2 * 15109], "as admission counts"
        assert (await node.ask(op="grants"))["grants"] == []
        await node.ask(op="grant", grant=EXACT)
        assert (await node.ask(op="grants"))["grants"] == [POD]
        node.link.missing = True
        reply = await node.ask(op="capacity")
        assert not reply["module"] and "not loaded" in reply["why"]


async def test_what_is_advertised_is_what_admission_lets_in(node: Node, decider: FakeDecider) -> None:
    (only,) = example_gpus(1)
    node.link = FakeLink((replace(only, driver_free=13000 * MIB),))
    async with node.running():
        (gpu,) = (await node.ask(op="capacity"))["gpus"]
        for extra, works in ((1, False), (0, True)):
            slot = {"gpu": GPU[0], "memory_mib": gpu["slice_mib"] + extra}
            await node.ask(op="grant", grant={"subject": {"id": ID}, "variables": {}, "slots": [slot]})
            assert (await node.prepare(ID, PROMISE))["ok"] is works


# ---- the client ----


@asynccontextmanager
async def served(path: Path, answer: Callable[[bytes], bytes]) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack(">I", await reader.readexactly(4))
        writer.write(answer(await reader.readexactly(size)))
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield
    finally:
        server.close()


def framed(value: object) -> bytes:
    body = json.dumps(value).encode()
    return struct.pack(">I", len(body)) + body


ANSWERS = [
    (framed({"ok": False, "error": "no room"}), "no room"),
    (framed({"ok": False}), "gave no reason"),
    (framed({"ok": True}), "for another container"),
    (framed({"ok": True, "grant": {**EXACT, "subject": {**POD, "uid": "u-2"}}}), "for another container"),
    (framed([]), "gave no reason"),
    (b"", "connection was closed"),
    (struct.pack(">I", 1 << 30), "an answer of"),
    (struct.pack(">I", 2) + b"{x", "does not answer"),
]


@pytest.mark.parametrize(("answer", "why"), ANSWERS, ids=str)
async def test_a_bad_answer_is_a_refusal(tmp_path: Path, answer: bytes, why: str) -> None:
    async with served(tmp_path / "k.sock", lambda _: answer):
        with pytest.raises(Refused, match=why):
            await KubeClient(tmp_path / "k.sock").decide(POD, 0)


async def test_the_client_waits_for_a_server_that_restarts(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    assert stat.S_ISSOCK(path.lstat().st_mode)
    asked = asyncio.create_task(KubeClient(path).decide(POD, 5))
    await asyncio.sleep(0.3)
    path.unlink()
    seen: list[Any] = []

    def answer(body: bytes) -> bytes:
        seen.append(json.loads(body))
        return framed({"ok": True, "grant": EXACT})

    async with served(path, answer):
        assert await asked == EXACT
    assert seen == [{"op": "decide", "subject": POD}]
    with pytest.raises(Refused, match="systemctl status cgpu-kube"):
        await KubeClient(tmp_path / "none.sock").decide(POD, 0)


@pytest.mark.parametrize("cut", [0, 3, 20], ids=["nothing", "part of the size", "part of the answer"])
async def test_a_server_that_ends_before_its_answer_is_asked_again(tmp_path: Path, cut: int) -> None:
    """Its next life may be another program's process, and the request is idempotent."""
    whole = framed({"ok": True, "grant": EXACT})
    answers = [whole[:cut], whole[:cut], whole]

    async with served(tmp_path / "k.sock", lambda _: answers.pop(0)):
        assert await KubeClient(tmp_path / "k.sock").decide(POD, 5) == EXACT
    assert not answers


async def test_slices_name_the_pods_that_a_grant_named(node: Node) -> None:
    """Also after the daemon has released a record, while the kernel has open files of the container."""

    class Busy(FakeLink):
        async def destroy(self, container_id: str, cookie: int) -> None:
            if container_id in self.containers:
                self.containers[container_id] = replace(self.containers[container_id], dying=True)

    async def slices() -> dict[str, dict[str, Any]]:
        return {one["id"]: one for one in (await node.ask(op="slices"))["slices"]}

    node.link = Busy(example_gpus(2))
    mine = {"id": OTHER, "pod": "team-a/train-0", "uid": POD["uid"], "dying": False}
    mine["slots"] = [{"nv_minor": 1, "mib": 1537}]
    async with node.running():
        await node.ask(op="grant", grant=EXACT)
        assert (await node.ask(op="prepare", id=OTHER, bundle=annotate(node, OTHER, ())))["ok"]
        assert await slices() == {OTHER: mine}
    async with node.running():
        assert (await node.prepare(ID))["ok"]
        found = await slices()
        assert found[OTHER] == mine, "after a restart"
        assert (found[ID]["pod"], found[ID]["uid"]) == ("", ""), "no grant"
        await node.ask(op="release", id=OTHER, cookie=node.cookie(OTHER))
        assert not [record for record in node.daemon.records.values() if record.id == OTHER]
        for _ in range(2):
            assert (await slices())[OTHER] == {**mine, "dying": True}
        del node.link.containers[OTHER]
        assert list(await slices()) == [ID]


async def test_a_renewal_and_the_start_that_follows_share_one_query_of_nvml(node: Node) -> None:
    class Slow:
        asked = 0

        async def query(self, wait_s: float) -> NvmlView:
            self.asked += 1
            await asyncio.wait_for(go.wait(), 5)
            return NvmlView(absent="no NVML")

        def close(self) -> None:
            go.set()

    go = asyncio.Event()
    go.set()
    node.nvml = Slow()
    async with node.running() as daemon:
        assert (await node.prepare(OTHER))["ok"]
        before = node.nvml.asked
        for _ in range(2):  # at once, and not again while its answer is new
            assert (await node.ask(op="capacity", verb="renew"))["ok"]
        assert node.nvml.asked == before
        go.clear()
        daemon.inventory.expire()
        for _ in range(3):
            assert (await node.ask(op="capacity", verb="renew"))["ok"], "does not wait"
        start = asyncio.create_task(node.prepare(ID))
        await asyncio.sleep(0.2)
        assert not start.done(), "not with the old answer"
        go.set()
        assert (await start)["ok"]
        assert node.nvml.asked == before + 1
        go.clear()
        daemon.inventory.expire()
        assert (await node.ask(op="capacity", verb="renew"))["ok"], "and the daemon can stop meanwhile"
