# SPDX-License-Identifier: MIT
"""Pods on several GPUs of a node of eight, which has two groups of NVLink: from cgpud's answer to the GPUs of a pod."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from cluster import Cluster, gpu, our_node, simple
from fakelink import FakeLink, example_gpus
from node_world import World
from test_choice import nv_container, offered

from cgpu_common.cards import NvmlGpu
from cgpu_common.links import NVLINK
from cgpu_common.model import MIB
from cgpu_common.placement import BINPACK, Gpu, Need, Placement, PodNeed, place
from cgpu_kube import annotations as notes
from cgpu_kube.annotations import parse_node
from cgpu_kube.ledger import read_node
from cgpu_kube.node import host

PCIE = 2  # bridges that all of them are below
GPUS = range(8)


def links_of(one: int) -> tuple[tuple[int, int], ...]:
    """0 to 3 have NVLink to each other, and 4 to 7."""
    return tuple((other, NVLINK if one // 4 == other // 4 else PCIE) for other in GPUS if other != one)


def eight(name: str, *, linked: bool = True, spread: bool = False) -> dict:
    found = [gpu(one, 79, links=links_of(one) if linked else ()) for one in GPUS]
    return our_node(name, *found, spread=spread)


def allow_uuids(cluster: Cluster) -> None:
    cluster.server.label_namespace("default", {notes.GPU_UUID: "allowed"})


def placed(found: dict) -> list[int]:
    """The GPUs that the extender has written for the pod."""
    text = found["metadata"]["annotations"][notes.ALLOCATION]
    return sorted(int(one) for one in json.loads(text)["c0"])


async def test_a_pod_on_several_gpus_is_within_a_group() -> None:
    """GPU 0 and 5 are the fullest, and binpack alone takes them first."""
    async with Cluster(eight("n1")) as cluster:
        allow_uuids(cluster)
        for fill in (0, 5):
            await cluster.place(simple(f"on{fill}", 40, annotations={notes.GPU_UUID: f"GPU-{fill}"}))
        for name, units, count, wanted in (
            ("four", 20, 4, [0, 1, 2, 3]),
            ("three", 50, 3, [1, 2, 3]),  # three of either group have room, and these are the fuller ones
            ("five", 5, 5, [0, 1, 2, 3, 4]),
        ):
            await cluster.place(simple(name, units * count, count=count))
            assert len({one // 4 for one in placed(cluster.stored(name))}) == (2 if count > 4 else 1)
            if name != "five":
                assert placed(cluster.stored(name)) == wanted, name


@pytest.mark.parametrize("taken", [(), (0,), (1, 6), (0, 4, 5)])
async def test_whatever_is_taken_the_set_has_the_most_links(taken: tuple[int, ...]) -> None:
    node = read_node(eight("n1"))
    assert node is not None
    async with Cluster(eight("n1", spread=True)) as cluster:
        allow_uuids(cluster)
        for one in taken:
            await cluster.place(simple(f"full{one}", 79, annotations={notes.GPU_UUID: f"GPU-{one}"}))
        await cluster.place(simple("pair", 2 * 79, count=2))
        found = placed(cluster.stored("pair"))
        assert found[0] // 4 == found[1] // 4 and not set(found) & set(taken)


async def test_of_two_nodes_the_one_with_links_is_preferred() -> None:
    """Both are empty; the one without links comes first."""
    async with Cluster(eight("a", linked=False), eight("b")) as cluster:
        several, one = simple("s", 80, count=4), simple("o", 20)
        for pod, wanted in ((several, {"a": 0, "b": 5}), (one, {"a": 0, "b": 0})):
            cluster.put(pod)
            _, scores = await cluster.post("prioritize", {"Pod": pod, "NodeNames": ["a", "b"]})
            assert {found["Host"]: found["Score"] for found in scores} == wanted


def test_the_nodes_annotation_carries_the_links() -> None:
    rows = [
        {"nv_minor": one, "uuid": f"GPU-{one}", "total_mib": 81559, "slice_mib": 80000, "max_inst": 20,
         "name": "H100", "policy": 5, "instances": 0, "why": "", "known": True,
         "links": {str(other): rank for other, rank in links_of(one)}}
        for one in GPUS
    ]  # fmt: skip
    gpus = host.read({"gpus": rows})
    offer = host.Offer(host.CGPU)
    text = notes.write_node(offer.annotation(gpus, {}))
    back = parse_node(text)
    assert [one.links for one in back.gpus] == [links_of(one) for one in GPUS]
    assert offer.placed(gpus[3]).links == links_of(3)
    older = [{key: value for key, value in row.items() if key != "links"} for row in rows]
    assert not any(one.links for one in host.read({"gpus": older})), "of a cgpud of before"
    assert '"links"' not in notes.write_node(offer.annotation(host.read({"gpus": older}), {}))[notes.NODE_GPUS]


def test_the_annotation_of_sixteen_gpus_is_read() -> None:
    """It is bounded, and the ranks of all pairs are in it."""
    full = tuple((other, 18 * NVLINK) for other in range(15))
    found = [gpu(one, 139, model="NVIDIA H200 141GB HBM3e", links=full) for one in range(16)]
    node = read_node(our_node("n1", *found))
    assert not node.why and len(node.gpus) == 16


@pytest.mark.parametrize("bad", [5, "x", {"a": 1}, {"1": None}, [1]])
def test_damaged_links_are_a_damaged_annotation(bad: object) -> None:
    node = eight("n1")
    value = json.loads(node["metadata"]["annotations"][notes.NODE_GPUS])
    value["gpus"][0]["links"] = bad
    node["metadata"]["annotations"][notes.NODE_GPUS] = json.dumps(value)
    found = read_node(node)
    assert "is damaged" in found.why


def test_each_set_of_a_size_is_of_one_group_where_one_is_large_enough() -> None:
    gpus = [Gpu(one, 79, links=links_of(one)) for one in GPUS]
    for count, free in itertools.product((2, 3, 4), itertools.combinations(GPUS, 5)):
        found = place(PodNeed((Need("c0", 79),), count), [one for one in gpus if one.index in free], {}, BINPACK)
        assert isinstance(found, Placement)
        groups = {one // 4 for one in found.indices}
        largest = max(sum(one // 4 == group for one in free) for group in (0, 1))
        assert len(groups) == (1 if largest >= count else 2)


# ---- the kubelet's own choice ----

RANKS = {f"GPU-{one}": {f"GPU-{other}": rank for other, rank in links_of(one)} for one in GPUS}


def ids(*gpus: int, count: int = 2) -> list[str]:
    return [f"GPU-{one}{host.SEPARATOR}gpu{number}" for one in gpus for number in range(count)]


@pytest.mark.parametrize(
    ("available", "required", "size", "wanted"),
    [
        (ids(0, 4, 5, 6), [], 2, {4, 5}),
        (ids(0, 4, 5, 6), [], 1, {0}),
        (ids(0, 1, 4, 5), ids(4, count=1), 2, {4, 5}),
        (ids(*GPUS), [], 4, {0, 1, 2, 3}),
        (ids(*GPUS, count=3) + ids(0), [], 4, {0, 1, 2, 3}),
        (ids(0, 4), [], 3, {0, 4}),  # more than there are GPUs
        (ids(5, 6), ids(1, count=1), 2, {1, 5}),  # what the kubelet insists on has no link to any
        ([], [], 2, set()),
    ],
)
def test_devices_are_of_gpus_with_links(available: list[str], required: list[str], size: int, wanted: set[int]) -> None:
    chosen = host.preferred_apart(available, required, size, ranks=RANKS)
    assert {host.uuid_of(one) for one in chosen} == {f"GPU-{one}" for one in wanted}
    assert len(set(chosen)) == min(size, len({*available, *required})) and set(required) <= set(chosen)


def test_of_equal_sets_the_fullest_or_emptiest_gpus() -> None:
    some = [one for one in ids(*GPUS) if one != f"GPU-6{host.SEPARATOR}gpu1"]
    for spread, group in ((False, {"GPU-4", "GPU-6"}), (True, {"GPU-0", "GPU-1"})):
        chosen = host.preferred_apart(some, [], 2, spread, RANKS)
        assert {host.uuid_of(one) for one in chosen} == group


async def test_without_the_extender_a_container_has_gpus_with_nvlink(tmp_path: Path) -> None:
    """GPU 0 and 3 are linked, and 1 and 2: NVML's links reach the kubelet by way of cgpud and the agent."""
    gpus = example_gpus(4)
    peers = {0: 3, 1: 2, 2: 1, 3: 0}
    world = World(tmp_path, link=FakeLink(gpus))
    world.node.nvml = lambda: tuple(
        NvmlGpu(n, one.uuid, one.pci, n, one.total // MIB, used_mib=0, peers=(gpus[peers[n]].pci,))
        for n, one in enumerate(gpus)
    )
    async with world.running():
        world.label("cgpu", **{notes.NAMES_LABEL: notes.NAMES})
        await offered(world, 80)
        for name, wanted in (("a", [0, 3]), ("b", [0, 3])):
            pod = world.pod(name, nv_container(gpu=2, mem=1000))
            assert world.slots(await world.start(pod)) == [(one, 1000) for one in wanted]
        one = world.pod("c", nv_container(gpu=1, mem=1000))
        assert len(world.slots(await world.start(one))) == 1
