# SPDX-License-Identifier: MIT
"""Clients of MPS in the daemon: their start, the watch over their memory, and each failure on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_mps import FakeControl, exclusive
from fakelink import FakeLink, example_gpus
from fakes import Node, eventually

from cgpu_common.config import Config
from cgpud import mps_node
from cgpud.values import Phase

UUIDS = [gpu.uuid for gpu in example_gpus(2)]
ONE, TWO = "a" * 64, "b" * 64
VARIABLES = ("CGPU_DISABLE=true", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8G,1=4G")


class World:
    """A node with an MPS server on GPU 0; containers are sleeps in groups of their own."""

    def __init__(self, directory: Path, count: int = 1, **unit: Any) -> None:
        self.mode = "exclusive process"
        link = FakeLink(example_gpus(count))
        self.node = Node(directory, link=link, nvml=lambda: exclusive(count, self.mode))
        self.control = FakeControl(directory / "mps")
        self.node.mps = self.control
        self.control.start(UUIDS[0], **unit)
        dev = directory / "dev"
        dev.mkdir()
        for name, real in (("nvidiactl", "null"), ("nvidia-uvm", "zero"), ("nvidia0", "full"), ("nvidia1", "random")):
            (dev / name).symlink_to(f"/dev/{real}")
        self.node.facts.dev = dev

    async def grant(self, container: str, mib: int = 4096, gpu: int = 0, **more: Any) -> dict[str, Any]:
        grant = {
            "subject": {"id": container},
            "variables": {"CGPU_DISABLE": "true"},
            "whole": UUIDS[gpu],
            "mps": {"memory_mib": mib, **more},
        }
        return await self.node.ask(op="grant", grant=grant)

    def change(self, container: str, change: Any) -> None:
        """The next prepare() of this container reads what @change made of its config.json."""
        with self.node.edited(container) as spec:
            change(spec)

    async def prepare(self, container: str, change: Any = None) -> dict[str, Any]:
        if not self.control.blind:
            await eventually(lambda: self.node.daemon.mps.clients_mib or not self.control.serving(), "a sample")
        self.change(container, change or (lambda spec: None))
        return await self.node.again(container)

    async def refused(self, container: str = ONE, change: Any = None) -> str:
        before = (self.node.directory / "bundles" / container / "config.json").exists()
        reply = await self.prepare(container, change)
        assert not reply["ok"], reply
        assert before or not self.node.daemon.records.get(container)
        return str(reply["error"])

    async def start(self, container: str, mib: int = 4096) -> int:
        """The pid of its first process."""
        assert (await self.grant(container, mib))["ok"]
        reply = await self.prepare(container)
        assert reply["ok"], reply
        process = self.node.process(f"/docker/{container}")
        reply = await self.node.bind(container, process.pid)
        assert reply["ok"], reply
        return process.pid

    async def row(self, container: str) -> dict[str, Any]:
        rows = (await self.node.ask(op="mps"))["containers"]
        return next(row for row in rows if row["id"] == container)

    async def events(self) -> list[str]:
        return [one["text"] for one in (await self.node.ask(op="events"))["events"]]


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(mps_node, "START_S", 0.0)  # of programs that have started long ago
    found = World(tmp_path, **getattr(request, "param", {}))
    yield found
    found.node.cleanup()


async def test_a_client_has_the_nodes_the_pipes_and_its_limit(world: World) -> None:
    async with world.node.running() as daemon:
        assert (await world.grant(ONE, threads=30))["ok"]
        reply = await world.prepare(ONE)
        spec = world.node.spec(ONE)
        (bind,) = spec["hooks"]["createRuntime"]
        assert bind["args"][2] == "bind"
        assert bind["args"][4:] == [f"--closed={reply['closed']}"], "runc restores without createContainer"
        assert spec["hooks"]["createContainer"][-1]["args"][2:] == ["check", f"--closed={reply['closed']}"]
        assert spec["linux"]["readonlyPaths"][-1] == "/proc/driver"
        env = dict(entry.split("=", 1) for entry in spec["process"]["env"])
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3968M"
        assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
        nodes = {one["path"] for one in spec["linux"]["devices"] if "nvidia" in one["path"]}
        assert nodes == {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"}
        sources = {one["destination"]: one["source"] for one in spec["mounts"]}
        place = world.control.directory(UUIDS[0])
        assert sources["/dev/shm"] == f"{place}/shm" and sources["/tmp/nvidia-mps"] == f"{place}/pipe"
        assert sources["/tmp/nvidia-mps/control_privileged"] == f"{place}/none"
        assert world.control.limits == [(UUIDS[0], 3968)], "the server's own limit"
        (record,) = daemon.records.values()
        assert (record.phase, record.mps and record.mps.mib) == (Phase.PREPARED, 4096)
        assert not world.node.link.containers, "there is no slice"


async def test_a_daemon_that_restarted_before_its_answer_takes_its_own_edit(world: World) -> None:
    """The runtime asks again with the config.json that is written already: it becomes the same once more."""

    def written(spec: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(spec)
        (cookie,) = {hook["args"][3] for hook in spec["hooks"]["createRuntime"]}
        found: dict[str, Any] = json.loads(text.replace(cookie, "COOKIE"))
        rules = found["linux"]["resources"]["devices"]  # each node's rule once more, behind the same one
        found["linux"]["resources"]["devices"] = [one for at, one in enumerate(rules) if one not in rules[:at]]
        return found

    directory = str(world.node.directory / "bundles" / ONE)
    async with world.node.running():
        assert (await world.grant(ONE))["ok"]
        assert (await world.prepare(ONE))["ok"]
    first = written(world.node.spec(ONE))
    async with world.node.running():
        await eventually(lambda: world.node.daemon.mps.clients_mib, "a sample")
        reply = await world.node.ask(op="prepare", id=ONE, bundle=directory)
        assert reply["ok"], reply
        assert written(world.node.spec(ONE)) == first
        other = f"{world.control.directory(UUIDS[1])}/shm"  # of another GPU's server, or at another place: the author's
        for where, source in (("/dev/shm", other), ("/dev/shm/a", first["mounts"][-1]["source"])):
            mount = {"destination": where, "type": "bind", "source": source}
            assert "over /dev/shm" in await world.refused(ONE, lambda spec, mount=mount: spec["mounts"].append(mount))


async def test_the_server_is_told_the_largest_grant_and_again_after_its_restart(world: World) -> None:
    async with world.node.running():
        await world.start(ONE, 4096)
        await world.start(TWO, 2048)
        assert world.control.limits == [(UUIDS[0], 3968)]
        world.control.stop(UUIDS[0])
        world.control.start(UUIDS[0])  # another life
        await eventually(lambda: len(world.control.limits) == 2, "told again")
        assert world.control.limits[1] == (UUIDS[0], 3968)


async def test_a_container_over_its_grant_loses_that_process_and_no_other(world: World) -> None:
    async with world.node.running() as daemon:
        one, two = await world.start(ONE, 2048), await world.start(TWO, 2048)
        child = world.node.process(f"/docker/{ONE}/deeper").pid
        world.control.use(UUIDS[0], one, 1000)
        world.control.use(UUIDS[0], two, 2000)
        world.control.use(UUIDS[0], child, 1500)
        await eventually(lambda: world.control.ended == [child], "the larger one is ended")
        await eventually(lambda: daemon.mps.accounts[next(iter(daemon.records))].used_mib == 1000, "its memory")
        row, other = await world.row(ONE), await world.row(TWO)
        assert (row["overs"], row["ended"], row["evict"]) == (1, 1, "")
        assert (other["used_mib"], other["overs"], other["ended"]) == (2000, 0, 0)
        assert any("uses 2500 MiB of GPU memory and was given 2048" in text for text in await world.events())


async def test_a_client_that_starts_is_ended_a_little_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's server hangs when it has to end one amid its start. It is noticed at once, and one that has run for a
    while is ended at once."""
    monkeypatch.setattr(mps_node, "START_S", 1.5)
    async with world.node.running() as daemon:
        first, other = await world.start(ONE, 2048), await world.start(TWO, 2048)
        world.control.use(UUIDS[0], other, 500)
        await eventually(lambda: other in daemon.mps._first.get(UUIDS[0], {}), "seen")
        await asyncio.sleep(1.6)
        world.control.use(UUIDS[0], first, 3000)
        world.control.use(UUIDS[0], other, 3000)
        await eventually(lambda: all(one.is_over for one in daemon.mps.accounts.values()), "noticed")
        await eventually(lambda: world.control.ended == [other], "ended at once")
        await asyncio.sleep(0.3)
        assert world.control.ended == [other], "it starts"
        await eventually(lambda: world.control.ended == [other, first], "and now it has started")


async def test_a_process_that_mps_does_not_end_is_killed_and_no_other(world: World) -> None:
    async with world.node.running() as daemon:
        first, other = await world.start(ONE, 2048), await world.start(TWO, 2048)
        greedy = world.node.process(f"/docker/{ONE}/deeper").pid
        world.control.stuck = "no answer within 5 s"
        world.control.use(UUIDS[0], greedy, 3000)
        world.control.use(UUIDS[0], first, 500)
        world.control.use(UUIDS[0], other, 2048)
        await eventually(lambda: daemon.mps.ended["killed"], "tried")
        await eventually(lambda: ended(greedy), "gone: a signal takes effect later than it is sent")
        assert not ended(first) and not ended(other)
        assert any(f"process {greedy} was killed, since MPS did not end it" in one for one in await world.events())
        kinds = [one["fields"]["kind"] for one in (await world.node.ask(op="events"))["events"]]
        assert "mps_killed" in kinds and "mps_ended" not in kinds, "an event of its own"
        row = await world.row(ONE)
        assert (row["ended"], row["killed"], row["evict"]) == (1, 1, "")


def ended(pid: int) -> bool:
    """It is gone, or a zombie of this test."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_process_that_has_left_the_group_meanwhile_is_not_killed(world: World) -> None:
    """Its number may be another process's by now."""

    async with world.node.running() as daemon:
        pid = await world.start(ONE, 2048)
        stranger = world.node.process("/docker/elsewhere").pid
        (record,) = daemon.records.values()
        assert record.cgroup is not None
        assert not world.node.facts.kill(stranger, record.cgroup) and not ended(stranger)
        assert world.node.facts.kill(pid, record.cgroup)
        await eventually(lambda: ended(pid), "killed")
        assert not world.node.facts.kill(1 << 22, record.cgroup)


async def test_a_process_that_cannot_be_killed_has_to_go_with_its_pod(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int, _group: object) -> bool:
        raise PermissionError(1, "Operation not permitted")

    async with world.node.running() as daemon:
        pid = await world.start(ONE, 2048)
        monkeypatch.setattr(world.node.facts, "kill", refuse)
        world.control.stuck = "Invalid process!"
        world.control.use(UUIDS[0], pid, 3000)
        await eventually(lambda: daemon.mps.ended["failed"], "tried")
        assert "MPS does not end it (Invalid process!), and it cannot" in (await world.row(ONE))["evict"]


async def test_without_nvml_nothing_is_watched_and_nothing_new_starts(world: World) -> None:
    async with world.node.running() as daemon:
        await world.start(ONE, 2048)
        world.control.blind = "GPU is lost"
        await eventually(lambda: daemon.mps.blind, "noticed")
        assert (await world.node.ask(op="mps"))["blind"] == "GPU is lost"
        await world.grant(TWO)
        assert "is not known (GPU is lost), so no limit is watched" in await world.refused(TWO)
        world.control.blind = ""
        await eventually(lambda: not daemon.mps.blind, "known again")
        assert "the memory of MPS clients is known again" in await world.events()
        assert (await world.prepare(TWO))["ok"]


async def test_the_end_of_a_container_and_a_restart_of_the_daemon(world: World) -> None:
    async with world.node.running():
        await world.start(ONE, 2048)
        await world.start(TWO, 2048)
    async with world.node.running() as daemon:
        assert {record.mps and record.mps.mib for record in daemon.records.values()} == {2048}
        await daemon.reconcile()
        assert len(daemon.records) == 2, "the kernel has no containers of them"
        await world.node.ask(op="release", id=ONE, cookie=world.node.cookie(ONE))
        assert [record.id for record in daemon.records.values()] == [TWO]
        world.node.populate(f"/docker/{TWO}", False)
        await eventually(lambda: not daemon.records, "its group is empty")
        assert (await world.node.ask(op="mps"))["containers"] == []


def privileged(spec: dict[str, Any]) -> None:
    spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]


def other_user(spec: dict[str, Any]) -> None:
    spec["process"]["user"] = {"uid": 1000, "gid": 0}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [(privileged, "every device (--privileged)"), (other_user, "runs as user 1000")],
)
async def test_what_cannot_be_a_client_is_refused(world: World, change: Any, sentence: str) -> None:
    async with world.node.running() as daemon:
        await world.start(TWO)
        await world.grant(ONE)
        assert sentence in await world.refused(ONE, change)
        assert len(daemon.records) == 1 and len(world.control.limits) == 1, "nothing has changed"


async def test_each_failure_of_the_server_has_a_sentence(world: World) -> None:
    async with world.node.running():
        await world.grant(ONE)
        unit = f"cgpu-mps@{UUIDS[0]}.service"
        world.control.dead = "no answer within 5 s"
        why = await world.refused()
        assert f"does not answer (no answer within 5 s): systemctl status {unit} shows its state" in why
        world.control.dead = ""
        world.control.exclusive = False
        await eventually(lambda: not world.node.daemon.mps.exclusive, "seen")
        why = await world.refused()
        assert "has an MPS server and is not in the compute mode EXCLUSIVE_PROCESS, so that programs could" in why
        assert f"systemctl restart {unit} sets the mode" in why
        world.control.stop(UUIDS[0])
        assert f"GPU 0 has no MPS server: systemctl enable --now {unit} starts one" in await world.refused()


@pytest.mark.parametrize("world", [{"clients": 2}], indirect=True)
async def test_grants_are_bounded_by_the_gpu_and_by_the_clients(world: World) -> None:
    async with world.node.running():
        await eventually(lambda: world.node.daemon.mps.clients_mib, "a sample")
        offer = (await world.node.ask(op="capacity"))["gpus"][0]["mps"]
        assert offer == {
            "mib": 15109 - 472 - 512,
            "clients": 2,
            "limit": "cooperative limit, watched; one fatal fault ends all clients of the GPU",
            "why": "",
        }
        await world.start(ONE, 10_000)
        await world.grant(TWO, 5000)
        assert "left for clients of MPS and 5000 MiB were requested" in await world.refused(TWO)
        await world.start(TWO, 256)
        await world.grant("c" * 64, 256)
        assert "has 2 containers already, and its MPS server takes 2 clients" in await world.refused("c" * 64)


@pytest.mark.parametrize("world", [{"count": 2}], indirect=True)
async def test_a_gpu_with_mps_takes_no_slice(world: World) -> None:
    async with world.node.running():
        gpus = (await world.node.ask(op="capacity"))["gpus"]
        assert "GPU 0 has an MPS server (systemctl stop" in gpus[0]["why"]
        assert "compute mode" in gpus[1]["why"] and "has no MPS server" in gpus[1]["mps"]["why"]
        sliced = ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_IDX=0")
        assert "has an MPS server" in (await world.node.prepare("d" * 64, sliced))["error"]
        await world.start(ONE)
        world.control.stop(UUIDS[0])
        world.mode = ""
        why = (await world.node.prepare("d" * 64, sliced))["error"]
        assert "has 1 container(s) of an MPS server that has ended" in why, "its containers have the whole GPU"


@pytest.mark.parametrize("world", [{"by_cgroup": True}], indirect=True)
async def test_from_driver_615_the_cgroup_is_limited_before_the_first_process_runs(
    tmp_path: Path, world: World
) -> None:
    async with world.node.running():
        await world.start(ONE, 2048)
        assert world.control.cgroups == [(UUIDS[0], str(tmp_path / "cgroup/docker" / ONE), 2048)]
        world.control.refuses_cgroups = "Insufficient Permissions"
        with pytest.raises(AssertionError, match=r"does not limit the GPU's memory of .*: Insufficient Permissions"):
            await world.start(TWO, 2048)
        assert "limit of the cgroup" in (await world.node.ask(op="capacity"))["gpus"][0]["mps"]["limit"]


async def test_an_exec_that_could_leave_the_mode_is_refused(world: World) -> None:
    async with world.node.running() as daemon:
        await world.start(ONE)
        reply = await world.node.ask(op="exec", id=ONE, capability="CAP_SYS_ADMIN")
        assert "is a client of MPS, whose mode of the GPU a process with CAP_SYS_ADMIN could undo" in reply["error"]
        daemon.config = Config(allow_privileged=True)
        assert (await world.node.ask(op="exec", id=ONE, capability="CAP_SYS_ADMIN"))["ok"]


@pytest.mark.parametrize(
    ("grant", "sentence"),
    [
        ({"mps": {"memory_mib": 0}}, "a grant of MPS has 1 to"),
        ({"mps": {"memory_mib": 1, "threads": 0}}, "1 to 100 percent of the threads, not 0"),
        ({"mps": {"memory_mib": 1, "threads": 101}}, "not 101"),
        ({"mps": {"memory_mib": 4096}, "whole": "", "variables": {}}, "names its GPU in `whole`"),
        ({"mps": {"memory_mib": "x"}}, "not a grant"),
    ],
)
async def test_bad_grants(world: World, grant: dict[str, Any], sentence: str) -> None:
    async with world.node.running():
        body = {"subject": {"id": ONE}, "variables": {"CGPU_DISABLE": "true"}, "whole": UUIDS[0], **grant}
        assert sentence in (await world.node.ask(op="grant", grant=body))["error"]


async def test_no_client_starts_before_the_watch_is_there(world: World) -> None:
    world.control.silent = True
    async with world.node.running() as daemon:
        (gpu,) = await daemon.inventory.snapshot()
        assert "(NVML has not answered yet), so no limit is watched" in daemon.mps.offer(gpu)["why"]
        world.control.silent = False
        await eventually(lambda: daemon.mps.clients_mib, "seen")


async def test_a_program_with_the_servers_name_is_its_containers(world: World) -> None:
    async with world.node.running() as daemon:
        pid = await world.start(ONE, 2048)
        world.control.use(UUIDS[0], 1, 700, is_server=True)
        world.control.use(UUIDS[0], pid, 3000, is_server=True)
        await eventually(lambda: world.control.ended == [pid], "ended")
        await eventually(lambda: daemon.mps.server_mib[UUIDS[0]] == 700, "the server's own")
        offer = (await world.node.ask(op="capacity"))["gpus"][0]["mps"]
        assert offer["mib"] == 15109 - 472 - 700
