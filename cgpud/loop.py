# SPDX-License-Identifier: MIT
"""Wires the parts: reads, asks the pure modules, carries out. Decisions are in env, admit, oci, state, reconcile."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cgpud import admit, bundle, env, events, log, model, oci, reconcile, settings, state, whole, wire
from cgpud.config import Config
from cgpud.errors import CgpuError, KernelMissing, KernelRefused, ProtocolError, Refused, Resync
from cgpud.inventory import Inventory
from cgpud.kernel_abi import ID_MAX, Event
from cgpud.model import Container, KernelEvent, NotSliced, Phase, Plan, Record
from cgpud.reconcile import COOKIE_BITS, Orphan, Signal
from cgpud.server import Request
from cgpud.state import Do, Sign
from cgpud.watch import Key, Watcher
from cgpud.world import World

STOP_TIMEOUT_S = 30.0
DYING_WAIT_S = 10.0
DEFAULT_RUNTIME = "/usr/bin/cgpu-runtime"
EVENTS_RETRY_S = 5.0
GPUS_WAIT_S = 30.0


def _is_dying(container_id: str, there: Iterable[Container]) -> bool:
    return any(one.dying and one.id == container_id for one in there)


class Daemon:
    def __init__(self, config: Config, world: World) -> None:
        self.config = config
        self.world = world
        self.records: dict[Key, Record] = {}
        self.boot_id = world.facts.boot_id()
        self._log = log.get()
        self._admission = asyncio.Lock()  # held from the reading of the kernel's sums to the writing of config.json
        self._inventory = Inventory(world.link, world.nvml, lambda: reconcile.make_cookie(world.random(COOKIE_BITS)))
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher = Watcher(world.facts, self._tell)
        self._unwatched: dict[Key, float | None] = {}  # orphans without a known cgroup, and since when they are idle
        self._quiet = events.Quiet()
        self.kernel_events: Counter[str] = Counter()  # by name; for the metrics

    # ---- life of the daemon ----

    async def start(self) -> None:
        self.world.store.open()
        records, damaged = self.world.store.load()
        for name in damaged:
            self._log.error("damaged state file", file=name)
        for record in map(state.resume, records):
            self.records[record.key] = record
            known = record.phase is Phase.BOUND or (record.phase is Phase.PREPARED and record.process is not None)
            if known and record.boot_id == self.boot_id:
                self._watcher.reopen(record)
        await self.reconcile()

    async def run(self) -> None:
        """Background work; ends only by being cancelled."""
        await asyncio.gather(self._reconcile_for_ever(), self._listen_for_ever())

    async def stop(self) -> None:
        """Containers stay as they are: the kernel holds the limits, the state files the rest."""
        self._watcher.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_TIMEOUT_S)

    async def _reconcile_for_ever(self) -> None:
        while True:
            every_s = self.config.reconcile_s
            await asyncio.sleep(min(every_s, reconcile.IDLE_S) if self._unwatched else every_s)
            await self.reconcile()

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except Resync:
                self.kernel_events["resync"] += 1
                self._log.warning("kernel events were lost, reading everything again")
            except (CgpuError, OSError) as error:
                self._log.warning("listening to the kernel failed", error=str(error))
                await asyncio.sleep(EVENTS_RETRY_S)

    async def _listen(self) -> None:
        """Until the module went and came again. Everything is looked at when nothing can be missed any more."""
        try:
            async for event in self.world.link.events(self.reconcile):
                await self._on_event(event)
        except KernelMissing:
            self._log.warning("the kernel module is not loaded", hint="cgpu status tells how to load it")
        await self.reconcile()  # with it went its containers
        await self.world.link.arrival()
        self._log.info("the kernel module is loaded")
        until = self.world.clock() + GPUS_WAIT_S
        # It knows GPUs, which NVML may all the time, when it has its core; that is loaded after it.
        while not any(gpu.kernel and gpu.kernel.born for gpu in await self._inventory.glance()):
            if self.world.clock() > until:
                break
            await asyncio.sleep(0.1)

    async def _on_event(self, event: KernelEvent) -> None:
        self.kernel_events[events.name_of(event.kind)] += 1
        left_out = self._quiet.ask(events.subject(event), self.world.clock()) if event.kind in events.NOISY else 0
        if left_out is not None:
            story = events.tell(event)
            more = {"not_logged": left_out} if left_out else {}
            getattr(self._log, story.level)(story.text, **story.fields, **more)
        if event.kind in (Event.DYING, Event.GONE) and event.container is not None:
            await self.feed((event.container.id, event.container.cookie), Sign.KERNEL_GONE)

    # ---- requests ----

    async def handle(self, request: Request) -> dict[str, Any]:
        message = request.message
        try:
            match message.op:
                case "prepare":
                    return await self.prepare(request)
                case "bind":
                    return await self.bind(request)
                case "release":
                    await self.feed((message.id, wire.cookie_of(message)), Sign.POSTSTOP)
                    return {"ok": True}
                case "status":
                    return await self.status()
                case _:
                    raise ProtocolError(f"there is no operation {message.op[:32]!r}")
        except CgpuError as error:
            self._log.warning("refused", op=message.op, id=message.id, reason=str(error))
            return wire.refusal(str(error))
        except Exception as error:
            self._log.exception("internal error", op=message.op, id=message.id)
            return wire.refusal(f"cgpud has an internal error: {type(error).__name__}: {error}")

    async def unsent(self, request: Request) -> None:
        """The runtime is gone, so what was prepared for it is not going to start."""
        if request.message.op == "prepare":
            for record in [record for record in self.records.values() if record.id == request.message.id]:
                if record.phase is Phase.PREPARED:
                    await self.feed(record.key, Sign.ABORTED)

    async def prepare(self, request: Request) -> dict[str, Any]:
        message = request.message
        container_id, directory = message.id, message.bundle
        if not container_id or len(container_id.encode()) > ID_MAX or not container_id.isprintable():
            raise Refused(f"the container id must be 1 to {ID_MAX} printable bytes")
        spec = bundle.read(directory)  # written a moment ago: a thread would cost more than the file
        variables = env.as_dict(oci.process_env(spec))
        wanted = env.parse(variables, default_memsize=self.config.default_memsize())
        majors = oci.majors_of(self.world.facts.devices())
        if isinstance(wanted, NotSliced):
            await self._check_whole(spec, majors, variables, wanted)
            self._log.info("passed", id=container_id, why=wanted.why)
            return {"ok": True, "action": "pass"}

        options = self._options(message)
        oci.check_isolation(spec, options, self.world.facts.mps_directories())

        def make(plan: Plan) -> Awaitable[Container]:
            return self._make(request, plan, spec, majors, options)

        deadline = self.world.clock() + DYING_WAIT_S
        while (started := await self._admit(container_id, wanted, make)) is None:
            await self._until_gone(container_id, deadline)
        plan, container = started
        for warning in plan.warnings:
            self._log.warning("weight 0", id=container_id, warning=warning)
        self._log.info(
            "prepared",
            id=container_id,
            dir=container.dir,
            slots=[{"gpu": slot.gpu, "limit": slot.limit, "weight": slot.weight} for slot in container.slots],
        )
        reply = {"ok": True, "action": "edited", "dir": container.dir}
        if plan.warnings:
            reply["warning"] = wire.sentence("; ".join(plan.warnings))
        return reply

    async def _admit(
        self, container_id: str, wanted: model.Request, make: Callable[[Plan], Awaitable[Container]]
    ) -> tuple[Plan, Container] | None:
        """None: the last run of this container is still dying. The kernel's list, as long as there are containers, is
        read only to say who holds what, and to see why an id is taken."""
        async with self._admission:
            if self.world.draining():
                raise Refused(
                    "this node is being drained for an update of cgpu_km: no container gets a slice of a GPU until "
                    "it is over (cgpu drain --undo ends it)"
                )
            await self._end_earlier_life(container_id)
            inventory = await self._inventory.for_admission(self.config)
            try:
                plan = admit.admit(wanted, inventory, None, self.config.container)
                return plan, await make(plan)
            except admit.WhoHolds:
                pass
            except KernelRefused as error:
                if error.code not in (errno.EEXIST, errno.ENOSPC):
                    raise
                if error.code == errno.ENOSPC:  # somebody else was faster, so the sums are others
                    inventory = await self._inventory.for_admission(self.config)
            there = await self.world.link.list()
            if _is_dying(container_id, there):
                return None
            plan = admit.admit(wanted, inventory, there, self.config.container)
            return plan, await make(plan)

    async def _until_gone(self, container_id: str, deadline: float) -> None:
        """`docker restart` comes while the kernel still closes the last run's files."""
        while _is_dying(container_id, await self.world.link.list()):
            if self.world.clock() > deadline:
                raise Refused(f"the last run of container {container_id[:12]} still holds GPU memory; try again later")
            await asyncio.sleep(0.05)

    async def _make(
        self,
        request: Request,
        plan: Plan,
        spec: oci.Spec,
        majors: frozenset[int],
        options: oci.Options,
    ) -> Container:
        """Record, kernel, config.json, in this order; whatever fails takes the earlier ones back."""
        container_id, directory = request.message.id, request.message.bundle
        record = Record(
            id=container_id,
            cookie=reconcile.make_cookie(self.world.random(reconcile.COOKIE_BITS)),
            boot_id=self.boot_id,
            bundle=directory,
            phase=Phase.PREPARED,
            deadline=self.world.clock() + self.config.lease_s,
            # It becomes runc by exec, and is there until the start has worked or failed.
            process=self.world.facts.process(request.peer_pid),
        )
        self.records[record.key] = record
        try:
            self.world.store.save(record)
            container = await self.world.link.create(container_id, record.cookie, plan.slots)
            admit.check_grant(plan, container)
            bundle.write(directory, oci.edit(spec, container, majors, options))
        except BaseException as error:
            await asyncio.shield(self.feed(record.key, Sign.ABORTED))
            if isinstance(error, OSError):
                raise Refused(f"cgpud cannot write its state: {error}") from error
            raise
        self._watcher.add(record, self.world.facts.pidfd(request.peer_pid))
        return container

    async def bind(self, request: Request) -> dict[str, Any]:
        message = request.message
        key = (message.id, wire.cookie_of(message))
        pidfd = request.take_fd()
        if pidfd is None:
            raise Refused("bind without a pidfd")
        facts = self.world.facts
        pid = facts.pid_of(pidfd)
        process = facts.process(pid) if pid is not None else None
        record = self.records.get(key)
        step = None
        if pid is not None and process is not None and record is not None:
            path = facts.cgroup_path(pid)
            shared = path == facts.cgroup_path(request.peer_pid)  # the container has no cgroup of its own
            step = state.bind(record, process, facts.cgroup_at(path) if path and not shared else None)
        if step is None or process is None:
            os.close(pidfd)
            raise Refused(f"container {message.id[:12]} is not waiting to be started: it ended, or its lease is over")
        record, actions = step
        await self._carry_out(record, actions, pidfd)
        self._log.info("bound", id=record.id, pid=process.pid, cgroup=record.cgroup and record.cgroup.path)
        return {"ok": True}

    async def status(self) -> dict[str, Any]:
        try:
            kernel: tuple[Container, ...] | None = await self.world.link.list()
        except KernelMissing:
            kernel = None
        inventory = await self._inventory.glance()
        return {
            "ok": True,
            "module": kernel is not None,
            "draining": self.world.draining(),
            "kernel_containers": len(kernel or ()),
            "drift": settings.drift(self.config.gpu, self.config.gpus, inventory),
            "no_such_gpu": list(settings.unmatched(self.config.gpus, inventory)),
            "containers": list(map(state.shown, self.records.values())),
        }

    def _options(self, message: wire.Message) -> oci.Options:
        asked_by = message.runtime if message.runtime.startswith("/") else ""
        return oci.Options(
            hook_path=self.config.runtime_path or asked_by or DEFAULT_RUNTIME,
            allow_privileged=self.config.allow_privileged,
            legacy_hook_config=self.config.legacy_hook_config or None,
        )

    async def _check_whole(
        self, spec: oci.Spec, majors: frozenset[int], variables: dict[str, str], wanted: NotSliced
    ) -> None:
        """Refused where a container without a slice would get a GPU that is given out in slices only."""
        if not self.config.anywhere("unsliced", "refuse"):
            return
        if self.config.allow_privileged and oci.allows_all_devices(spec):
            return
        found = whole.of(spec, majors, variables)
        if not found:
            return
        kept = whole.kept_back(
            found, await self._inventory.glance(), lambda gpu: self.config.of(gpu).unsliced == "refuse"
        )
        if kept is not None:
            raise Refused(
                f'{kept} is not given out whole here (unsliced = "refuse" in cgpu.toml), and the container has no '
                f"slice of it: {wanted.why}"
            )

    async def _end_earlier_life(self, container_id: str) -> None:
        """An engine starts a stopped container again under the same id."""
        for record in [record for record in self.records.values() if record.id == container_id]:
            if record.phase is Phase.BOUND and self.world.facts.is_alive(record):
                raise Refused(f"container {container_id[:12]} is running already")
            await self.feed(record.key, Sign.TICK if record.phase is Phase.STUCK else Sign.LOST)

    # ---- signs ----

    def _tell(self, key: Key, sign: Sign) -> None:
        task = asyncio.create_task(self.feed(key, sign))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def feed(self, key: Key, sign: Sign) -> None:
        """One sign through the state machine. Unknown keys are yesterday's."""
        before = self.records.get(key)
        if before is None:
            if sign is Sign.POSTSTOP and key in self._unwatched:
                await self._destroy(*key)
            return
        record, actions = state.step(before, sign)
        if actions:
            self._log.debug("sign", id=record.id, sign=sign.name, phase=record.phase.value)
        await self._carry_out(record, actions, None)

    async def _carry_out(self, record: Record, actions: tuple[Do, ...], pidfd: int | None) -> None:
        self.records[record.key] = record
        for action in actions:
            match action:
                case Do.SAVE:
                    self._save(record)
                case Do.WATCH:
                    self._watcher.add(record, pidfd)
                case Do.UNWATCH:
                    self._watcher.remove(record.key)
                case Do.LOOK:
                    self._watcher.look(record.key)
                case Do.DESTROY:
                    await self.feed(record.key, await self._destroy(record.id, record.cookie))
                case Do.FORGET:
                    self.records.pop(record.key, None)
                    self.world.store.forget(record)
                    self._log.info("released", id=record.id)

    def _save(self, record: Record) -> None:
        """A full /run must not stop a release: reconcile can do without the file."""
        try:
            self.world.store.save(record)
        except OSError as error:
            self._log.error("cannot save a state file", id=record.id, error=str(error))

    async def _destroy(self, container_id: str, cookie: int) -> Sign:
        try:
            await self.world.link.destroy(container_id, cookie)
        except KernelMissing:
            return Sign.DESTROYED  # with the module went its containers
        except (CgpuError, OSError) as error:
            self._log.warning("the kernel did not destroy a container", id=container_id, error=str(error))
            return Sign.DESTROY_FAILED
        return Sign.DESTROYED

    # ---- reconcile ----

    async def reconcile(self) -> None:
        async with self._admission:
            self.world.tend()
            for record in self.world.store.missing(self.records.values()):
                self._save(record)
            try:
                kernel = await self.world.link.list()
            except KernelMissing:
                kernel = ()  # without the module there are no containers either
            except (CgpuError, OSError) as error:
                self._log.warning("cannot read the kernel's list", error=str(error))
                return
            findings = reconcile.reconcile(
                list(self.records.values()),
                kernel,
                boot_id=self.boot_id,
                now=self.world.clock(),
                alive=self.world.facts.is_alive,
            )
            there = {(one.id, one.cookie) for one in kernel}
            self._unwatched = {key: since for key, since in self._unwatched.items() if key in there}
            for finding in findings:
                match finding:
                    case Signal(record, sign):
                        self._log.info("reconcile", id=record.id, sign=sign.name)
                        await self.feed(record.key, sign)
                    case Orphan(container):
                        await self._adopt_or_destroy(container)
            await self._inventory.catch_up(self.config)

    async def _adopt_or_destroy(self, container: Container) -> None:
        key = (container.id, container.cookie)
        group = await asyncio.to_thread(self.world.facts.find_cgroup, container.id)
        if group is not None:
            record = Record(container.id, container.cookie, self.boot_id, "", Phase.BOUND, 0.0, None, group)
            self._unwatched.pop(key, None)
            self._log.warning("orphan adopted", id=container.id, cgroup=group.path)
            await self._carry_out(record, (Do.SAVE, Do.WATCH), None)
            return
        now, is_new = self.world.clock(), key not in self._unwatched
        self._unwatched[key] = since = reconcile.idle_since(container, self._unwatched.get(key), now)
        if since is not None and now - since >= reconcile.IDLE_S:
            self._log.warning("orphan destroyed", id=container.id)
            await self._destroy(*key)
        elif is_new:
            self._log.warning("orphan kept unwatched until it is idle", id=container.id)

    async def reload(self, config: Config) -> None:
        """The files were read again and are good."""
        async with self._admission:
            old, self.config = self.config, config
            await self._inventory.reload(config, old)
