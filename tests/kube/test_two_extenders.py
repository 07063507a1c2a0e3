# SPDX-License-Identifier: MIT
"""Two extender processes and 200 pods that fill a cluster to the last unit, while the one that serves is killed,
stopped for longer than its Lease lasts, and cut off from the API server: no GPU is given away twice.

LEASE=real has the times of a cluster instead of short ones, and takes two minutes.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from cluster import NODES, PODS, Cluster, gpu, our_node, simple
from extender_process import ready
from fake_api import FakeApi, kubeconfig
from fakes import eventually, free_port
from node_world import placed
from test_lease import LEASES
from test_storm import check_sums

from cgpu_kube import api
from cgpu_kube.extender.lease import Times
from cgpu_kube.extender.service import SERVES_LABEL

TIMES = Times() if os.environ.get("LEASE") == "real" else Times(1.5, 1.0, 0.2)
COUNT, UNITS, GPU_UNITS = 200, 3, 15
NODE_NAMES = [f"n{number}" for number in range(10)]  # of 4 GPUs: room for COUNT pods, and for none more
SIZES = {(name, index): GPU_UNITS for name in NODE_NAMES for index in range(4)}
HTTP_TIMEOUT_S = 2.0  # of the scheduler: a stopped extender accepts connections and does not answer
WORKERS = 8

#: The command, with other times of the Lease: no option has them.
PROGRAM = """
import functools, sys
from cgpu_kube.extender import command
from cgpu_kube.extender.lease import Times
command.LeaseArgs = functools.partial(command.LeaseArgs, times=Times(*map(float, sys.argv.pop(1).split(","))))
from cgpu_kube.main import main
main()
"""


class Gate:
    """One extender's way to the API server. While it is cut, bytes in both directions wait, as in a network that loses
    packets: what was sent before arrives late."""

    def __init__(self, server: str) -> None:
        self._port = int(server.rpartition(":")[2])
        self._open = asyncio.Event()
        self._open.set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        tasks: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            for pair in ((reader, back), (there, writer)):
                task = asyncio.create_task(self._pass(*pair))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in [*tasks]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()


class Replica:
    """One extender's pod: its process, which may be started again."""

    def __init__(self, name: str, folder: Path, server: FakeApi) -> None:
        self.name = name
        self.gate = Gate(server.url)
        self.url = ""
        self.process: asyncio.subprocess.Process
        self._folder = folder
        self._server = server

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        pod = {"metadata": {"namespace": "cgpu-system", "name": self.name}, "spec": {"containers": []}}
        self._server.put(PODS, pod)
        self._folder.mkdir()
        async with self.gate.listening() as url:
            self._config = kubeconfig(self._folder, url)
            await self.start()
            try:
                yield
            finally:
                await self.kill()

    async def start(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = ("extender", "--insecure", "--listen", f"127.0.0.1:{port}", "--lease", "cgpu-system/cgpu-extender")
        times = f"{TIMES.seconds},{TIMES.held_s},{TIMES.retry_s}"
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, times, *words, "--kubeconfig", str(self._config), "--log-level", "error"),
            env={**os.environ, "POD_NAME": self.name, "PYTHONPATH": str(Path(__file__).parents[2])},
        )

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


class World:
    """The API server, both extenders, and a scheduler, which reaches the extender that has the label of the Service."""

    def __init__(self, server: FakeApi, replicas: list[Replica], http: aiohttp.ClientSession) -> None:
        self.server, self.replicas, self._http = server, replicas, http
        self.goal = 0  # pods that may be bound so far
        self.taken: Counter[str] = Counter()  # sentences and errors of binds that failed
        self.served: set[str] = set()  # holders of the Lease during a bind
        self._chance = random.Random(11)
        self._left = [simple(f"p{number}", UNITS) for number in range(COUNT)]

    # ---- the scheduler ----

    def _labelled(self, one: Replica) -> bool:
        found = self.server.get(PODS, "cgpu-system", one.name)
        return found is not None and (found["metadata"].get("labels") or {}).get(SERVES_LABEL) == "true"

    def _endpoint(self) -> Replica:
        """By the label; at times the other one, as a Service whose endpoints are a moment old."""
        serving = [one for one in self.replicas if self._labelled(one)]
        return self._chance.choice(serving if serving and self._chance.random() < 0.9 else self.replicas)

    async def _post(self, one: Replica, verb: str, body: dict[str, Any]) -> Any:
        async with self._http.post(f"{one.url}/gpushare-scheduler/{verb}", json=body) as answer:
            return await answer.json()

    async def try_once(self, found: dict[str, Any], one: Replica | None = None) -> str:
        """ "" or the sentence."""
        try:
            body = {"Pod": found, "Nodes": None, "NodeNames": NODE_NAMES}
            answer = await self._post(one or self._endpoint(), "filter", body)
            if not answer.get("NodeNames"):
                return str(answer.get("Error") or "; ".join(answer["FailedNodes"].values()))
            meta = found["metadata"]
            args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"]}
            # The Service may have another endpoint by now.
            args["Node"] = self._chance.choice(answer["NodeNames"][:3])
            return str((await self._post(one or self._endpoint(), "bind", args))["Error"])
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__

    async def _work(self) -> None:
        while self._left:
            if len(self.server.bindings) + WORKERS > self.goal:
                await asyncio.sleep(0.01)
                continue
            found = self._left.pop()
            name = found["metadata"]["name"]
            self.server.put(PODS, copy.deepcopy(found))
            while not self.is_bound(name):  # by an answer that came too late for the scheduler, too
                if why := await self.try_once(found):
                    self.taken[why] += 1
                    await asyncio.sleep(0.05 * (1 + self._chance.random()))
            self.served.add(self.holder())

    def is_bound(self, name: str) -> bool:
        found = self.server.get(PODS, "default", name)
        return found is not None and bool(found["spec"].get("nodeName"))

    @asynccontextmanager
    async def scheduler(self) -> AsyncIterator[asyncio.Task[Any]]:
        async def all_of_it() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(self._work())

        task = asyncio.create_task(all_of_it())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # ---- what is there ----

    def holder(self) -> str:
        found = self.server.get(LEASES, "cgpu-system", "cgpu-extender")
        return str(found["spec"]["holderIdentity"]) if found else ""

    def serving(self) -> Replica:
        return next(one for one in self.replicas if self.holder().startswith(f"{one.name}_"))

    async def until_bound(self, count: int) -> None:
        await eventually(lambda: len(self.server.bindings) >= count, f"{count} pods bound", 90)

    async def until_another(self, than: str) -> None:
        await eventually(lambda: self.holder() not in ("", than), "another extender holds the Lease", 90)


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    timeout = aiohttp.ClientTimeout(total=HTTP_TIMEOUT_S)
    async with FakeApi() as server, aiohttp.ClientSession(timeout=timeout) as http, AsyncExitStack() as stack:
        for name in NODE_NAMES:
            server.put(NODES, our_node(name, *(gpu(index, GPU_UNITS) for index in range(4))))
        replicas = [Replica(name, tmp_path / name, server) for name in ("e1", "e2")]
        for one in replicas:
            await stack.enter_async_context(one.running())
        for one in replicas:
            await ready(http, one.url)
        yield World(server, replicas, http)


async def check_for_ever(found: World) -> None:
    cluster: Any = SimpleNamespace(server=found.server)
    while True:
        check_sums(cluster, SIZES)
        await asyncio.sleep(0.02)


async def killed(found: World) -> None:
    one, holder = found.serving(), found.holder()
    await one.kill()
    await one.start()
    await found.until_another(holder)


async def stopped(found: World) -> None:
    """It takes itself for the holder when it goes on, until it looks at its clock."""
    one, holder, began = found.serving(), found.holder(), time.monotonic()
    one.process.send_signal(signal.SIGSTOP)
    try:
        await found.until_another(holder)
        await found.until_bound(found.goal - WORKERS)
        await asyncio.sleep(max(0.0, began + TIMES.seconds - time.monotonic()))
    finally:
        one.process.send_signal(signal.SIGCONT)


async def cut_off(found: World) -> None:
    """What it has sent arrives when another one serves."""
    one, holder = found.serving(), found.holder()
    one.gate.cut()
    try:
        await found.until_another(holder)
        await found.until_bound(found.goal - WORKERS)
    finally:
        one.gate.mend()


TROUBLE: list[Callable[[World], Awaitable[None]]] = [killed, stopped, cut_off, killed]


@pytest.mark.within(400)
async def test_two_processes_and_200_pods(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    began = time.monotonic()
    chance = random.Random(7)
    async with world(tmp_path) as found:

        async def slow(method: str, path: str) -> None:
            """Writes are on their way when the trouble comes."""
            if method in ("PATCH", "POST") and "/pods/p" in path:
                await asyncio.sleep(chance.choice((0, 0.02, 0.1)))

        found.server.before = slow
        check = asyncio.create_task(check_for_ever(found))
        async with found.scheduler() as scheduler:
            part = COUNT // len(TROUBLE)
            for number, trouble in enumerate(TROUBLE):
                found.goal = (number + 1) * part
                await found.until_bound(number * part + part // 3)
                await trouble(found)
            found.goal = COUNT + WORKERS
            await scheduler
        assert not check.done(), check
        check.cancel()
        check_sums(SimpleNamespace(server=found.server), SIZES)
        per_pod = Counter(name for _namespace, name, _node in found.server.bindings)
        assert len(per_pod) == COUNT and set(per_pod.values()) == {1}
        # All GPUs are full, by the account of the extender that serves, and of the other one when it does.
        for is_last in (False, True):
            one = found.serving()
            more = simple(f"more-{one.name}", 1)
            found.server.put(PODS, copy.deepcopy(more))
            why = "serves, not this one"
            while "serves, not this one" in why:
                why = await found.try_once(more, one)
            assert "1 GiB asked for" in why, why
            if not is_last:
                holder = found.holder()
                one.process.terminate()
                await found.until_another(holder)
        took = time.monotonic() - began
        print(f"{COUNT} pods in {took:.0f} s, {len(found.served)} holders; failed binds: {dict(found.taken)}")
        record_property("seconds", round(took, 1))
        record_property("holders", len(found.served))


def bound_by_another(cluster: Cluster, name: str, gpu_index: int) -> None:
    """As the other extender's writes leave the pod."""
    found = copy.deepcopy(cluster.stored(name))
    found["metadata"]["annotations"] = placed({"c0": {gpu_index: 10}}, 15)
    found["spec"]["nodeName"] = "n1"
    cluster.put(found)


@pytest.mark.parametrize(("node", "why"), [("n1", ""), ("n2", "pod default/a is on node n1 already")])
async def test_an_answer_from_before_a_binding_frees_nothing(node: str, why: str) -> None:
    """An extender that was stopped handles the event of the other one's Binding first, and then the answer to its own
    read, in which the pod is on no node. The reservation replaced the bound pod, and its end freed the GPU."""
    async with Cluster(*(our_node(name, gpu(0, 15), gpu(1, 15)) for name in ("n1", "n2"))) as cluster:
        one = simple("a", 10)
        cluster.put(one)
        client, binder = cluster.api, cluster.extender.binder

        async def get(path: str) -> Any:
            answer = await client.get(path)
            bound_by_another(cluster, "a", 0)
            await cluster.settled()
            return answer

        binder._api = SimpleNamespace(get=get, patch=client.patch, create=client.create)
        binder._may_write = lambda: False
        assert await cluster.bind(one, node) == why
        assert cluster.used() == {0: 10}


async def test_the_choice_of_the_extender_that_bound_a_pod_counts() -> None:
    """This one has reserved another GPU of the same node, and its write is refused."""
    async with Cluster(our_node("n1", gpu(0, 15), gpu(1, 15))) as cluster:
        one = simple("a", 10)
        cluster.put(one)
        held = asyncio.Event()

        async def before(method: str, _path: str) -> None:
            if method == "PATCH":
                held.set()
                bound_by_another(cluster, "a", 1)
                await cluster.settled()

        cluster.server.before = before
        assert await cluster.bind(one, "n1") == ""
        assert held.is_set() and cluster.used() == {1: 10}


class Late:
    """The first Binding is on its way for longer than its client waits, and takes effect at `arrive`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held = asyncio.Event()
        self._first = True
        self.patches = asyncio.Event()  # until then each write to a pod is on its way, too
        self.patches.set()
        cluster.server.before = self._before

    async def _before(self, method: str, path: str) -> None:
        if method == "PATCH":
            await self.patches.wait()
        if path.endswith("/binding") and self._first:
            self._first = False
            await self._held.wait()

    async def arrive(self) -> None:
        self._held.set()
        await asyncio.sleep(0.1)
        check_sums(self._cluster, {("n1", 0): 15, ("n2", 0): 15})


@asynccontextmanager
async def in_doubt(monkeypatch: pytest.MonkeyPatch, doubt_s: float) -> AsyncIterator[tuple[Cluster, Late]]:
    """Pods x and y of 10, two nodes of 15, and x on its way to n1."""
    monkeypatch.setattr(api, "REQUEST_TIMEOUT_S", 0.5)
    async with Cluster(our_node("n1", gpu(0, 15)), our_node("n2", gpu(0, 15)), doubt_s=doubt_s) as cluster:
        for name in "xy":
            cluster.put(simple(name, 10))
        late = Late(cluster)
        assert "does not answer" in await cluster.bind(cluster.stored("x"), "n1")
        assert cluster.extender.binder.doubts == 1
        yield cluster, late


async def test_a_binding_later_than_doubts_last_takes_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extender may be stopped, or cut off, between its last look at the Lease and the Binding."""
    async with in_doubt(monkeypatch, 0.3) as (cluster, late):
        await eventually(lambda: not cluster.extender.binder.doubts, "the doubt ends")
        assert await cluster.bind(cluster.stored("y"), "n1") == ""
        await late.arrive()
        assert not cluster.stored("x")["spec"].get("nodeName")
        assert await cluster.bind(cluster.stored("x"), "n2") == ""


@pytest.mark.parametrize("is_fast", [False, True], ids=["after-the-next-try", "during-the-next-try"])
async def test_the_next_try_leaves_no_gap_for_the_binding_before(
    monkeypatch: pytest.MonkeyPatch, is_fast: bool
) -> None:
    """The next try may choose other GPUs: those of the try before are taken until its Binding can take no effect."""
    async with in_doubt(monkeypatch, 30) as (cluster, late):
        x, y = cluster.stored("x"), cluster.stored("y")
        if is_fast:
            late.patches.clear()
            again = asyncio.create_task(cluster.bind(x, "n2"))
            await asyncio.sleep(0.1)
            assert "10 GiB asked for" in await cluster.bind(y, "n1")
            await late.arrive()
            late.patches.set()
            assert "is on node n1 already" in await again
            assert await cluster.bind(y, "n2") == ""
        else:
            assert await cluster.bind(x, "n2") == ""
            assert await cluster.bind(y, "n1") == ""
            await late.arrive()
        check_sums(cluster, {("n1", 0): 15, ("n2", 0): 15})
