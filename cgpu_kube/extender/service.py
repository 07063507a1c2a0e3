# SPDX-License-Identifier: MIT
"""The extender's HTTP server, and the watches that keep its ledger.

State is rebuilt from the API server at each start: which pod holds which GPU is in the pods' annotations. One instance
serves at a time, by a Lease: two would not know each other's reservations. The others follow the cluster.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from aiohttp import web

from cgpu_common import log
from cgpu_common.versions import package_version
from cgpu_kube import annotations as notes
from cgpu_kube import pods
from cgpu_kube.api import MERGE, ApiError, Client, Object
from cgpu_kube.errors import KubeError
from cgpu_kube.extender import metrics, preempt, protocol
from cgpu_kube.extender.access import Access
from cgpu_kube.extender.binder import Binder
from cgpu_kube.extender.lease import Lease, Times
from cgpu_kube.ledger import UNHEALTHY, Ledger, read_node, unhealthy_gpus
from cgpu_kube.parts import Parts
from cgpu_kube.watch import Watcher

T = TypeVar("T")

PREFIX = "/gpushare-scheduler"
BODY_MAX = 32 << 20  # whole Node objects of some hundred nodes, for schedulers that do not send names
UNHEALTHY_NAMESPACE = "kube-system"
TURN_NODES = 8  # nodes checked for one pod before other tasks of the event loop run
METRICS_NODES = 20  # whose figures are written between two looks at the scheduler's requests
LOST_S = 15.0  # from the end of an agent: the kubelet has written by then that its devices are gone
LEAVE_S = 10.0  # for a node to say what a pod that was deleted by force holds

SERVES_LABEL = "cgpu.io/serves"
SELF_SIGNED_DAYS = 3650  # made at each start


@dataclass(frozen=True)
class LeaseArgs:
    """@identity is unique to this process's life. @pod: this pod, which is labelled; "" outside of one."""

    namespace: str
    name: str
    identity: str
    pod: str = ""
    times: Times = field(default_factory=Times)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _trimmed_node(found: Object) -> Object:
    """The parts that read_node() reads."""
    meta, status = found.get("metadata") or {}, found.get("status") or {}
    labels, texts = meta.get("labels") or {}, meta.get("annotations") or {}
    kept = {key: meta[key] for key in ("name", "uid", "resourceVersion") if key in meta}
    kept["labels"] = {key: labels[key] for key in (notes.MODE_LABEL, notes.PLACEMENT_LABEL) if key in labels}
    kept["annotations"] = {key: texts[key] for key in (notes.NODE_GPUS,) if key in texts}
    return {"metadata": kept, "status": {key: status[key] for key in ("capacity", "allocatable") if key in status}}


def _seen(pod: Object) -> tuple[str, bool] | None:
    """What the mirror has of a pod: its uid, and whether a container of it runs. The ledger has the rest; and a pod
    that asks for nothing of ours asks for nothing later."""
    is_of_interest = pods.is_tracked(pod) or pods.is_agent(pod)
    return (pods.uid_of(pod), pods.has_running(pod)) if is_of_interest else None


def _trimmed_map(found: Object) -> Object:
    meta = found.get("metadata") or {}
    kept = {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in meta}
    is_ours = str(meta.get("name", "")).startswith(UNHEALTHY)
    return {"metadata": kept, "data": {"gpus": (found.get("data") or {}).get("gpus", "")} if is_ours else {}}


class Extender:
    """`async with Extender(api, access)`: the watches run. `app` is the HTTP application. `access` decides who may use
    it; None: every client that reaches it. `local` is the one for a scheduler in the same pod, or None."""

    def __init__(
        self,
        api: Client,
        access: Access | None,
        leave_s: float = LEAVE_S,
        lease: LeaseArgs | None = None,
        beside: bool = False,
        **binder: Any,
    ) -> None:
        """@lease: of several extenders the one that holds it serves; None: this is the only one. @beside: the scheduler
        is in this pod and uses `local`; `app` has no verb that reserves or binds then."""
        self._identity = lease.identity if lease else ""
        self._labels = lease
        self._api = api
        self.lease = None
        if lease is not None:
            times = (api, lease.namespace, lease.name, lease.identity, self._serves, lease.times)
            self.lease = Lease(*times)
        self._leave_s = leave_s
        self.ledger = Ledger()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.pods = Watcher(
            api,
            "/api/v1/pods",
            keep=pods.trimmed,
            store=_seen,
            parts=Parts(pods.Sparse),
            on_change=self._pod,
            on_failure=self._failed("pods"),
        )
        self.nodes = Watcher(
            api, "/api/v1/nodes", keep=_trimmed_node, on_change=self._node, on_failure=self._failed("nodes")
        )
        self.maps = Watcher(
            api,
            f"/api/v1/namespaces/{UNHEALTHY_NAMESPACE}/configmaps",
            keep=_trimmed_map,
            on_change=self._map,
            on_failure=self._failed("configmaps"),
        )
        mine: dict[str, Any] = {"identity": self._identity, "may_write": lambda: self.is_leader}
        self.binder = Binder(api, self.ledger, self.pods.put, **mine, **binder)
        self._agents: dict[str, str] = {}  # uid -> node, of those that run
        self._lost: dict[str, asyncio.TimerHandle] = {}  # by node
        self._unbound: dict[str, Object] = {}  # by uid: pods for which another extender has chosen
        self.tasks: list[asyncio.Task[None]] = []
        self.app = self._routes(access, verbs=not beside)
        self.local = self._routes(None, verbs=True) if beside else None

    async def __aenter__(self) -> Self:
        self.tasks = [asyncio.create_task(watcher.run()) for watcher in (self.pods, self.nodes, self.maps)]
        self.tasks.append(asyncio.create_task(self._settle()))
        if self.lease is not None:
            self.tasks.append(asyncio.create_task(self._stand()))
        return self

    async def _settle(self) -> None:
        """What costs the first requests time: the sums of the nodes, and full collections of garbage, which look at
        every object of the first list."""
        await self.pods.synced.wait()
        await self.nodes.synced.wait()
        for name in list(self.ledger.nodes):
            self.ledger.used(name)  # the sums, which follow the pods from now on; else the first filter makes them all
            await asyncio.sleep(0)
        gc.collect()
        gc.freeze()
        await asyncio.Event().wait()

    async def _stand(self) -> None:
        """A candidate only once it knows the cluster: a Lease is not held by one that has to read it first."""
        assert self.lease is not None
        await self.pods.synced.wait()
        await self.nodes.synced.wait()
        await self.lease.run()

    async def _serves(self, gained: bool) -> None:
        """What the last holder has written is read before this one decides: its pods that are not bound yet are counted
        by _assumed(). Raises KubeError; the Lease is not held then."""
        if gained:
            await self.pods.refresh()
        await self._label(gained)
        if gained:  # the last step: pods that come later find that this one serves
            self.binder.begin()
            for pod in [*self._unbound.values()]:
                self._assume(pod)

    async def _label(self, serves: bool) -> None:
        """The Service selects the pod that serves by its label. Raises KubeError."""
        lease = self._labels
        if lease is None or not lease.pod:
            return
        path = f"/api/v1/namespaces/{lease.namespace}/pods"
        last = self.lease.last.partition("_")[0] if self.lease and serves else ""
        if last not in ("", lease.pod):  # it may hang, and be back with its label
            try:
                await self._api.patch(f"{path}/{last}", {"metadata": {"labels": {SERVES_LABEL: "false"}}}, MERGE)
            except ApiError as error:
                if not error.is_missing:
                    raise
        label = {SERVES_LABEL: "true" if serves else "false"}
        await self._api.patch(f"{path}/{lease.pod}", {"metadata": {"labels": label}}, MERGE)

    def _assumed(self, pod: Object) -> None:
        """A pod that another extender has chosen a GPU for, and not bound as far as is known."""
        uid = pods.uid_of(pod)
        if pods.node_of(pod) or pods.is_over(pod):
            self.binder.forget(uid)
        found = notes.parse_assumed((pod.get("metadata") or {}).get("annotations"))
        if pods.node_of(pod) or pods.is_over(pod) or found is None or found[1] == self._identity or not self.lease:
            self._unbound.pop(uid, None)
            return
        self._unbound[uid] = pod
        if self.is_leader:
            self._assume(pod)

    def _assume(self, pod: Object) -> None:
        found = notes.parse_assumed(pod["metadata"].get("annotations"))
        if found is not None and found[0] in self.ledger.nodes:
            self.binder.assume(pod, found[0])

    @property
    def is_leader(self) -> bool:
        return self.lease is None or self.lease.is_held

    async def __aexit__(self, *_error: object) -> None:
        for task in self.tasks:
            task.cancel()
        for timer in self._lost.values():
            timer.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.binder.close()

    @property
    def is_ready(self) -> bool:
        """Every pod and node has been read once. The ConfigMaps may be forbidden to it; then none counts."""
        return self.pods.synced.is_set() and self.nodes.synced.is_set()

    # ---- the ledger's events ----

    def _pod(self, old: tuple[str, bool] | None, new: Object | None) -> None:
        if new is not None:
            self._agent(new)
            self._assumed(new)
            self.ledger.set_pod(new)
        elif old is not None:
            uid, is_running = old
            self._agent_ended(uid)
            self._unbound.pop(uid, None)
            self.binder.forget(uid)
            if is_running and self.ledger.leave(uid):
                asyncio.get_running_loop().call_later(self._leave_s, self.ledger.expire, uid)
            else:
                self.ledger.drop(uid)

    def _agent(self, pod: Object) -> None:
        """The kubelet shows within a second or two that an agent's container has ended; that its devices are gone it
        writes every 10 s, and fails what was bound in between."""
        namespace = pod["metadata"].get("namespace")
        if self._labels is None or namespace != self._labels.namespace or not pods.is_agent(pod):
            return
        if pods.has_running(pod):
            self._agents[pods.uid_of(pod)] = pods.node_of(pod)
        else:
            self._agent_ended(pods.uid_of(pod))

    def _agent_ended(self, uid: str) -> None:
        """One that ends in order has published its node as away, and at an update the next one runs by then."""
        name = self._agents.pop(uid, "")
        if name and name not in self._agents.values():
            self._found(name)
            self.ledger.lose(name)
            self._lost[name] = asyncio.get_running_loop().call_later(LOST_S, self._found, name)

    def _found(self, name: str) -> None:
        """Its agent is there, and has published what is so; or the kubelet has written it."""
        if timer := self._lost.pop(name, None):
            timer.cancel()
            self.ledger.find(name)

    def _node(self, old: Object | None, new: Object | None) -> None:
        found = new or old or {}
        name = str((found.get("metadata") or {}).get("name") or "")
        texts = [one["metadata"]["annotations"].get(notes.NODE_GPUS) if one else None for one in (old, new)]
        if texts[0] != texts[1]:
            self._found(name)
        marked = self.maps.objects.get(UNHEALTHY_NAMESPACE, UNHEALTHY + name) if new else None
        bad = unhealthy_gpus(str((marked or {}).get("data", {}).get("gpus") or ""))
        self.ledger.set_node(name, read_node(new, bad) if new else None)

    def _map(self, old: Object | None, new: Object | None) -> None:
        name = str(((new or old or {}).get("metadata") or {}).get("name") or "")
        if name.startswith(UNHEALTHY):
            node = self.nodes.objects.get("", name.removeprefix(UNHEALTHY))
            if node is not None:
                self._node(node, node)

    @staticmethod
    def _failed(resource: str) -> Callable[[str, float], None]:
        def report(why: str, seconds: float) -> None:
            log.get().warning("watch failed", resource=resource, reason=why, retry_s=round(seconds, 1))

        return report

    # ---- HTTP ----

    def _routes(self, access: Access | None, *, verbs: bool) -> web.Application:
        """@verbs: those of the scheduler, too."""
        app = web.Application(client_max_size=BODY_MAX, middlewares=(access.middleware,) if access is not None else ())
        if verbs:
            app.router.add_post(f"{PREFIX}/filter", self._verb("filter", self._filter))
            app.router.add_post(f"{PREFIX}/prioritize", self._verb("prioritize", self._prioritize))
            app.router.add_post(f"{PREFIX}/preempt", self._verb("preempt", self._preempt))
            app.router.add_post(f"{PREFIX}/bind", self._verb("bind", self._bind))
        app.router.add_get(f"{PREFIX}/inspect", self._verb("inspect", self._inspect))
        app.router.add_get(f"{PREFIX}/inspect/{{node}}", self._verb("inspect", self._inspect))
        app.router.add_get("/version", self._version)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        return app

    def _verb(self, verb: str, work: Callable[[web.Request], Awaitable[Any]]) -> Handler:
        """An error of ours is {"Error": sentence}; before the first list every verb is one."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                if not self.is_ready:
                    raise KubeError("the extender has not yet read the cluster's pods and nodes; try again")
                if not self.is_leader and verb != "inspect":
                    raise KubeError(
                        f"extender {self.lease.holder if self.lease else ''} serves, not this one; try again"
                    )
                answer, result = await work(request), "ok"
                status = 200
            except protocol.BadRequest as error:
                answer, result, status = {"Error": str(error)}, "bad", 400
            except KubeError as error:
                # 200: of any other status the scheduler shows the number instead of the sentence.
                answer, result, status = {"Error": str(error)}, "error", 200
                log.get().info("refused", verb=verb, reason=str(error))
            self.requests[verb, result] += 1
            reply = web.json_response(answer, status=status)
            if not self.is_leader:
                reply.force_close()  # the next connection is to the one that serves
            return reply

        return handle

    @staticmethod
    async def _json(request: web.Request) -> Any:
        try:
            return json.loads(await request.read())
        except (ValueError, RecursionError):
            raise protocol.BadRequest("the request's body is no JSON") from None

    async def _filter(self, request: web.Request) -> Any:
        args = protocol.read_filter(await self._json(request))
        return protocol.filter_answer(args, await in_turns(protocol.refusals(args, self.ledger)))

    async def _prioritize(self, request: web.Request) -> Any:
        return await in_turns(protocol.prioritize(protocol.read_filter(await self._json(request)), self.ledger))

    async def _preempt(self, request: web.Request) -> Any:
        args = preempt.read_preempt(await self._json(request))
        found = {}
        for name, victims in preempt.choose(args, self.ledger):
            if victims is not None:
                found[name] = victims
            await asyncio.sleep(0)
        return preempt.answer(found)

    async def _bind(self, request: web.Request) -> Any:
        args = protocol.read_bind(await self._json(request))
        await self.binder.bind(args)
        log.get().info("bound", pod=f"{args.namespace}/{args.name}", node=args.node)
        return {"Error": ""}

    async def _inspect(self, request: web.Request) -> Any:
        return protocol.inspect(self.ledger, request.match_info.get("node"))

    async def _version(self, _request: web.Request) -> web.Response:
        return web.Response(text=package_version())

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _request: web.Request) -> web.Response:
        if self.is_ready:
            return web.Response(text="ok")
        return web.Response(text="the cluster's pods and nodes have not been read yet", status=503)

    async def _metrics(self, _request: web.Request) -> web.Response:
        watches = {"pods": self.pods, "nodes": self.nodes, "configmaps": self.maps}
        found = {name: (one.failing, one.age_s) for name, one in watches.items()}
        scrape = metrics.Scrape(self.requests, self.binder.outcomes, self.binder.doubts, found, self.is_leader)
        nodes, body = metrics.Nodes(), [metrics.text(scrape)]
        for number, name in enumerate(sorted(self.ledger.nodes)):
            if (node := self.ledger.nodes.get(name)) is not None:
                nodes.add(self.ledger, node)
            if number % METRICS_NODES == 0:
                await asyncio.sleep(0)
        for family in nodes.families():
            body.append(family)
            await asyncio.sleep(0)
        return web.Response(body=b"".join(body), headers={"Content-Type": metrics.PLAIN})


async def in_turns(found: Iterator[T]) -> list[T]:
    """All items; let other tasks run after each TURN_NODES."""
    out = []
    for number, one in enumerate(found):
        out.append(one)
        if number % TURN_NODES == TURN_NODES - 1:
            await asyncio.sleep(0)
    return out


def self_signed(folder: Path) -> tuple[str, str]:
    """A self-signed certificate and its key, in @folder: for clients that do not verify it, as the kubelet's probes and
    a Prometheus with a token. kube-scheduler's own port is served so, too. Raises OSError."""
    cert, key = folder / "tls.crt", folder / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", str(SELF_SIGNED_DAYS), "-subj", "/CN=cgpu-extender", "-keyout", str(key), "-out", str(cert)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"openssl made no certificate: {(done.stderr.splitlines() or ['without a word'])[-1]}")
    return str(cert), str(key)


def tls_context(cert: str, key: str, client_ca: str) -> ssl.SSLContext:
    """A server's context; with @client_ca a client may show a certificate of that authority, and is known by it.
    Without one it is known by its token, or not at all (the kubelet's probes). Raises OSError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key or None)
    if client_ca:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
