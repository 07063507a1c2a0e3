# SPDX-License-Identifier: MIT
"""Several extenders: one serves, another takes over, and no GPU is given away twice by both."""

from __future__ import annotations

import asyncio
import copy
import random
from dataclasses import replace
from typing import Any

import pytest
from cluster import NODES, PODS, Cluster, gpu, our_node, simple
from fake_api import FakeApi, Refusal
from fakes import eventually
from node_world import placed

from cgpu_common.exits import CgpuError
from cgpu_kube import annotations as notes
from cgpu_kube import api as kube
from cgpu_kube.extender.command import lease_of
from cgpu_kube.extender.lease import Lease, Times
from cgpu_kube.extender.service import SERVES_LABEL, LeaseArgs

LEASES = "apis/coordination.k8s.io/v1/leases"
QUICK = Times(2.0, 1.2, 0.1)


class Replica(Cluster):
    """One of several extenders. @first: the one whose API server it has, too."""

    def __init__(self, first: Cluster | None, number: int, *nodes: Any, pod: str = "", **binder: Any) -> None:
        self._lease = LeaseArgs("cgpu-system", "cgpu-extender", f"e{number}_", pod, QUICK)
        more = first.nodes if first else nodes
        super().__init__(*more, server=first.server if first else None, **binder)

    async def start(self, wait: bool = True) -> None:
        """Each life has a name of its own."""
        name = f"{self._lease.identity}{random.random()}"
        self.binder["lease"] = replace(self._lease, identity=name)
        await super().start(wait)

    async def serves(self) -> None:
        await eventually(lambda: self.extender.is_leader, "it serves", 10)


async def test_what_the_last_one_has_chosen_counts() -> None:
    """Its Binding may be on its way: the annotation is there, and the pod is on no node."""
    first = Replica(None, 1, our_node("n1", gpu(0, 15)), doubt_s=0.5)
    second = Replica(first, 2, doubt_s=0.5)
    async with first, second:
        await first.serves()
        one, two = simple("a", 10), simple("b", 10)
        first.put(one)
        first.put(two)
        held = asyncio.Event()

        async def before(method: str, path: str) -> None:
            if path.endswith("/a/binding"):
                await held.wait()

        first.server.before = before
        binding = asyncio.create_task(first.bind(one, "n1"))
        await eventually(lambda: first.stored("a")["metadata"].get("annotations"), "the choice")
        assert notes.parse_assumed(first.stored("a")["metadata"]["annotations"])[0] == "n1"
        assert "serves, not this one" in await second.bind(two, "n1")
        await first.extender.lease.release()
        await second.serves()
        assert "10 GiB asked for" in await second.bind(two, "n1")
        held.set()
        await binding
        assert first.stored("a")["spec"]["nodeName"] == "n1"
        assert "10 GiB asked for" in await second.bind(two, "n1")
        # And one that was never bound counts until the API server answers that it is not bound.
        first.end("a")
        ghost = simple("ghost", 10)
        ghost["metadata"]["annotations"] = first_annotations(10) | notes.assumed("n1", "e9_x")
        first.put(ghost)
        await second.settled()
        assert "10 GiB asked for" in await second.bind(two, "n1")
        await asyncio.sleep(0.7)
        assert await second.bind(two, "n1") == ""


async def test_what_a_pod_s_author_has_written_takes_no_more_than_is_free() -> None:
    """Before Kubernetes 1.30 no policy keeps authors from the annotation."""
    async with Replica(None, 1, our_node("n1", gpu(0, 15)), doubt_s=30) as only:
        await only.serves()
        one = simple("a", 9)
        only.put(one)
        assert await only.bind(one, "n1") == ""
        fakes = [simple(name, 6) for name in ("f1", "f2", "gated")]
        fakes[2]["spec"]["schedulingGates"] = [{"name": "never"}]
        for fake in (fakes[2], *fakes[:2]):
            fake["metadata"]["annotations"] = first_annotations(6) | notes.assumed("n1", "e9_x")
            only.put(fake)
        await only.settled()
        ledger = only.extender.ledger
        assert [held.name.rpartition("/")[2] for held in ledger.held("n1")] == ["a", "f1"]
        assert ledger.used("n1")[0].units == 15, "not more than there is"


async def test_what_a_pod_s_author_has_written_takes_it_for_a_minute() -> None:
    """And not again with each change of the pod, whatever its author writes then."""
    async with Replica(None, 1, our_node("n1", gpu(0, 15)), doubt_s=0.5) as only:
        await only.serves()
        ledger = only.extender.ledger
        fake = simple("f", 9)
        for number in range(3):
            fake["metadata"]["annotations"] = first_annotations(9) | notes.assumed("n1", f"e{number}_x")
            fake["metadata"]["labels"] = {"changed": str(number)}
            uid = only.put(fake)["metadata"]["uid"]
            await only.settled()
            assert [held.uid for held in ledger.held("n1")] == ([] if number else [uid])
            await eventually(lambda: not [*ledger.held("n1")], "its end")
        only.end("f")
        await only.settled()
        assert only.extender.binder._refuted == set()


def first_annotations(units: int) -> dict[str, str]:
    return placed({"c0": {0: units}}, 15)


async def test_a_takeover_may_last_longer_than_a_lease(server: FakeApi, client: kube.Client) -> None:
    """A list of 160,000 pods takes longer than 10 s: the Lease ended meanwhile, again and again, and none served."""
    times = Times(2.0, 1.5, 0.05)
    said: list[tuple[str, bool]] = []
    go_on = {"a": asyncio.Event(), "b": asyncio.Event()}

    def lease(name: str) -> Lease:
        async def changed(gained: bool) -> None:
            said.append((name, gained))
            if gained:
                await go_on[name].wait()

        return Lease(client, "s", "l", name, changed, times)

    a, b = lease("a"), lease("b")
    tasks = [asyncio.create_task(a.run())]
    await eventually(lambda: said, "a holder")
    tasks.append(asyncio.create_task(b.run()))
    await asyncio.sleep(3.0)
    assert said == [("a", True)] and not a.is_held, "it has not read what the last one wrote"
    go_on["a"].set()
    await eventually(lambda: a.is_held, "it has read")
    for _ in range(20):
        await asyncio.sleep(0.05)
        assert a.is_held and not b.is_held
    await a.release()
    await eventually(lambda: len(said) >= 3, "the next holder")
    assert said[1:] == [("a", False), ("b", True)]

    # Cut off while it takes over: it gives up in time, and does so again later.
    b._api = kube.Client(kube.Config("http://127.0.0.1:1"))
    await b._api.__aenter__()
    await eventually(lambda: len(said) >= 4, "it gives up")
    assert said[3:] == [("b", False)] and not b.is_held
    await b._api.__aexit__()
    b._api = client
    go_on["b"].set()
    await eventually(lambda: b.is_held, "and again")
    assert said[4:] == [("b", True)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_lease_is_taken_after_its_time_and_not_before(server: FakeApi, client: kube.Client) -> None:
    now = [100.0]
    said: list[tuple[str, bool]] = []

    def lease(name: str) -> Lease:
        async def changed(gained: bool) -> None:
            said.append((name, gained))

        return Lease(client, "s", "l", name, changed, Times(), lambda: now[0])

    a, b = lease("a"), lease("b")
    await a._try()
    await b._try()
    assert (a.is_held, b.is_held, b.holder) == (True, False, "a")
    for _ in range(7):
        now[0] += 2
        await a._try()
        await b._try()
    assert a.is_held and not b.is_held
    now[0] += 9.9
    assert a.is_held
    now[0] += 0.2  # without a renewal it gives up before another one may take it
    assert not a.is_held
    await b._try()
    assert not b.is_held, "15 s after the last renewal that it has seen"
    now[0] += 5
    await b._try()
    assert b.is_held and b.last == "a" and said == [("a", True), ("b", True)]
    await a._try()
    assert not a.is_held
    spec = server.get(LEASES, "s", "l")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == ("b", 2, 15)
    await b.release()
    await a._try()
    assert a.is_held, "at once"
    # Another life by the same name has not the writes of the first one under control.
    again = lease("a")
    await again._try()
    assert not again.is_held
    server.before = lambda method, path: (_ for _ in ()).throw(Refusal(409, "Conflict", "changed"))
    with pytest.raises(kube.ApiError):
        await a._try()


async def test_the_pod_that_serves_has_the_label() -> None:
    def label(server: FakeApi, name: str) -> str | None:
        found = server.get(PODS, "cgpu-system", name)
        return None if found is None else (found["metadata"].get("labels") or {}).get(SERVES_LABEL)

    first = Replica(None, 1, our_node("n1", gpu(0, 15)), pod="e1")
    for name in ("e1", "e2"):
        first.server.put(PODS, {"metadata": {"namespace": "cgpu-system", "name": name}, "spec": {"containers": []}})
    async with first:
        await first.serves()
        async with Replica(first, 2, pod="e2") as second:
            assert (label(first.server, "e1"), label(first.server, "e2")) == ("true", None)
            await first.extender.lease.release()
            first.extender.tasks[-1].cancel()
            await second.serves()
            assert (label(first.server, "e1"), label(first.server, "e2")) == ("false", "true")
            assert copy.deepcopy(first.server.get(NODES, "", "n1")) is not None


async def test_an_api_server_that_is_away_ends_no_extender() -> None:
    """It loses the lease, serves nothing, and takes it again; and a change that fails is tried again at once."""
    first = Replica(None, 1, our_node("n1", gpu(0, 15)), pod="e1")
    first.server.put(PODS, {"metadata": {"namespace": "cgpu-system", "name": "e1"}, "spec": {"containers": []}})
    failures = [0]

    def before(method: str, path: str) -> None:
        if method == "PATCH" and failures[0] < 2:
            failures[0] += 1
            raise Refusal(503, "Unavailable", "not now")

    first.server.before = before
    async with first:
        await first.serves()
        assert failures == [2]
        first.server.before = lambda method, path: (_ for _ in ()).throw(Refusal(503, "Unavailable", "away"))
        await eventually(lambda: not first.extender.is_leader, "it gives up", 10)
        assert "serves, not this one" in await first.bind(simple("a", 1), "n1")
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in first.extender.tasks)
        first.server.before = None
        await first.serves()


def test_the_option() -> None:
    assert lease_of("") is None
    found = lease_of("ns/name", {"POD_NAME": "p"})
    assert (found.namespace, found.name, found.pod) == ("ns", "name", "p") and found.identity.startswith("p_")
    assert lease_of("ns/name", {}).identity != lease_of("ns/name", {}).identity
    for bad in ("name", "/name", "ns/", "a/b/c"):
        with pytest.raises(CgpuError, match="not a namespace and a name"):
            lease_of(bad)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_renewal_in_flight_does_not_take_a_released_lease_again(
    server: FakeApi, client: kube.Client, method: str
) -> None:
    """It was written after the release, or made it fail: the pod that ended had the label, or was waited for."""
    said: list[bool] = []
    held, waits = asyncio.Event(), asyncio.Event()

    async def changed(gained: bool) -> None:
        said.append(gained)

    lease = Lease(client, "s", "l", "a", changed, Times(20.0, 15.0, 0.02))
    task = asyncio.create_task(lease.run())
    await eventually(lambda: lease.is_held, "held")

    async def before(found: str, path: str) -> None:
        if "/leases" in path and found == method and not held.is_set():
            waits.set()
            await held.wait()

    server.before = before
    await waits.wait()
    release = asyncio.create_task(lease.release())
    await asyncio.sleep(0.1)
    held.set()
    await release
    await asyncio.sleep(0.1)
    assert said == [True, False] and not lease.is_held
    assert server.get(LEASES, "s", "l")["spec"]["holderIdentity"] == ""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
