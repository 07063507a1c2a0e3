# SPDX-License-Identifier: MIT
"""Containers that are clients of a GPU's MPS server: their admission, and the watch over what they use."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from cgpu_common import log
from cgpu_common import mps as names
from cgpu_common.cards import Gpu
from cgpu_common.config import Config
from cgpu_common.errors import Refused
from cgpu_common.events import LogEntry
from cgpu_common.gpus import own_mib
from cgpud import hooks, mps, oci, whole
from cgpud.config_json import Spec
from cgpud.dependencies import Dependencies
from cgpud.grants import Grant
from cgpud.mps import Account, Key
from cgpud.mps_control import PRIVILEGED, ControlFailed, Ready, Sample
from cgpud.values import MpsClient, Phase, Record

AGAIN_S = 1.0  # after a failure of NVML
IDLE_S = 0.2  # looks whether there is a server now
#: From a client's first sample on. NVIDIA's server (550) hangs, and its control daemon with it, when it has to end a
#: client that is amid a call of its start: main thread and client wait for each other until the client is killed.
START_S = 2.0


class MpsNode:
    """The daemon's. `records` are the daemon's; `record_event` keeps an event for its history."""

    def __init__(
        self, deps: Dependencies, records: Mapping[Key, Record], record_event: Callable[[LogEntry, bool], None]
    ) -> None:
        self._deps = deps
        self._control = deps.mps
        self._records = records
        self._record_event = record_event
        self._log = log.get()
        self.accounts: dict[Key, Account] = {}
        self.blind: str = ""  # not empty: why the clients' use is not known
        self.ended: Counter[str] = Counter()  # clients, by result: ended, killed, failed
        self.server_mib: dict[str, int] = {}  # by UUID
        self.clients_mib: dict[str, int] = {}
        self.exclusive: set[str] = set()  # in that compute mode
        self._limits: dict[str, tuple[int, Ready | None]] = {}  # what each control daemon was told
        self._ends: set[asyncio.Task[None]] = set()
        self._first: dict[str, dict[int, float]] = {}  # GPU -> process -> its first sample

    def clients_of(self, uuid: str) -> list[Record]:
        return [one for one in self._records.values() if one.mps and one.mps.uuid == uuid]

    # ---- what a GPU offers ----

    def why_unsliced(self, uuid: str) -> str:
        """Why the GPU takes no slice: it has an MPS server, or clients of one that has ended; "" otherwise."""
        if self._control.ready(uuid) is not None:
            return f"has an MPS server (systemctl stop {names.unit(uuid)} ends it on a drained node)"
        if there := self.clients_of(uuid):
            return f"has {len(there)} container(s) of an MPS server that has ended ({there[0].pod or there[0].id[:12]})"
        return ""

    def _why(self, gpu: Gpu, ready: Ready | None) -> str:
        """Why the GPU takes no client; "" if it does."""
        if ready is None:
            return f"GPU {gpu.number} has no MPS server: systemctl enable --now {names.unit(gpu.uuid)} starts one"
        if gpu.lost:
            return f"GPU {gpu.number} does not answer NVML ({gpu.lost})"
        why = self.blind or ("" if gpu.uuid in self.clients_mib else "NVML has not answered yet")
        if why:
            return f"the memory of the clients of GPU {gpu.number} is not known ({why}), so no limit is watched"
        if gpu.uuid not in self.exclusive:
            return (
                f"GPU {gpu.number} has an MPS server and is not in the compute mode EXCLUSIVE_PROCESS, so that "
                f"programs could use it past MPS: systemctl restart {names.unit(gpu.uuid)} sets the mode"
            )
        return ""

    def offer(self, gpu: Gpu) -> dict[str, Any]:
        """Part of the answer to `capacity`: what clients may have together, how many, and why none is taken."""
        ready = self._control.ready(gpu.uuid)
        clients, server = self.clients_mib.get(gpu.uuid, 0), self.server_mib.get(gpu.uuid, 0)
        room = mps.room_mib(gpu, own_mib(gpu.total_mib), clients, server)
        return {
            "mib": room,
            "clients": ready.clients if ready else 0,
            "limit": names.words(by_cgroup=bool(ready and ready.by_cgroup)),
            "why": self._why(gpu, ready),
        }

    # ---- admission ----

    async def give(
        self, config: Config, gpu: Gpu, grant: Grant, spec: Spec, record: Record, options: oci.Options
    ) -> tuple[Spec, str]:
        """The config.json of a client, whose record has `mps`, and the numbers that hooks may not open. Raises Refused;
        then nothing has changed."""
        assert grant.mps is not None and record.mps is not None
        ready = self._control.ready(gpu.uuid)
        if why := self._why(gpu, ready):
            raise Refused(why)
        assert ready is not None
        directory = str(self._control.directory(gpu.uuid))
        spec = mps.unedited(spec, directory)
        mps.check_spec(spec, gpu, allow_privileged=config.allow_privileged)
        there = [one for one in self.clients_of(gpu.uuid) if one.id != record.id]
        mps.check_user(gpu, record.mps.uid, there)
        offer = self.offer(gpu)
        mps.check_room(gpu, record.mps.mib, offer["mib"], ready.clients, there)
        try:
            await self._control.check(gpu.uuid)
            await self._tell_limit(gpu.uuid, ready, [*there, record])
        except ControlFailed as error:
            raise Refused(
                f"the MPS server of GPU {gpu.number} does not answer ({error}): systemctl status "
                f"{names.unit(gpu.uuid)} shows its state"
            ) from error
        edited, closed = whole.with_nodes(self._deps.facts, gpu, spec, options)
        edited = oci.with_environment(edited, grant.variables)
        masked = PRIVILEGED if self._control.has_privileged(gpu.uuid) else ""
        edited = mps.edited(edited, directory, record.mps.mib, grant.mps.threads, masked)
        return hooks.with_life(edited, record.cookie, options.hook_path, closed), closed

    @staticmethod
    def client(grant: Grant, spec: Spec) -> MpsClient:
        assert grant.mps is not None
        return MpsClient(grant.whole, grant.mps.memory_mib, mps.user_of(spec), grant.subject.container)

    async def bound(self, record: Record) -> None:
        """Its first process waits: from driver 615 the container's cgroup gets its limit. Raises Refused."""
        ready = self._control.ready(record.mps.uuid) if record.mps else None
        if record.mps is None or ready is None or not ready.by_cgroup:
            return
        if record.cgroup is None:
            raise Refused("the container has no cgroup of its own, to which the driver could limit its memory")
        directory = str(self._deps.facts.directory(record.cgroup))
        try:
            await self._control.limit_cgroup(record.mps.uuid, directory, record.mps.mib)
        except ControlFailed as error:
            raise Refused(f"the driver does not limit the GPU's memory of {directory}: {error}") from error

    async def _tell_limit(self, uuid: str, ready: Ready | None, there: Iterable[Record]) -> None:
        """The server's own limit holds clients whose environment has none or a larger one: the largest of the grants.
        A control daemon that was started again has none."""
        wanted = max((mps.limit_mib(one.mps.mib) for one in there if one.mps), default=0)
        if wanted and self._limits.get(uuid) != (wanted, ready):
            await self._control.set_limit(uuid, wanted)
            self._limits[uuid] = (wanted, ready)

    # ---- the watch ----

    async def run(self) -> None:
        """Until cancelled: samples of the GPUs with a server, before their first client is there."""
        while True:
            uuids = self._watched()
            self.clients_mib = {uuid: mib for uuid, mib in self.clients_mib.items() if uuid in uuids}
            if not uuids:
                self.blind = ""
                await asyncio.sleep(IDLE_S)
                continue
            try:
                await self._follow(uuids)
            except ControlFailed as error:
                if not self.blind:
                    self._event("error", f"the memory of MPS clients is not known: {error}", {"kind": "mps_blind"})
                self.blind = str(error)
                await asyncio.sleep(AGAIN_S)

    def _watched(self) -> frozenset[str]:
        return self._control.serving() | {one.mps.uuid for one in self._records.values() if one.mps}

    async def _follow(self, uuids: frozenset[str]) -> None:
        """Returns when they are others. Raises ControlFailed."""
        samples = self._control.samples(uuids)
        try:
            async for sample in samples:
                if self._watched() != uuids:
                    return
                if sample.error:
                    raise ControlFailed(sample.error)
                if self.blind:
                    self._event("info", "the memory of MPS clients is known again", {"kind": "mps_seen"})
                    self.blind = ""
                await self._look(sample)
        finally:
            await samples.aclose()  # type: ignore[attr-defined]

    async def _look(self, sample: Sample) -> None:
        group = self._deps.facts.cgroup_path
        clients = [mps.Client(one.pid, one.mib, group(one.pid)) for one in sample.processes]
        servers = {one.pid for one in sample.processes if one.is_server}
        first, now = self._first.get(sample.uuid, {}), time.monotonic()
        self._first[sample.uuid] = {one.pid: first.get(one.pid, now) for one in clients}
        (self.exclusive.add if sample.exclusive else self.exclusive.discard)(sample.uuid)
        there = self.clients_of(sample.uuid)
        for record in there:  # a tenant may give its program the server's name
            if record.cgroup is not None:
                servers -= {one.pid for one in mps.of_container(record.cgroup.path, clients)}
        self.server_mib[sample.uuid] = sum(one.mib or 0 for one in clients if one.pid in servers)
        self.clients_mib[sample.uuid] = sum(one.mib or 0 for one in clients if one.pid not in servers)
        self.accounts = {key: one for key, one in self.accounts.items() if key in self._records}
        for record in there:
            if record.cgroup is None or record.mps is None or record.phase is not Phase.BOUND:
                continue
            mine = mps.of_container(record.cgroup.path, clients)
            before = self.accounts.get(record.key, Account())
            after, ends = mps.look(before, record.mps.mib, mine, now)
            self.accounts[record.key] = after
            self._tell(record, before, after)
            for pid in ends:  # not awaited: the server may take seconds, and other containers are watched meanwhile
                begun = self._first[sample.uuid][pid]
                task = asyncio.create_task(self._end(record, pid, begun + START_S - now))
                self._ends.add(task)
                task.add_done_callback(self._ends.discard)
        ready = self._control.ready(sample.uuid)
        if ready is not None and self._limits.get(sample.uuid, (0, None))[1] != ready:
            try:
                await self._tell_limit(sample.uuid, ready, there)
            except ControlFailed as error:
                self._log.warning("the MPS server has no limit of its own", gpu=sample.uuid, reason=str(error))

    async def _end(self, record: Record, pid: int, wait_s: float) -> None:
        """On the GPU by MPS, which leaves the process alive. Where MPS does not, the process is killed. @wait_s: until
        the program's start is over."""
        assert record.mps is not None
        await asyncio.sleep(max(wait_s, 0.0))
        if pid not in self.accounts.get(record.key, Account()).ending:
            return  # it has ended, or is within the limit again
        fields = {"kind": "mps_ended", "id": record.id, "uuid": record.mps.uuid, "pid": pid}
        try:
            await self._control.end(record.mps.uuid, pid)
        except ControlFailed as error:
            self._kill(record, pid, str(error), fields)
        else:
            self.ended["ended"] += 1
            self._event("warning", f"{_name(record)}: process {pid} was ended on the GPU, the others go on", fields)

    def _kill(self, record: Record, pid: int, why: str, fields: dict[str, Any]) -> None:
        """Its memory comes back with it. It has to go even where its end disturbs the server: it uses what others were
        given."""
        assert record.cgroup is not None
        try:
            is_killed = self._deps.facts.kill(pid, record.cgroup)
        except PermissionError as error:
            self.ended["failed"] += 1
            why = f"process {pid} is over the limit, MPS does not end it ({why}), and it cannot be killed: {error}"
            if (before := self.accounts.get(record.key)) is not None:
                self.accounts[record.key] = replace(before, evict=before.evict or why)
            self._event("error", f"{_name(record)}: {why}", fields)
            return
        if not is_killed:
            return  # it has ended by itself
        self.ended["killed"] += 1
        if (before := self.accounts.get(record.key)) is not None:
            self.accounts[record.key] = replace(before, killed=before.killed + 1)
        text = f"{_name(record)}: process {pid} was killed, since MPS did not end it ({why})"
        self._event("warning", text, {**fields, "kind": "mps_killed"})

    def _tell(self, record: Record, before: Account, after: Account) -> None:
        assert record.mps is not None
        fields = {"kind": "mps_over", "id": record.id, "uuid": record.mps.uuid}
        if after.is_over and not before.is_over:
            text = f"{_name(record)} uses {after.used_mib} MiB of GPU memory and was given {record.mps.mib}"
            self._event("warning", text, fields)
        if after.evict and not before.evict:
            self._event("error", f"{_name(record)} has to go: {after.evict}", {**fields, "kind": "mps_evict"})

    def _event(self, level: str, text: str, fields: dict[str, Any]) -> None:
        entry = LogEntry(level, text, fields)
        self._record_event(entry, level != "error")
        getattr(self._log, level)(text, **fields)

    # ---- what is shown ----

    def rows(self) -> list[dict[str, Any]]:
        """The answer to `mps`, and the figures of the metrics: a row for each container."""
        none = Account()
        return [
            {
                "id": one.id,
                "pod": one.pod,
                "uid": one.pod_uid,
                "container": one.mps.name,
                "uuid": one.mps.uuid,
                "grant_mib": one.mps.mib,
                "used_mib": account.used_mib,
                "overs": account.overs,
                "ended": account.ended,
                "killed": account.killed,
                "evict": account.evict,
            }
            for one in self._records.values()
            if one.mps
            for account in [self.accounts.get(one.key, none)]
        ]


def _name(record: Record) -> str:
    return f"pod {record.pod}" if record.pod else f"container {record.id[:12]}"
