# SPDX-License-Identifier: MIT
"""The part of a kubelet that takes pods of the API server: it admits each once, or fails it for good, and writes the
node's status. Rules and words are those of 1.36.2 (pkg/kubelet/cm/devicemanager/manager.go, devicesToAllocate), seen
with agents that were away. Beside it a kube-scheduler and a ReplicaSet, as far as failed pods go."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fake_kubelet import NotEnough
from node_world import NODE, NODES, PODS, World, container

from cgpu_kube import api as kube
from cgpu_kube.annotations import GPU_MEM
from cgpu_kube.errors import KubeError
from cgpu_kube.extender import protocol
from cgpu_kube.extender.protocol import BindArgs
from cgpu_kube.extender.service import Extender, LeaseArgs
from cgpu_kube.pods import is_agent

Object = dict[str, Any]
REASON = "UnexpectedAdmissionError"
NAMESPACE = "cgpu-system"


class Admission:
    """`async with Admission(world, tick_s).running()`. The kubelet writes the node's status every @tick_s (10 s)."""

    def __init__(self, world: World, tick_s: float) -> None:
        self.world = world
        self.tick_s = tick_s
        self.admitted: dict[str, str] = {}  # uid -> id of its container
        self.failed: dict[str, str] = {}  # name -> message
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Admission]:
        self.start()
        try:
            yield self
        finally:
            await self.stop()

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._sync()), asyncio.create_task(self._status())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        bad = [one for one in results if isinstance(one, Exception)]
        assert not bad, bad
        self._tasks = []

    async def reboot(self, agent_is_first: bool) -> None:
        """Containers are gone, the checkpoint of the devices is not. @agent_is_first: by its unit, which is before the
        kubelet; else by the DaemonSet, whose pod the kubelet starts itself."""
        await self.stop()
        await self.world.kubelet.stop()
        await self.world.stop_agent()
        for one in self.admitted.values():
            await self.world.end(one)
        self.admitted.clear()
        if agent_is_first:
            await self.world.start_agent()
            await self.world.agent.prepared.wait()
        await self.world.kubelet.restart()
        await asyncio.sleep(0.5)  # to its first pod: it lists them from the API server, checks the runtime, and so on
        self.start()
        if not agent_is_first:
            await self.world.start_agent()

    def _pods(self) -> list[Object]:
        found = [one for one in self.world.api.pods().values() if one["spec"].get("nodeName") == NODE]
        found = [one for one in found if not is_agent(one)]  # which asks for nothing
        return [one for one in found if one["status"].get("phase") not in ("Failed", "Succeeded")]

    async def _sync(self) -> None:
        while True:
            for pod in self._pods():
                if pod["metadata"]["uid"] not in self.admitted and pod["metadata"]["name"] not in self.failed:
                    await self._admit(pod)
            await asyncio.sleep(0.02)

    async def _admit(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        why = self._refusal(pod)
        if not why:
            try:
                self.admitted[uid] = await self.world.start(pod)
            except NotEnough as error:
                why = str(error)
        message = f"Pod was rejected: Allocate failed due to {why}, which is unexpected"
        status = {"phase": "Failed", "reason": REASON, "message": message} if why else {"phase": "Running"}
        if why:
            self.failed[name] = why
        stored = copy.deepcopy(self.world.api.get(PODS, "team", name))
        assert stored is not None
        self.world.api.put(PODS, stored | {"status": status})

    def _refusal(self, pod: Object) -> str:
        resource = self.world.kubelet.resources.get(GPU_MEM)
        if resource is None:
            return f"cannot allocate unregistered device {GPU_MEM}"
        mine = {one for one, holder in resource.used.items() if holder[1] == pod["metadata"]["name"]}
        healthy = {one for one, is_healthy in resource.devices.items() if is_healthy}
        if not healthy:
            return f"no healthy devices present; cannot allocate unhealthy devices {GPU_MEM}"
        if not mine <= healthy:
            return f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {GPU_MEM}"
        for one in mine:  # of its checkpoint: the pod has them again
            del resource.used[one]
        return ""

    async def _status(self) -> None:
        while True:
            there = str(self.world.kubelet.allocatable(GPU_MEM))
            node = self.world.api.get(NODES, "", NODE)
            if node is not None and node.get("status", {}).get("allocatable", {}).get(GPU_MEM) != there:
                now = copy.deepcopy(node)
                now.setdefault("status", {}).setdefault("allocatable", {})[GPU_MEM] = there
                self.world.api.put(NODES, now)
            await asyncio.sleep(self.tick_s)


def agent_pod(world: World, runs: bool, *, name: str = "cgpu-node-1", namespace: str = NAMESPACE) -> None:
    """The DaemonSet's, with the state of its container as the kubelet writes it."""
    state = {"running": {}} if runs else {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    meta = {"name": name, "namespace": namespace, "uid": name, "labels": {"app.kubernetes.io/name": "cgpu-node"}}
    status = {"phase": "Running", "containerStatuses": [{"name": "node", "state": state}]}
    spec = {"nodeName": NODE, "containers": [{"name": "node"}]}
    world.api.put(PODS, {"metadata": meta, "spec": spec, "status": status})


class Wanted:
    """A ReplicaSet of @count pods with @units each, and a scheduler with the extender that binds them."""

    def __init__(self, world: World, count: int, units: int) -> None:
        self.world = world
        self.count = count
        self.units = units
        self.made: list[str] = []
        self._numbers = itertools.count(1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Wanted]:
        lease = LeaseArgs(NAMESPACE, "cgpu-extender", "e_1")
        async with (
            kube.Client(kube.Config(self.world.api.url)) as client,
            Extender(client, None, lease=lease) as extender,
        ):
            task = asyncio.create_task(self._control(extender))
            try:
                yield self
            finally:
                task.cancel()
                (result,) = await asyncio.gather(task, return_exceptions=True)
                assert isinstance(result, asyncio.CancelledError), result

    def alive(self) -> list[Object]:
        found = [self.world.api.get(PODS, "team", name) for name in self.made]
        return [one for one in found if one is not None and one["status"]["phase"] not in ("Failed", "Succeeded")]

    def running_now(self) -> int:
        return sum(one["status"]["phase"] == "Running" for one in self.alive())

    async def _control(self, extender: Extender) -> None:
        while True:
            while len(self.alive()) < self.count:
                name = f"w{next(self._numbers)}"
                self.made.append(name)
                self.world.pod(name, container(mem=self.units), spec={"nodeName": ""})
            for pod in self.alive():
                if not pod["spec"].get("nodeName"):
                    await self._schedule(extender, pod)
            await asyncio.sleep(0.02)

    async def _schedule(self, extender: Extender, pod: Object) -> None:
        """NodeResourcesFit by the node's status, then the extender's filter and bind."""
        node = self.world.api.get(NODES, "", NODE)
        there = int((node or {}).get("status", {}).get("allocatable", {}).get(GPU_MEM, 0))
        held = sum(self.units for one in self.alive() if one["spec"].get("nodeName"))
        if not extender.is_ready or not extender.is_leader or there - held < self.units:
            return
        args = protocol.FilterArgs(pod, (NODE,), None)
        if any(why for _, why in protocol.refusals(args, extender.ledger)):
            return
        meta = pod["metadata"]
        try:
            await extender.binder.bind(BindArgs(meta["name"], meta["namespace"], meta["uid"], NODE))
        except KubeError:
            pass
