# SPDX-License-Identifier: MIT
"""bind: decides the GPU, writes the annotations and then the Binding.

The decision and its reservation are one step without a wait, so two binds never get the same memory. The annotations
are one patch on the version of the pod that was read, and the Binding is on the version that the patch made: a late
write of an earlier try fails instead of mixing with this one. Where the answer to a write is lost, the reservation is
kept until the API server shows the outcome, or the choice is withdrawn from the pod, which makes a late Binding fail.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from cgpu_common.placement import NoRoom, Placement, PodNeed, loads_of
from cgpu_kube import annotations as notes
from cgpu_kube import pods
from cgpu_kube.api import STRATEGIC, ApiError, Client, Object, Unreachable
from cgpu_kube.errors import KubeError, Refused
from cgpu_kube.extender.protocol import BindArgs, binding
from cgpu_kube.ledger import Ledger
from cgpu_kube.watch import Backoff

TRIES = 4  # after conflicts: the scheduler itself writes the pod's status meanwhile
DOUBT_S = 60.0  # the API server's own limit of a request: later none of ours can take effect


class Binder:
    """@put gets the pod of each answer, before its event. @may_write: this extender is the one that serves, asked
    before each write; @identity: its name among several, "" if there are no others."""

    def __init__(
        self,
        api: Client,
        ledger: Ledger,
        put: Callable[[Object], None],
        *,
        identity: str = "",
        may_write: Callable[[], bool] = lambda: True,
        now_ns: Callable[[], int] = time.time_ns,
        doubt_s: float = DOUBT_S,
    ) -> None:
        self.outcomes: Counter[str] = Counter()  # of binds: bound, refused, conflict, unreachable
        self._api = api
        self._ledger = ledger
        self._put = put
        self._identity = identity
        self._may_write = may_write
        self._now_ns = now_ns
        self._doubt_s = doubt_s
        self._busy: set[str] = set()
        self._doubts: dict[str, asyncio.Task[None]] = {}
        self._refuted: set[str] = set()  # uids of pods for which no other extender has a bind on its way

    @property
    def doubts(self) -> int:
        """Reservations whose bind has an unknown result."""
        return len(self._doubts)

    async def close(self) -> None:
        tasks = list(self._doubts.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def bind(self, args: BindArgs) -> None:
        """Raises KubeError with the sentence for the pod's events; then the pod is not bound, or it is not known."""
        if args.uid in self._busy:
            raise Refused(f"pod {args.namespace}/{args.name} is being bound by another request")
        self._busy.add(args.uid)
        try:
            await self._bind(args)
            self.outcomes["bound"] += 1
        except Refused:
            self.outcomes["refused"] += 1
            raise
        except ApiError as error:
            self.outcomes["conflict" if error.is_conflict else "refused"] += 1
            raise
        except KubeError:
            self.outcomes["unreachable"] += 1
            raise
        finally:
            self._busy.discard(args.uid)

    async def _bind(self, args: BindArgs) -> None:
        for attempt in range(TRIES):
            pod, need = await self._read(args)
            if pods.node_of(pod) == args.node:
                self._put(pod)  # an earlier try, whose answer was lost
                return
            try:
                if args.uid in self._doubts:
                    pod = await self._withdraw(args, pod)
            except ApiError as error:
                if not error.is_conflict or attempt == TRIES - 1:
                    raise
                continue
            if notes.chooses_uuid(pod["metadata"].get("annotations")):
                await self._check_choice(args)
            if self._is_bound(args):
                return
            placement = self._reserve(args, need)
            try:
                await self._write(args, pod, need, placement)
                self._settle(args.uid)
                return
            except ApiError as error:
                if error.status >= 500:
                    self._doubt(args)
                    raise
                self._ledger.release(args.uid)
                if not error.is_conflict or attempt == TRIES - 1:
                    raise
            except Unreachable:
                self._doubt(args)
                raise
            except KubeError:
                self._ledger.release(args.uid)  # nothing was sent
                raise

    async def _read(self, args: BindArgs) -> tuple[Object, PodNeed]:
        """The pod as it is now: the mirror may be behind."""
        what = f"pod {args.namespace}/{args.name}"
        try:
            pod = await self._api.get(_path(args))
        except ApiError as error:
            if error.is_missing:
                self._ledger.drop(args.uid)
                raise Refused(f"{what} is gone") from error
            raise
        if pods.uid_of(pod) != args.uid:
            self._ledger.drop(args.uid)
            raise Refused(f"{what} is another pod by now")
        bound = pods.node_of(pod)
        if bound not in ("", args.node):
            self._put(pod)
            raise Refused(f"{what} is on node {bound} already")
        if pod["metadata"].get("deletionTimestamp"):
            raise Refused(f"{what} is being deleted")
        need = pods.needs(pod)
        if need is None:
            raise Refused(f"{what} asks for no GPU memory")
        return pod, need

    async def _check_choice(self, args: BindArgs) -> None:
        """The label of a namespace is out of the reach of its pods' authors."""
        found = await self._api.get(f"/api/v1/namespaces/{args.namespace}")
        labels = (found.get("metadata") or {}).get("labels") or {}
        if labels.get(notes.GPU_UUID) != notes.ALLOWED:
            self._ledger.release(args.uid)
            raise Refused(notes.no_uuid(f"{args.namespace}/{args.name}", args.namespace))

    def _is_bound(self, args: BindArgs) -> bool:
        """Whether another extender has bound it to the node, by an event that overtook the answer to our read. A
        reservation would replace what the pod holds, and its end would free it. Raises Refused."""
        held = self._ledger.get(args.uid)
        if held is None or not held.is_bound:
            return False
        if held.node != args.node:
            raise Refused(f"pod {args.namespace}/{args.name} is on node {held.node} already")
        return True

    def _reserve(self, args: BindArgs, need: PodNeed) -> Placement:
        found = self._ledger.fit(need, args.node, args.uid)
        if isinstance(found, NoRoom):
            self._ledger.release(args.uid)
            raise Refused(f"node {args.node}: {found.why}")
        self._ledger.reserve(args.uid, f"{args.namespace}/{args.name}", args.node, need, found)
        return found

    async def _write(self, args: BindArgs, pod: Object, need: PodNeed, placement: Placement) -> None:
        if not placement.gpus:  # of another plugin's node, which chooses itself
            self._check_serves()
            version = str(pod["metadata"].get("resourceVersion") or "")
            await self._api.create(f"{_path(args)}/binding", binding(args, version))
            return
        node = self._ledger.nodes[args.node]
        places = None if node.is_ours else pods.main_places(pod)
        dev = node.devs.get(placement.indices[0], 0)
        more: dict[str, Any] = {"places": places, "sizes": node.sizes}
        # A node passes over a choice from before the pod's creation, which the API server's clock has written.
        time_ns = max(self._now_ns(), pods.created_ns(pod))
        texts = pods.annotated(need, placement.gpus, dev, time_ns, **more)
        meta = {"uid": args.uid, "resourceVersion": pod["metadata"].get("resourceVersion"), "annotations": texts}
        if self._identity:
            texts |= notes.assumed(args.node, self._identity)
        self._check_serves()
        patched = await self._api.patch(_path(args), {"metadata": meta}, STRATEGIC)
        version = str((patched.get("metadata") or {}).get("resourceVersion") or "")
        self._put(patched)
        self._check_serves()
        await self._api.create(f"{_path(args)}/binding", binding(args, version))

    def _check_serves(self) -> None:
        if not self._may_write():
            raise KubeError("another extender serves now; try again")

    # ---- unknown results ----

    def assume(self, pod: Object, node: str) -> None:
        """Another extender has chosen this pod's GPU and may have bound it: it counts until that is known.

        Its author may have written the annotations: the admission policies that keep authors from it are of Kubernetes
        1.30, and can be off. So it takes what is free and never more, once for as long as a bind can be on its way, and
        only if a scheduler may bind it: no extender is asked about a pod with scheduling gates."""
        if pods.is_gated(pod) or pods.uid_of(pod) in self._refuted:
            return
        uid, name = pods.uid_of(pod), pods.name_of(pod)
        need = pods.counted(pod)
        gpus = pods.gpus_of(pod, need) if need is not None else None
        if need is None or gpus is None or uid in self._busy or self._ledger.get(uid) is not None:
            return
        if not self._ledger.has_room(need, node, gpus):
            return
        namespace, _, short = name.partition("/")
        self._ledger.reserve(
            uid, name, node, need, Placement(gpus, loads_of(need, gpus, self._ledger.nodes[node].sizes))
        )
        self._doubt(BindArgs(short, namespace, uid, node))

    def begin(self) -> None:
        """This extender serves from now on: until now another one may have chosen, again too."""
        self._refuted.clear()

    def forget(self, uid: str) -> None:
        """The pod is bound, or gone."""
        self._refuted.discard(uid)

    def _settle(self, uid: str) -> None:
        task = self._doubts.pop(uid, None)
        if task is not None:
            task.cancel()

    def _doubt(self, args: BindArgs) -> None:
        self._settle(args.uid)
        self._doubts[args.uid] = asyncio.create_task(self._resolve(args))

    async def _resolve(self, args: BindArgs) -> None:
        """Ask until there is an answer. The pod's own next bind does not wait for this."""
        await asyncio.sleep(self._doubt_s)
        backoff = Backoff()
        while True:
            try:
                if await self._is_resolved(args):
                    break
            except ApiError as error:
                if error.is_missing:
                    self._ledger.drop(args.uid)
                    break
            except KubeError:
                pass
            await asyncio.sleep(backoff.next_s())
        self._doubts.pop(args.uid, None)

    async def _is_resolved(self, args: BindArgs) -> bool:
        """False: not yet. Raises KubeError, likewise."""
        pod = await self._api.get(_path(args))
        if pods.uid_of(pod) != args.uid:
            self._ledger.drop(args.uid)
        elif pods.node_of(pod):
            self._put(pod)
        elif args.uid in self._busy:
            return False
        else:
            if self._may_write():
                await self._withdrawn(args, pod)
                self._refuted.add(args.uid)
            if args.uid in self._busy:
                return False
            self._ledger.release(args.uid)
        return True

    async def _withdraw(self, args: BindArgs, pod: Object) -> Object:
        """Before another choice: from then on the GPUs of the last one are free. Returns the pod as it is now. Raises
        KubeError; they are taken then."""
        self._check_serves()
        pod = await self._withdrawn(args, pod)
        self._settle(args.uid)
        self._ledger.release(args.uid)
        return pod

    async def _withdrawn(self, args: BindArgs, pod: Object) -> Object:
        """The pod without a choice. A Binding that is still on its way has the version of the pod with the choice, and
        fails: an extender may have been stopped before it sent it, for longer than any request lasts."""
        found = pod["metadata"].get("annotations") or {}
        texts = {key: None for key in notes.CHOICE if key in found}
        if not texts:
            return pod  # the choice has not arrived; without an answer to it no Binding is sent
        meta = {"uid": args.uid, "resourceVersion": pod["metadata"].get("resourceVersion"), "annotations": texts}
        pod = await self._api.patch(_path(args), {"metadata": meta}, STRATEGIC)
        self._put(pod)
        return pod


def _path(args: BindArgs) -> str:
    return f"/api/v1/namespaces/{args.namespace}/pods/{args.name}"
