# SPDX-License-Identifier: MIT
"""The DRA driver cgpu.io: registration, Prepare and Unprepare, health, and the claims that are prepared, on disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from cgpu_common.files import write_file
from cgpu_kube.errors import KubeError
from cgpu_kube.node import claims, wire
from cgpu_kube.node.claims import DRIVER, Claim
from cgpu_kube.node.host import HostGpu
from cgpu_kube.node.plugin import PROMISE
from cgpu_kube.node.rpc import Method, UnixServer

SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH_SERVICE = "v1alpha1.DRAResourceHealth"
VERSIONS = ("v1.DRAPlugin", HEALTH_SERVICE)
HEALTH_S = 15.0  # between reports of a stream: after 30 s without one the kubelet takes a device's health as unknown

#: namespace, name, uid -> the prepared claim of the API server. Raises KubeError.
Prepare = Callable[[str, str, str], Awaitable[Claim]]


def write_json(path: Path, value: object, mode: int = 0o600) -> None:
    """Replace the file; its directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(value, separators=(",", ":")) + "\n", mode)


class Claims:
    """The prepared claims, one file each, which survive a reboot; and their CDI specs, which do not."""

    def __init__(self, directory: Path, cdi: Path, log: Any) -> None:
        self._directory = directory
        self._cdi = cdi
        self._log = log
        self._claims: dict[str, Claim] = {}

    def load(self) -> None:
        self._claims.clear()
        found = []
        for path in self._directory.glob("*.json"):
            try:
                found.append((path.stat().st_mtime_ns, msgspec.json.decode(path.read_bytes(), type=Claim)))
            except (msgspec.MsgspecError, OSError, ValueError) as error:
                self._log.error("damaged file of a claim", file=str(path), reason=str(error))
        for _, claim in sorted(found, key=lambda one: one[0]):
            if not claim.retired:  # a life that ended before it had retired the earlier one of the name
                self._claims |= {one.uid: one for one in self._retired_by(claim)}
            self._claims[claim.uid] = claim

    def __iter__(self) -> Any:
        return iter(list(self._claims.values()))

    def get(self, uid: str) -> Claim | None:
        return self._claims.get(uid)

    def add(self, claim: Claim) -> None:
        """Keep the claim and write its CDI spec. One that was deleted by force and made again has a new uid, and the
        kubelet may not have ended the earlier one yet: that gives nothing from now on. OSError: it is not prepared."""
        self._write(claim)
        if claim.slots:
            write_json(self._spec(claim.uid), claims.cdi_spec(claim, PROMISE), 0o644)
        before = self._claims.get(claim.uid)
        if before is None or before.retired:
            for other in self._retired_by(claim):
                self._write(other)
                self._claims[other.uid] = other
        self._claims[claim.uid] = claim

    def _write(self, claim: Claim) -> None:
        write_json(self._directory / f"{claim.uid}.json", asdict(claim))

    def _retired_by(self, claim: Claim) -> list[Claim]:
        same = [one for one in self if (one.namespace, one.name) == (claim.namespace, claim.name)]
        return [replace(one, retired=True) for one in same if one.uid != claim.uid and not one.retired]

    def retire(self, uid: str) -> bool:
        """It gives nothing from now on. False: that was so before, or it is not prepared. OSError: it is not kept."""
        claim = self._claims.get(uid)
        if claim is None or claim.retired:
            return False
        self._claims[uid] = replace(claim, retired=True)
        self._write(self._claims[uid])
        return True

    def remove(self, uid: str) -> Claim | None:
        self._spec(uid).unlink(missing_ok=True)
        (self._directory / f"{uid}.json").unlink(missing_ok=True)
        return self._claims.pop(uid, None)

    def _spec(self, uid: str) -> Path:
        return self._cdi / f"cgpu.io-claim-{uid}.json"


class Driver:
    """The sockets of the driver. `prepare` reads and checks a claim; `ended` is called after an Unprepare."""

    def __init__(
        self,
        kubelet: Path,
        store: Claims,
        prepare: Prepare,
        ended: Callable[[Claim], Awaitable[None]],
        log: Any,
    ) -> None:
        self._prepare = prepare
        self._ended = ended
        self._log = log
        self._store = store
        self._gpus: tuple[HostGpu, ...] = ()
        self._pool = ""
        self._changed = asyncio.Event()
        self.health_s = HEALTH_S
        self._one_at_a_time = asyncio.Lock()
        endpoint = kubelet / "plugins" / DRIVER / "dra.sock"
        self._info = wire.registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=VERSIONS
        )
        self._driver = UnixServer(
            endpoint,
            {
                SERVICE: {
                    "NodePrepareResources": Method(wire.dra.NodePrepareResourcesRequest, self._prepare_all),
                    "NodeUnprepareResources": Method(wire.dra.NodeUnprepareResourcesRequest, self._unprepare_all),
                },
                HEALTH_SERVICE: {
                    "NodeWatchResources": Method(wire.health.NodeWatchResourcesRequest, self._watch, streams=True)
                },
            },
        )
        self._registration = UnixServer(
            kubelet / "plugins_registry" / f"{DRIVER}-reg.sock",
            {
                "pluginregistration.Registration": {
                    "GetInfo": Method(wire.registration.InfoRequest, self._get_info),
                    "NotifyRegistrationStatus": Method(wire.registration.RegistrationStatus, self._notified),
                }
            },
        )
        self.registered = False

    async def ensure(self) -> None:
        """Serve on both sockets; make again what is gone. The kubelet watches the directory of the second."""
        for server in (self._driver, self._registration):
            if not server.is_there:
                await server.stop()
                await server.start()

    async def stop(self) -> None:
        self._wake()
        for server in (self._registration, self._driver):
            is_ours = server.is_there
            await server.stop()
            if is_ours:
                server.path.unlink(missing_ok=True)

    def offer(self, pool: str, gpus: Iterable[HostGpu]) -> None:
        found = tuple(gpus)
        if (pool, found) != (self._pool, self._gpus):
            self._pool, self._gpus = pool, found
            self._wake()

    def _wake(self) -> None:
        """Each stream once. The next ones wait for the next change: this driver may serve again."""
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- calls of the kubelet ----

    async def _get_info(self, _request: Any) -> Any:
        return self._info

    async def _notified(self, request: Any) -> Any:
        self.registered = bool(request.plugin_registered)
        if self.registered:
            self._log.info("registered with the kubelet", driver=DRIVER)
        else:
            self._log.warning("the kubelet refused the driver", driver=DRIVER, reason=request.error)
        return wire.registration.RegistrationStatusResponse()

    async def _prepare_all(self, request: Any) -> Any:
        answer = wire.dra.NodePrepareResourcesResponse()
        for one in request.claims:
            answer.claims[one.uid].CopyFrom(await self._prepare_one(one))
        return answer

    async def _prepare_one(self, one: Any) -> Any:
        out = wire.dra.NodePrepareResourceResponse()
        try:
            async with self._one_at_a_time:
                claim = self._store.get(one.uid)
                if claim is None or claim.retired:
                    claim = await self._prepare(one.namespace, one.name, one.uid)
                self._store.add(claim)  # again after a reboot: /var/run/cdi is empty then
        except (KubeError, OSError) as error:
            self._log.warning("claim not prepared", claim=f"{one.namespace}/{one.name}", reason=str(error))
            out.error = str(error)
            return out
        for slot in claim.slots:
            out.devices.add(
                request_names=[slot.request],
                pool_name=slot.pool,
                device_name=slot.device,
                cdi_device_ids=[claims.cdi_id(claim, slot)],
                share_id=slot.share,
            )
        return out

    async def _unprepare_all(self, request: Any) -> Any:
        answer = wire.dra.NodeUnprepareResourcesResponse()
        for one in request.claims:
            out = wire.dra.NodeUnprepareResourceResponse()
            try:
                async with self._one_at_a_time:
                    claim = self._store.remove(one.uid)
                if claim is not None:
                    await self._ended(claim)
            except OSError as error:
                out.error = f"the files of claim {one.namespace}/{one.name} cannot be removed: {error}"
            answer.claims[one.uid].CopyFrom(out)
        return answer

    async def _watch(self, _request: Any) -> AsyncIterator[Any]:
        while True:
            changed = self._changed
            yield wire.health.NodeWatchResourcesResponse(
                devices=[
                    wire.health.DeviceHealth(
                        device=wire.health.DeviceIdentifier(pool_name=self._pool, device_name=claims.device_name(gpu)),
                        health=wire.HEALTHY if gpu.is_healthy else wire.UNHEALTHY,
                        last_updated_time=int(time.time()),
                    )
                    for gpu in self._gpus
                ]
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.health_s):
                    await changed.wait()
