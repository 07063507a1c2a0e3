# SPDX-License-Identifier: MIT
"""The daemon over its socket: prepare, bind, the end, restarts, and everything that must not happen."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakelink import FakeLink, example_gpus
from fakes import VARIABLES, FakeFacts, Node, eventually, no_nvml, read_reply

from cgpu_common import frames, wire
from cgpu_common.cards import NvmlGpu
from cgpu_common.config import Config
from cgpu_common.cookie import make_cookie
from cgpu_common.errors import CgpuError, KernelRefused
from cgpu_common.kernel_abi import Event
from cgpu_common.model import MIB, SlotWant
from cgpu_common.settings import GpuSettings
from cgpud import host_paths, hostmem
from cgpud.reconcile import IDLE_S, LEASE_S
from cgpud.state import Trigger
from cgpud.store import Store
from cgpud.values import Phase, Process, Record

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


def destroys(node: Node) -> list[str]:
    return [container_id for what, container_id, _ in node.link.calls if what == "destroy"]


def states(node: Node) -> list[Path]:
    return list((node.directory / "state").glob("*.json"))


@pytest.mark.parametrize("kind", ["v2", "nsdelegate"])
async def test_writable_cgroups_stay_within_a_namespace(node: Node, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(node.facts, "cgroup_kind", lambda: kind)
    async with node.running():
        with node.edited(ID) as spec:
            spec["mounts"].append({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup"})
        reply = await node.again(ID)
        assert reply["ok"] if kind == "nsdelegate" else "/sys/fs/cgroup writable" in reply["error"]


async def test_a_mount_behind_a_link_is_refused(node: Node) -> None:
    """A relative source begins at the bundle."""
    async with node.running():
        with node.edited(ID) as spec:
            spec["mounts"].append({"destination": "/x", "type": "bind", "source": "link/cgpu"})
        (node.directory / "bundles" / ID / "link").symlink_to("/run")
        refused = await node.again(ID)
        assert "the container mounts link/cgpu, which brings /run/cgpu" in refused["error"]
        assert not node.link.calls


async def test_a_file_system_that_does_not_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an NFS server that is away: the kernel keeps who looks there. The daemon serves other containers, and a
    start that is repeated takes no further thread."""
    read, asked, answers = os.readlink, [], threading.Event()

    def readlink(path: str) -> str:
        if path.startswith("/mnt/nfs/"):
            asked.append(path)
            answers.wait(60)
        return read(path)

    async def start() -> dict[str, Any]:
        with node.edited(ID) as spec:
            spec["mounts"].append({"destination": "/x", "type": "bind", "source": "/mnt/nfs/data"})
        return await node.again(ID)

    mountinfo = "9 1 0:99 / /mnt/nfs rw - nfs server:/ rw\n"
    monkeypatch.setattr(node.facts, "mounts", lambda pid: mountinfo)
    monkeypatch.setattr(os, "readlink", readlink)
    monkeypatch.setattr(host_paths, "WAIT_S", 2.0)
    async with node.running():
        first = asyncio.create_task(start())
        await eventually(lambda: bool(asked), "the daemon looks there")
        assert (await node.prepare("f" * 64))["ok"]
        why = "the container mounts /mnt/nfs/data, and the file system at /mnt/nfs does not answer"
        assert (await first)["error"] == why
        assert (await start())["error"] == why
        assert len(asked) == 1
        answers.set()
        while not (reply := await start())["ok"]:
            assert reply["error"] == why
            await asyncio.sleep(0.05)


async def test_prepare_edits_and_creates(node: Node) -> None:
    async with node.running():
        reply = await node.prepare(ID)
        closed = "195:0-31,195:254-255,226:0-63,226:128-191,511:0-1"
        assert reply == {"ok": True, "action": "edited", "dir": ID[:12], "closed": closed}
        (container,) = node.link.containers.values()
        assert container.slots[0].limit == 6043 * MIB
        spec = node.spec(ID)
        assert {m["destination"]: m["source"] for m in spec["mounts"] if "nvidia" in m["destination"]} == {
            f"/dev/{name}": f"/dev/cgpu/{container.dir}/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia0")
        }
        minors = {rule["minor"] for rule in spec["linux"]["resources"]["devices"] if rule.get("major") == 509}
        assert minors == {container.ctl_minor, container.uvm_minor, container.slots[0].minor}
        assert len(states(node)) == 1


@pytest.mark.parametrize("env", [(), ("CGPU_DISABLE=1", *VARIABLES), ("ALIYUN_COM_GPU_MEM_CONTAINER=0",)], ids=str)
async def test_pass_is_byte_identical(node: Node, env: tuple[str, ...]) -> None:
    path = node.bundle(ID, env) / "config.json"
    before = path.read_bytes()
    async with node.running():
        assert await node.again(ID) == {"ok": True, "action": "pass"}
    assert path.read_bytes() == before
    assert not node.link.calls


async def test_refusals_change_nothing(node: Node) -> None:
    path = node.bundle(ID, ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=16")) / "config.json"
    before = path.read_bytes()
    async with node.running():
        assert "16 of the 15 GiB" in (await node.again(ID))["error"]
        assert path.read_bytes() == before
        assert not node.link.calls
        assert not states(node)


async def test_tmp_is_bound_where_the_host_has_pipes_of_mps(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes = tmp_path / "tmp/nvidia-mps"
    monkeypatch.setattr("cgpud.oci.MPS_DIRECTORIES", (str(pipes),))
    with node.edited(ID) as before:
        before["mounts"].append({"source": str(pipes.parent), "destination": "/tmp", "type": "bind"})
    async with node.running():
        pipes.mkdir(parents=True)
        assert f", which brings {pipes}, the pipes of an MPS daemon" in (await node.again(ID))["error"]
        assert node.spec(ID) == before
        assert not node.link.calls
        pipes.rmdir()
        assert (await node.again(ID))["ok"]


@pytest.mark.parametrize("variable", ["ALIYUN_COM_GPU_MEM_CONTAINER=\ud800", "CGPU_DISABLE=\udfff"], ids=ascii)
async def test_half_a_surrogate_gets_an_answer(node: Node, variable: str) -> None:
    async with node.running():
        name, _, _ = variable.partition("=")
        assert f"{name}=? is not allowed" in (await node.prepare(ID, ("ALIYUN_COM_GPU_MEM_DEV=15", variable)))["error"]


@pytest.mark.parametrize("name", [rb"\ud800", rb"\udfff", b"\xed\xa0\x80", b"\xff"], ids=ascii)
async def test_a_name_that_is_no_text_gets_an_answer(node: Node, name: bytes) -> None:
    async with node.running():
        body = b'{"op":"prepare","bundle":"/x","id":"' + name + b'"}'

        def ask() -> dict[str, Any]:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(10)
                sock.connect(str(node.socket))
                sock.sendall(struct.pack(">I", len(body)) + body)
                return read_reply(sock)

        assert (await asyncio.to_thread(ask))["ok"] is False


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("a  sentence\n of two\u2028lines", "a sentence of two lines"),
        ("x" * 3000, "x" * 2000),
        ("é" * 3000, "é" * 1000),
        ("x" + "é" * 3000, "x" + "é" * 999),  # not in the middle of a character
        ("\U0001f600" * 3000, "\U0001f600" * 500),
        ("a\ud800b", "a?b"),
        ("\x1b]0;x\x07\x9b2J\u202eé…", "?]0;x??2J?é…"),  # a terminal obeys an image's value
    ],
    ids=lambda text: ascii(text[:9]),
)
def test_a_refusal_fits_the_runtime(sentence: str, expected: str) -> None:
    reply = wire.refusal(sentence)
    assert reply == {"ok": False, "error": expected}
    assert len(reply["error"].encode()) <= wire.SENTENCE_MAX
    assert json.loads(frames.encode(reply)[frames.HEAD.size :]) == reply


def test_half_a_surrogate_in_any_answer() -> None:
    data = frames.encode({"ok": True, "containers": [{"id": "a\ud800", "é": 1}]})
    assert data[frames.HEAD.size :] == '{"ok":true,"containers":[{"id":"a?","é":1}]}'.encode()
    assert frames.HEAD.unpack(data[: frames.HEAD.size]) == (len(data) - frames.HEAD.size,)


async def test_the_module_is_missing(node: Node) -> None:
    node.link.missing = True
    async with node.running():
        why = "the kernel module cgpu_km is not loaded; cgpu-smi shows how to load it"
        assert (await node.prepare(ID))["error"] == why
        assert (await node.ask(op="status"))["module"] is False


async def test_a_container_lives_and_dies(node: Node) -> None:
    async with node.running():
        process = await node.start(ID)
        status = await node.ask(op="status")
        assert [(c["id"], c["phase"], c["pid"]) for c in status["containers"]] == [(ID, "bound", process.pid)]
        process.kill()
        await eventually(lambda: not node.link.containers, "released by its pidfd")
        await eventually(lambda: not states(node), "state file gone")
        assert (await node.ask(op="release", id=ID, cookie=node.cookie(ID))) == {"ok": True}
        assert destroys(node) == [ID]


async def test_the_cgroup_outlives_init(node: Node) -> None:
    async with node.running():
        process = await node.start(ID, "/docker/a")
        process.kill()
        process.wait()
        await asyncio.sleep(1.3)
        assert node.link.containers, "a process is still in the cgroup"
        node.populate("/docker/a", False)
        await eventually(lambda: not node.link.containers, "released by cgroup.events")
        assert destroys(node) == [ID]


async def test_the_cgroup_directory_goes(node: Node) -> None:
    async with node.running():
        await node.start(ID, "/docker/a")
        (node.directory / "cgroup/docker/a/cgroup.events").unlink()
        (node.directory / "cgroup/docker/a").rmdir()
        await eventually(lambda: not node.link.containers, "released by the removed directory")


async def test_poststop_releases(node: Node) -> None:
    async with node.running():
        await node.start(ID, "/docker/a")
        await node.ask(op="release", id=ID, cookie=node.cookie(ID))
        assert not node.link.containers
        assert not states(node)


async def test_a_late_poststop_of_the_last_life_changes_nothing(node: Node) -> None:
    async with node.running():
        await node.start(ID, "/docker/a")
        old = node.cookie(ID)
        await node.ask(op="release", id=ID, cookie=old)
        await node.start(ID, "/docker/b")
        await node.ask(op="release", id=ID, cookie=old)
        assert node.link.containers
        assert node.cookie(ID) != old


async def test_a_running_id_cannot_be_prepared_again(node: Node) -> None:
    async with node.running():
        await node.start(ID, "/docker/a")
        assert "is running already" in (await node.prepare(ID))["error"]
        assert node.link.containers


async def test_a_restart_waits_for_the_last_run(node: Node) -> None:
    async with node.running():
        await node.prepare(ID)
        container = node.link.containers[ID]
        del node.daemon.records[(ID, container.cookie)]
        node.link.containers[ID] = replace(container, cookie=1, dying=True)
        later = asyncio.create_task(node.prepare(ID))
        await asyncio.sleep(0.2)
        assert not later.done()
        del node.link.containers[ID]
        assert (await later)["ok"]
        node.link.containers[ID] = replace(container, cookie=1, dying=True)
        later = asyncio.create_task(node.prepare(ID))
        while not later.done():  # the start of its wait is not known
            await asyncio.sleep(0.1)
            node.now += 11
        assert "still holds GPU memory" in (await later)["error"]


async def test_prepare_twice_keeps_the_second(node: Node) -> None:
    async with node.running():
        await node.prepare(ID)
        assert (await node.again(ID))["ok"]
        assert len(node.link.containers) == 1
        assert len(states(node)) == 1
        process = node.process()
        assert (await node.bind(ID, process.pid))["ok"]


async def test_restart_keeps_containers(node: Node) -> None:
    async with node.running():
        first = await node.start(ID, "/docker/a")
        second = await node.start(OTHER)
    assert set(node.link.containers) == {ID, OTHER}
    async with node.running():
        assert set(node.link.containers) == {ID, OTHER}
        second.kill()
        second.wait()
        await eventually(lambda: set(node.link.containers) == {ID}, "the new life sees the pidfd")
        first.kill()
        node.populate("/docker/a", False)
        await eventually(lambda: not node.link.containers, "the new life sees the cgroup")
        assert sorted(destroys(node)) == sorted([ID, OTHER])


async def test_died_while_the_daemon_was_down(node: Node) -> None:
    async with node.running():
        process = await node.start(ID)
        await node.start(OTHER, "/docker/b")
    process.kill()
    process.wait()
    node.populate("/docker/b", False)
    async with node.running():
        await eventually(lambda: not node.link.containers, "reconcile at start")
        assert sorted(destroys(node)) == sorted([ID, OTHER])


async def test_lease(node: Node) -> None:
    async with node.running() as daemon:
        await node.prepare(ID)
        node.now += 119
        await daemon.reconcile()
        assert node.link.containers
        node.now += 2
        await daemon.reconcile()
        assert not node.link.containers
        process = node.process()
        assert "lease has expired" in (await node.bind(ID, process.pid))["error"]


async def test_orphans(node: Node) -> None:
    await node.link.create("lost", make_cookie(1), [SlotWant(0, 0, MIB)])
    await node.link.create(ID, make_cookie(2), [SlotWant(0, 0, MIB)])
    await node.link.create("by-hand", 99, [SlotWant(0, 0, MIB)])
    node.populate(f"/system.slice/docker-{ID}.scope", True)
    async with node.running() as daemon:
        assert set(node.link.containers) == {ID, "lost", "by-hand"}
        node.now += IDLE_S
        await daemon.reconcile()
        assert set(node.link.containers) == {ID, "by-hand"}
        node.populate(f"/system.slice/docker-{ID}.scope", False)
        await eventually(lambda: set(node.link.containers) == {"by-hand"}, "the adopted one ends")


async def test_an_orphan_whose_cgroup_is_not_found(node: Node) -> None:
    """Its cgroup may have any name. While the container has memory of a GPU it is kept."""

    def uses(amount: int) -> None:
        orphan = node.link.containers["my-job"]
        node.link.containers["my-job"] = replace(orphan, slots=(replace(orphan.slots[0], used=amount),))

    await node.link.create("my-job", make_cookie(1), [SlotWant(0, 0, MIB)])
    uses(MIB)
    node.populate("/system.slice/my-job-1.scope", True)
    async with node.running() as daemon:
        for amount in (MIB, 0, 1, MIB, 0):
            uses(amount)
            await daemon.reconcile()
            assert "my-job" in node.link.containers, amount
            node.now += IDLE_S
        node.now -= 0.1
        await daemon.reconcile()
        assert "my-job" in node.link.containers, "idle for less than IDLE_S"
        node.now += 0.1
        await daemon.reconcile()
        assert not node.link.containers, "idle for IDLE_S"


@pytest.fixture
def nested(node: Node) -> Iterator[Path]:
    """1,200 cgroups, each in the one before: more than Python's frames."""
    top = node.facts.cgroups / "docker/tenant"
    path = top
    for _ in range(1200):
        path.mkdir(parents=True)
        path /= "x"
    yield top
    subprocess.run(["rm", "-rf", top], check=True)  # pytest's own removal is recursive


def test_cgroups_that_a_tenant_nests(node: Node, nested: Path) -> None:
    """The search for an orphan's cgroup ended the daemon, at each of its starts."""
    assert node.facts.find_cgroup(ID) is None
    node.populate(f"/kubepods/besteffort/pod7/{ID}", True)
    found = node.facts.find_cgroup(ID)
    assert found is not None and found.path == f"/kubepods/besteffort/pod7/{ID}"


@pytest.mark.parametrize("deep", [1200, 5000])
def test_the_members_of_nested_cgroups(node: Node, nested: Path, deep: int) -> None:
    """All of them count, or the slice of a running container would be released; beyond PATH_MAX that is an error."""
    directory, pid = nested, "7\n"
    if deep > 1200:
        subprocess.run(["sh", "-c", 'cd "$0"; for i in $(seq 20); do mkdir $1; cd -P $1; done', nested,
                        "y" * 250], check=True)  # fmt: skip
    else:
        (nested / ("x/" * 1199) / "cgroup.procs").write_text(pid)
    node.facts.controller = "devices"
    group = node.facts.cgroup_at(str(directory.relative_to(node.facts.cgroups)))
    assert group is not None
    assert not node.facts.is_empty(group), "of that which cannot be read it is not known"
    if deep == 1200:
        assert list(node.facts.members(group)) == [7]


async def test_one_orphan_does_not_disturb_another(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node.running():
        await node.start(ID, f"/docker/{ID}")
        await node.start(OTHER, f"/docker/{OTHER}")
    shutil.rmtree(node.directory / "state")
    find = node.facts.find_cgroup

    def fails(container_id: str) -> Any:
        if container_id == ID:
            raise RecursionError
        return find(container_id)

    monkeypatch.setattr(node.facts, "find_cgroup", fails)
    async with node.running() as daemon:
        assert [record.id for record in daemon.records.values()] == [OTHER]
        assert set(node.link.containers) == {ID, OTHER}, "what cannot be looked for is kept"


async def test_orphans_are_looked_at_again_soon(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the period of reconcile is long."""
    monkeypatch.setattr("cgpud.reconcile.IDLE_S", 0.05)
    node.config = Config(reconcile_s=3600)

    await node.link.create("lost", make_cookie(1), [SlotWant(0, 0, MIB)])
    async with node.running():
        assert node.link.containers, "one reading is not enough"
        node.now += 1
        await eventually(lambda: not node.link.containers, "it is idle for the second time")


async def test_an_orphan_is_told_of_once(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    made = await node.link.create("my-job", make_cookie(1), [SlotWant(0, 0, MIB)])
    node.link.containers["my-job"] = replace(made, slots=(replace(made.slots[0], used=1),))
    async with node.running() as daemon:
        for _ in range(3):
            await daemon.reconcile()
    assert capsys.readouterr().out.count("orphan kept unwatched") == 1


async def test_the_poststop_of_an_orphan(node: Node) -> None:
    made = await node.link.create("my-job", make_cookie(1), [SlotWant(0, 0, MIB)])
    node.link.containers["my-job"] = replace(made, slots=(replace(made.slots[0], used=1),))
    async with node.running():
        await node.ask(op="release", id="my-job", cookie=str(make_cookie(2)))
        assert node.link.containers, "of another life"
        await node.ask(op="release", id="my-job", cookie=str(made.cookie))
        assert not node.link.containers


async def test_somebody_was_faster(node: Node) -> None:
    """Another container takes the memory between the sums and the creation: the sentence is as of admission."""

    class Race(FakeLink):
        async def create(self, container_id: str, cookie: int, slots: Any) -> Any:
            if container_id == ID and "by-hand" not in self.containers:
                await super().create("by-hand", 99, [SlotWant(0, 0, 10000 * MIB)])
                raise KernelRefused(errno.ENOSPC, "cgpu_km: the limits would exceed its memory")
            return await super().create(container_id, cookie, slots)

    node.link = Race()
    async with node.running():
        error = (await node.prepare(ID))["error"]
        assert "GPU 0 has 5109 of its 15109 MiB left and 6043 MiB were requested" in error
        assert "held by: by-hand 10000 MiB" in error
        assert not states(node)
        await node.link.destroy("by-hand", 99)
        assert not (await node.prepare(ID))["ok"]
        assert (await node.prepare(ID, ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=3")))["ok"]


@pytest.mark.parametrize(("taken", "weight"), [(20, 1), (19, 4)])
async def test_somebody_took_the_weight_first(node: Node, taken: int, weight: int) -> None:
    """Another container takes it between the sums and the creation. If none is left the kernel grants 0: a warning."""

    class Race(FakeLink):
        async def create(self, container_id: str, cookie: int, slots: Any) -> Any:
            if container_id == ID and "by-hand" not in self.containers:
                await super().create("by-hand", 99, [SlotWant(0, 0, MIB, taken)])
                slots = [replace(slot, weight=0) for slot in slots]
            return await super().create(container_id, cookie, slots)

    variables = ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=3", f"ALIYUN_COM_GPU_SCHD_WEIGHT={weight}")

    node.link = Race()
    async with node.running():
        reply = await node.prepare(ID, variables)
        if taken == 20:
            assert "GPU 0 has no weight left" in reply["warning"] and "held by: by-hand 20" in reply["warning"]
            assert node.link.containers[ID].slots[0].weight == 0
        else:
            assert "GPU 0 has 1 of 20 weight left and 4 was requested; held by: by-hand 19" in reply["error"]
            assert ID not in node.link.containers and not states(node)


async def test_destroyed_by_a_person(node: Node) -> None:
    async with node.running():
        await node.start(ID, "/docker/a")
        await node.link.destroy(ID, 0)
        await eventually(lambda: not states(node), "forgotten")


async def test_another_slot_than_asked_is_taken_back(node: Node) -> None:
    class Liar(FakeLink):
        async def create(self, container_id: str, cookie: int, slots: Any) -> Any:
            made = await super().create(container_id, cookie, slots)
            return replace(made, slots=(replace(made.slots[0], nv_minor=5),))

    node.link = Liar()
    async with node.running():
        assert "another slot" in (await node.prepare(ID))["error"]
        assert not node.link.containers
        assert not states(node)


async def test_a_bind_that_cannot_be_saved_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next life of cgpud would read that the start has not come so far, and destroy the slice."""
    room = Store.save

    def full(self: Store, record: Record) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with node.running():
        assert (await node.prepare(ID))["ok"]
        process = node.process("/docker/a")
        monkeypatch.setattr(Store, "save", full)
        reply = await node.bind(ID, process.pid)
        assert reply["error"] == "cgpud cannot write its state: [Errno 28] No space left on device"
        (record,) = node.daemon.records.values()
        assert (record.phase, record.process is None or record.process.pid != process.pid) == (Phase.PREPARED, True)
        monkeypatch.setattr(Store, "save", room)
        assert (await node.bind(ID, process.pid))["ok"], "the runtime may ask again"
    node.now += 10 * LEASE_S
    async with node.running():
        assert ID in node.link.containers
        (record,) = node.daemon.records.values()
        assert record.phase is Phase.BOUND


async def test_an_unwritable_bundle_is_taken_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(directory: str, spec: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cgpud.bundle.write", fails)
    async with node.running():
        assert "No space left" in (await node.prepare(ID))["error"]
        assert not node.link.containers
        assert not states(node)


@pytest.mark.parametrize("when", ["before it is read", "while it waits for other starts", "after its slice is made"])
async def test_a_start_that_its_engine_gave_up(node: Node, capsys: pytest.CaptureFixture[str], when: str) -> None:
    """A kubelet whose request has timed out removes the bundle in the middle of the start."""

    class Slow(FakeLink):
        async def create(self, container_id: str, cookie: int, slots: Any) -> Any:
            made = await super().create(container_id, cookie, slots)
            if when == "after its slice is made":
                shutil.rmtree(bundle)
            return made

    bundle = node.bundle(ID)
    node.link = Slow()
    async with node.running() as daemon:
        if when == "before it is read":
            shutil.rmtree(bundle)
        async with daemon.admission:
            start = asyncio.create_task(node.ask(op="prepare", id=ID, bundle=str(bundle)))
            await asyncio.sleep(0.1)
            if when == "while it waits for other starts":
                shutil.rmtree(bundle)
        why = f"the engine gave the container up during its start: {bundle} is gone; nothing is held for it"
        assert await start == {"ok": False, "error": why}
        assert not node.link.containers
        assert not states(node)
        assert not daemon.records
        assert daemon.admissions["refused"] == 0
        made = ["create", "destroy"] if when == "after its slice is made" else []
        assert [what for what, _, _ in node.link.calls] == made
    assert "refused" not in capsys.readouterr().err


async def test_sizes_are_learnt_from_an_attached_module(node: Node) -> None:
    class Detached(FakeLink):
        attached = False

        async def create(self, container_id: str, cookie: int, slots: Any) -> Any:
            self.attached = True
            return await super().create(container_id, cookie, slots)

        async def gpus(self) -> Any:
            return tuple(gpu if self.attached else replace(gpu, total=0) for gpu in await super().gpus())

    node.link = Detached()
    async with node.running():
        assert (await node.prepare(ID))["ok"]
        assert [what for what, _, _ in node.link.calls] == ["create", "destroy", "create"]
        assert list(node.link.containers) == [ID]


async def test_what_nvml_does_not_tell_is_said_once(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """A lost GPU, while another one answers, is logged once. So is the absence of NVML."""
    first, second = example_gpus(2)

    def nvml() -> tuple[NvmlGpu, ...]:
        known = NvmlGpu(0, first.uuid, first.pci, 0, 15109)
        return known, NvmlGpu(1, "", "", -1, 0, lost="GPU is lost")

    node.link = FakeLink((first, second))
    node.nvml = nvml
    async with node.running() as daemon:
        lost = await node.prepare(ID, (*VARIABLES, "ALIYUN_COM_GPU_VISIBLE_DEVICES=1"))
        assert lost["error"] == "GPU 1 does not answer NVML (GPU is lost), so it cannot be sliced"
        assert (await node.prepare(OTHER, (*VARIABLES, "ALIYUN_COM_GPU_VISIBLE_DEVICES=0")))["ok"]
        await daemon.reload(daemon.config)
    assert capsys.readouterr().out.count("a GPU does not answer NVML") == 1
    node.nvml = no_nvml
    async with node.running() as daemon:
        await daemon.reload(daemon.config)
        await daemon.reload(daemon.config)
    assert capsys.readouterr().out.count("no NVML, using the GPUs of cgpu_km: MIG and") == 1


async def test_many_at_once_never_overcommit(node: Node) -> None:
    node.link = FakeLink(example_gpus(2))
    async with node.running():
        ids = [f"{n:064x}" for n in range(12)]
        replies = await asyncio.gather(*(node.prepare(container_id) for container_id in ids))
        assert sum(reply["ok"] for reply in replies) == 2
        assert all("left and 6043 MiB were requested" in r["error"] for r in replies if not r["ok"])
        for gpu in range(2):
            limits = [s.limit for c in node.link.containers.values() for s in c.slots if s.gpu == gpu]
            assert sum(limits) <= 15109 * MIB


async def test_bind_wants_a_pidfd_and_the_right_cookie(node: Node, tmp_path: Path) -> None:
    async with node.running():
        await node.prepare(ID)
        process = node.process()
        assert "without a pidfd" in (await node.ask(op="bind", id=ID, cookie=node.cookie(ID)))["error"]
        with open(tmp_path / "x", "w") as other:
            reply = await node.ask(op="bind", id=ID, cookie=node.cookie(ID), fds=[other.fileno()])
            assert not reply["ok"]
        pidfd = os.pidfd_open(process.pid)
        assert not (await node.ask(op="bind", id=ID, cookie="1", fds=[pidfd]))["ok"]
        assert "internal" not in (await node.ask(op="bind", id=ID, cookie="x", fds=[pidfd]))["error"]
        os.close(pidfd)
        assert (await node.bind(ID, process.pid))["ok"]
        assert not (await node.bind(ID, node.process().pid))["ok"]


def limit_memory(node: Node, group: str, text: str) -> None:
    directory = node.directory / "cgroup" / group.lstrip("/")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"/pod": "max", "/pod/one": str(512 * MIB)}, 512 * MIB),
        ({"/pod": str(256 * MIB), "/pod/one": str(512 * MIB)}, 256 * MIB),
        ({"/pod": str(256 * MIB), "/pod/one": "max"}, 256 * MIB),
        ({"/pod/one": "4096"}, MIB),
        ({"/pod": "max", "/pod/one": "max"}, 0),
        ({}, 0),
    ],
    ids=str,
)
async def test_system_memory_by_the_driver_has_the_limit_of_the_memory_cgroup(
    node: Node, texts: dict[str, str], expected: int
) -> None:
    async with node.running():
        for group, text in texts.items():
            limit_memory(node, group, text)
        await node.start(ID, "/pod/one")
        (container,) = node.link.containers.values()
        assert [slot.host_limit for slot in container.slots] == [expected]


async def test_a_member_that_has_ended_widens_no_limit_of_a_slice(node: Node) -> None:
    """Its children may live on; a limit of 0 would be none. Two that bind at once have the sum."""

    async with node.running():
        for group, mib in (("/a", 64), ("/b", 128), ("/c", 256)):
            limit_memory(node, group, str(mib * MIB))
        await node.start(ID, "/a")
        (record,) = node.daemon.records.values()
        facts = node.facts
        ended = Process(record.process.pid, record.process.starttime + 1) if record.process else None
        assert ended and facts.memory_limit(ended) is None
        living = facts.process(node.process("/b").pid)
        assert living and facts.memory_limit(living) == 128 * MIB
        node.daemon.records[record.key] = replace(record, process=ended)
        other = replace(record, id=OTHER, slice=record.kernel_key)
        await hostmem.limit(node.daemon.deps, node.daemon.records.values(), other, living)
        (container,) = node.link.containers.values()
        assert [slot.host_limit for slot in container.slots] == [128 * MIB]


async def test_a_container_that_goes_while_it_is_bound_stays_gone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node.running():
        await node.prepare(ID)
        listed = node.link.list

        async def slow() -> Any:
            monkeypatch.setattr(node.link, "list", listed)
            for record in list(node.daemon.records.values()):
                await node.daemon.handle_trigger(record.key, Trigger.POSTSTOP)
            return await listed()

        limit_memory(node, "/one", str(512 * MIB))
        process = node.process("/one")
        monkeypatch.setattr(node.link, "list", slow)
        error = (await node.bind(ID, process.pid))["error"]
        assert "is not waiting to be started" in error
        assert not node.daemon.records and not node.link.containers


async def test_a_limit_of_system_memory_that_cannot_be_set_ends_the_start(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But of a cgpu_km without that limit: there it is as before."""

    async def refuse(*_: Any) -> None:
        raise KernelRefused(number, "cgpu_km: no")

    number = errno.ENOENT
    async with node.running():
        limit_memory(node, "/one", str(512 * MIB))
        monkeypatch.setattr(node.link, "set", refuse)
        await node.prepare(ID)
        process = node.process("/one")
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        assert not (await node.bind(ID, process.pid))["ok"]
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
        number = errno.EINVAL
        assert (await node.bind(ID, process.pid))["ok"]


async def test_no_descriptor_leaks(node: Node) -> None:
    async with node.running():
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            process = await node.start(ID)
            process.kill()
            process.wait()
            await eventually(lambda: not node.link.containers, "released")
            with open("/dev/null") as null:
                await node.ask(op="status", fds=[null.fileno()] * 3)
        await asyncio.sleep(0.1)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0",
        struct.pack(">I", 0),
        struct.pack(">I", 1 << 30),
        struct.pack(">I", 10) + b"{",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 10) + b'{"op": 17}',
        struct.pack(">I", 14) + b'{"op": "nope"}',
    ],
    ids=repr,
)
async def test_junk_on_the_socket(node: Node, raw: bytes) -> None:
    def send() -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(str(node.socket))
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            return read_reply(sock)

    async with node.running():
        assert (await asyncio.to_thread(send))["ok"] is False
        assert (await node.ask(op="status"))["ok"]


async def test_the_caller_went_away(node: Node) -> None:
    async with node.running():
        bundle = node.bundle(ID)
        gate = asyncio.Event()
        real = node.link.create

        async def slow(*args: Any) -> Any:
            made = await real(*args)
            await gate.wait()
            return made

        node.link.create = slow  # type: ignore[method-assign]
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(node.socket))
        body = json.dumps({"op": "prepare", "id": ID, "bundle": str(bundle)}).encode()
        sock.sendall(struct.pack(">I", len(body)) + body)
        await eventually(lambda: node.link.containers, "created")
        sock.close()
        gate.set()
        await eventually(lambda: not node.link.containers, "taken back")


async def test_the_socket_is_for_root(node: Node) -> None:
    async with node.running():
        assert node.socket.stat().st_mode & 0o777 == 0o600


async def test_two_daemons(node: Node) -> None:
    async with node.running():
        with pytest.raises(CgpuError, match="another process"):
            async with node.running():
                pass


async def test_lost_events_mean_reconcile(node: Node) -> None:
    from cgpu_common.errors import Resync

    class Lossy(FakeLink):
        lost = False

        async def events(self, joined: Any = None) -> Any:
            if not self.lost:
                self.lost = True
                raise Resync("x")
            async for event in super().events(joined):
                yield event

    node.link = Lossy()
    async with node.running() as daemon:
        await eventually(lambda: node.link.listeners, "listening again")
        assert daemon.kernel_events["resync"] == 1
        node.link.emit(Event.REFUSED, await node.link.create(ID, 99, [SlotWant(0, 0, MIB)]))


async def test_what_ends_before_anybody_listens(node: Node) -> None:
    """The container ends between the first reading of the kernel's list and the first event that is received."""

    class Late(FakeLink):
        async def events(self, joined: Any = None) -> Any:
            await self.destroy(ID, next(iter(self.containers.values())).cookie)
            async for event in super().events(joined):
                yield event

    node.link = FakeLink()
    async with node.running():
        await node.start(ID, "/system.slice/x")
    late = Late()
    late.containers = node.link.containers
    node.link = late
    node.config = Config(reconcile_s=3600)
    async with node.running() as daemon:
        await eventually(lambda: not daemon.records, "its record is gone")


async def test_a_start_does_not_read_the_list(node: Node) -> None:
    """The cost of a start does not grow with the number of containers. Only a refusal reads the list, for the names."""

    class Counting(FakeLink):
        lists = 0

        async def list(self) -> Any:
            self.lists += 1
            return await super().list()

    node.link = link = Counting()
    async with node.running():
        await eventually(lambda: link.lists == 2, "both readings of the beginning")
        before = link.lists
        assert (await node.prepare(ID))["ok"]
        assert (await node.prepare(OTHER))["ok"]
        assert link.lists == before
        assert f"held by: {ID[:12]} 6043 MiB, {OTHER[:12]} 6043 MiB" in (await node.prepare("third"))["error"]
        assert link.lists == before + 1


async def test_sums_of_an_older_module(node: Node) -> None:
    """It sends no sums, so the daemon adds up its list."""

    class Older(FakeLink):
        async def gpus(self) -> Any:
            return tuple(replace(gpu, limits=None) for gpu in await super().gpus())

    node.link = Older()
    async with node.running():
        assert (await node.prepare(ID))["ok"]
        assert (await node.prepare(OTHER))["ok"]
        assert "has 3023 of its 15109 MiB left" in (await node.prepare("third"))["error"]


async def test_the_only_place_is_not_the_probes(node: Node) -> None:
    """The container that was created to probe a GPU is gone before the first one is admitted."""

    class Detached(FakeLink):
        async def gpus(self) -> Any:
            return tuple(gpu if self.calls else replace(gpu, driver_free=None) for gpu in await super().gpus())

    node.link = Detached((replace(example_gpus()[0], max_inst=1),))
    async with node.running():
        assert (await node.prepare(ID, ["ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=15"]))["ok"]
        assert [what for what, _, _ in node.link.calls] == ["create", "destroy", "create"]
        assert [slot.weight for slot in node.link.containers[ID].slots] == [1]


async def test_the_module_goes_and_comes_again(node: Node) -> None:
    """The daemon notices both at once: it drops its records, and writes the settings of the files again."""

    node.config = replace(node.config, gpu=GpuSettings(policy=2), reconcile_s=1000)
    known = tuple(NvmlGpu(gpu.index, gpu.uuid, gpu.pci, gpu.nv_minor, 15109) for gpu in example_gpus())
    node.nvml = lambda: known  # also while the module is away
    async with node.running():
        assert [gpu.policy for gpu in node.link.inventory] == [2]
        await eventually(lambda: node.link.listeners, "listening")
        await node.start(ID, "/one")
        node.link.unload()
        await eventually(lambda: not node.daemon.records, "forgotten")
        node.link.load([])  # it has no core yet
        await asyncio.sleep(0.2)
        node.link.load([replace(gpu, born=2) for gpu in example_gpus()])
        await eventually(lambda: node.link.inventory[0].policy == 2, "set again")
        await eventually(lambda: node.link.listeners, "listening again")


async def test_a_damaged_state_file_is_left_alone(node: Node) -> None:
    (node.directory / "state").mkdir()
    (node.directory / "state/x.json").write_text("{")
    async with node.running():
        assert (await node.ask(op="status"))["ok"]
    assert (node.directory / "state/x.json").exists()


def test_facts_of_a_real_process(tmp_path: Path) -> None:
    facts = FakeFacts(tmp_path)
    process = facts.process(os.getpid())
    assert process is not None
    pidfd = os.pidfd_open(os.getpid())
    assert facts.pid_of(pidfd) == os.getpid()
    os.close(pidfd)
    assert facts.pid_of(0) is None
    assert facts.boot_id()
