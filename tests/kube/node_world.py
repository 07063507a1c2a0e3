# SPDX-License-Identifier: MIT
"""A node with everything but a kernel: cgpud on the fake kernel with GPUs of 15 and 79 GiB, cgpu-kube, a kubelet and an
API server of the tests. Containers are bundles, as containerd writes them, that cgpud prepares."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fake_api import FakeApi
from fake_kubelet import FakeKubelet
from fakelink import FakeLink, example_gpus
from fakes import Node, eventually

from cgpu_common.config import Config
from cgpu_common.model import MIB
from cgpu_kube import annotations as keys
from cgpu_kube import api
from cgpu_kube.annotations import GPU_CORE, GPU_MEM, MODE_LABEL, NV_GPU
from cgpu_kube.ledger import Ledger, read_node
from cgpu_kube.node.agent import Agent
from cgpu_kube.node.settings import Settings
from cgpud.kube import KubeClient
from cgpud.labels import CONTAINERD

NODE = "n1"
NODES, PODS, SLICES = "api/v1/nodes", "api/v1/pods", "apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "apis/resource.k8s.io/v1/resourceclaims"
SIZES = (15109, 81559)


def two_gpus() -> FakeLink:
    """15 and 79 GiB; the driver itself uses a part of each."""
    first, second = example_gpus(2)
    return FakeLink(
        (
            replace(first, driver_free=(SIZES[0] - 400) * MIB),
            replace(second, total=SIZES[1] * MIB, driver_free=(SIZES[1] - 1500) * MIB),
        )
    )


def container(name: str = "main", mem: int | str | None = None, core: int | None = None, **more: Any) -> dict[str, Any]:
    limits = {key: str(value) for key, value in ((GPU_MEM, mem), (GPU_CORE, core)) if value is not None}
    return {"name": name, "resources": {"limits": limits, **more.pop("resources", {})}, **more}


#: Later than the fake API server's creation times, so that a node takes it for its scheduler's.
NOW_NS = 1_900_000_000 * 10**9


def bound(gpu: int, units: int) -> dict[str, str]:
    """As the vendor's extender writes its choice."""
    return {
        keys.INDEX: str(gpu),
        keys.DEV: "47",
        keys.POD: str(units),
        keys.ASSIGNED: "false",
        keys.ASSUME_TIME: str(NOW_NS),
    }


def placed(table: Mapping[str, Mapping[int, int]], dev: int = 80) -> dict[str, str]:
    """As our extender writes its choice: container -> GPU -> units."""
    return keys.write(table, dev, NOW_NS)


def of_an_earlier_loop(fault: Mapping[str, Any]) -> bool:
    """Whether grpc, of the tests' kubelet, has reported an event of a loop that is closed: its thread is one for all.

    The loop of a test ends with the test, so an event that is late meets the loop of the next one.
    """
    return "PollerCompletionQueue" in repr(fault["handle"]) and str(fault.get("exception")) == "Event loop is closed"


def is_of_a_cancelled_accept(fault: Mapping[str, Any]) -> bool:
    """Whether a connection came in the moment in which cgpud stopped accepting: asyncio (3.11) accepts it for a future
    that is cancelled, and reports that. The connection is closed with the socket object, as by the listener's end."""
    return "_sock_accept(<Future cancelled>" in str(fault.get("message"))


@dataclass
class World:
    """`async with world.running():`; parts may be stopped and started."""

    directory: Path
    link: FakeLink = field(default_factory=two_gpus)
    mode: str | None = "cgpu"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api = FakeApi()
        self.kubelet = FakeKubelet(self.directory / "kubelet")
        (self.directory / "d").mkdir()
        self.node = Node(self.directory / "d", config=Config(kube_wait_s=3))
        self.node.link = self.link
        self.socket = self.directory / "kube.sock"
        self.node.decider = KubeClient(self.socket)
        self.agent: Agent
        self._task: asyncio.Task[None] | None = None
        self._client: api.Client | None = None
        self._count = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        async with self.api, self.kubelet:
            await self.start_cgpud()
            self.label(self.mode)
            await self.start_agent()
            try:
                yield self
            finally:
                await self.stop_agent()
                await self.stop_cgpud()
                self.node.cleanup()
        failed = [
            fault
            for fault in faults
            if "handle" in fault and not of_an_earlier_loop(fault) and not is_of_a_cancelled_accept(fault)
        ]
        assert not failed, f"a callback has failed: {failed}"

    @asynccontextmanager
    async def offering(self, units: int = 15 + 79) -> AsyncIterator[Self]:
        """As running(), once the kubelet has so many devices and the agent has read the pods."""
        async with self.running():
            await self.offers(units)
            yield self

    async def offers(self, units: int = 15 + 79) -> None:
        await eventually(lambda: self.offered() == units, f"{units} devices, not {self.offered()}")
        await eventually(lambda: self.agent.cluster.pods.synced.is_set(), "pods")

    def has_real_nodes(self) -> None:
        """Of both GPUs, for the modes that give a container those; other devices stand in for them."""
        dev = self.directory / "dev"
        dev.mkdir()
        for name, real in (("nvidiactl", "null"), ("nvidia-uvm", "zero"), ("nvidia0", "full"), ("nvidia1", "random")):
            (dev / name).symlink_to(f"/dev/{real}")
        self.node.facts.dev = dev

    async def start_cgpud(self) -> None:
        self._cgpud = self.node.running()
        await self._cgpud.__aenter__()

    async def stop_cgpud(self) -> None:
        await self._cgpud.__aexit__(None, None, None)

    def label(self, mode: str | None, **more: str) -> None:
        node = self.api.get(NODES, "", NODE) or {
            "metadata": {"name": NODE},
            "status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.9"}},
        }
        labels = {**({MODE_LABEL: mode} if mode is not None else {}), **more}
        self.api.put(NODES, {**node, "metadata": {**node["metadata"], "labels": labels}})

    async def start_agent(self) -> None:
        self._client = await api.Client(api.Config(self.api.url)).__aenter__()
        settings = Settings(
            node=NODE,
            kubelet=self.kubelet.directory,
            cgpud=self.node.socket,
            socket=self.socket,
            state=self.directory / "state",
            cdi=self.directory / "cdi",
            **{"poll_s": 0.1, "refresh_s": 0.2, "clean_s": 0.2, "pod_wait_s": 0.5, **self.settings},
        )
        self.agent = Agent(settings, self._client)
        self._task = asyncio.create_task(self.agent.run())

    async def stop_agent(self) -> None:
        """Also where it was killed: nothing is written at the end."""
        if self._task is not None:
            self._task.cancel()
            results = await asyncio.gather(self._task, return_exceptions=True)
            assert isinstance(results[0], asyncio.CancelledError | None), results
        if self._client is not None:
            await self._client.__aexit__()
        self._task = self._client = None

    # ---- what the kubelet and the API server have ----

    def offered(self, resource: str = GPU_MEM) -> int:
        return self.kubelet.allocatable(resource)

    def own_node(self) -> dict[str, Any]:
        found = self.api.get(NODES, "", NODE)
        assert found is not None
        return found

    def published(self) -> keys.NodeGpus | None:
        return keys.parse_node(self.own_node()["metadata"].get("annotations"))

    def is_there(self) -> bool:
        """Whether the extender binds pods to the node, and the kubelet admits them."""
        found = self.published()
        return found is not None and not found.away and self.offered() == 15 + 79

    def remains(self) -> dict[str, dict[int, int]] | None:
        """What deleted pods hold: pod -> GPU -> units."""
        found = self.published()
        return {one.pod: dict(one.units) for one in found.deleted.values()} if found else None

    def condition(self, kind: str = "GPUMemoryHeld") -> tuple[str, str] | None:
        found = [one for one in self.own_node()["status"].get("conditions", []) if one["type"] == kind]
        return (found[0]["status"], found[0]["message"]) if found else None

    def mode_refused(self) -> str:
        """Why the node has not the mode of its label; "": it has."""
        return (self.condition("GPUModeRefused") or ("", ""))[1]

    def stored(self, name: str) -> dict[str, Any]:
        """A pod."""
        found = self.api.get(PODS, "team", name)
        assert found is not None
        return found

    def counted(self, name: str) -> dict[int, int]:
        """Units of each GPU, as the extender counts the pod."""
        ledger = Ledger()
        ledger.set_node(NODE, read_node(self.own_node()))
        ledger.set_pod(self.stored(name))
        return {index: load.units for index, load in ledger.used(NODE).items()}

    # ---- pods ----

    def pod(
        self,
        name: str,
        *containers: dict[str, Any],
        init: tuple[dict[str, Any], ...] = (),
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        status: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        return self.api.put(
            PODS,
            {
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    "annotations": dict(annotations or {}),
                    "labels": dict(labels or {}),
                },
                "spec": {
                    "nodeName": NODE,
                    "containers": list(containers),
                    "initContainers": list(init),
                    **(spec or {}),
                },
                "status": {"phase": "Pending", **(status or {})},
            },
        )

    def container_id(self) -> str:
        self._count += 1
        return hashlib.sha256(str(self._count).encode()).hexdigest()

    async def allocate(self, pod: dict[str, Any], name: str, reuse: tuple[str, ...] = ()) -> dict[str, str]:
        """The kubelet's Allocate for a container: its environment."""
        spec = pod["spec"]
        (one,) = (c for c in [*spec["initContainers"], *spec["containers"]] if c["name"] == name)
        env: dict[str, str] = {}
        for resource in (GPU_MEM, GPU_CORE, NV_GPU):
            if count := int(one["resources"]["limits"].get(resource, 0)):
                env |= await self.kubelet.allocate(resource, count, "team", pod["metadata"]["name"], name, reuse)
        return env

    def bundle(self, pod: dict[str, Any], name: str, env: Mapping[str, str], *author: str, uid: str = "") -> str:
        """A config.json of this container, the variables of the author after those of the engine. Returns its id."""
        container_id = self.container_id()
        directory = self.node.bundle(container_id, (*(f"{key}={value}" for key, value in env.items()), *author))
        spec = json.loads((directory / "config.json").read_text())
        meta = pod["metadata"]
        subject = {"namespace": "team", "pod": meta["name"], "uid": uid or meta["uid"], "container": name}
        labels = {"container": "name"}
        spec["annotations"] = {CONTAINERD[labels.get(key, key)]: value for key, value in subject.items()}
        (directory / "config.json").write_text(json.dumps(spec))
        return container_id

    async def prepare(self, container_id: str) -> dict[str, Any]:
        directory = self.directory / "d/bundles" / container_id
        return await self.node.ask(op="prepare", id=container_id, bundle=str(directory))

    async def start(self, pod: dict[str, Any], name: str = "main", *author: str) -> str:
        """Allocate, write the bundle, prepare: the id, or AssertionError with cgpud's sentence."""
        container_id = self.bundle(pod, name, await self.allocate(pod, name), *author)
        reply = await self.prepare(container_id)
        assert reply["ok"], reply["error"]
        return container_id

    async def refused(self, pod: dict[str, Any], name: str = "main", *author: str) -> str:
        reply = await self.prepare(self.bundle(pod, name, await self.allocate(pod, name), *author))
        assert not reply["ok"], reply
        return str(reply["error"])

    def env(self, container_id: str) -> dict[str, str]:
        spec = json.loads((self.directory / "d/bundles" / container_id / "config.json").read_text())
        return dict(entry.split("=", 1) for entry in spec["process"]["env"])

    def slots(self, container_id: str) -> list[tuple[int, int]]:
        """(GPU, MiB) of the kernel's container."""
        return [(slot.gpu, slot.limit // MIB) for slot in self.link.containers[container_id].slots]

    async def end(self, container_id: str) -> None:
        await self.node.ask(op="release", id=container_id, cookie=self.node.cookie(container_id))
