# SPDX-License-Identifier: MIT
"""The node agent: what the node offers follows cgpud's GPUs and the node's label; the grant of each container is
decided when cgpud asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cgpu_common import log as logging
from cgpu_kube import annotations as keys
from cgpu_kube import pods
from cgpu_kube.annotations import Remains
from cgpu_kube.api import Client
from cgpu_kube.errors import KubeError
from cgpu_kube.node import claims, host, podview
from cgpu_kube.node.claimcheck import ClaimCheck
from cgpu_kube.node.cleaner import Cleaner
from cgpu_kube.node.cluster import HELD, REFUSED, Cluster
from cgpu_kube.node.counting import Counting
from cgpu_kube.node.daemon import Cgpud, DecisionServer
from cgpu_kube.node.decide import Grant, Subject, by_count, by_memory, check_pod, check_priority, check_uuid_choice
from cgpu_kube.node.dra import Claims, Driver
from cgpu_kube.node.evictor import Evictor
from cgpu_kube.node.figures import Figures
from cgpu_kube.node.host import HostGpu
from cgpu_kube.node.kubelet import Registrar, counted
from cgpu_kube.node.marks import Marks
from cgpu_kube.node.modefile import ModeFile
from cgpu_kube.node.plugin import AnyPlugin, Plugin
from cgpu_kube.node.settings import Settings
from cgpu_kube.node.turn import Turn
from cgpu_kube.node.unasked import LOOK_S, Unasked

DELETED_S = 0.5  # pods that are deleted and hold memory
RENEW_S = 2.0  # cgpud's answer of NVML, for pods that come
ENDED_S = 60.0  # for the scheduler to read that one holds none any more
FIRST_S = 1.0  # between requests to a cgpud that has not answered yet
STANDBY_S = 0.1  # looks of an agent whether the one that serves has ended
PUBLISH_S = 3.0  # for that report

#: Subjects of warnings, which an agent that is not ready has, too.
UNKNOWN_NODE, NOT_PUBLISHED = "the cluster has no node of this name", "not published"
NO_LOCK = "the lock of the agent cannot be taken"


class Agent(Counting):
    """Everything of one node; run() ends when it is cancelled."""

    def __init__(self, settings: Settings, api: Client, make: Callable[..., AnyPlugin] = Plugin) -> None:
        """@make: a plugin, in this process or in one that outlives it."""
        self.settings = settings
        self._log = logging.get()
        self._cgpud = Cgpud(settings.cgpud)
        self._changed = asyncio.Event()
        self.cluster = Cluster(api, settings.node, self._changed.set, self._pod_comes, self._log, settings.pod_wait_s)
        self.turn = Turn(settings.state / "agent.lock")
        self._mode_file = ModeFile(settings.state / "mode.json")
        self._read_mode()
        self._found: tuple[HostGpu, ...] = ()  # of cgpud's last answer
        self._gpus_known = asyncio.Event()  # without cgpud's first answer, that there are none is not known
        self._health_due = 0.0
        self._renew_due = 0.0
        self._group: asyncio.TaskGroup
        self._works: list[asyncio.Task[None]]  # while it serves
        self._said: dict[str, str] = {}  # subject of a warning -> its text, so that each is logged once
        plugins = settings.kubelet / "device-plugins"
        self.registrar = Registrar(plugins, self._log, self.cluster.allocatable, settings.poll_s)
        self.memory = make(plugins, keys.GPU_MEM, "gpu-mem", self._plugin_changed)
        self.core = make(plugins, keys.GPU_CORE, "gpu-core", self._plugin_changed)
        self.others = make(plugins, keys.NV_GPU, "nvidia-gpu", self._plugin_changed, apart=True)
        self.claims = Claims(settings.state / "claims", settings.cdi, self._log)
        self.driver = Driver(settings.kubelet, self.claims, self._prepare_claim, self._claim_ended, self._log)
        self._driver_runs = False
        self.decisions = DecisionServer(settings.socket, self.decide, self._log)
        self._tasks: set[asyncio.Task[None]] = set()
        self.prepared = asyncio.Event()  # what there is to offer is offered: the kubelet may start
        self.is_standby = False
        self.marks = Marks(self.cluster, lambda: (self.offer, self.gpus), self._log)
        self._claim_check = ClaimCheck(self.cluster, self._cgpud, self.claims, self._changed.set, self._log)
        self._cleaner = Cleaner(self.cluster, self._cgpud, self.marks, self._claim_check, self._uses, self._say)
        self._evictor = Evictor(self.cluster, self._cgpud, self._log)
        self.unasked = Unasked(self.cluster, self._cgpud, self.claims, self._log)
        self._leaves = False
        self._published = False
        self._publishes = asyncio.Lock()  # the node's annotation: one writer at a time
        self._deleted: dict[str, Remains] | None = None  # what pods that are gone hold; None: not known yet
        self._finished: dict[str, tuple[str, float]] = {}  # uid -> name of one that holds nothing any more, until when

    async def run(self) -> None:
        try:
            while True:
                await self._wait_for_turn()
                await self._serve()
                self.turn.give()
                self.registrar.forget()
                self.cluster.forget()
                self._published = self._driver_runs = False
                self._deleted = None
        finally:
            self.turn.give()

    async def _serve(self) -> None:
        """Until another agent serves the node."""
        self._read_mode()  # the one that has served until now may have changed it
        try:
            self.claims.load()
            await self._refresh()
            async with asyncio.TaskGroup() as group:
                self._changed.set()
                works = [watcher.run() for watcher in (self.cluster.nodes, self.cluster.pods)]
                works += [self._publish_start(), self.registrar.run(), self._apply_for_ever()]
                works += [self._cleaner.run(self.settings.clean_s)]
                works += [self._evictor.run(self._has_mps, self.settings.refresh_s, self._say)]
                works += [self.unasked.run(min(self.settings.refresh_s, LOOK_S), self._say)]
                self._group, self._works = group, [group.create_task(work) for work in works]
                await self._refresh_while_it_serves()
                for task in self._works:
                    task.cancel()
        finally:
            for plugin in (self.memory, self.core, self.others):
                if self._leaves or not plugin.is_kept:
                    await plugin.stop()
            await self.driver.stop()
            await self.decisions.stop()  # last: an agent that waits for it then finds no socket of this one
            for task in self._tasks:
                task.cancel()

    async def _wait_for_turn(self) -> None:
        """One agent serves a node. An update of the DaemonSet starts the next one before it ends the last. The socket
        counts, too: an agent with another --state-dir has another lock."""
        due = 0.0
        while not self._gets_turn():
            if not self._gpus_known.is_set() and (now := asyncio.get_running_loop().time()) >= due:
                due = now + FIRST_S
                await self._refresh()
            if not self._said.get(NO_LOCK):
                self.is_standby = self._gpus_known.is_set()
                self._say("another cgpu-kube serves this node", "this one waits for its end")
                self.prepared.set()
            await asyncio.sleep(STANDBY_S)
        self.is_standby = False
        self._say("another cgpu-kube serves this node", "")

    def _gets_turn(self) -> bool:
        try:
            has_lock = self.turn.take()
        except OSError as error:  # a state directory that is read-only for now, perhaps
            self.is_standby = False
            self._say(NO_LOCK, str(error))
            return False
        self._say(NO_LOCK, "")
        return has_lock and self.decisions.start()

    def _keeps_turn(self) -> bool:
        """/run and the state may have been cleared, and the next agent may have been faster."""
        has_lock = True
        try:
            has_lock = self.turn.take()
        except OSError as error:
            self._say("the lock of the agent cannot be made again", str(error))
        else:
            self._say("the lock of the agent cannot be made again", "")
        return has_lock and self.decisions.restore()

    # ---- being away: a kubelet refuses a pod for good if it has not the plugin's devices when the pod comes ----

    @property
    def unready(self) -> str:
        """Why this agent is not ready; "": it is, or it waits behind one that serves."""
        if self.is_standby:
            return ""
        if not self._gpus_known.is_set() or self._said.get(NO_LOCK):
            return (
                self._said.get(NO_LOCK) or self._said.get("cgpud's GPUs are not known") or "cgpud has not answered yet"
            )
        if not self.cluster.nodes.synced.is_set():
            return "the API server has not answered yet"
        unknown, failed = self._said.get(UNKNOWN_NODE, ""), self._said.get(NOT_PUBLISHED, "")
        return unknown or failed or self._away() or ("" if self._published else "nothing has been offered yet")

    def _look_for_node(self) -> None:
        """A name by mistake: the API server has no pods of it, and no word against it."""
        is_known = self.cluster.own_node() is not None or not self.cluster.nodes.synced.is_set()
        name = self.settings.node
        self._say(UNKNOWN_NODE, "" if is_known else f"{name}: nothing is offered; --node-name or NODE_NAME corrects it")

    @property
    def figures(self) -> Figures:
        return Figures(
            self.settings.node,
            ready=not self.unready,
            standby=self.is_standby,
            decisions=self.decisions.results,
            devices={one.resource: one.healthy for one in self.registrar.plugins},
            failing={"nodes": self.cluster.nodes.failing, "pods": self.cluster.pods.failing},
            unasked=len(self.unasked.found),
            token_ends=self.cluster.token_ends,
        )

    def _away(self) -> str:
        if self._leaves:
            return "it ends"
        if self._disagrees:
            return "its mode and unit are in doubt"
        if self.offer.mode in host.MEMORY_MODES and not self.registrar.is_taken():
            return "the kubelet does not have its devices yet"
        return ""

    @property
    def gpus(self) -> tuple[HostGpu, ...]:
        return host.in_mode(self._found, self.offer.mode)

    def _plugin_changed(self) -> None:
        self.registrar.wake()
        self._changed.set()

    async def _publish_start(self) -> None:
        """An earlier life may have ended without a word."""
        await self.cluster.nodes.synced.wait()
        self._look_for_node()
        try:
            async with self._publishes:
                is_there = self._published or self.memory.is_taken  # of an agent that was killed, and is kept
                if not is_there and self.offer.mode in host.MEMORY_MODES:
                    await self.cluster.publish_away("it has just started")
        except KubeError as error:
            self._log.warning("not published as away", reason=str(error))

    async def leave(self) -> None:
        """Before the end: no scheduler places a pod here from now on, and those that are bound already start."""
        self._leaves = True
        if self.is_standby or self.offer.mode not in host.MEMORY_MODES or not self.cluster.nodes.synced.is_set():
            return
        try:
            async with asyncio.timeout(PUBLISH_S), self._publishes:
                await self.cluster.publish_away(self._away())
        except (KubeError, TimeoutError) as error:
            self._log.warning("not published as away", reason=str(error) or "timeout")
        await asyncio.sleep(self.settings.leave_s)

    def _say(self, subject: str, text: str) -> None:
        """Log a condition once, and again when it has changed; "" ends it."""
        if text and self._said.get(subject) != text:
            self._log.warning(subject, reason=text)
        self._said[subject] = text

    # ---- what the node offers ----

    async def _refresh_while_it_serves(self) -> None:
        while self._keeps_turn():
            known = self._gpus_known.is_set()
            await asyncio.sleep(self.settings.refresh_s if known else min(self.settings.refresh_s, FIRST_S))
            await self._refresh()
            await self._look_at_deleted()
            try:
                if self._driver_runs:
                    await self.driver.ensure()
            except OSError as error:
                self._say("the driver's sockets cannot be made", str(error))
            else:
                self._say("the driver's sockets cannot be made", "")

    async def _refresh(self) -> None:
        """cgpud's GPUs. Without an answer the last ones stay: a start then waits for cgpud, and fails closed."""
        loop = asyncio.get_running_loop()
        health = {"verb": "nvml"} if loop.time() >= self._health_due else {}
        try:
            found = host.settled(self._found, host.read(await self._cgpud.ask("capacity", **health)))
        except (KubeError, KeyError, TypeError, ValueError) as error:
            self._say("cgpud's GPUs are not known", str(error))
            return
        self._say("cgpud's GPUs are not known", "")
        self._gpus_known.set()
        if health:
            self._health_due = loop.time() + self.settings.health_s
        if found != self._found:
            self._found = found
            self._changed.set()

    def _pod_comes(self) -> None:
        """A pod was bound to the node. The kubelet takes a second to its first container; NVML has answered by then."""
        now = asyncio.get_running_loop().time()
        if now >= self._renew_due and self.offer.mode in host.MODES:
            self._renew_due = now + RENEW_S
            self._start(self._renew())

    async def _renew(self) -> None:
        try:
            await self._cgpud.ask("capacity", verb="renew")
        except KubeError as error:
            self._log.debug("no renewal was requested of cgpud", reason=str(error))  # the start itself asks NVML then

    async def _wait_for_gpus(self) -> None:
        """Raises KubeError: a pod that is refused for a GPU that is there would have failed for good."""
        try:
            async with asyncio.timeout(self.settings.first_wait_s):
                await self._gpus_known.wait()
        except TimeoutError:
            why = self._said.get("cgpud's GPUs are not known") or "cgpud has not answered yet"
            raise KubeError(f"the GPUs of this node are not known: {why}; it is tried again") from None

    async def _apply_for_ever(self) -> None:
        await self._gpus_known.wait()  # before that, "no GPU" would be published of a node that has some
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                try:
                    await self.apply()
                finally:
                    self.prepared.set()
            except (KubeError, OSError) as error:
                self._say(NOT_PUBLISHED, str(error))
                await asyncio.sleep(min(self.settings.refresh_s, 5.0))
                self._changed.set()
            else:
                self._say(NOT_PUBLISHED, "")
                await asyncio.sleep(0.05)  # one pass for a burst of events

    async def apply(self) -> None:
        """Make plugins, driver, node and ResourceSlice follow label and GPUs."""
        self._look_for_node()
        self._compare()
        if self._disagrees:
            self.memory.offer([])
            self.core.offer([])
            self.others.offer([])
            self.registrar.wake()
            async with self._publishes:
                await self.cluster.publish_away(self._away())
            await self.cluster.publish_condition(REFUSED, True, self._disagrees)
            return
        if self._compared:
            self._set_mode()
            self._set_names()
            self._set_unit()
        memory = host.memory_devices(self.offer, self.gpus)
        node = self.cluster.own_node() or {}
        self.memory.spread = self.core.spread = self.others.spread = (
            node.get("labels", {}).get(keys.PLACEMENT_LABEL) == "spread"
        )
        self.memory.offer(memory)
        self.core.offer(host.core_devices(self.offer, self.gpus))
        self.others.links = host.links_by_uuid(self.gpus)
        others = host.nv_devices(self.offer, self.gpus)
        self.others.offer(others)
        mode = self.offer.mode
        wanted = [
            plugin
            for plugin, modes in ((self.memory, host.MEMORY_MODES), (self.core, (host.CORE_MEM,)))
            if mode in modes or plugin.registrations
        ]
        wanted += [self.others] if others or self.others.registrations else []
        if wanted != self.registrar.plugins:
            self.registrar.plugins = wanted
            await self.registrar.look()
        else:
            self.registrar.wake()  # the node's status may have changed
        await self._apply_driver(mode == host.DRA)
        if self._compared:  # before, the annotation is what the pods here are compared with
            fresh = bool(self.cluster.gone)
            if fresh or self._deleted or self._deleted is None:
                await self._look_at_deleted()
            deleted = self._deleted if self._deleted is not None else self.cluster.published_deleted()
            async with self._publishes:
                offer = self.offer.annotation(self.gpus, deleted, self._away())
                count = len(self.gpus) if memory else 0
                await self.cluster.publish_node(offer, count, host.card_labels(self.gpus))
                self._published = True
            await self._publish_held(fresh)
            if self.cluster.pods.synced.is_set():  # before, any pod may use the mode
                refused = self._said.get("mode", "")
                await self.cluster.publish_condition(REFUSED, bool(refused), refused)

    # ---- pods that were deleted before their containers ended ----

    async def _look_at_deleted(self) -> None:
        """Which slices are of pods that are gone. Without an answer what was known stays."""
        watch = self.cluster.pods
        if not watch.synced.is_set() or watch.failing:
            return
        try:
            found = (await self._cgpud.ask("slices"))["slices"]
            if self._has_mps():
                found += host.client_slots(self.gpus, (await self._cgpud.ask("mps"))["containers"])
            alive = {uid for pod in self.cluster.pods_here() for uid in podview.uids(pod)}
            held = self.offer.remains(self.gpus, found, alive)
        except (KubeError, KeyError, TypeError) as error:
            self._say("slices of deleted pods are not known", str(error))
            return
        self._say("slices of deleted pods are not known", "")
        now = asyncio.get_running_loop().time()
        gone, self.cluster.gone = self.cluster.gone, {}
        before = {uid: one.pod for uid, one in (self._deleted or {}).items() if one.units}
        for uid in (gone.keys() | before.keys()) - alive:
            self._finished[uid] = (gone.get(uid) or before[uid], now + ENDED_S)
        self._finished = {uid: one for uid, one in self._finished.items() if uid not in held and one[1] > now}
        deleted = held | {uid: Remains(name, {}) for uid, (name, _) in self._finished.items()}
        if deleted != self._deleted:
            self._deleted = deleted
            self._changed.set()

    async def _publish_held(self, fresh: bool) -> None:
        """@fresh: a pod was deleted by force just now. True even if it holds nothing: the change back to False lets the
        scheduler try the pods again that it has refused meanwhile."""
        held = {one.pod: one.units for one in (self._deleted or {}).values() if one.units}
        message = self.offer.held_text(held)
        await self.cluster.publish_condition(HELD, fresh or bool(held), message)
        if fresh or held:
            asyncio.get_running_loop().call_later(DELETED_S, self._changed.set)

    async def _apply_driver(self, wanted: bool) -> None:
        """The driver serves while the mode is dra, and as long as claims are prepared: their pods end through it."""
        self.driver.offer(self.settings.node, self.gpus if wanted else ())
        if (wanted or any(True for _ in self.claims)) and not self._driver_runs:
            await self.driver.ensure()
            self._works.append(self._group.create_task(self.cluster.slices.run()))
            self._driver_runs = True
        if self._driver_runs and self.cluster.slices.synced.is_set() and self.cluster.nodes.synced.is_set():
            spec = claims.slice_spec(self.settings.node, self.gpus) if wanted else None
            await self.cluster.publish_slice(spec)

    def _start(self, coroutine: Any) -> None:
        """Something whose failure ends nothing else."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("internal error", error=f"{type(error).__name__}: {error}")

    # ---- decisions ----

    async def decide(self, names: Mapping[str, str]) -> Grant:
        """The grant of a container. Raises KubeError with the sentence for its pod's events."""
        subject = Subject(**names)
        await self._wait_for_gpus()
        await self._wait_for_comparison()
        pod = await self.cluster.pod(subject.namespace, subject.pod, subject.uid, fresh=False)
        if pod is not None and subject.uid not in podview.uids(pod):
            pod = await self.cluster.pod(subject.namespace, subject.pod, subject.uid, fresh=True)
        if pod is None:
            return await self._by_count(subject)
        check_pod(subject, pod, self.settings.node)
        if grant := claims.by_claim(subject, pod, self.claims):
            await self._claim_check.check(subject, pod, grant["claim"])
            return grant
        if claims.claim_names(pod, subject.container) and not pods.is_tracked(pod):
            raise KubeError(f"{subject} names a claim that is not prepared on this node; it is tried again")
        known = keys.parse(podview.of_scheduler(pod)) is not None
        if not known and len(self.gpus) > 1:  # a scheduler may have written it since
            pod = await self.cluster.pod(subject.namespace, subject.pod, subject.uid, fresh=True) or pod
            check_pod(subject, pod, self.settings.node)  # it may have been made again under its name
            known = keys.parse(podview.of_scheduler(pod)) is not None
        highprio = podview.wants_high_priority(pod)
        if highprio:
            check_priority(subject, await self.cluster.allows(subject.namespace, keys.PRIORITY, "high"))
        if keys.chooses_uuid((pod.get("metadata") or {}).get("annotations")):
            check_uuid_choice(subject, await self.cluster.allows(subject.namespace, keys.GPU_UUID, keys.ALLOWED))
        resource = keys.NV_GPU if pods.asks_by_names(pod) else keys.GPU_MEM
        counts = None if known else await self._counted(subject, resource)
        grant = by_memory(subject, pod, self.offer, self.gpus, counts, highprio)
        self._start(self.marks.assigned(pod) if known else self.marks.placed(pod, subject, grant))
        return grant

    async def _by_count(self, subject: Subject) -> Grant:
        has_core = self.offer.mode == host.CORE_MEM
        core = await self._counted(subject, keys.GPU_CORE) if has_core else {}
        grant = by_count(subject, self.offer, self.gpus, await self._counted(subject), core)
        self._log.warning("granted without the pod's annotations", container=str(subject), reason="no API server")
        return grant

    async def _counted(self, subject: Subject, resource: str = keys.GPU_MEM) -> dict[str, int] | None:
        socket = self.settings.kubelet / "pod-resources/kubelet.sock"
        return await counted(socket, resource, subject.namespace, subject.pod, subject.container)

    def _has_mps(self) -> bool:
        return self.offer.mode == host.MPS and self.cluster.pods.synced.is_set()

    # ---- claims ----

    async def _prepare_claim(self, namespace: str, name: str, uid: str) -> claims.Claim:
        await self._wait_for_gpus()
        found = await self.cluster.claim(namespace, name)
        runtime = str((self.cluster.own_node() or {}).get("runtime", ""))
        claims.check_runtime(runtime, cdi_enabled=self.settings.cdi_enabled)
        high = claims.asks_high(found) and await self.cluster.allows(namespace, keys.PRIORITY, "high")
        claim = claims.prepare(found, uid, self.settings.node, self.offer.mode, self.gpus, high_allowed=high)
        self._log.info("claim prepared", claim=f"{namespace}/{name}", slots=len(claim.slots))
        return claim

    async def _claim_ended(self, _claim: claims.Claim) -> None:
        self._changed.set()
        self._start(self._cleaner.clean())
