# SPDX-License-Identifier: MIT
"""Reads facts, calls the pure modules and carries out their decisions (env, admit, oci, state, reconcile)."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from cgpu_common import events, log, wire
from cgpu_common.config import Config
from cgpu_common.cookie import COOKIE_BITS, make_cookie
from cgpu_common.errors import CgpuError, ContainerGone, KernelMissing, KernelRefused, ProtocolError, Refused, Resync
from cgpu_common.kernel_abi import ID_MAX, Event
from cgpu_common.model import Container, KernelEvent
from cgpu_common.server import Request
from cgpud import admit, bundle, granted, hostmem, numbers, oci, report, slices, state, values, whole  # fmt: skip
from cgpud.config_json import Spec
from cgpud.dependencies import Dependencies
from cgpud.grants import Grant, Grants
from cgpud.inventory import Inventory
from cgpud.mps_node import MpsNode
from cgpud.orphans import Orphans
from cgpud.queries import Queries
from cgpud.reconcile import IDLE_S, Orphan, Signal, reconcile
from cgpud.state import Action, Trigger
from cgpud.values import NotSliced, Phase, Plan, Record
from cgpud.watch import Key, Watcher

STOP_TIMEOUT_S = 30.0
DYING_WAIT_S = 10.0
EVENTS_RETRY_S = 5.0
GPUS_WAIT_S = 30.0


class Daemon:
    def __init__(self, config: Config, deps: Dependencies) -> None:
        self.config = config
        self.deps = deps
        self.records: dict[Key, Record] = {}
        self.boot_id = deps.facts.boot_id()
        self._log = log.get()
        self.admission = asyncio.Lock()  # held from the reading of the kernel's sums until config.json is written
        self._binding = asyncio.Lock()  # held from the reading of a slice's members' limits until one more is bound
        self.inventory = Inventory(deps.link, deps.nvml, self._cookie, deps.facts.context_mib)
        self._tasks: set[asyncio.Task[None]] = set()
        self._grants = Grants(deps.store.directory / "grants", self.records)
        self.queries = Queries(deps, self.inventory)
        self.mps = MpsNode(deps, self.records, self.queries.record_event)
        self.inventory.why_unsliced = self.mps.why_unsliced
        self.watcher = Watcher(deps.facts, self._schedule_trigger)
        self._orphans = Orphans(deps, self.boot_id, self._cookie)
        self._throttle = events.LogThrottle()
        self._seen = events.Seen()
        self.kernel_events: Counter[str] = Counter()  # count by name, for the metrics
        self.admissions: Counter[str] = Counter(sliced=0, unsliced=0, refused=0)  # the same

    # ---- life of the daemon ----

    async def start(self) -> None:
        self.deps.store.open()
        records, damaged = self.deps.store.load()
        for name in (*damaged, *self._grants.load()):
            self._log.error("damaged state file", file=name)
        for record in map(state.resume, records):
            self.records[record.key] = record
            known = record.phase is Phase.BOUND or (record.phase is Phase.PREPARED and record.process is not None)
            if known and record.boot_id == self.boot_id:
                self.watcher.reopen(record)
        await self.reconcile()

    async def run(self) -> None:
        """Background work until cancelled."""
        await asyncio.gather(self._reconcile_for_ever(), self._listen_for_ever(), self.mps.run())

    async def stop(self) -> None:
        """Containers keep running: their limits are in the kernel, the rest in the state files."""
        self.watcher.close()
        self.deps.nvml.close()
        await self.inventory.close()
        self.deps.sensors.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)

    async def _reconcile_for_ever(self) -> None:
        while True:
            every_s = self.config.reconcile_s
            await asyncio.sleep(min(every_s, IDLE_S) if self._orphans else every_s)
            await self.reconcile()

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except Resync:
                self.kernel_events["resync"] += 1
                self._seen = events.Seen()
                self._log.warning("kernel events were lost, reading everything again")
            except (CgpuError, OSError) as error:
                self._log.warning("listening to the kernel failed", error=str(error))
                await asyncio.sleep(EVENTS_RETRY_S)

    async def _listen(self) -> None:
        """Handle events until the module was unloaded and loaded again. Reconcile once no event can be missed."""
        try:
            async for event in self.deps.link.events(self.reconcile):
                await self._on_event(event)
        except KernelMissing:
            self._log.warning("the kernel module is not loaded", hint="cgpu-smi shows how to load it")
        await self.reconcile()  # its containers are gone too
        await self.deps.link.arrival()
        self._log.info("the kernel module is loaded")
        until = self.deps.clock() + GPUS_WAIT_S
        # The module lists GPUs once it has a core, which is loaded after it. NVML may list them all the time.
        while not any(gpu.kernel and gpu.kernel.born for gpu in await self.inventory.snapshot()):
            if self.deps.clock() > until:
                break
            await asyncio.sleep(0.1)

    async def _on_event(self, event: KernelEvent) -> None:
        self.kernel_events[events.name_of(event.kind)] += 1
        left_out = self._throttle.of_event(event, self.deps.clock())
        if left_out is not None:
            entry = self._seen.describe(event)
            self.queries.record_event(entry, event.kind in events.NOISY)
            more = {"not_logged": left_out} if left_out else {}
            getattr(self._log, entry.level)(entry.text, **entry.fields, **more)
        if event.kind in (Event.DYING, Event.GONE) and event.container is not None:
            key = (event.container.id, event.container.cookie)
            for record in slices.members(key, self.records.values()):
                await self.handle_trigger(record.key, Trigger.KERNEL_GONE)

    # ---- requests ----

    async def handle(self, request: Request) -> dict[str, Any]:
        message = request.message
        try:
            slices.check_caller(request.peer_cgroup, self.records.values())
            match message.op:
                case "prepare":
                    reply = await self.prepare(request)
                    self.admissions["sliced" if reply["action"] == "edited" else "unsliced"] += 1
                    return reply
                case "bind":
                    return await self.bind(request)
                case "release":
                    await self.handle_trigger((message.id, wire.cookie_of(message)), Trigger.POSTSTOP)
                    return {"ok": True}
                case "exec":
                    self.check_exec(message)
                    return {"ok": True}
                case "grant":
                    grant = self._grants.add(message.grant)
                    self._log.info("granted", to=str(grant.subject), variables=grant.variables)
                    return {"ok": True}
                case "revoke":
                    return {"ok": True, "revoked": self._grants.revoke(message.grant)}
                case "grants":
                    return {"ok": True, "grants": self._grants.subjects(), "gpus": self._grants.gpus()}
                case "status":
                    return await self.queries.status(self.config, tuple(self.records.values()), len(self._grants))
                case "events":
                    return self.queries.events(message.since)
                case "gpus":
                    return await self.queries.gpus()
                case "slices":
                    return await self.queries.slices(tuple(self.records.values()))
                case "capacity":
                    return await self.queries.capacity(message.verb, self.config, self.admission, self.mps.offer)
                case "mps":
                    return {"ok": True, "blind": self.mps.blind, "containers": self.mps.rows()}
                case _:
                    raise ProtocolError(f"there is no operation {message.op[:32]!r}")
        except ContainerGone as error:
            self._log.info("given up", id=message.id, reason=str(error))
            return wire.refusal(str(error))
        except CgpuError as error:
            self.admissions["refused"] += message.op == "prepare"
            self._log.warning("refused", op=message.op, id=message.id, reason=str(error))
            return wire.refusal(str(error))
        except Exception as error:
            self.admissions["refused"] += message.op == "prepare"
            self._log.exception("internal error", op=message.op, id=message.id)
            return wire.refusal(f"cgpud has an internal error: {type(error).__name__}: {error}")

    async def undelivered(self, request: Request) -> None:
        """The runtime ended before it got the answer, so the container it prepared does not start."""
        if request.message.op == "prepare":
            for record in [record for record in self.records.values() if record.id == request.message.id]:
                if record.phase is Phase.PREPARED:
                    await self.handle_trigger(record.key, Trigger.ABORTED)

    async def prepare(self, request: Request) -> dict[str, Any]:
        message = request.message
        container_id, directory = message.id, message.bundle
        if not container_id or len(container_id.encode()) > ID_MAX or not container_id.isprintable():
            raise Refused(f"the container id must be 1 to {ID_MAX} printable bytes")
        spec = bundle.read(directory)  # in the page cache: a thread would cost more than the read
        variables = granted.variables(spec)
        wait_s = self.config.kube_wait_s
        grant = await granted.find(self._grants, self.deps.decider, container_id, spec, variables, wait_s)
        config = self.config
        options = oci.options(message.runtime, config.runtime_path, config.allow_privileged, config.legacy_hook_config)
        if grant is not None and grant.whole:
            return await self._give_whole(request, grant, spec, options)
        devices = self.deps.facts.devices()
        majors = numbers.majors_of(devices)
        wanted = granted.request(grant, config, spec, majors, variables)
        if isinstance(wanted, NotSliced):
            if grant is not None:
                raise Refused(f"the grant for {grant.subject} gives no slice: {wanted.why}")
            admit.check_disable(wanted, self.config.container)
            closed = await whole.check(config, self.inventory, self.deps.facts, spec, majors, variables, wanted)
            whole.add_check(directory, spec, options.hook_path, closed, restored=message.verb == "restore")
            self._log.info("passed", id=container_id, why=wanted.why)
            reply = {"ok": True, "action": "pass"} | ({"closed": closed} if closed else {})
            return granted.with_warnings(reply, container_id, variables, wanted.warning)
        if grant is None:
            admit.check_granted(self.config.container)

        closed = numbers.closed_numbers(devices)
        facts = self.deps.facts
        there, is_own = facts.mps_directories(), facts.is_own_namespace
        resolve = await facts.host_paths(directory, oci.bind_sources(spec))
        oci.check_isolation(spec, options, there, is_own, resolve, facts.cgroup_kind())

        def make(plan: Plan, joined: Container | None) -> Awaitable[Container]:
            restored = message.verb == "restore"
            edit = partial(oci.edit, spec, majors=majors, options=options, closed=closed, restored=restored)
            return self._make(request, plan, edit, grant, joined)

        claim = grant.claim if grant else ""
        deadline = self.deps.clock() + DYING_WAIT_S
        while (started := await self._admit(message, claim, wanted, make)) is None:
            await hostmem.until_gone(self.deps, claim or container_id, deadline)
        plan, container = started
        granted.log_start(container_id, plan, container)
        reply = {"ok": True, "action": "edited", "dir": container.dir, "closed": closed}
        return granted.with_warnings(reply, container_id, variables, *plan.warnings)

    def check_exec(self, message: wire.Message) -> None:
        """Refuse a process in a running container whose capability would undo the container's slice."""
        for record in self.records.values():
            if record.id == message.id:
                oci.check_exec(message.capability, self.config.allow_privileged, mps=record.mps is not None)

    async def _give_whole(self, request: Request, grant: Grant, spec: Spec, options: oci.Options) -> dict[str, Any]:
        """The real nodes of one GPU: to a client of its MPS server, which is watched, or without any limit."""
        message = request.message
        async with self.admission:
            if grant.mps is None:
                facts = self.deps.facts
                closed = await whole.give(self.config, self.inventory, facts, grant, spec, message, options)
            else:
                bundle.check(message.bundle)
                await self._end_earlier_life(message.id)
                gpu = await whole.chosen(self.config, self.inventory, grant)
                record = self._record(request, grant, mps=self.mps.client(grant, spec))
                edited, closed = await self.mps.give(self.config, gpu, grant, spec, record, options)
                async with self._kept(record, request):
                    bundle.write(message.bundle, edited)
        self._log.info("given a GPU without isolation", id=message.id, gpu=grant.whole, mps=grant.mps is not None)
        return {"ok": True, "action": "edited"} | ({"closed": closed} if closed else {})

    async def _admit(
        self,
        message: wire.Message,
        claim: str,
        wanted: values.Request,
        make: Callable[[Plan, Container | None], Awaitable[Container]],
    ) -> tuple[Plan, Container] | None:
        """Admit and create, or join the slice of the claim. None: the last run of this container, or the claim's last
        slice, is still dying.

        The kernel's list is long, so it is read only for a refusal's sentence, for a claim, or if the id is in use."""
        container_id, directory = message.id, message.bundle
        async with self.admission:
            if self.deps.draining():
                raise Refused(
                    "this node is being drained for an update of cgpu_km: no container gets a slice of a GPU until "
                    "it is over (cgpu uncordon ends it)"
                )
            bundle.check(directory)  # the wait for other starts may have been longer than the engine's patience
            await self._end_earlier_life(container_id)
            inventory = await self.inventory.for_admission(self.config)
            if claim and (joined := slices.joinable(claim, self.records.values(), await self.deps.link.list())):
                plan = admit.join(wanted, inventory, joined)
                return plan, await make(plan, joined)
            try:
                plan = admit.admit(wanted, inventory, None, self.config.container)
                return plan, await make(plan, None)
            except admit.NeedsContainerList:
                pass
            except KernelRefused as error:
                if error.code not in (errno.EEXIST, errno.EBUSY, errno.ENOSPC):  # EBUSY: it is dying, or all sleeps
                    raise
                if error.code == errno.ENOSPC:  # a concurrent creation took the room: read the sums again
                    inventory = await self.inventory.for_admission(self.config)
            there = await self.deps.link.list()
            if slices.is_dying(claim or container_id, there):
                return None
            names = await self.queries.holders(tuple(self.records.values()), directory)
            plan = admit.admit(wanted, inventory, there, self.config.container, names)
            return plan, await make(plan, None)

    async def _make(
        self,
        request: Request,
        plan: Plan,
        edit: Callable[[Container], Spec],
        grant: Grant | None,
        joined: Container | None,
    ) -> Container:
        """Write record, kernel container unless joined, and config.json, in this order; a failure undoes them."""
        shared = (joined.id, joined.cookie) if joined else (grant.claim, self._cookie()) if grant else ("", 0)
        record = self._record(request, grant, slice=shared if shared[0] else None)
        async with self._kept(record, request):
            container = joined or await self.deps.link.create(*record.kernel_key, plan.slots)
            admit.check_grant(plan, container)
            edited = edit(replace(container, cookie=record.cookie))
            bundle.write(request.message.bundle, granted.applied(grant, edited))
        return container

    def _record(self, request: Request, grant: Grant | None, **more: Any) -> Record:
        return Record(
            id=request.message.id,
            cookie=self._cookie(),
            boot_id=self.boot_id,
            bundle=request.message.bundle,
            phase=Phase.PREPARED,
            deadline=self.deps.clock() + self.config.lease_s,
            # This process becomes runc by exec and ends after the start.
            process=self.deps.facts.process(request.peer_pid),
            pod=grant.subject.pod_name if grant else "",
            pod_uid=grant.subject.uid if grant else "",
            container=grant.subject.container if grant else "",
            **more,
        )

    @asynccontextmanager
    async def _kept(self, record: Record, request: Request) -> AsyncIterator[None]:
        """Save the record before the block and watch it after it; a failure ends it."""
        self.records[record.key] = record
        try:
            self.deps.store.save(record)
            yield
        except BaseException as error:
            await asyncio.shield(self.handle_trigger(record.key, Trigger.ABORTED))
            if isinstance(error, OSError):
                raise Refused(f"cgpud cannot write its state: {error}") from error
            raise
        self.watcher.add(record, self.deps.facts.pidfd(request.peer_pid))

    def _cookie(self) -> int:
        return make_cookie(self.deps.random(COOKIE_BITS))

    async def bind(self, request: Request) -> dict[str, Any]:
        message, pidfd = request.message, request.take_fd()
        key = (message.id, wire.cookie_of(message))
        if pidfd is None:
            raise Refused("bind without a pidfd")
        facts = self.deps.facts
        async with self._binding:
            with hostmem.closed_on_error(pidfd):
                pid = facts.pid_of(pidfd)
                process = facts.process(pid) if pid is not None else None
                before = self.records.get(key)
                step = None
                if pid is not None and process is not None and before is not None:
                    path = facts.cgroup_path(pid)
                    shared = path == facts.cgroup_path(request.peer_pid)  # the container has no cgroup of its own
                    step = state.bind(before, process, facts.cgroup_at(path) if path and not shared else None)
                    if step is not None:
                        await hostmem.limit(self.deps, self.records.values(), step[0], process)
                        await self.mps.bound(step[0])
                if step is None or self.records.get(key) is not before:
                    why = "it has ended, or its lease has expired"
                    raise Refused(f"container {message.id[:12]} is not waiting to be started: {why}")
                record, actions = step
                # With the file from before the bind, the next cgpud takes the container for a failed start and destroys
                # its slice.
                self.deps.store.save_or_refuse(record)
            await self._carry_out(record, tuple(one for one in actions if one is not Action.SAVE), pidfd)
        self._log.info("bound", id=message.id, pid=pid, cgroup=record.cgroup and record.cgroup.path)
        return {"ok": True}

    async def by_gpu(self) -> tuple[dict[int, int], dict[int, int]]:
        gpus = await self.inventory.snapshot()
        return report.drift_counts(self.config, gpus), report.free_bytes(gpus)

    async def _end_earlier_life(self, container_id: str) -> None:
        """End the last run under this id: an engine reuses it when it starts a stopped container."""
        for record in [record for record in self.records.values() if record.id == container_id]:
            if record.phase is Phase.BOUND and self.deps.facts.is_alive(record):
                raise Refused(f"container {container_id[:12]} is running already")
            await self.handle_trigger(record.key, Trigger.TICK if record.phase is Phase.STUCK else Trigger.LOST)

    # ---- triggers ----

    def _schedule_trigger(self, key: Key, trigger: Trigger) -> None:
        task = asyncio.create_task(self.handle_trigger(key, trigger))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def handle_trigger(self, key: Key, trigger: Trigger) -> None:
        """Apply a trigger to the state machine of a container. Ignore it if the container has been released."""
        before = self.records.get(key)
        if before is None:
            if trigger is Trigger.POSTSTOP and key in self._orphans:
                await self._destroy(*key)
            return
        record, actions = state.step(before, trigger)
        if actions:
            self._log.debug("trigger", id=record.id, trigger=trigger.name, phase=record.phase.value)
        await self._carry_out(record, actions, None)

    async def _carry_out(self, record: Record, actions: tuple[Action, ...], pidfd: int | None) -> None:
        self.records[record.key] = record
        for action in actions:
            match action:
                case Action.SAVE:
                    self.deps.store.save_or_log(record)
                case Action.WATCH:
                    self.watcher.add(record, pidfd)
                case Action.UNWATCH:
                    self.watcher.remove(record.key)
                case Action.CHECK_CGROUP:
                    self.watcher.check_cgroup(record.key)
                case Action.DESTROY:
                    shared = record.mps is not None or slices.has_other_member(record, self.records.values())
                    trigger = Trigger.DESTROYED if shared else await self._destroy(*record.kernel_key)
                    await self.handle_trigger(record.key, trigger)
                case Action.FORGET:
                    self.records.pop(record.key, None)
                    self.queries.remember(record)
                    self.deps.store.forget(record)
                    self._log.info("released", id=record.id)

    async def _destroy(self, container_id: str, cookie: int) -> Trigger:
        try:
            await self.deps.link.destroy(container_id, cookie)
        except KernelMissing:
            return Trigger.DESTROYED  # unloading the module destroys its containers
        except (CgpuError, OSError) as error:
            self._log.warning("the kernel did not destroy a container", id=container_id, error=str(error))
            return Trigger.DESTROY_FAILED
        return Trigger.DESTROYED

    # ---- reconcile ----

    async def reconcile(self) -> None:
        async with self.admission:
            self.deps.restore_socket()
            for record in self.deps.store.missing(self.records.values()):
                self.deps.store.save_or_log(record)
            try:
                self._grants.restore()
            except OSError as error:
                self._log.error("cannot save a grant", error=str(error))
            try:
                kernel = await self.deps.link.list()
            except KernelMissing:
                kernel = ()  # no module, no containers
            except (CgpuError, OSError) as error:
                self._log.warning("cannot read the kernel's list", error=str(error))
                return
            now, alive = self.deps.clock(), self.deps.facts.is_alive
            findings = reconcile(list(self.records.values()), kernel, boot_id=self.boot_id, now=now, alive=alive)
            self._seen.learn(kernel)
            self._orphans.keep({(one.id, one.cookie) for one in kernel})
            for finding in findings:
                match finding:
                    case Signal(record, trigger):
                        self._log.info("reconcile", id=record.id, trigger=trigger.name)
                        await self.handle_trigger(record.key, trigger)
                    case Orphan(container):
                        await self._adopt_or_destroy(container)
            await self.inventory.apply_pending(self.config)

    async def _adopt_or_destroy(self, container: Container) -> None:
        adopted = await self._orphans.adopted(container)
        for record in adopted:
            await self._carry_out(record, (Action.SAVE, Action.WATCH), None)
        if not adopted and self._orphans.is_over(container):
            await self._destroy(container.id, container.cookie)

    async def reload(self, config: Config) -> None:
        """Use a new, valid configuration."""
        async with self.admission:
            old, self.config = self.config, config
            await self.inventory.reload(config, old)
