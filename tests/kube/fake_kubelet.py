# SPDX-License-Identifier: MIT
"""A kubelet, as far as device plugins and DRA drivers see one: its sockets, its restart, and its accounts.

Behaviour is that of kubelet 1.36.2 as recorded: at its start it removes every socket in device-plugins/; a container's
Allocate comes without a name; the ids of init containers are used again by the main ones; pod-resources lists what was
allocated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc import aio

from cgpu_kube.node import wire
from cgpu_kube.node.rpc import Method, UnixServer, call


class NotEnough(Exception):
    """UnexpectedAdmissionError: the kubelet has too few healthy devices left."""


@dataclass
class Resource:
    """One device plugin as the kubelet knows it."""

    endpoint: Path
    devices: dict[str, bool] = field(default_factory=dict)  # id -> healthy
    lists: int = 0
    used: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # id -> namespace, pod, container


class FakeKubelet:
    """`async with FakeKubelet(directory) as kubelet:`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.resources: dict[str, Resource] = {}
        self.registered = asyncio.Event()
        self.lists_init = True
        self.drivers: dict[str, str] = {}  # name -> endpoint
        self.health: list[Any] = []
        self._servers: list[UnixServer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> FakeKubelet:
        for name in ("device-plugins", "plugins", "plugins_registry", "pod-resources"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        for path in (self.directory / "device-plugins").iterdir():
            path.unlink()
        register = {"Register": Method(wire.plugin.RegisterRequest, self._register)}
        listing = {"List": Method(wire.resources.ListPodResourcesRequest, self._list)}
        self._servers = [
            UnixServer(self.directory / "device-plugins/kubelet.sock", {"v1beta1.Registration": register}),
            UnixServer(self.directory / "pod-resources/kubelet.sock", {"v1.PodResourcesLister": listing}),
        ]
        for server in self._servers:
            await server.start()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for server in self._servers:
            await server.stop()

    async def restart(self) -> None:
        """Running containers keep what they have."""
        await self.stop()
        for resource in self.resources.values():
            resource.devices = {}
        self.registered.clear()
        await self.start()

    # ---- device plugins ----

    async def _register(self, request: Any) -> Any:
        assert request.version == "v1beta1"
        old = self.resources.get(request.resource_name)
        endpoint = self.directory / "device-plugins" / request.endpoint
        assert endpoint.is_socket(), "the kubelet dials the plugin at once"
        resource = Resource(endpoint)
        resource.used = old.used if old else {}
        self.resources[request.resource_name] = resource
        # As Kubernetes 1.20: the streams of earlier registrations stay open, and the last answer of any counts.
        self._tasks.append(asyncio.create_task(self._follow(request.resource_name, resource)))
        self.registered.set()
        return wire.plugin.Empty()

    async def _follow(self, name: str, resource: Resource) -> None:
        options = [("grpc.max_receive_message_length", 4 << 20)]
        async with aio.insecure_channel(f"unix://{resource.endpoint}", options=options) as channel:
            watch = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                request_serializer=wire.plugin.Empty.SerializeToString,
                response_deserializer=wire.plugin.ListAndWatchResponse.FromString,
            )
            try:
                async for answer in watch(wire.plugin.Empty()):
                    found = {device.ID: device.health == "Healthy" for device in answer.devices}
                    self.resources[name].devices = found
                    self.resources[name].lists += 1
            except aio.AioRpcError:
                if self.resources[name] is resource:
                    resource.devices = {}

    def health_status(self, name: str) -> int:
        """What ResourceHealthStatus of 1.36 does at each answer of a plugin, under the device manager's lock: for each
        allocated device it looks through those of the resource. Returns the number of looks."""
        resource, looks = self.resources[name], 0
        for used in resource.used:
            for device in resource.devices:
                looks += 1
                if device == used:
                    break
        return looks

    def allocatable(self, name: str) -> int:
        resource = self.resources.get(name)
        return sum(resource.devices.values()) if resource else 0

    async def allocate(
        self, name: str, count: int, namespace: str, pod: str, container: str, reuse: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """The container's environment. `reuse`: ids of its pod's init containers; nothing is preferred then."""
        resource = self.resources[name]
        free = [one for one, healthy in resource.devices.items() if healthy and one not in resource.used]
        ids = list(reuse)[:count]
        if len(ids) < count:
            if len(free) + len(ids) < count:
                raise NotEnough(f"{name}: {len(free)} of {count} left")
            ids += await self._preferred(resource, free, count - len(ids)) if not reuse else free[: count - len(ids)]
        request = wire.plugin.AllocateRequest(
            container_requests=[wire.plugin.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = await call(resource.endpoint, "/v1beta1.DevicePlugin/Allocate", request, wire.plugin.AllocateResponse)
        for one in ids:
            resource.used[one] = (namespace, pod, container)
        (response,) = answer.container_responses
        return dict(response.envs)

    @staticmethod
    async def _preferred(resource: Resource, free: list[str], count: int) -> list[str]:
        one = wire.plugin.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=count)
        answer = await call(
            resource.endpoint,
            "/v1beta1.DevicePlugin/GetPreferredAllocation",
            wire.plugin.PreferredAllocationRequest(container_requests=[one]),
            wire.plugin.PreferredAllocationResponse,
        )
        chosen = list(answer.container_responses[0].deviceIDs)
        assert len(chosen) == count and set(chosen) <= set(free)
        return chosen

    def free(self, pod: str) -> None:
        for resource in self.resources.values():
            resource.used = {one: owner for one, owner in resource.used.items() if owner[1] != pod}

    async def _list(self, _request: Any) -> Any:
        answer = wire.resources.ListPodResourcesResponse()
        for name, resource in self.resources.items():
            for owner in sorted(set(resource.used.values())):
                namespace, pod, container = owner
                entry = answer.pod_resources.add(name=pod, namespace=namespace).containers.add(name=container)
                entry.devices.add(
                    resource_name=name, device_ids=[one for one, holder in resource.used.items() if holder == owner]
                )
        return answer

    # ---- DRA ----

    async def find_drivers(self) -> None:
        """What the plugin watcher does with each socket in its directory."""
        for path in sorted((self.directory / "plugins_registry").iterdir()):
            info = await call(
                path, "/pluginregistration.Registration/GetInfo", wire.registration.InfoRequest(),
                wire.registration.PluginInfo,
            )  # fmt: skip
            assert info.type == "DRAPlugin" and "v1.DRAPlugin" in info.supported_versions
            assert Path(info.endpoint).is_socket()
            self.drivers[info.name] = info.endpoint
            status = wire.registration.RegistrationStatus(plugin_registered=True)
            await call(path, "/pluginregistration.Registration/NotifyRegistrationStatus", status,
                       wire.registration.RegistrationStatusResponse)  # fmt: skip
            self._tasks.append(asyncio.create_task(self._watch_health(info.endpoint)))

    async def _watch_health(self, endpoint: str) -> None:
        async for answer in self._health(endpoint):
            self.health.append({one.device.device_name: one.health for one in answer.devices})

    @staticmethod
    async def _health(endpoint: str) -> AsyncIterator[Any]:
        async with aio.insecure_channel(f"unix://{endpoint}") as channel:
            watch = channel.unary_stream(
                "/v1alpha1.DRAResourceHealth/NodeWatchResources",
                request_serializer=wire.health.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=wire.health.NodeWatchResourcesResponse.FromString,
            )
            try:
                async for answer in watch(wire.health.NodeWatchResourcesRequest()):
                    yield answer
            except aio.AioRpcError:
                return

    async def prepare(self, driver: str, *claims: tuple[str, str, str]) -> dict[str, Any]:
        """(namespace, name, uid) -> answer by uid."""
        return await self._ask(driver, "NodePrepareResources", claims)

    async def unprepare(self, driver: str, *claims: tuple[str, str, str]) -> dict[str, Any]:
        return await self._ask(driver, "NodeUnprepareResources", claims)

    async def _ask(self, driver: str, method: str, claims: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
        request, answer = (getattr(wire.dra, f"{method}{word}") for word in ("Request", "Response"))
        of = [wire.dra.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]
        path = f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}"
        return dict((await call(Path(self.drivers[driver]), path, request(claims=of), answer)).claims)
