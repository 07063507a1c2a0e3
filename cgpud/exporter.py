# SPDX-License-Identifier: MIT
"""Serves the metrics: reads the tree for each scrape, in a thread, one scrape at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from cgpu_common import address, log, proc
from cgpu_common.errors import CgpuError
from cgpu_common.exits import CgpuError as ProcError
from cgpu_common.exits import Exit
from cgpu_common.model import Snapshot
from cgpu_common.versions import package_version
from cgpud import metrics, tls
from cgpud.http import HttpServer
from cgpud.loop import Daemon
from cgpud.named import NameReader


class Reader:
    """Reads the figures of a scrape. Not thread-safe."""

    def __init__(self, paths: proc.Paths) -> None:
        self._paths = paths
        self._names = NameReader(paths)
        self._version = package_version()

    def scrape(self, bundles: Mapping[str, str], daemon: metrics.DaemonFigures) -> metrics.Scrape:
        try:
            snapshot: Snapshot | None = proc.read_tree(self._paths, brief=True)
        except ProcError as error:
            if error.code is not Exit.NO_MODULE:
                raise
            snapshot = None
        there = snapshot.containers if snapshot else ()
        self._names.keep((one.id, one.cookie) for one in there)
        named = {one.id: self._names.of((one.id, one.cookie), bundles.get(one.id, "")) for one in there}
        processes = {
            (gpu.index, slot.dir): proc.processes_of(self._paths, slot)
            for gpu in (snapshot.gpus if snapshot else ())
            if metrics.sensors_of(daemon, gpu).get("processes")
            for slot in gpu.slots
            if slot.opened
        }
        return metrics.Scrape(snapshot, named, processes, daemon, self._version)


class Exporter:
    def __init__(self, daemon: Daemon, paths: proc.Paths) -> None:
        self._daemon = daemon
        self._reader = Reader(paths)
        self._one_at_a_time = asyncio.Lock()
        self._moving = asyncio.Lock()
        self._place: tuple[object, ...] = ("", "", ())
        self._served_folder = ""  # the certificates of the server that runs; "": without TLS
        self._server: HttpServer | None = None

    async def page(self, accept: str) -> tuple[bytes, str]:
        async with self._one_at_a_time:
            # Of a slice that several containers share, one of them.
            bundles = {record.kernel_key[0]: record.bundle for record in self._daemon.records.values()}
            drift, free = await self._daemon.by_gpu()
            figures = metrics.DaemonFigures(
                kernel_events=dict(self._daemon.kernel_events),
                admissions=dict(self._daemon.admissions),
                draining=self._daemon.deps.draining(),
                drift=drift,
                free=free,
                sensors=(await self._daemon.queries.gpus())["gpus"],
                mps=self._daemon.mps.rows(),
                mps_blind=bool(self._daemon.mps.blind),
                mps_ended=dict(self._daemon.mps.ended),
            )
            return await asyncio.to_thread(lambda: metrics.text(self._reader.scrape(bundles, figures), accept))

    async def move(self, where: str, folder: str = "") -> None:
        """Serve at this address from now on; "": not at all. @folder: certificates, which may have been renewed; "":
        without TLS. If the certificates cannot be read, log an error and, if there is a server by TLS, keep it; if the
        address cannot be used, log an error and serve nothing."""
        async with self._moving:
            place = (where, folder, tls.stamps(folder))
            if place == self._place and (self._server is not None or not where):
                return
            wanted = address.parse(where)
            try:
                context = tls.context(folder) if folder and wanted is not None else None
            except CgpuError as error:
                # A file may be half written. What is served without TLS ends: TLS was asked for.
                if self._server is not None and self._served_folder:
                    log.get().error("metrics are served as before", certificates=folder, reason=str(error))
                    return
                await self._stop()
                log.get().error("metrics are not served", address=where, reason=str(error))
                return
            await self._stop()
            if wanted is None:
                return
            server = HttpServer(self.page)
            try:
                await server.start(wanted, context)
            except (OSError, CgpuError) as error:
                log.get().error("metrics are not served", address=where, reason=str(error))
                return
            self._server, self._place, self._served_folder = server, place, folder
            log.get().info("metrics are served", address=where, tls=bool(folder))

    async def stop(self) -> None:
        async with self._moving:
            await self._stop()

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
        self._server, self._place, self._served_folder = None, ("", "", ()), ""
