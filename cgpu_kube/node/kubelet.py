# SPDX-License-Identifier: MIT
"""The kubelet's sockets: keeps the device plugins registered, and reads the devices that it has counted."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cgpu_common.inotify import IN_CREATE, IN_DELETE, IN_MOVED_TO, IN_ONLYDIR, Inotify
from cgpu_kube.errors import KubeError
from cgpu_kube.node.host import uuid_of
from cgpu_kube.node.plugin import KUBELET_SOCKET, AnyPlugin, KubeletId
from cgpu_kube.node.rpc import call
from cgpu_kube.node.wire import resources as wire

#: How often the sockets are looked at while something is not as it should be, or the directory of the sockets is not
#: there. Else inotify reports a restart at once; the bar is 5 s.
POLL_S = 2.0
SETTLED_POLLS = 5  # the pause while everything is as it should be, in polls
BURST_S = 0.1  # from an event to the look, unless a kubelet has started
#: A kubelet that starts makes its socket, and then listens on it. From then on milliseconds count: 1.20 was seen to
#: admit its first pods 50 ms later, and refuses those whose device is not there.
LISTENS_S = 0.002
TAKEN_WARN = 2
TAKEN_WAIT_MAX_S = 60.0
TAKEN_FORGOTTEN_S = 120.0
#: Polls for which the node's status may have another amount than the plugin's: the kubelet writes it every 10 s.
STATUS_POLLS = 15


class Registrar:
    """Registers each plugin, and again whenever the kubelet has restarted, removed its socket or closed its stream.

    The kubelet follows the plugin that has registered last, and keeps the streams of the others open: then the node's
    status does not have what the plugin offers. Of two plugins for one resource each would take it from the other at
    once: the intervals grow, and the log has the sentence."""

    def __init__(self, directory: Path, log: Any, shown: Callable[[str], int | None], poll_s: float = POLL_S) -> None:
        """`shown`: what the API server has as allocatable of a resource; None: not known now."""
        self._directory = directory
        self._socket = directory / KUBELET_SOCKET
        self._log = log
        self._shown = shown
        self._differs: dict[str, float] = {}  # since when, by resource
        self._poll_s = poll_s
        self._known: dict[str, _Registration] = {}  # by resource
        self._failing: set[str] = set()
        self._woken = asyncio.Event()
        self._looking = asyncio.Lock()
        self.plugins: list[AnyPlugin] = []

    def _kubelet(self) -> KubeletId | None:
        try:
            found = self._socket.stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns

    def forget(self) -> None:
        """What was registered is another agent's by now."""
        self._known.clear()

    def wake(self) -> None:
        """Look soon: something may have changed."""
        self._woken.set()

    def _notice(self, events: Inotify) -> None:
        events.read()
        self.wake()

    async def run(self) -> None:
        events: Inotify | None = None
        loop = asyncio.get_running_loop()
        try:
            while True:
                if events is None and (events := Inotify.available()) is not None:
                    loop.add_reader(events.fd, self._notice, events)
                # Again each time: the directory may be another one now.
                is_seen = events is not None and self._is_watched(events)
                self._woken.clear()
                is_settled = await self.look()
                try:
                    async with asyncio.timeout(self._poll_s * (SETTLED_POLLS if is_seen and is_settled else 1)):
                        await self._woken.wait()
                except TimeoutError:
                    continue
                await self._wait_for_kubelet(min(BURST_S, self._poll_s))
        finally:
            if events is not None:
                loop.remove_reader(events.fd)
                events.close()

    async def _wait_for_kubelet(self, seconds: float) -> None:
        """Until a kubelet that has started listens, at most @seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            here = self._kubelet()
            known = [self._known.get(plugin.resource) for plugin in self.plugins]
            is_new = here is not None and any(one is None or one.kubelet != here for one in known)
            if is_new and _listens(self._socket):
                return
            await asyncio.sleep(min(LISTENS_S, left))

    def _is_watched(self, events: Inotify) -> bool:
        """False: look at it more often."""
        try:
            return events.add(self._directory, IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_ONLYDIR) is not None
        except OSError:
            return False

    async def look(self) -> bool:
        """Register what has to be. True: every plugin is registered with the kubelet that runs, which follows it."""
        async with self._looking:
            here = self._kubelet()
            for plugin in self.plugins:
                if here is not None and self._is_due(plugin, here):
                    await self._register(plugin, here)
            return all(self._is_settled(plugin, here) for plugin in self.plugins)

    def is_taken(self) -> bool:
        """Is there a plugin, and does the kubelet that runs have the devices of each? Else it refuses pods that ask for
        one."""
        here = self._kubelet()
        known = [self._known.get(plugin.resource) for plugin in self.plugins]
        return (
            here is not None
            and bool(known)
            and all(
                one is not None and one.kubelet == here and plugin.is_taken
                for one, plugin in zip(known, self.plugins, strict=True)
            )
        )

    def _is_settled(self, plugin: AnyPlugin, here: KubeletId | None) -> bool:
        known = self._known.get(plugin.resource)
        is_registered = known is not None and known.kubelet == here and not known.taken and plugin.is_there
        return is_registered and plugin.streams > 0 and plugin.resource not in self._differs

    def _is_due(self, plugin: AnyPlugin, here: KubeletId) -> bool:
        known = self._known.get(plugin.resource)
        if known is None and plugin.is_kept and plugin.is_there and plugin.kubelet == here and plugin.streams:
            # By an agent before this one. To register again would take the devices away for a moment.
            known = self._known[plugin.resource] = _Registration(here, time.monotonic())
        # A plugin of another process at our socket's name is one that the kubelet follows, as below.
        if known is None or known.kubelet != here or not (plugin.is_there or plugin.is_replaced):
            return True
        if plugin.is_there and plugin.streams and self._is_followed(plugin):
            if time.monotonic() > known.at + TAKEN_FORGOTTEN_S:
                known.taken = 0
            return False
        # The kubelet opens the stream within moments of a registration.
        return time.monotonic() > known.at + min(self._poll_s * float(2 << known.taken), TAKEN_WAIT_MAX_S)

    def _is_followed(self, plugin: AnyPlugin) -> bool:
        """Does the node's status have what the plugin offers, as far as is known?"""
        if self._shown(plugin.resource) in (None, plugin.healthy):
            self._differs.pop(plugin.resource, None)
            return True
        now = time.monotonic()
        return now <= self._differs.setdefault(plugin.resource, now) + STATUS_POLLS * self._poll_s

    async def _register(self, plugin: AnyPlugin, here: KubeletId) -> None:
        known = self._known.get(plugin.resource)
        was_taken = known is not None and known.kubelet == here and (plugin.is_there or plugin.is_replaced)
        try:
            await plugin.register(here)
        except (OSError, KubeError) as error:
            self._known.pop(plugin.resource, None)
            if plugin.resource not in self._failing:
                self._log.warning("not registered with the kubelet", resource=plugin.resource, reason=str(error))
            self._failing.add(plugin.resource)
            return
        taken = known.taken + 1 if known and was_taken else 0
        self._differs.pop(plugin.resource, None)
        self._known[plugin.resource] = _Registration(here, time.monotonic(), taken)
        self._failing.discard(plugin.resource)
        self._log.info("registered with the kubelet", resource=plugin.resource, devices=len(plugin.devices))
        if taken == TAKEN_WARN:
            self._log.warning(
                "another device plugin takes the resource away again and again",
                resource=plugin.resource,
                hint="remove the other one, as the DaemonSet gpushare-device-plugin: a node has one plugin a resource",
            )


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as one:
        return one.connect_ex(str(path)) == 0


@dataclass(slots=True)
class _Registration:
    """The last one of a resource."""

    kubelet: KubeletId
    at: float
    taken: int = 0  # times in a row that the kubelet has turned away since


async def counted(path: Path, resource: str, namespace: str, pod: str, container: str) -> dict[str, int] | None:
    """GPU -> devices of the resource that the kubelet has counted for a container; {} for one that it does not list.
    None: it does not answer."""
    try:
        answer = await call(path, "/v1.PodResourcesLister/List", wire.ListPodResourcesRequest(),
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
