# SPDX-License-Identifier: MIT
"""Several extenders: one serves, another takes over, and no GPU is given away twice by both."""

from __future__ import annotations

import asyncio
import copy
import random
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from cluster import NODES, PODS, Cluster, gpu, our_node, simple
from fake_api import FakeApi, Refusal
from fakes import eventually
from test_storm import check_sums

from cgpu_common.exits import CgpuError
from cgpu_kube import annotations as notes
from cgpu_kube import api as kube
from cgpu_kube.extender.command import lease_of
from cgpu_kube.extender.lease import Lease, Times
from cgpu_kube.extender.service import SERVES_LABEL, LeaseArgs

LEASES = "apis/coordination.k8s.io/v1/leases"
QUICK = Times(2.0, 1.2, 0.1)


class Replica(Cluster):
    """One more extender at the API server of another cluster."""

    def __init__(self, first: Cluster | None, number: int, *nodes: Any, pod: str = "", **binder: Any) -> None:
        self._lease = LeaseArgs("cgpu-system", "cgpu-extender", f"e{number}_", pod, QUICK)
        super().__init__(*nodes, **binder)
        self._first = first
        if first is not None:
            self.server, self.nodes = first.server, first.nodes

    async def __aenter__(self) -> Cluster:
        if self._first is None:
            return await super().__aenter__()
        self.api = kube.Client(kube.Config(self.server.url))
        await self.api.__aenter__()
        self.http = aiohttp.ClientSession()
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._first is None:
            await super().__aexit__(*error)
            return
        await self.stop()
        await self.http.close()
        await self.api.__aexit__()

    async def start(self, wait: bool = True) -> None:
        """Each life has a name of its own."""
        name = f"{self._lease.identity}{random.random()}"
        self.binder["lease"] = replace(self._lease, identity=name)
        await super().start(wait)

    async def serves(self) -> None:
        async with asyncio.timeout(10):
            while not self.extender.is_leader:
                await asyncio.sleep(0.01)


@pytest.mark.within(110)
async def test_two_extenders_and_200_pods() -> None:
    """Both are asked at random, as by a Service without the label; the one that serves is killed, or cut off from its
    lease while it binds, again and again. 24 pods of 16 were bound by two that both served."""
    chance = random.Random(5)
    sizes = {("n1", 0): 15, ("n1", 1): 79}
    served: set[str] = set()
    changes: list[int] = []
    issued = 0

    def next_pod() -> dict[str, Any] | None:
        """200 of them, and more until enough has happened: a busy machine schedules them all between two kills."""
        nonlocal issued
        if issued >= 200 and len(changes) >= 3 and len(served) >= 3:
            return None
        issued += 1
        return simple(f"p{issued}", chance.randint(1, 9))

    node = our_node("n1", gpu(0, 15), gpu(1, 79))
    async with Replica(None, 1, node, doubt_s=0.4) as first, Replica(first, 2, doubt_s=0.4) as second:
        replicas = [first, second]

        async def worker() -> None:
            while found := next_pod():
                name = found["metadata"]["name"]
                first.put(found)
                while True:
                    one = chance.choice(replicas)
                    try:
                        why = await one.schedule(found)
                    except (aiohttp.ClientError, OSError, AssertionError, KeyError, TypeError):
                        why = "away"
                    if not why:
                        served.add(one.extender._identity)
                        break
                    await asyncio.sleep(0.02 + 0.03 * chance.random())
                check_sums(first, sizes)
                await asyncio.sleep(0.05 * chance.random())
                first.end(name)

        async def trouble() -> None:
            while True:
                await asyncio.sleep(1.5)
                for one in replicas:
                    if not one.extender.is_leader:
                        continue
                    changes.append(1)
                    if len(changes) % 2:
                        await one.stop()
                        await one.start()
                    else:  # it hangs on to its writes: the lease is renewed no more
                        lease = one.extender.lease
                        assert lease is not None
                        lease._api = kube.Client(kube.Config("http://127.0.0.1:1"))
                        await lease._api.__aenter__()
                        await asyncio.sleep(2.2)
                        await lease._api.__aexit__()
                        lease._api = one.api
                    break

        async def slow(method: str, path: str) -> None:
            """Writes are on their way for a while, so that a lease ends before they arrive."""
            if method in ("PATCH", "POST") and "/pods/" in path:
                await asyncio.sleep(chance.choice((0, 0.01, 0.1, 0.5)))
                if chance.random() < 0.03:
                    raise Refusal(409, "Conflict", "the object has been modified")

        first.server.before = slow
        bad = asyncio.create_task(trouble())
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(worker())
        bad.cancel()
        await asyncio.gather(bad, return_exceptions=True)
        assert len(first.server.bindings) == issued
        assert first.server.pods() == {}


def test_what_the_last_one_has_chosen_counts() -> None:
    """Its Binding may be on its way: the annotation is there, and the pod is on no node."""

    async def whole() -> None:
        first = Replica(None, 1, our_node("n1", gpu(0, 15)), doubt_s=0.5)
        second = Replica(first, 2, doubt_s=0.5)
        async with first:
            await first.serves()
            async with second:
                await check(first, second)

    async def check(first: Replica, second: Replica) -> None:
        one, two = simple("a", 10), simple("b", 10)
        first.put(one)
        first.put(two)
        held = asyncio.Event()

        async def before(method: str, path: str) -> None:
            if path.endswith("/a/binding"):
                await held.wait()

        first.server.before = before
        binding = asyncio.create_task(first.bind(one, "n1"))
        while not first.stored("a")["metadata"].get("annotations"):
            await asyncio.sleep(0.01)
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

    asyncio.run(asyncio.wait_for(whole(), 60))


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
    return notes.write({"c0": {0: units}}, 15, 2 * 10**18)


async def test_a_takeover_may_last_longer_than_a_lease() -> None:
    """A list of 160,000 pods takes longer than 10 s: the Lease ended meanwhile, again and again, and none served."""

    times = Times(2.0, 1.5, 0.05)
    said: list[tuple[str, bool]] = []
    go_on = {"a": asyncio.Event(), "b": asyncio.Event()}
    async with FakeApi() as server, kube.Client(kube.Config(server.url)) as api:

        def lease(name: str) -> Lease:
            async def changed(gained: bool) -> None:
                said.append((name, gained))
                if gained:
                    await go_on[name].wait()

            return Lease(api, "s", "l", name, changed, times)

        a, b = lease("a"), lease("b")
        tasks = [asyncio.create_task(a.run())]
        while not said:
            await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(b.run()))
        await asyncio.sleep(3.0)
        assert said == [("a", True)] and not a.is_held, "it has not read what the last one wrote"
        go_on["a"].set()
        async with asyncio.timeout(5):
            while not a.is_held:
                await asyncio.sleep(0.01)
        for _ in range(20):
            await asyncio.sleep(0.05)
            assert a.is_held and not b.is_held
        await a.release()
        while len(said) < 3:
            await asyncio.sleep(0.01)
        assert said[1:] == [("a", False), ("b", True)]

        # Cut off while it takes over: it gives up in time, and does so again later.
        b._api = kube.Client(kube.Config("http://127.0.0.1:1"))
        await b._api.__aenter__()
        async with asyncio.timeout(5):
            while len(said) < 4:
                await asyncio.sleep(0.01)
        assert said[3:] == [("b", False)] and not b.is_held
        await b._api.__aexit__()
        b._api = api
        go_on["b"].set()
        async with asyncio.timeout(5):
            while not b.is_held:
                await asyncio.sleep(0.01)
        assert said[4:] == [("b", True)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_lease_is_taken_after_its_time_and_not_before() -> None:
    async with FakeApi() as server, kube.Client(kube.Config(server.url)) as api:
        now = [100.0]
        said: list[tuple[str, bool]] = []

        def lease(name: str) -> Lease:
            async def changed(gained: bool) -> None:
                said.append((name, gained))

            return Lease(api, "s", "l", name, changed, Times(), lambda: now[0])

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
        async with asyncio.timeout(10):
            while first.extender.is_leader:
                await asyncio.sleep(0.01)
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


def test_a_renewal_in_flight_does_not_take_a_released_lease_again() -> None:
    """It was written after the release, or made it fail: the pod that ended had the label, or was waited for."""

    async def whole(method: str) -> None:
        said: list[bool] = []
        held, waits = asyncio.Event(), asyncio.Event()

        async def changed(gained: bool) -> None:
            said.append(gained)

        async with FakeApi() as server, kube.Client(kube.Config(server.url)) as api:
            lease = Lease(api, "s", "l", "a", changed, Times(20.0, 15.0, 0.02))
            task = asyncio.create_task(lease.run())
            while not lease.is_held:
                await asyncio.sleep(0.01)

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
            found = await api.get("/apis/coordination.k8s.io/v1/namespaces/s/leases/l")
            assert found["spec"]["holderIdentity"] == ""
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    for method in ("GET", "PUT"):
        asyncio.run(asyncio.wait_for(whole(method), 30))
