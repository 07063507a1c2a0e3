# SPDX-License-Identifier: MIT
"""Nodes and pods of the tests, and a scheduler that drives an extender over HTTP as kube-scheduler does."""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import Any

import aiohttp
from aiohttp import web
from fake_api import FakeApi, recorded
from fakes import eventually

from cgpu_kube import annotations as notes
from cgpu_kube import api as kube
from cgpu_kube.extender.access import Access
from cgpu_kube.extender.service import Extender

Object = dict[str, Any]
PODS, NODES, MAPS = "api/v1/pods", "api/v1/nodes", "api/v1/configmaps"
_uids = itertools.count(1)


def gpu(index: int, units: int, **more: Any) -> notes.NodeGpu:
    return notes.NodeGpu(index, f"GPU-{index}", units * 1024, units, more.pop("dev", units), **more)


def our_node(name: str, *gpus: notes.NodeGpu, mode: str = "cgpu", unit: str = "GiB", spread: bool = False) -> Object:
    """A node with cgpu-kube node."""
    total = str(sum(one.units for one in gpus))
    labels = {notes.MODE_LABEL: mode} | ({notes.PLACEMENT_LABEL: "spread"} if spread else {})
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": notes.write_node(notes.NodeGpus(mode, unit, tuple(gpus))),
        },
        "status": {
            "capacity": {notes.GPU_MEM: total},
            "allocatable": {notes.GPU_MEM: total},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
        },
    }


def vendor_node(name: str, units: int, count: int) -> Object:
    """A node with the vendor's plugin."""
    there = {notes.GPU_MEM: str(units), notes.GPU_COUNT: str(count)}
    return {
        "metadata": {"name": name, "labels": {"gpushare": "true"}},
        "status": {"capacity": there, "allocatable": there},
    }


def container(name: str, units: int | str | None, core: int | str | None = None, *, sidecar: bool = False) -> Object:
    limits = {key: str(value) for key, value in ((notes.GPU_MEM, units), (notes.GPU_CORE, core)) if value is not None}
    found: Object = {
        "name": name,
        "image": "box",
        "resources": {"limits": limits, "requests": limits} if limits else {},
    }
    return found | ({"restartPolicy": "Always"} if sidecar else {})


def pod(
    name: str, *containers: Object, init: tuple[Object, ...] = (), count: int | str | None = None, **more: Any
) -> Object:
    """The recorded pod, with these containers."""
    found = copy.deepcopy(recorded("extender-filter")["Pod"])
    found["metadata"] = {"name": name, "namespace": "default", "uid": f"uid-{next(_uids)}", **more}
    if count is not None:
        found["metadata"]["labels"] = {notes.GPU_COUNT: str(count)}
    found["spec"]["containers"] = list(containers)
    if init:
        found["spec"]["initContainers"] = list(init)
    return found


def simple(name: str, units: int | str, **more: Any) -> Object:
    return pod(name, container("c0", units), **more)


class Cluster:
    """`async with Cluster(nodes…) as cluster`: an API server, the extender and its HTTP server."""

    def __init__(self, *nodes: Object, token: str = "", server: FakeApi | None = None, **binder: Any) -> None:
        """`token`: clients are asked for one, and this one's user may do everything. `server`: one that others run."""
        self.token = token
        self._is_ours = server is None
        self.server = server or FakeApi()
        self.server.users[token] = {"username": "scheduler", "groups": ["system:authenticated"]}
        verbs = (("post", verb) for verb in ("filter", "prioritize", "preempt", "bind"))
        self.server.rules = {("scheduler", method, f"/gpushare-scheduler/{verb}") for method, verb in verbs}
        self.nodes = nodes
        self.binder = binder
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> Cluster:
        if self._is_ours:
            await self.server.up()
            for node in self.nodes:
                self.server.put(NODES, node)
        self.api = kube.Client(kube.Config(self.server.url))
        await self.api.__aenter__()
        self.http = aiohttp.ClientSession(headers={"Authorization": f"Bearer {self.token}"} if self.token else {})
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()
        await self.http.close()
        await self.api.__aexit__()
        if self._is_ours:
            await self.server.down()

    async def start(self, wait: bool = True) -> None:
        self.extender = Extender(self.api, Access(self.api) if self.token else None, **self.binder)
        await self.extender.__aenter__()
        self._runner = web.AppRunner(self.extender.app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        while wait and not self.extender.is_ready:
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """As by kill -9: what is in memory is lost."""
        await self._runner.cleanup()
        await self.extender.__aexit__()

    async def post(self, verb: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else None
        async with self.http.post(
            f"{self.url}/gpushare-scheduler/{verb}", json=None if data is not None else body, data=data
        ) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as answer:
            text = await answer.text()
            return answer.status, await answer.json() if "json" in answer.content_type else text

    async def filter(self, found: Object, *names: str) -> Any:
        names = names or tuple(node["metadata"]["name"] for node in self.nodes)
        status, answer = await self.post("filter", {"Pod": found, "Nodes": None, "NodeNames": list(names)})
        assert status == 200
        return answer

    async def bind(self, found: Object, node: str) -> str:
        """ "" or the sentence."""
        meta = found["metadata"]
        _, answer = await self.post(
            "bind",
            {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node},
        )
        return str(answer["Error"])

    async def schedule(self, found: Object, tries: int = 1) -> str:
        """Filter, prioritize, bind; returns the last sentence, or ""."""
        why = ""
        for _ in range(tries):
            answer = await self.filter(found)
            names = answer["NodeNames"]
            if not names:
                return "; ".join(answer["FailedNodes"].values())
            _, scores = await self.post("prioritize", {"Pod": found, "Nodes": None, "NodeNames": names})
            best = max(scores, key=lambda one: one["Score"])["Host"]
            why = await self.bind(found, best)
            if not why:
                return ""
        return why

    def put(self, found: Object) -> Object:
        return self.server.put(PODS, found)

    async def place(self, found: Object) -> Object:
        """The pod, once it is bound."""
        self.put(found)
        assert await self.schedule(found) == ""
        return self.stored(found["metadata"]["name"])

    def used(self, node: str = "n1") -> dict[int, int]:
        """Units that are taken of each GPU."""
        return {index: load.units for index, load in self.extender.ledger.used(node).items()}

    def stored(self, name: str) -> Object:
        found = self.server.get(PODS, "default", name)
        assert found is not None
        return found

    def end(self, name: str, phase: str = "") -> None:
        """Its containers end, or it is deleted."""
        if phase:
            self.server.put(PODS, copy.deepcopy(self.stored(name)) | {"status": {"phase": phase}})
        else:
            self.server.remove(PODS, "default", name)

    async def settled(self) -> None:
        """The extender has every event."""
        last = max((event[0] for event in self.server.events if event[1] == PODS), default=0)
        await eventually(lambda: int(self.extender.pods._version or 0) >= last, "every event", 10)
