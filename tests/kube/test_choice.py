# SPDX-License-Identifier: MIT
"""What others' users type: GPUs by model and UUID, percentages, HAMi's and NVIDIA's names, and where they end."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, gpu, our_node, pod, simple
from deployed import Object, Policy
from fakes import Warned, eventually
from node_world import NODE, NODES, PODS, SIZES, World, placed
from node_world import container as node_container

from cgpu_common.placement import Choice, Gpu, Need, NoRoom, Placement, PodNeed, place
from cgpu_kube import annotations as notes
from cgpu_kube import pods
from cgpu_kube.annotations import GPU_MEM, NV_CORES, NV_GPU, NV_MEM, NV_PERCENT
from cgpu_kube.errors import BadAnnotation, Refused
from cgpu_kube.node import host

T4, H100 = gpu(0, 15, model="Tesla T4"), gpu(1, 79, dev=80, model="NVIDIA H100 80GB HBM3")


def wish(key: str, text: str, units: int = 6) -> Object:
    return simple("p", units, annotations={key: text})


def named(*limits: dict[str, Any], **more: Any) -> Object:
    """A pod by others' names; a container for each of @limits."""
    found = [
        {"name": f"c{i}", "image": "box", "resources": {"limits": {key: str(value) for key, value in one.items()}}}
        for i, one in enumerate(limits)
    ]
    return pod("p", *found, **more)


def nv_node(name: str = "n1", mode: str = "cgpu") -> Object:
    found = our_node(name, T4, H100, mode=mode)
    texts = notes.write_node(notes.NodeGpus(mode, "GiB", (T4, H100), names=notes.NAMES))
    found["metadata"]["annotations"] = texts
    return found


# ---- which GPU ----


@pytest.mark.parametrize(
    ("key", "text", "index"),
    [
        (notes.GPU_TYPE, "h100", "1"),
        (notes.GPU_TYPE, "T4, A10", "0"),
        (notes.GPU_TYPE, "!T4", "1"),
        (notes.HAMI_TYPE, "H100", "1"),
        (notes.HAMI_NO_TYPE, "Tesla T4", "1"),
        (notes.GPU_UUID, "GPU-1", "1"),
        (notes.GPU_UUID, "!GPU-0", "1"),
        (notes.HAMI_UUID, "GPU-1", "1"),
        (notes.HAMI_NO_UUID, "GPU-0", "1"),
    ],
)
async def test_the_scheduler_takes_one_of_the_wanted(key: str, text: str, index: str) -> None:
    async with Cluster(our_node("n1", T4, H100)) as cluster:
        cluster.server.label_namespace("default", {notes.GPU_UUID: "allowed"})
        await cluster.place(wish(key, text))
        assert cluster.stored("p")["metadata"]["annotations"][notes.INDEX] == index


def namespace(labels: dict[str, str], name: str = "default") -> Object:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        (notes.GPU_TYPE, "A100", "GPU 0 is Tesla T4, and A100 asked for"),
        (notes.GPU_TYPE, "!T4,!H100", "GPU 1 is NVIDIA H100 80GB HBM3, and any but H100 asked for"),
        (notes.GPU_UUID, "GPU-7", "GPU 0 is GPU-0, and GPU-7 asked for"),
        (notes.GPU_TYPE, "", "annotation cgpu.io/gpu-type= is no list of 1 to 16 names"),
        (notes.GPU_TYPE, "a;b", "is no list of 1 to 16 names"),
        (notes.GPU_UUID, ",".join("ab"[i % 2] + str(i) for i in range(17)), "is no list of 1 to 16 names"),
    ],
)
async def test_a_node_without_it_says_so(key: str, text: str, sentence: str) -> None:
    async with Cluster(our_node("n1", T4, H100)) as cluster:
        answer = await cluster.filter(wish(key, text))
        assert sentence in answer["FailedNodes"]["n1"] and answer["NodeNames"] == []
        assert answer["FailedAndUnresolvableNodes"].keys() == {"n1"}, "no preemption helps"


def test_a_uuid_is_the_namespaces_to_allow(objects: dict) -> None:
    """A pod that chooses its neighbours' GPU is not bound, whatever its annotation says at the time."""

    async def whole() -> None:
        async with Cluster(our_node("n1", T4, H100)) as cluster:
            cluster.server.label_namespace("default", {})
            found = cluster.put(wish(notes.GPU_UUID, "GPU-1"))
            why = "pod default/p chooses its GPU by UUID, and its namespace does not allow it; kubectl label namespace"
            assert why in await cluster.schedule(found)
            assert "nodeName" not in cluster.stored("p")["spec"] and cluster.used() == {}
            cluster.server.label_namespace("default", {notes.GPU_UUID: "allowed"})
            assert await cluster.schedule(found) == ""

    asyncio.run(whole())
    policy = Policy(objects["ValidatingAdmissionPolicy", "cgpu-pods"])
    for key in notes.UUID_CHOICES:
        said = "; ".join(policy.sentences(wish(key, "GPU-1")))
        assert "choosing a GPU by UUID needs the label cgpu.io/gpu-uuid=allowed on the namespace" in said
        assert policy.sentences(wish(key, "GPU-1"), labels={notes.GPU_UUID: "allowed"}) == []
    assert policy.sentences(wish(notes.GPU_TYPE, "T4")) == []
    assert "is no list of names" in "; ".join(policy.sentences(wish(notes.GPU_TYPE, "a;b")))
    hami = named({NV_GPU: 1, NV_MEM: 3000}, annotations={notes.HAMI_UUID: "GPU-1"})
    assert policy.sentences(hami) == [], "it may be for a node of HAMi's"


async def test_the_agent_looks_again(world: World) -> None:
    """An author may write annotations after the binding, and without an extender the kubelet chooses."""
    first, second = world.agent.gpus
    world.api.label_namespace("team", {})
    written = placed({"main": {1: 6}})
    wanted = world.pod("a", node_container(mem=6), annotations=written | {notes.GPU_UUID: second.uuid})
    assert "its namespace does not allow it" in await world.refused(wanted)
    world.api.label_namespace("team", {notes.GPU_UUID: "allowed"})
    assert world.slots(await world.start(wanted)) == [(1, 6116)]
    other = world.pod("b", node_container(mem=6), annotations=written | {notes.GPU_UUID: first.uuid})
    assert f"is on GPU 1, which is {second.uuid}, and {first.uuid} asked for" in await world.refused(other)
    model = world.pod("c", node_container(mem=6), annotations=written | {notes.GPU_TYPE: "B200"})
    assert "and B200 asked for; delete the pod" in await world.refused(model)


# ---- amounts that depend on the GPU ----


def test_a_percentage_is_of_each_gpus_own_memory() -> None:
    sizes = (Gpu(0, 15, dev=15, mib=15109), Gpu(1, 79, dev=80, mib=81559))
    half = PodNeed((Need("c", 0, percent=50),))
    found = place(half, sizes, {})
    assert isinstance(found, Placement) and found.loads[0].units == 8
    found = place(half, sizes, {0: found.loads[0]})
    assert isinstance(found, Placement) and found.loads[1].units == 40
    refused = place(half, sizes, {0: found.loads[1], 1: found.loads[1]})
    assert isinstance(refused, NoRoom) and refused.why.startswith("50 % of a GPU asked for: GPU 0 has 0 of 15 GiB")
    assert not refused.never
    everything = place(PodNeed((Need("c", 0, percent=100),)), sizes, {}, "spread")
    assert isinstance(everything, Placement) and everything.loads[1].units == 79, "all that is offered"
    mib = place(PodNeed((Need("c", 0, mib=6000),)), sizes, {})
    assert isinstance(mib, Placement) and mib.loads[0].units == 6
    never = place(PodNeed((Need("c", 0, mib=90000),)), sizes, {})
    assert isinstance(never, NoRoom) and never.never and never.why.startswith("90000 MiB asked for")
    two = PodNeed((Need("a", 0, percent=60), Need("b", 0, percent=60)))
    split = place(two, sizes, {})
    assert isinstance(split, Placement) and {one.units for one in split.loads.values()} == {9, 48}
    only = place(PodNeed((Need("c", 4),), choice=Choice(uuids=("x",))), sizes, {})
    assert isinstance(only, NoRoom) and only.never


LIMIT, REQUEST = (f"nvidia.com/container.c0.gpu-memory.{word}" for word in ("limit", "request"))
NAMED = [
    (named({NV_GPU: 1, NV_MEM: 6000}), (1, 6000, 0, 0)),
    (named({NV_GPU: 2, NV_PERCENT: 50, NV_CORES: 33}), (2, 0, 50, 33)),
    (named({NV_GPU: 1}), (1, 0, 100, 0)),
    (named({NV_GPU: 1, NV_CORES: 0}), (1, 0, 100, 0)),
    (named({NV_GPU: 1}, annotations={"nvidia.com/container.c0.gpu-memory.limit": "4Gi"}), (1, 4096, 0, 0)),
    (
        named({NV_GPU: 1, NV_MEM: 3000}, annotations={"nvidia.com/container.c0.gpu-memory.limit": "4Gi"}),
        (1, 3000, 0, 0),
    ),
    (named({NV_GPU: 1}, annotations={"nvidia.com/container.other.gpu-memory.limit": "4Gi"}), (1, 0, 100, 0)),
    (named({NV_GPU: 1}, annotations={REQUEST: "2Gi"}), (1, 2048, 0, 0)),
    (named({NV_GPU: 1}, annotations={REQUEST: "2Gi", LIMIT: "4Gi"}), (1, 4096, 0, 0)),
]


@pytest.mark.parametrize(("found", "wanted"), NAMED)
def test_others_names(found: Object, wanted: tuple[int, ...]) -> None:
    need = pods.needs(found)
    assert need.names == notes.NAMES
    (one,) = need.containers
    assert (need.gpus, one.mib, one.percent, one.core) == wanted
    assert pods.needs(pods.trimmed(found) | {"metadata": found["metadata"]}) == need


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (named({NV_MEM: 6000}), "nvidia.com/gpumem without nvidia.com/gpu; ask for both"),
        (named({NV_CORES: 20}), "nvidia.com/gpucores without nvidia.com/gpu"),
        (named({NV_GPU: 1, NV_MEM: 6000, NV_PERCENT: 10}), "exclude each other"),
        (named({NV_GPU: 1, NV_PERCENT: 101}), "nvidia.com/gpumem-percentage must be 1 to 100"),
        (named({NV_GPU: 1, NV_CORES: 101}), "nvidia.com/gpucores must be 1 to 100"),
        (named({NV_GPU: 1, NV_MEM: "6Gi"}), "is a number of units, as 6, and no amount as 6Gi"),
        (named({NV_GPU: 65}), "nvidia.com/gpu is 65; a node has at most 64"),
        (named({NV_GPU: 1, NV_MEM: 1}, {NV_GPU: 2, NV_MEM: 1}), "different numbers of nvidia.com/gpu: 1 (c0), 2 (c1)"),
        (named({GPU_MEM: 6}, {NV_GPU: 1, NV_MEM: 1}), "at once; use one of the two"),
        (
            named({NV_GPU: 1}, annotations={"nvidia.com/container.c0.gpu-memory.limit": "much"}),
            "annotation nvidia.com/container.c0.gpu-memory.limit=much",
        ),
        (named({NV_GPU: 1}, annotations={REQUEST: "-1Gi"}), f"annotation {REQUEST}=-1Gi"),
        (
            named({NV_GPU: 1}, annotations={REQUEST: "5Gi", LIMIT: "4Gi"}),
            f"annotation {REQUEST} is 5120 MiB and the limit 4096: the limit is the larger one",
        ),
        (
            named({NV_GPU: 1, NV_PERCENT: 50}, annotations={LIMIT: "4Gi"}),
            f"nvidia.com/gpumem-percentage and the annotation {LIMIT} exclude each other",
        ),
    ],
)
def test_others_names_that_are_refused(found: Object, sentence: str) -> None:
    with pytest.raises(Refused) as error:
        pods.needs(found)
    assert sentence in str(error.value)


async def test_a_node_takes_them_that_says_so() -> None:
    async with Cluster(our_node("n0", T4, H100), nv_node("n1")) as cluster:
        answer = await cluster.filter(named({NV_GPU: 1, NV_MEM: 6000}))
        assert answer["NodeNames"] == ["n1"]
        assert answer["FailedNodes"] == {"n0": "the node takes no nvidia.com/gpumem: label it cgpu.io/names=nvidia"}
        cores = await cluster.filter(named({NV_GPU: 1, NV_MEM: 6000, NV_CORES: 30}))
        assert "offers no % of compute" in cores["FailedNodes"]["n1"], "in the mode cgpu nothing would keep it"
        await cluster.place(named({NV_GPU: 2, NV_PERCENT: 50}))
        texts = cluster.stored("p")["metadata"]["annotations"]
        assert texts[notes.ALLOCATION] == '{"c0":{"0":8,"1":40}}' and texts[notes.POD] == "48"
        assert cluster.used() == {0: 8, 1: 40}
        await cluster.stop()
        await cluster.start()
        assert cluster.used() == {0: 8, 1: 40}
        late = simple("q", 40)
        cluster.put(late)
        assert "GPU 1 has 39 of 79 GiB free" in (await cluster.filter(late, "n1"))["FailedNodes"]["n1"]


async def test_a_whole_gpu_of_nvidias_plugin_is_no_concern() -> None:
    """nvidia.com/gpu alone: on a node that takes the names all of a GPU's memory, on others nothing of ours."""
    async with Cluster(our_node("n0", T4), nv_node("n1")) as cluster:
        found = cluster.put(named({NV_GPU: 1}))
        assert (await cluster.filter(found, "n0", "foreign"))["NodeNames"] == ["n0", "foreign"]
        assert await cluster.bind(found, "n0") == ""
        await cluster.settled()
        assert notes.INDEX not in (cluster.stored("p")["metadata"].get("annotations") or {})
        assert cluster.used("n0") == {} and cluster.extender.ledger.held("n0") == []
        bound = named({NV_GPU: 1})
        bound["metadata"]["name"], bound["spec"]["nodeName"] = "q", "n1"
        cluster.put(bound)
        await cluster.settled()
        assert cluster.used() == {0: 15, 1: 79}


async def test_no_cores_of_no_gpu_ask_for_nothing() -> None:
    """`nvidia.com/gpucores: 0` alone, also of a pod that is on a node already: the ones after it are counted."""
    async with Cluster(nv_node()) as cluster:
        found = named({NV_CORES: 0}, {})
        assert pods.needs(found) is None and pods.counted(found) is None
        assert (await cluster.filter(found))["NodeNames"] == ["n1"]
        found["spec"]["nodeName"] = "n1"
        cluster.put(found)
        await cluster.place(simple("q", 6))
        assert cluster.used() == {0: 6}


async def test_a_later_annotation_widens_nothing() -> None:
    """The extender has counted 4 GiB; its next life reads the same, whatever the author has written since."""
    async with Cluster(nv_node()) as cluster:
        key = "nvidia.com/container.c0.gpu-memory.limit"
        await cluster.place(named({NV_GPU: 1}, annotations={key: "4Gi"}))
        for text in ("300Mi", "rubbish"):
            edited = copy.deepcopy(cluster.stored("p"))
            edited["metadata"]["annotations"] |= {LIMIT: text, notes.GPU_TYPE: ";"}
            cluster.put(edited)
            await cluster.stop()
            await cluster.start()
            assert cluster.used()[0] == 4


def nv_world(tmp_path: Path, mode: str = "cgpu") -> World:
    return World(tmp_path, mode=mode)


def nv_container(**limits: int) -> dict[str, Any]:
    words = {"gpu": NV_GPU, "mem": NV_MEM, "percent": NV_PERCENT, "cores": NV_CORES}
    return {"name": "main", "resources": {"limits": {words[key]: str(value) for key, value in limits.items()}}}


async def offered(world: World, count: int) -> None:
    await eventually(lambda: world.kubelet.allocatable(NV_GPU) == count, f"{count} of nvidia.com/gpu")


async def test_the_agent_offers_and_gives_them(tmp_path: Path) -> None:
    async with nv_world(tmp_path).offering() as world:
        assert NV_GPU not in world.kubelet.resources
        world.label("cgpu", **{notes.NAMES_LABEL: notes.NAMES})
        await offered(world, 40)
        await eventually(lambda: world.agent.cluster.published().names == "nvidia", "published")
        half = world.pod("a", nv_container(gpu=1, percent=50), annotations=placed({"main": {1: 40}}))
        started = await world.start(half)
        assert world.slots(started) == [(1, SIZES[1] // 2)]
        assert world.env(started)["ALIYUN_COM_GPU_MEM_CONTAINER"] == "40"
        exact = world.pod("b", nv_container(gpu=1, mem=3001), annotations=placed({"main": {0: 3}}, 15))
        assert world.slots(await world.start(exact)) == [(0, 3001)]
        both = placed({"main": {0: 1, 1: 1}}, 15)
        two = world.pod("c", nv_container(gpu=2, mem=900), annotations=both)
        assert world.slots(await world.start(two)) == [(0, 900), (1, 900)]
        limit = {"nvidia.com/container.main.gpu-memory.limit": "2Gi"}
        small = world.pod("d", nv_container(gpu=1), annotations=placed({"main": {0: 3}}, 15) | limit)
        assert world.slots(await world.start(small)) == [(0, 2048)]
        # Written after the binding: the scheduler has counted 3 units.
        wide = {"nvidia.com/container.main.gpu-memory.limit": "9Gi"}
        more = world.pod("e", nv_container(gpu=1), annotations=placed({"main": {0: 3}}, 15) | wide)
        assert "it must be 256 to 3021 MiB, as the scheduler has counted it" in await world.refused(more)
        tiny = world.pod("f", nv_container(gpu=1, mem=100), annotations=placed({"main": {0: 1}}, 15))
        assert "asks for 100 MiB of GPU 0; it must be 256 to" in await world.refused(tiny)
        # Without an extender: the kubelet's GPU, and all of what is free is not promised twice.
        whole = world.pod("g", nv_container(gpu=1))
        assert "GPU" in await world.refused(whole)


async def test_the_names_stay_until_no_pod_asks_by_them(tmp_path: Path, warned: Warned) -> None:
    world = nv_world(tmp_path)
    async with world.running():
        world.label("cgpu", **{notes.NAMES_LABEL: notes.NAMES})
        await offered(world, 40)
        running = await world.start(world.pod("a", nv_container(gpu=1, mem=3000)))
        world.label("cgpu")
        await eventually(lambda: warned("names", "until no pod asks by it: team/a"), "said")
        await world.stop_agent()
        await world.start_agent()
        await offered(world, 40)
        await eventually(lambda: world.agent.offer.names == notes.NAMES, "the names as before")
        await world.end(running)
        world.api.remove(PODS, "team", "a")
        await offered(world, 0)
        world.label("cgpu", **{notes.NAMES_LABEL: "others"})
        await eventually(lambda: warned("names", "it must be nvidia"), "the sentence")

        def is_without_names() -> bool:
            node = world.api.get(NODES, "", NODE)
            return node is not None and '"names"' not in node["metadata"]["annotations"][notes.NODE_GPUS]

        await eventually(is_without_names, "the annotation, which the agent writes after it said so")


def test_devices_of_different_gpus() -> None:
    ids = [f"GPU-{gpu}-_-gpu{number}" for gpu in (0, 1) for number in range(3)]
    assert host.preferred_apart(ids, [], 2) == ["GPU-0-_-gpu0", "GPU-1-_-gpu0"]
    assert host.preferred_apart(ids[1:], [], 1) == ["GPU-0-_-gpu1"] and host.preferred_apart(ids[1:], [], 1, True) == [
        "GPU-1-_-gpu0"
    ]
    assert host.preferred_apart(ids, ["GPU-1-_-gpu2"], 2) == ["GPU-1-_-gpu2", "GPU-0-_-gpu0"]
    assert len(host.preferred_apart(ids, [], 9)) == 6


def test_words_are_bounded() -> None:
    with pytest.raises(BadAnnotation):
        notes.choice({notes.GPU_TYPE: "x" * 70})
    assert notes.choice({"other": "x"}) == Choice()
