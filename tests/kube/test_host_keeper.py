# SPDX-License-Identifier: MIT
"""`cgpu-kube keep` on the host, and the agent in a pod: whatever becomes of the pod, the kubelet has the devices, also
after a boot, before it has started the pod."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from admission import Admission, Wanted
from agent_process import START_S, Process, standing
from fake_kubelet import FakeKubelet
from fakes import eventually
from node_world import bound, container
from structlog.testing import capture_logs

from cgpu_kube.annotations import GPU_MEM
from cgpu_kube.errors import KubeError
from cgpu_kube.node.host_keeper import AGENT_LOCK, JOURNAL, HostKeeper
from cgpu_kube.node.keeper import host_streams
from cgpu_kube.node.turn import Turn

DEVICES = [[f"GPU-0-_-{number}", True] for number in range(8)]
OFFER = {"offer": GPU_MEM, "name": "gpu-mem", "apart": False, "spread": False, "links": {}, "devices": DEVICES}


def open_streams(world: Process) -> int:
    """ListAndWatch calls of the kubelet, of all registrations so far."""
    return sum(not one.done() for one in world.kubelet._tasks)


async def boot(world: Process, kubelet: Admission, how: int) -> None:
    """Up to the kubelet's first pods. @how: as every process of the node ends."""
    await kubelet.stop()
    await world.kubelet.stop()
    if how == signal.SIGTERM:
        await world.stop_agent()
    else:
        await world.kill()
    await world.stop_keeper(how)
    for one in kubelet.admitted.values():
        await world.end(one)
    kubelet.admitted.clear()
    await world.start_keeper()  # the kubelet is ordered after the unit
    await world.kubelet.restart()
    await asyncio.sleep(0.5)
    kubelet.start()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["reboot", "crash"])
async def test_a_reboot_under_the_daemonset_fails_no_pod(tmp_path: Path, how: int) -> None:
    """Pods whose restartPolicy is Always, which no controller makes again. Their containers wait for the agent, which
    the kubelet starts as any other pod's."""
    async with standing(tmp_path, keeper=True) as world, Admission(world, 0.5).running() as kubelet:
        for name in "abc":
            world.pod(name, container(mem=4), annotations=bound(0 if name == "a" else 1, 4))
        await eventually(lambda: len(kubelet.admitted) == 3, "running", START_S)
        await boot(world, kubelet, how)
        await asyncio.sleep(2.0)
        assert kubelet.failed == {}, "they are admitted without the agent"
        await world.start_agent()
        await eventually(lambda: kubelet.failed or len(kubelet.admitted) == 3, "running again", START_S)
        assert kubelet.failed == {}
        assert sorted(gpu for one in kubelet.admitted.values() for gpu, _ in world.slots(one)) == [0, 1, 1]
        await world.serves()


async def test_the_kubelet_has_the_devices_while_the_pod_is_away(tmp_path: Path) -> None:
    """After SIGTERM, and after SIGKILL. A pod that was bound already, or by a scheduler without the extender, waits.
    (15 and 60 s: tests/cluster. Nothing on the way has a time of its own.)"""
    async with standing(tmp_path, keeper=True) as world, Admission(world, 0.5).running() as kubelet:
        resource = world.kubelet.resources[GPU_MEM]
        for name, end in (("p", world.stop_agent), ("q", world.kill)):
            await end()
            pod = world.pod(name, container(mem=6), annotations=bound(0, 6))
            await asyncio.sleep(2)
            assert (kubelet.failed, world.offered()) == ({}, 94)
            await world.start_agent()
            uid = pod["metadata"]["uid"]
            await eventually(lambda uid=uid: kubelet.failed or uid in kubelet.admitted, "the pod starts", START_S)
            assert kubelet.failed == {} and world.slots(kubelet.admitted[uid]) == [(0, 6043)]
            await world.serves()
            assert world.kubelet.resources[GPU_MEM] is resource, "nothing is registered again"


async def test_wanted_pods_come_through_a_roll_of_the_pod(tmp_path: Path) -> None:
    async with (
        standing(tmp_path, keeper=True) as world,
        Admission(world, 0.5).running() as kubelet,
        Wanted(world, 2, 6).running() as wanted,
    ):
        await eventually(lambda: wanted.running_now() == 2, "two pods", START_S)
        await world.stop_agent()
        wanted.count = 4
        await asyncio.sleep(2.0)
        assert wanted.running_now() == 2, "the extender binds none meanwhile: the node was published as away"
        await world.start_agent()
        await eventually(lambda: wanted.running_now() == 4, "four pods", 2 * START_S)
        assert kubelet.failed == {} and len(wanted.made) == 4


async def test_the_kubelet_and_then_the_unit_restart(tmp_path: Path) -> None:
    """The kubelet while there is no agent. The unit by an update of the host's files: the agent ends with its stream,
    and the next one finds the unit's next life."""
    async with standing(tmp_path, keeper=True) as world:
        await world.kill()
        await world.kubelet.restart()
        await eventually(lambda: world.offered() == 94, "registered again", 5)
        await world.start_agent()
        await stays_registered(world)
        first = world.agent_pid()
        await world.stop_keeper(signal.SIGKILL)
        await world.start_keeper()
        await world.next_agent(first)
        await stays_registered(world)


async def stays_registered(world: Process) -> None:
    await world.serves()
    resource = world.kubelet.resources[GPU_MEM]
    await asyncio.sleep(2.0)
    assert world.kubelet.resources[GPU_MEM] is resource, "by one of the two"


@pytest.mark.parametrize("dies", [False, True], ids=["in-order", "killed"])
async def test_an_agent_without_the_unit_hands_over_when_it_comes(tmp_path: Path, dies: bool) -> None:
    """The installer's pod and the agent's start at the same time on a bare node. The agent may also be killed before
    its first process has seen the unit."""
    program = f"from cgpu_kube.node import keeper; keeper.HOST_S = {60 if dies else 0.5}; {Process.program}"
    async with standing(tmp_path, program=program) as world:
        first, own = world.agent_pid(), world.kubelet.resources[GPU_MEM]
        await world.start_keeper()
        if dies:
            world.kill_agent()
        await world.next_agent(first)
        await eventually(lambda: world.kubelet.resources[GPU_MEM] is not own, "registered by the unit", START_S)
        await world.serves()
        assert open_streams(world) == 1, "a kubelet from 1.25 on has no devices when any of the resource ends"
        resource = world.kubelet.resources[GPU_MEM]
        await world.kill()
        await asyncio.sleep(1.0)
        assert world.kubelet.resources[GPU_MEM] is resource and world.offered() == 94
        await world.start_agent()
        await world.serves()
        await world.stop_keeper()
        left = [path.name for path in (world.kubelet.directory / "device-plugins").iterdir()]
        assert [name for name in left if name != "kubelet.sock"] in ([], ["cgpu-gpu-mem.sock"])


async def test_a_kubelet_that_restarts_before_the_agent_has_offered(tmp_path: Path) -> None:
    """The agent has the lock, and waits for cgpud. It is no agent with sockets of its own."""
    async with standing(tmp_path, keeper=True) as world:
        await world.kill()
        world.options = {"cgpud": str(tmp_path / "none")}
        await world.start_agent()
        turn = Turn(tmp_path / "state" / AGENT_LOCK)
        await eventually(lambda: not turn.is_free(), "it has the lock", START_S)
        await asyncio.sleep(1.0)
        await world.kubelet.restart()
        await eventually(lambda: world.offered() == 94, "registered again", 5)
        world.options = {}


async def test_an_agent_that_hangs_is_replaced(tmp_path: Path) -> None:
    program = f"from cgpu_kube.node import keeper; keeper.HUNG_S, keeper.BEAT_S = 5, 0.2; {Process.program}"
    async with standing(tmp_path, keeper=True, program=program) as world:
        first = world.agent_pid()
        os.kill(first, signal.SIGSTOP)
        await world.next_agent(first)
        await world.serves()


# ---- in this process ----


@asynccontextmanager
async def keeping(tmp_path: Path, **more: float) -> AsyncIterator[tuple[HostKeeper, FakeKubelet]]:
    kubelet = FakeKubelet(tmp_path / "kubelet")
    keeper = HostKeeper(kubelet.directory / "device-plugins", tmp_path / "state", tmp_path / "k.sock", 0.1, **more)
    async with kubelet:
        work = asyncio.create_task(keeper.run())
        await asyncio.wait({work, started := asyncio.create_task(keeper.started.wait())}, return_when="FIRST_COMPLETED")
        started.cancel()
        if work.done():
            work.result()
        try:
            yield keeper, kubelet
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def journal(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "state" / JOURNAL
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


async def test_a_promise_ends_without_an_agent_and_the_journal_stays(tmp_path: Path) -> None:
    path = journal(tmp_path, json.dumps({"offers": [OFFER]}))
    async with keeping(tmp_path, promise_s=2.0) as (_, kubelet):
        await eventually(lambda: kubelet.allocatable(GPU_MEM) == 8, "registered")
        await eventually(lambda: kubelet.allocatable(GPU_MEM) == 0, "no agent has come")
        _, writer = await asyncio.open_unix_connection(tmp_path / "k.sock")
        writer.write(json.dumps(OFFER).encode() + b"\n")
        await eventually(lambda: kubelet.allocatable(GPU_MEM) == 8, "one has come")
        await asyncio.sleep(2.5)
        assert kubelet.allocatable(GPU_MEM) == 8, "and acts"
        writer.close()
    assert json.loads(path.read_text()) == {"offers": [OFFER]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"offers": [[]]}',
        json.dumps({"offers": [{**OFFER, "devices": [["a", 1]]}]}),
        json.dumps({"offers": [{**OFFER, "name": 3}]}),
    ],
)
async def test_a_file_that_is_no_journal_promises_nothing(tmp_path: Path, text: str) -> None:
    journal(tmp_path, text)
    with capture_logs() as lines:
        async with keeping(tmp_path) as (_, kubelet):
            await asyncio.sleep(0.5)
            assert kubelet.allocatable(GPU_MEM) == 0
    assert [one["event"] for one in lines] == ["the journal of offers is not read"]


async def test_an_agent_with_sockets_of_its_own_is_left_alone(tmp_path: Path) -> None:
    """Two plugins of one resource would take it from each other. It has the lock of the agents."""
    import fcntl

    journal(tmp_path, json.dumps({"offers": [OFFER]}))
    with open(tmp_path / "state/agent.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with keeping(tmp_path) as (_, kubelet):
            await asyncio.sleep(1.0)
            assert kubelet.allocatable(GPU_MEM) == 0
            lock.close()
            await eventually(lambda: kubelet.allocatable(GPU_MEM) == 8, "it has ended")


async def test_an_agent_that_waits_behind_one_with_sockets_of_its_own(tmp_path: Path) -> None:
    """An update from before the unit: the next agent is connected, and the last one serves."""
    journal(tmp_path, json.dumps({"offers": [OFFER]}))
    other = Turn(tmp_path / "state" / AGENT_LOCK)
    assert other.take()
    async with keeping(tmp_path) as (_, kubelet):
        _, writer = await asyncio.open_unix_connection(tmp_path / "k.sock")
        await asyncio.sleep(1.0)
        assert kubelet.allocatable(GPU_MEM) == 0, "connected"
        writer.write(b'{"alive": true, "serves": false}\n{"alive": true}\n')
        await asyncio.sleep(1.0)
        assert kubelet.allocatable(GPU_MEM) == 0, "it waits"
        writer.write(b'{"alive": true, "serves": true}\n')
        await eventually(lambda: kubelet.allocatable(GPU_MEM) == 8, "the lock is its own, and it has not offered yet")
        writer.close()
    other.give()


async def test_one_keeper_of_a_node_and_its_socket_is_roots(tmp_path: Path) -> None:
    async with keeping(tmp_path):
        assert (tmp_path / "k.sock").stat().st_mode & 0o777 == 0o600
        other = HostKeeper(tmp_path / "kubelet/device-plugins", tmp_path / "state", tmp_path / "k.sock")
        with pytest.raises(KubeError, match="another `cgpu-kube keep` serves"):
            await other.run()
        (tmp_path / "k.sock").unlink()  # /run was cleared
        await eventually((tmp_path / "k.sock").exists, "made again")
        before = os.umask(0o22)
        os.umask(before)
        assert before == 0o22, "as it was: files of other parts are made meanwhile"
        assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    (tmp_path / "k.sock").write_text("x")
    with pytest.raises(KubeError, match="is no socket"):
        async with keeping(tmp_path):
            pass


async def test_a_line_that_is_none_ends_its_stream_only(tmp_path: Path) -> None:
    async with keeping(tmp_path) as (keeper, kubelet):
        for line in (b"x\n", b'{"offer": 3}\n', b"[]\n", b'{"register": "r"}\n'):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "k.sock")
            writer.write(line)
            async with asyncio.timeout(5):
                while await reader.read(4096):
                    pass
            writer.close()
        _, writer = await asyncio.open_unix_connection(tmp_path / "k.sock")
        writer.write(json.dumps(OFFER).encode() + b"\n")
        await eventually(lambda: keeper.plugins, "the next one's offer")
        writer.close()
        await eventually(lambda: kubelet.allocatable(GPU_MEM) == 8, "registered without it")


async def test_a_journal_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "state" / JOURNAL).mkdir(parents=True)
    with capture_logs() as lines:
        async with keeping(tmp_path) as (keeper, kubelet):
            _, writer = await asyncio.open_unix_connection(tmp_path / "k.sock")
            writer.write(json.dumps(OFFER).encode() + b"\n")
            await eventually(lambda: keeper.plugins, "heard")
            writer.close()
            await eventually(lambda: kubelet.allocatable(GPU_MEM) == 8, "the offer")
            await asyncio.sleep(1.5)
    assert [one["event"] for one in lines].count("the journal of offers is not written") == 1


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ('{"protocol": 1, "directory": [DEV, INO]}', True),
        ('{"protocol": 2, "directory": [DEV, INO]}', False),
        ('{"protocol": 1, "directory": [DEV, 0]}', False),
        ('{"state": {}}', False),
        ("no JSON", False),
    ],
)
async def test_a_keeper_of_another_kubelet_or_version(tmp_path: Path, line: str, taken: bool) -> None:
    """The agent's first process serves the sockets itself then."""
    found = tmp_path.stat()
    text = line.replace("DEV", str(found.st_dev)).replace("INO", str(found.st_ino))

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{text}\n".encode())

    path = tmp_path / "keeper.sock"
    async with await asyncio.start_unix_server(greet, path):
        streams = await host_streams(path, tmp_path)
    assert (streams is not None) is taken
    if streams is not None:
        streams[1].transport.abort()
