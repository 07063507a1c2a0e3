# SPDX-License-Identifier: MIT
"""Many pods, in any order of events, with restarts: no GPU is ever given away twice, and nothing is left."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import defaultdict
from itertools import product
from typing import Any

from cluster import NODES, PODS, Cluster, container, gpu, our_node, pod, simple, vendor_node
from fake_api import Refusal
from fakes import eventually
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cgpu_common.placement import INIT, MAIN, SIDECAR
from cgpu_kube import annotations as notes
from cgpu_kube.pods import needs


def by_hand(found: dict) -> dict[int, int]:
    """What a pod takes of each GPU at most, by its annotations and its spec alone: a second way to the same sums."""
    allocation = notes.parse(found["metadata"]["annotations"])
    spec = found["spec"]
    at: dict[int, list[int]] = defaultdict(list)  # GPU -> units in each phase
    places = {one["name"]: place for place, one in enumerate(spec["containers"])}

    def on(one: dict) -> dict[int, int]:
        if notes.GPU_MEM not in one["resources"].get("limits", {}):
            return {}
        units = allocation.of_container(one["name"], places.get(one["name"], -1))
        if units is None:  # a vendor's node lists main containers only
            units = {allocation.index[0]: int(one["resources"]["limits"][notes.GPU_MEM])}
        assert sum(units.values()) == int(one["resources"]["limits"][notes.GPU_MEM])
        return dict(units)

    running: dict[int, int] = defaultdict(int)
    for one in spec.get("initContainers", []):
        units = on(one)
        for index in set(units) | set(running):
            at[index].append(running[index] + units.get(index, 0))
        if one.get("restartPolicy") == "Always":
            for index, count in units.items():
                running[index] += count
    for one in spec["containers"]:
        for index, count in on(one).items():
            running[index] += count
    for index, count in running.items():
        at[index].append(count)
    return {index: max(counts) for index, counts in at.items() if max(counts)}


def check_sums(cluster: Cluster, sizes: dict[tuple[str, int], int]) -> None:
    """Of all pods that are on a node and have not ended."""
    total: dict[tuple[str, int], int] = defaultdict(int)
    for found in cluster.server.pods().values():
        node = found["spec"].get("nodeName")
        if node and found["status"]["phase"] == "Pending":
            for index, units in by_hand(found).items():
                total[node, index] += units
    for where, units in total.items():
        assert units <= sizes[where], (where, units)


def drawn(chance: random.Random, name: str) -> dict:
    main = [container(f"m{i}", chance.randint(1, 9)) for i in range(chance.randint(1, 3))]
    if chance.random() < 0.3:
        main.insert(0, container("plain", None))
    init = []
    if chance.random() < 0.4:
        init.append(container("init", chance.randint(1, 12)))
    if chance.random() < 0.4:
        init.append(container("side", chance.randint(1, 4), sidecar=True))
    if chance.random() < 0.2:
        init.append(container("late", chance.randint(1, 12)))
    if chance.random() < 0.15:
        main = [container("m0", 2 * chance.randint(1, 6))]
        return pod(name, *main, count=2)
    return pod(name, *main, init=tuple(init))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 5), st.integers(0, 10**6)),
        st.tuples(st.just("bind"), st.integers(0, 5), st.sampled_from(["n1", "v1"])),
        st.tuples(st.just("together"), st.integers(0, 5), st.sampled_from(["n1", "v1"])),
        st.tuples(st.just("lose"), st.integers(0, 5), st.sampled_from(list(product(["PATCH", "binding"], [503, 409])))),
        st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from(["", "Succeeded"])),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("events"), st.just(0), st.sampled_from(["end", "compact", "settle"])),
        st.tuples(st.just("node"), st.just(0), st.booleans()),
    ),
    min_size=4,
    max_size=25,
)


@settings(max_examples=60)
@given(steps)
@example([*(("create", number, number) for number in range(6)), ("together", 0, "n1"), ("together", 0, "v1")])
def test_no_gpu_is_given_away_twice(found: list[tuple[str, int, Any]]) -> None:
    sizes = {("n1", 0): 15, ("n1", 1): 30, ("v1", 0): 10, ("v1", 1): 10}
    nodes = [our_node("n1", gpu(0, 15), gpu(1, 30)), vendor_node("v1", 20, 2)]

    async def step(cluster: Cluster, what: str, which: int, how: Any) -> None:
        name = f"p{which}"
        there = cluster.server.get(PODS, "default", name)
        if what == "create" and there is None:
            cluster.put(drawn(random.Random(how), name))
        elif what == "bind" and there is not None:
            await cluster.bind(there, how)
        elif what == "together":
            await asyncio.gather(*(cluster.bind(one, how) for one in list(cluster.server.pods().values())))
        elif what == "lose" and there is not None:

            def before(method: str, path: str) -> None:
                if method == how[0] or path.endswith(f"/{how[0]}"):
                    raise Refusal(how[1], "Conflict", "the object has been modified, or the answer is lost")

            cluster.server.before = before
            await cluster.bind(there, "n1")
            cluster.server.before = None
        elif what == "end" and there is not None:
            cluster.end(name, how)
        elif what == "restart":
            await cluster.stop()
            await cluster.start()
        elif what == "events" and how == "settle":
            await cluster.settled()
        elif what == "events":
            cluster.server.end_watches()
            if how == "compact":
                cluster.server.compact()
        elif what == "node" and how:
            cluster.server.put(NODES, copy.deepcopy(nodes[0]))
        elif what == "node":
            cluster.server.remove(NODES, "", "n1") if cluster.server.get(NODES, "", "n1") else None

    async def whole() -> None:
        async with Cluster(*copy.deepcopy(nodes), doubt_s=0.05) as cluster:
            for one in found:
                await step(cluster, *one)
                check_sums(cluster, sizes)
            for _, name in list(cluster.server.pods()):
                cluster.end(name)
            await eventually(lambda: list(cluster.extender.ledger) == [], "nothing is left")

    asyncio.run(asyncio.wait_for(whole(), 120))


def test_the_second_way_to_the_sums() -> None:
    """check_sums() itself, by numbers."""
    one = pod(
        "a",
        container("m", 6),
        container("k", 3),
        init=(container("i", 9), container("s", 4, sidecar=True), container("j", 9)),
    )
    texts = {"m": {"0": 6}, "k": {"1": 3}, "i": {"0": 9}, "s": {"0": 4}, "j": {"0": 9}}
    one["metadata"]["annotations"] = {notes.ALLOCATION: str(texts).replace("'", '"')}
    assert by_hand(one) == {0: 13, 1: 3}
    assert {MAIN, INIT, SIDECAR} == {each.phase for each in needs(one).containers}
    old = simple("b", 6)
    old["metadata"]["annotations"] = {notes.INDEX: "1"}
    assert by_hand(old) == {1: 6}
