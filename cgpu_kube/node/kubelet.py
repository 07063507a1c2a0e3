# SPDX-License-Identifier: MIT
"""The kubelet's sockets: keeps the device plugins registered, and reads the devices that it has counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from cgpu_kube.errors import KubeError
from cgpu_kube.node.host import uuid_of
from cgpu_kube.node.plugin import KUBELET_SOCKET, Plugin
from cgpu_kube.node.rpc import call
from cgpu_kube.node.wire import podresources_pb2 as wire

#: How often the sockets are looked at. A restart is noticed within this time; the bar is 5 s.
POLL_S = 2.0


class Registrar:
    """Registers each plugin, and again whenever the kubelet has restarted or removed its socket."""

    def __init__(self, directory: Path, log: Any, poll_s: float = POLL_S) -> None:
        self._socket = directory / KUBELET_SOCKET
        self._log = log
        self._poll_s = poll_s
        self._known: dict[str, tuple[int, int] | None] = {}  # resource -> the kubelet's socket it is registered on
        self._failing: set[str] = set()
        self.plugins: list[Plugin] = []

    def _kubelet(self) -> tuple[int, int] | None:
        try:
            found = self._socket.stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._poll_s)

    async def look(self) -> None:
        here = self._kubelet()
        for plugin in self.plugins:
            if here is None or (self._known.get(plugin.resource) == here and plugin.is_there):
                continue
            try:
                await plugin.register()
            except (OSError, KubeError) as error:
                self._known[plugin.resource] = None
                if plugin.resource not in self._failing:
                    self._log.warning("not registered with the kubelet", resource=plugin.resource, reason=str(error))
                self._failing.add(plugin.resource)
                continue
            self._known[plugin.resource] = here
            self._failing.discard(plugin.resource)
            self._log.info("registered with the kubelet", resource=plugin.resource, devices=len(plugin.devices))


async def counted(socket: Path, resource: str, namespace: str, pod: str, container: str) -> dict[str, int] | None:
    """GPU -> devices of the resource that the kubelet has counted for a container; {} for one that it does not list.
    None: it does not answer."""
    try:
        answer = await call(socket, "/v1.PodResourcesLister/List", wire.ListPodResourcesRequest(),
                            wire.ListPodResourcesResponse)  # fmt: skip
    except KubeError:
        return None
    found: dict[str, int] = {}
    for one in answer.pod_resources:
        if (one.namespace, one.name) != (namespace, pod):
            continue
        for inside in one.containers:
            for devices in inside.devices if inside.name == container else ():
                for device in devices.device_ids if devices.resource_name == resource else ():
                    found[uuid_of(device)] = found.get(uuid_of(device), 0) + 1
    return found
