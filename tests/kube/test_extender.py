# SPDX-License-Identifier: MIT
"""filter, prioritize, bind and inspect over HTTP, against the API server of the tests."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from cluster import MAPS, NODES, PODS, Cluster, container, gpu, our_node, pod, simple, vendor_node
from fake_api import Object, Refusal, recorded
from fakes import eventually

from cgpu_kube import annotations as notes
from cgpu_kube import pods
from cgpu_kube.node import figures, podview
from cgpud import metrics


def written(cluster: Cluster, name: str) -> dict[str, str]:
    found = cluster.stored(name)["metadata"].get("annotations", {})
    return {key: text for key, text in found.items() if "TIME" not in key and "time" not in key}


async def test_the_recorded_request_of_the_scheduler(cluster: Cluster) -> None:
    """kube-scheduler 1.36.2's own bytes, and the pod that the vendor's extender leaves behind."""
    request = recorded("extender-filter")
    cluster.put(request["Pod"])
    status, answer = await cluster.post("filter", request)
    assert (status, answer) == (
        200,
        {
            "Nodes": None,
            "NodeNames": ["n1"],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        },
    )
    assert await cluster.post("bind", recorded("extender-bind")) == (200, {"Error": ""})
    bound = cluster.stored("gs")
    assert bound["spec"]["nodeName"] == "n1"
    theirs = recorded("pod-gpushare-bound")["metadata"]["annotations"]
    ours = bound["metadata"]["annotations"]
    assert theirs.keys() <= ours.keys()
    assert {key for key in theirs if theirs[key] != ours[key]} == {notes.DEV, notes.ASSUME_TIME}
    assert ours[notes.DEV] == "15"  # theirs is 47, the mean of 15 and 79
    assert len(ours[notes.ASSUME_TIME]) == len(theirs[notes.ASSUME_TIME]) == 19


async def test_the_patch_comes_before_the_binding(cluster: Cluster) -> None:
    one = simple("a", 6)
    cluster.put(one)
    assert await cluster.bind(one, "n1") == ""
    writes = [request for request in cluster.server.requests if request[0] in ("PATCH", "POST")]
    where = "/api/v1/namespaces/default/pods/a"
    assert writes == [("PATCH", where), ("POST", f"{where}/binding")]
    assert written(cluster, "a") == {
        notes.INDEX: "0",
        notes.DEV: "15",
        notes.POD: "6",
        notes.ASSIGNED: "false",
        notes.ALLOCATION: '{"c0":{"0":6}}',
        notes.NEW_ASSIGNED: "false",
    }


async def test_a_node_with_the_vendors_plugin() -> None:
    """Containers are listed by their place, and a pod is on one GPU."""
    async with Cluster(vendor_node("v", 30, 2)) as cluster:
        await cluster.place(
            pod("a", container("x", 5), container("free", None), container("y", 4), init=(container("i", 2),))
        )
        found = written(cluster, "a")
        assert found[notes.ALLOCATION] == '{"0":{"0":5},"2":{"0":4}}'
        assert (found[notes.INDEX], found[notes.DEV], found[notes.POD]) == ("0", "15", "9")
        two = simple("b", 2, count=2)
        cluster.put(two)
        assert await cluster.schedule(two) == "the node's device plugin gives a pod one GPU, and 2 are asked for"


async def test_pods_of_the_vendors_extender_count(cluster: Cluster) -> None:
    theirs = recorded("pod-gpushare-bound")
    cluster.put(theirs)
    await cluster.settled()
    assert cluster.used()[0] == 6
    assert cluster.extender.ledger.get(theirs["metadata"]["uid"]).gpus == {"c0": (0,)}


async def test_several_containers_gpus_and_compute() -> None:
    async with Cluster(our_node("n1", gpu(0, 15), gpu(1, 79), mode="core_mem")) as cluster:
        one = pod(
            "a", container("x", 20, 30), container("y", 6, 50), init=(container("side", 4, sidecar=True),), count=2
        )
        await cluster.place(one)
        found = notes.parse(cluster.stored("a")["metadata"]["annotations"])
        assert found.containers == {"x": {0: 10, 1: 10}, "y": {0: 3, 1: 3}, "side": {0: 2, 1: 2}}
        assert found.core == {"x": {0: 15, 1: 15}, "y": {0: 25, 1: 25}}
        assert (found.index, found.pod_units) == ((0, 1), 26)
        assert cluster.used() == {0: 15, 1: 15}
        split = pod("b", container("x", 60), container("y", 5))
        cluster.put(split)
        assert "65 GiB asked for by 2 containers, the largest 60" in await cluster.schedule(split)


async def test_containers_go_to_two_gpus_if_no_single_one_has_room(cluster: Cluster) -> None:
    await cluster.place(pod("a", container("x", 70), container("y", 14)))
    assert written(cluster, "a")[notes.ALLOCATION] == '{"x":{"1":70},"y":{"0":14}}'


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (simple("p", 0), "container c0: aliyun.com/gpu-mem is 0; leave it out, or ask for 1 or more"),
        (simple("p", "-1"), "container c0: aliyun.com/gpu-mem: '-1' is not a whole number of at least 0"),
        (simple("p", "1500m"), "container c0: aliyun.com/gpu-mem: '1500m' is not a whole number of at least 0"),
        (simple("p", "six"), "'six' is not a quantity"),
        (
            pod("p", container("c0", 6, 26)),
            "container c0: aliyun.com/gpu-core.percentage is 26; it must be 5 to 100 in steps of 5",
        ),
        (pod("p", container("c0", 6, 105)), "it must be 5 to 100 in steps of 5"),
        (pod("p", container("c0", None, 25)), "aliyun.com/gpu-core.percentage without aliyun.com/gpu-mem"),
        (
            simple("p", 7, count=2),
            "container c0: aliyun.com/gpu-mem 7 cannot be divided among 2 GPUs (label aliyun.com/gpu-count)",
        ),
        (simple("p", 6, count=0), "label aliyun.com/gpu-count=0 is not a number from 1 to 64"),
        (simple("p", 6, count="two"), "label aliyun.com/gpu-count=two is not a number from 1 to 64"),
        (simple("p", 6, count=3), "3 GPUs asked for and the node has 2"),
        (simple("p", 80), "80 GiB asked for: GPU 0 has 15 of 15 GiB free, GPU 1 has 79 of 79 GiB free"),
        (pod("p", container("c0", 6, 25)), "GPU 0 offers no % of compute"),
        (pod("p", *(container(f"c{i}", 1) for i in range(65))), "a pod may have 64 such containers"),
    ],
)
async def test_bad_input_is_a_sentence_and_binds_nothing(cluster: Cluster, found: dict, sentence: str) -> None:
    cluster.put(found)
    answer = await cluster.filter(found)
    assert sentence in answer["FailedNodes"]["n1"] and sentence in answer["FailedAndUnresolvableNodes"]["n1"]
    assert sentence in await cluster.bind(found, "n1")
    assert "nodeName" not in cluster.stored(found["metadata"]["name"])["spec"]
    assert cluster.used() == {}


async def test_fifteen_of_nine_free(cluster: Cluster) -> None:
    for name, units in (("a", 9), ("b", 70)):
        await cluster.place(simple(name, units))
    big = simple("c", 15)
    cluster.put(big)
    answer = await cluster.filter(big, "n1", "none")
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == {
        "n1": "15 GiB asked for: GPU 0 has 6 of 15 GiB free, GPU 1 has 9 of 79 GiB free",
        "none": "the node none is not for GPU share: it offers no aliyun.com/gpu-mem",
    }
    assert answer["FailedAndUnresolvableNodes"].keys() == {"none"}


async def test_below_256_mib() -> None:
    async with Cluster(our_node("n1", gpu(0, 15000), unit="MiB")) as cluster:
        small = simple("a", 255)
        cluster.put(small)
        assert await cluster.schedule(small) == "255 MiB asked for: the least slice is 256 MiB"
        await cluster.place(simple("b", 256))


async def test_one_gpu_for_a_container_in_mode_share() -> None:
    async with Cluster(our_node("n1", gpu(0, 15), gpu(1, 79), mode="share")) as cluster:
        two = simple("a", 6, count=2)
        cluster.put(two)
        why = "the node's mode is share, where a container has one GPU, and 2 are asked for"
        assert await cluster.schedule(two) == why
        compute = pod("b", container("c", 6, 25))
        cluster.put(compute)
        why = "6 GiB asked for: GPU 0 offers no % of compute, GPU 1 offers no % of compute"
        assert await cluster.schedule(compute) == why


async def test_annotations_of_the_pods_author(cluster: Cluster) -> None:
    """They choose nothing before the pod is bound, and where they disagree with its limits they count nowhere."""
    forged = simple("a", 6, annotations={notes.INDEX: "1", notes.POD: "1", notes.ALLOCATION: '{"c0":{"1":1}}'})
    cluster.put(forged)
    await cluster.settled()
    assert cluster.used() == {}
    assert await cluster.schedule(forged) == ""
    assert written(cluster, "a")[notes.ALLOCATION] == '{"c0":{"0":6}}'
    lying = simple("b", 9, annotations={notes.INDEX: "0", notes.ALLOCATION: '{"c0":{"0":1}}'})
    lying["spec"]["nodeName"] = "n1"
    absent = simple("c", 2, annotations={notes.INDEX: "7"})
    absent["spec"]["nodeName"] = "n1"
    for one in (lying, absent):
        cluster.put(one)
    await cluster.settled()
    # Where they run is not known: counted on both.
    assert cluster.used() == {0: 17, 1: 11}


async def test_annotations_edited_later_move_nothing(cluster: Cluster) -> None:
    await cluster.place(simple("a", 6))
    edited = copy.deepcopy(cluster.stored("a"))
    edited["metadata"]["annotations"][notes.ALLOCATION] = '{"c0":{"1":6}}'
    cluster.put(edited)
    await cluster.settled()
    assert cluster.used() == {0: 6}


@pytest.mark.parametrize("behind_s", [0, 59, 61, 3600, 10**9])
async def test_a_clock_that_is_behind(behind_s: int) -> None:
    """The node takes the choice for this pod's all the same, and not for one of an earlier pod of its name."""
    created = 1_795_360_427
    async with Cluster(our_node("n1", gpu(0, 15)), now_ns=lambda: (created - behind_s) * 10**9) as cluster:
        await cluster.place(simple("a", 6, creationTimestamp="2026-11-22T15:13:47Z"))
        found = cluster.stored("a")
        assert pods.created_ns(found) == created * 10**9
        assert podview.of_scheduler(found)[notes.ALLOCATION] == '{"c0":{"0":6}}'


@pytest.mark.parametrize("old_only", [False, True], ids=["both", "old generation"])
@pytest.mark.parametrize(
    ("made", "used"),
    [
        (simple("a", 8), {0: 8}),
        (pod("a", container("c0", 6), init=(container("i", 8),)), {0: 8}),
        (pod("a", container("c0", 8, 20), container("c1", 2), count=2), {0: 5, 1: 5}),
    ],
)
async def test_a_label_edited_later_moves_nothing(made: Object, used: dict[int, int], old_only: bool) -> None:
    """The next extender counts what the one that bound the pod has written, whatever the label says by then."""
    nodes = our_node("n1", gpu(0, 15), gpu(1, 15), mode="core_mem")
    async with Cluster(nodes) as cluster:
        cluster.put(copy.deepcopy(made))
        assert await cluster.schedule(copy.deepcopy(made)) == ""
        bound, before = cluster.stored("a"), cluster.extender.ledger.used("n1")
        if old_only:  # as the vendor's extender
            for key in (notes.ALLOCATION, notes.CORE_ALLOCATION):
                bound["metadata"]["annotations"].pop(key, None)
            totals = [sum(int(one["resources"]["limits"][notes.GPU_MEM]) for one in made["spec"]["containers"])]
            bound["metadata"]["annotations"][notes.POD] = str(totals[0])
        for text in ("1", "2", "4", "3", "65", "two", None):
            edited = copy.deepcopy(bound)
            edited["metadata"]["labels"] = {} if text is None else {notes.GPU_COUNT: text}
            cluster.put(edited)
            await cluster.stop()
            await cluster.start()
            await cluster.settled()
            found = cluster.extender.ledger.used("n1")
            assert {index: load.units for index, load in found.items()} == used, text
            assert found == before, "the compute too"


async def test_a_static_pod_counts(cluster: Cluster) -> None:
    """The kubelet runs it without a scheduler; nothing says which GPU it has."""
    static = simple("a", 6)
    static["spec"]["nodeName"] = "n1"
    cluster.put(static)
    await cluster.settled()
    big = simple("b", 10)
    assert (await cluster.filter(big))["FailedNodes"] == {}
    assert (await cluster.filter(simple("c", 74)))["FailedNodes"]["n1"].endswith(
        "GPU 0 has 9 of 15 GiB free, GPU 1 has 73 of 79 GiB free"
    )
    _, text = await cluster.get("/metrics")
    assert 'cgpu_node_gpu_unplaced_pods{node="n1"} 1.0' in text


async def test_ended_and_deleted_pods_give_back(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        await cluster.place(simple(name, 5))
    cluster.end("a", "Succeeded")
    cluster.end("b", "Failed")
    cluster.end("c")
    await cluster.settled()
    assert cluster.used() == {}


async def test_unhealthy_gpus(cluster: Cluster) -> None:
    mark = {"metadata": {"namespace": "kube-system", "name": "unhealthy-gpu-n1"}, "data": {"gpus": "0, x"}}
    cluster.server.put(MAPS, mark)
    one = simple("a", 6)
    cluster.put(one)
    await eventually(lambda: cluster.extender.ledger.nodes["n1"].gpus[0].why, "the mark")
    assert await cluster.schedule(one) == ""
    assert written(cluster, "a")[notes.INDEX] == "1"
    lost = our_node("n1", gpu(0, 15), gpu(1, 79, why="is in MIG mode"))
    cluster.server.put(NODES, lost)
    await eventually(lambda: cluster.extender.ledger.nodes["n1"].gpus[1].why, "the node")
    two = simple("b", 6)
    cluster.put(two)
    assert await cluster.schedule(two) == (
        "6 GiB asked for: GPU 0 is marked unhealthy by an administrator, GPU 1 is in MIG mode"
    )
    cluster.server.remove(MAPS, "kube-system", "unhealthy-gpu-n1")
    await eventually(lambda: not cluster.extender.ledger.nodes["n1"].gpus[0].why, "the mark")


async def test_a_damaged_node_annotation_is_a_sentence() -> None:
    node = our_node("n1", gpu(0, 15), gpu(1, 79))
    node["metadata"]["annotations"][notes.NODE_GPUS] = "[]"
    async with Cluster(node) as cluster:
        answer = await cluster.filter(simple("a", 1))
        assert "annotation cgpu.io/gpus=[] of the node is damaged" in answer["FailedNodes"]["n1"]


# ---- races and restarts ----


async def test_two_binds_of_the_last_place() -> None:
    async with Cluster(our_node("n1", gpu(0, 15))) as cluster:
        pair = [simple("a", 10), simple("b", 10)]
        for one in pair:
            cluster.put(one)
            assert (await cluster.filter(one))["NodeNames"] == ["n1"]
        results = await asyncio.gather(*(cluster.bind(one, "n1") for one in pair))
        assert sorted(results) == ["", "node n1: 10 GiB asked for: GPU 0 has 5 of 15 GiB free"]


async def test_two_binds_of_one_pod(cluster: Cluster) -> None:
    one = simple("a", 10)
    cluster.put(one)
    results = await asyncio.gather(*(cluster.bind(one, "n1") for _ in range(3)))
    assert sorted(results)[0] == "" and all("is being bound" in text for text in sorted(results)[1:])
    assert await cluster.bind(one, "n1") == ""  # the scheduler's next try
    assert len(cluster.server.bindings) == 1


async def test_the_pods_status_is_written_meanwhile(cluster: Cluster) -> None:
    one = simple("a", 10)
    cluster.put(one)
    times = iter(range(2))

    def before(method: str, path: str) -> None:
        if method in ("PATCH", "POST") and next(times, None) is not None:
            cluster.put(copy.deepcopy(cluster.stored("a")))

    cluster.server.before = before
    assert await cluster.bind(one, "n1") == ""
    assert written(cluster, "a")[notes.INDEX] == "0"
    assert cluster.used()[0] == 10


@pytest.mark.parametrize("lost", ["PATCH", "POST"])
@pytest.mark.parametrize("carried_out", [True, False])
async def test_the_answer_to_a_write_is_lost(lost: str, carried_out: bool) -> None:
    """The memory stays reserved until it is known what became of the pod."""
    async with Cluster(our_node("n1", gpu(0, 15)), doubt_s=0.1) as cluster:
        one = simple("a", 10)
        cluster.put(one)

        def before(method: str, path: str) -> None:
            if method != lost:
                return
            if carried_out:
                found = copy.deepcopy(cluster.stored("a"))
                if method == "POST":
                    found["spec"]["nodeName"] = "n1"
                cluster.put(found)
            raise Refusal(504, "Timeout", "the server did not answer in time")

        cluster.server.before = before
        assert "did not answer in time" in await cluster.bind(one, "n1")
        assert cluster.used()[0] == 10
        assert cluster.extender.binder.doubts == 1
        assert "5 of 15" in (await cluster.filter(simple("b", 10)))["FailedNodes"]["n1"]
        cluster.server.before = None
        await eventually(lambda: not cluster.extender.binder.doubts, "the end of the doubt")
        bound = carried_out and lost == "POST"
        assert bool(cluster.extender.ledger.used("n1")) is bound
        assert await cluster.bind(one, "n1") == ""
        assert cluster.used()[0] == 10


async def test_the_api_server_is_away(cluster: Cluster) -> None:
    """Sentences, nothing bound, and afterwards everything goes on."""
    one = simple("a", 10)
    cluster.put(one)
    await cluster.server.down()
    assert "does not answer" in await cluster.bind(one, "n1")
    assert (await cluster.get("/healthz"))[0] == 200
    assert (await cluster.get("/readyz"))[0] == 200
    await eventually(lambda: cluster.extender.pods.failing, "failing")
    await cluster.server.up()
    async with asyncio.timeout(20):
        while await cluster.schedule(one):
            await asyncio.sleep(0.05)
    assert cluster.used()[0] == 10


async def test_before_the_first_list_nothing_is_answered(cluster: Cluster) -> None:
    await cluster.stop()
    cluster.server.before = lambda _method, _path: asyncio.sleep(0.5)
    await cluster.start(wait=False)
    status, text = await cluster.get("/readyz")
    assert status == 503 and "have not been read" in text
    answer = await cluster.filter(simple("a", 1))
    assert answer == {"Error": "the extender has not yet read the cluster's pods and nodes; try again"}


async def test_a_restart_finds_the_same_sums(cluster: Cluster) -> None:
    names = [f"p{i}" for i in range(6)]
    for i, name in enumerate(names):
        await cluster.place(pod(name, container("x", 3 + i), container("y", 2), init=(container("i", 9),)))
    before = cluster.extender.ledger.used("n1")
    places = {one.uid: one.gpus for one in cluster.extender.ledger}
    await cluster.stop()
    await cluster.start()
    assert cluster.extender.ledger.used("n1") == before
    assert {one.uid: one.gpus for one in cluster.extender.ledger} == places


async def test_killed_between_patch_and_binding(cluster: Cluster) -> None:
    """Annotations of a pod that is on no node count for nothing, and the next bind writes them again."""
    one = simple("a", 10)
    cluster.put(one)

    def before(method: str, path: str) -> None:
        if path.endswith("/binding"):
            raise Refusal(403, "Forbidden", "killed here")

    cluster.server.before = before
    assert await cluster.bind(one, "n1") == "killed here"
    await cluster.stop()
    cluster.server.before = None
    await cluster.start()
    assert cluster.used() == {}
    assert await cluster.bind(one, "n1") == ""


async def test_pods_that_cannot_be_bound(cluster: Cluster) -> None:
    gone = simple("gone", 1)
    assert await cluster.bind(gone, "n1") == "pod default/gone is gone"
    one = simple("a", 1)
    cluster.put(one)
    other = copy.deepcopy(one)
    other["metadata"]["uid"] = "earlier"
    assert await cluster.bind(other, "n1") == "pod default/a is another pod by now"
    assert await cluster.bind(one, "n9") == (
        "node n9: the node n9 is not for GPU share: it offers no aliyun.com/gpu-mem"
    )
    dying = simple("d", 1, deletionTimestamp="2026-11-22T15:13:47Z")
    cluster.put(dying)
    assert await cluster.bind(dying, "n1") == "pod default/d is being deleted"
    placed = simple("e", 1)
    placed["spec"]["nodeName"] = "n2"
    cluster.put(placed)
    assert await cluster.bind(placed, "n1") == "pod default/e is on node n2 already"
    plain = pod("f", container("c", None))
    cluster.put(plain)
    assert (await cluster.filter(plain))["NodeNames"] == ["n1"]
    assert await cluster.bind(plain, "n1") == "pod default/f asks for no GPU memory"
    assert cluster.server.bindings == []


# ---- forms ----


@pytest.mark.parametrize(
    ("verb", "body", "sentence"),
    [
        ("filter", b"{", "the request's body is no JSON"),
        ("filter", b"[" * 5000, "the request's body is no JSON"),
        ("filter", {}, "the request has no Pod"),
        ("filter", [], "the request has no Pod"),
        ("filter", {"Pod": {}}, "the request has neither NodeNames nor Nodes"),
        ("prioritize", {"Pod": {}, "Nodes": {"items": [1]}}, "the request has neither NodeNames nor Nodes"),
        ("bind", {"PodName": "a"}, "the request has no PodNamespace"),
        ("bind", {"PodName": "a/../b", "PodNamespace": "d", "PodUID": "u", "Node": "n"}, "the request has no PodName"),
    ],
)
async def test_bad_requests(cluster: Cluster, verb: str, body: Any, sentence: str) -> None:
    assert await cluster.post(verb, body) == (400, {"Error": sentence})


async def test_whole_nodes_and_names_in_any_case() -> None:
    async with Cluster(our_node("n1", gpu(0, 15), gpu(1, 79)), our_node("n2", gpu(0, 15))) as cluster:
        nodes = {"items": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}]}
        _, answer = await cluster.post("filter", {"pod": simple("a", 20), "nodes": nodes, "nodenames": None})
        assert [one["metadata"]["name"] for one in answer["Nodes"]["items"]] == ["n1"]
        assert answer["NodeNames"] is None and answer["FailedNodes"].keys() == {"n2"}


async def test_prioritize_by_the_nodes_policy() -> None:
    nodes = [our_node(name, gpu(0, 16), spread=name == "spread") for name in ("full", "empty", "spread")]
    async with Cluster(*nodes) as cluster:
        one = simple("a", 8)
        cluster.put(one)
        for node in ("full", "spread"):
            other = simple(f"on-{node}", 8)
            cluster.put(other)
            assert await cluster.bind(other, node) == ""
        _, scores = await cluster.post("prioritize", {"Pod": one, "NodeNames": ["full", "empty", "spread", "none"]})
        assert {found["Host"]: found["Score"] for found in scores} == {"full": 5, "empty": 0, "spread": 5, "none": 0}


async def test_inspect_version_and_metrics(cluster: Cluster) -> None:
    await cluster.place(simple("a", 6))
    await cluster.settled()
    status, found = await cluster.get("/gpushare-scheduler/inspect")
    assert (status, found) == (
        200,
        {
            "nodes": [
                {
                    "name": "n1",
                    "totalGPU": 94,
                    "usedGPU": 6,
                    "devs": [
                        {
                            "id": 0,
                            "totalGPU": 15,
                            "usedGPU": 6,
                            "pods": [{"name": "a", "namespace": "default", "usedGPU": 6}],
                        },
                        {"id": 1, "totalGPU": 79, "usedGPU": 0, "pods": []},
                    ],
                }
            ],
            "error": "",
        },
    )
    assert (await cluster.get("/gpushare-scheduler/inspect/n1"))[1] == found
    assert (await cluster.get("/gpushare-scheduler/inspect/x"))[1] == {
        "nodes": [],
        "error": "the node x offers no GPU memory to share",
    }
    version = (Path(__file__).parents[2] / "VERSION").read_text().strip()
    assert await cluster.get("/version") == (200, version)
    _, text = await cluster.get("/metrics")
    for line in (
        'cgpu_node_gpu_units{gpu="1",node="n1",unit="GiB"} 79.0',
        'cgpu_node_gpu_allocated_units{gpu="0",node="n1",unit="GiB"} 6.0',
        'cgpu_extender_binds_total{outcome="bound"} 1.0',
        'cgpu_extender_requests_total{result="ok",verb="filter"} 1.0',
        "cgpu_extender_unknown_binds 0.0",
        'cgpu_extender_watch_failing{resource="pods"} 0.0',
        'cgpu_node_gpu_pods{node="n1"} 1.0',
    ):
        assert line in text.splitlines()


async def test_requests_of_other_clients_change_nothing(cluster: Cluster) -> None:
    assert (await cluster.get("/gpushare-scheduler/bind"))[0] == 405
    assert (await cluster.get("/else"))[0] == 404
    assert cluster.server.objects[PODS] == {}


async def test_the_dashboard_of_the_cluster_asks_for_what_exists(cluster: Cluster) -> None:
    """Series of the extender and of cgpud, with their labels; kube_pod_info is kube-state-metrics'."""
    await cluster.place(simple("a", 6))
    _, text = await cluster.get("/metrics")
    there: dict[str, set[str]] = {
        name: {*metrics.POD_LABELS} for name in (f"cgpu_pod_container_{one.metric}" for one in metrics.PODS)
    }
    there["cgpu_pod_container_memory_kind_bytes"] = {*metrics.POD_LABELS, "kind"}
    there["kube_pod_info"] = {"namespace", "pod", "node", "created_by_name"}
    there["cgpu_gpu_policy"] = {*metrics.GPU_LABELS}
    node = figures.Figures("a", True, False, {"granted": 1}, {"aliyun.com/gpu-mem": 1}, {"pods": False})
    text += figures.text(node).decode()
    mps = ("container_memory_used_bytes", "container_memory_grant_bytes", "ended_total")
    there |= {f"cgpu_mps_{name}": {*metrics.POD_LABELS, "node", "result"} for name in mps}
    for name, labels in re.findall(r"^(cgpu_\w+)(?:\{([^}]*)\})? ", text, re.M):
        there.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    board = json.loads((Path(__file__).parents[2] / "docs/user/grafana/cluster.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert len(targets) > 12 and len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for target in targets:
        names = set(re.findall(r"\b(?:cgpu|kube)_\w+", target["expr"]))
        assert names and names <= there.keys(), target["expr"]
        known = set().union(*(there[name] for name in names))
        groups = re.findall(r"(?:by|on|group_left) \(([^)]*)\)", target["expr"])
        used = {label.strip() for group in groups for label in group.split(",")}
        used |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert used <= known, target["expr"]
        for name in re.findall(r"(?:rate|increase)\((\w+)", target["expr"]):
            assert name.endswith("_total")


async def test_the_page_names_every_series_of_the_extender(cluster: Cluster) -> None:
    await cluster.place(simple("a", 6))
    _, text = await cluster.get("/metrics")
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(cgpu_\w+)(?:\{([^}]*)\})? ", text, re.M):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
    page = (Path(__file__).parents[2] / "docs/user/kubernetes.md").read_text()
    rows = re.findall(r"^\| `(cgpu_(?!node_agent_)\w+)` \|([^|]*)\|", page, re.M)
    assert {name: set(labels.replace(",", " ").split()) for name, labels in rows} == found


# ---- pods that are deleted by force ----

RUNNING = {"phase": "Running", "containerStatuses": [{"name": "c0", "state": {"running": {}}}]}


def says(cluster: Cluster, found: dict | None = None, units: dict[int, int] | None = None) -> None:
    """The node publishes what a deleted pod holds; no pod: nothing."""
    remains = {found["metadata"]["uid"]: notes.Remains("default/old", units or {})} if found else {}
    node = cluster.server.get(NODES, "", "n1")
    texts = notes.write_node(notes.NodeGpus("cgpu", "GiB", (gpu(0, 15),), remains))
    cluster.server.put(NODES, node | {"metadata": node["metadata"] | {"annotations": texts}})


async def by_force(cluster: Cluster, status: dict) -> dict:
    """A pod with 10 of 15 GiB, deleted in this state."""
    old = cluster.put(simple("old", 10))
    await cluster.settled()
    assert await cluster.schedule(old) == ""
    cluster.server.put(PODS, copy.deepcopy(cluster.stored("old")) | {"status": status})
    await cluster.settled()
    cluster.end("old")
    await cluster.settled()
    return old


async def until(cluster: Cluster, units: int) -> None:
    await eventually(lambda: sum(cluster.used().values()) == units, f"{units} units")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_pod_deleted_by_force_holds_its_memory_until_its_slices_end(restart: bool) -> None:
    async with Cluster(our_node("n1", gpu(0, 15))) as cluster:
        old = await by_force(cluster, RUNNING)
        young = cluster.put(simple("young", 10))
        assert "GPU 0 has 5 of 15 GiB free; deleted by force and not ended yet: default/old" in (
            await cluster.schedule(young)
        )
        says(cluster, old, {0: 10})
        if restart:
            await cluster.stop()
            await cluster.start()
        await until(cluster, 10)
        await asyncio.sleep(0.1)
        assert "not ended yet: default/old" in await cluster.schedule(young)
        _, found = await cluster.get("/gpushare-scheduler/inspect/n1")
        assert found["nodes"][0]["devs"][0]["pods"] == [{"name": "old", "namespace": "default", "usedGPU": 10}]
        says(cluster, old if restart else None)
        await until(cluster, 0)
        assert await cluster.schedule(young) == ""


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "containerStatuses": [{"name": "c0", "state": {"terminated": {"exitCode": 0}}}]},
        {"phase": "Pending", "containerStatuses": [{"name": "c0", "state": {"waiting": {}}}]},
        {"phase": "Succeeded"},
    ],
    ids=["ended", "never started", "over"],
)
async def test_a_pod_that_the_kubelet_deletes_holds_nothing(status: dict) -> None:
    async with Cluster(our_node("n1", gpu(0, 15))) as cluster:
        await by_force(cluster, status)
        assert cluster.used() == {}


async def test_a_node_that_says_nothing_of_a_deleted_pod_has_a_while_for_it() -> None:
    async with Cluster(our_node("n1", gpu(0, 15)), leave_s=0.3) as cluster:
        old = await by_force(cluster, RUNNING)
        assert cluster.used() == {0: 10}
        says(cluster)
        await until(cluster, 0)
        says(cluster, old, {0: 10})
        await until(cluster, 10)


async def test_the_vendors_plugin_reports_no_slices() -> None:
    async with Cluster(vendor_node("n1", 15, 1)) as cluster:
        await by_force(cluster, RUNNING)
        assert cluster.used() == {}


async def test_a_container_without_a_percentage_takes_the_least_weight() -> None:
    """cgpud gives it a weight of 1 of 20, which a GPU with 100 % taken has not."""
    async with Cluster(our_node("n1", gpu(0, 15), mode="core_mem")) as cluster:
        await cluster.place(pod("most", container("c0", 4, 95)))
        await cluster.place(simple("none", 4))
        loads = cluster.extender.ledger.used("n1")
        assert (loads[0].units, loads[0].core) == (8, 100)
        assert "compute" in await cluster.schedule(cluster.put(simple("one", 4)))
        assert notes.CORE_ALLOCATION not in written(cluster, "none"), "it has asked for none"


# ---- preemption ----


def preempted(cluster: Cluster, asked: dict, **victims: list[str]) -> Any:
    """The answer of preempt for the scheduler's victims by node, as names of pods."""
    named = {
        node: {"Pods": [{"UID": cluster.stored(name)["metadata"]["uid"]} for name in names], "NumPDBViolations": 0}
        for node, names in victims.items()
    }
    return cluster.post("preempt", {"Pod": asked, "NodeNameToVictims": None, "NodeNameToMetaVictims": named})


def important(name: str, units: int, priority: int) -> Object:
    found = simple(name, units)
    found["spec"]["priority"] = priority
    return found


async def with_priority(cluster: Cluster, name: str, units: int, priority: int, node: str = "n1") -> None:
    found = cluster.put(important(name, units, priority))
    assert await cluster.bind(found, node) == ""


def names_of(cluster: Cluster, answer: Any) -> dict[str, set[str]]:
    by_uid = {one["metadata"]["uid"]: one["metadata"]["name"] for one in cluster.server.pods().values()}
    found = answer["NodeNameToMetaVictims"]
    return {node: {by_uid.get(one["UID"], one["UID"]) for one in victims["Pods"]} for node, victims in found.items()}


async def test_a_victim_is_one_whose_gpu_makes_room() -> None:
    """Two GPUs with 9 and 8 taken of 15: by the sum of the node any victim of 6 will do, and only one GPU has room."""
    async with Cluster(our_node("n1", gpu(0, 15), gpu(1, 15))) as cluster:
        await with_priority(cluster, "a", 9, 0)
        await with_priority(cluster, "b", 9, 0)
        await with_priority(cluster, "small", 3, 0)
        await with_priority(cluster, "dear", 3, 50)
        await cluster.settled()
        asked = important("new", 12, 100)
        on = {name: notes.parse(cluster.stored(name)["metadata"]["annotations"]).index[0] for name in ("small", "dear")}
        # By the sum of the node two small ones and a large one will do; GPU by GPU the large one where "dear" is not.
        status, answer = await preempted(cluster, asked, n1=["small", "a"], n2=[])
        assert status == 200
        chosen = names_of(cluster, answer)
        assert chosen.keys() == {"n1"}, "a node that is none of ours is no candidate"
        where = {name: notes.parse(cluster.stored(name)["metadata"]["annotations"]).index[0] for name in chosen["n1"]}
        assert len(set(where.values())) == 1, "on one GPU"
        assert "dear" not in chosen["n1"] or on["small"] == on["dear"]
        for name in chosen["n1"]:
            cluster.end(name)
        await cluster.settled()
        cluster.put(asked)
        assert await cluster.bind(asked, "n1") == "", "their end makes room"


async def test_no_victim_where_no_gpu_makes_room() -> None:
    """The scheduler would end `a`; the rest of its GPU is of higher priority."""
    async with Cluster(our_node("n1", gpu(0, 15), gpu(1, 15))) as cluster:
        await with_priority(cluster, "high", 10, 100)
        await with_priority(cluster, "a", 5, 0)
        await with_priority(cluster, "high2", 10, 100)
        await cluster.settled()
        asked = important("new", 10, 100)
        assert names_of(cluster, (await preempted(cluster, asked, n1=["a"]))[1]) == {}
        less = important("less", 5, 100)
        assert names_of(cluster, (await preempted(cluster, less, n1=["a"]))[1]) == {"n1": {"a"}}, (
            "there is room now, and kube-scheduler ends the whole preemption if a node has no victim"
        )
        assert names_of(cluster, (await preempted(cluster, less, n1=["a", "high"]))[1]) == {"n1": {"a", "high"}}
        assert names_of(cluster, (await preempted(cluster, less, n1=[]))[1]) == {"n1": set()}
        plain = pod("plain", container("c", None))
        assert names_of(cluster, (await preempted(cluster, plain, n1=["a"]))[1]) == {"n1": {"a"}}


async def test_no_list_of_victims_becomes_empty() -> None:
    """kube-scheduler with `ignorable: false`: "expected at least one victim pod on node", for every node."""
    chance = random.Random(3)

    async with Cluster(our_node("n1", gpu(0, 15), gpu(1, 15)), our_node("n2", gpu(0, 15))) as cluster:
        there = []
        for number in range(14):
            found = important(f"p{number}", chance.randint(1, 6), chance.choice((0, 10, 20)))
            cluster.put(found)
            if await cluster.bind(found, chance.choice(("n1", "n2"))) == "":
                there.append(found)
        await cluster.settled()
        answers = 0
        for number in range(60):
            asked = important(f"new{number}", chance.randint(1, 15), chance.choice((5, 15, 25)))
            given: dict[str, list[str]] = {}
            for found in chance.sample(there, chance.randint(1, 4)):
                meta = cluster.stored(found["metadata"]["name"])
                given.setdefault(meta["spec"]["nodeName"], []).append(found["metadata"]["name"])
            status, answer = await preempted(cluster, asked, **given)
            assert status == 200
            for victims in names_of(cluster, answer).values():
                assert victims
                answers += 1
        assert answers > 20


async def test_victims_without_gpu_memory_stay() -> None:
    async with Cluster(our_node("n1", gpu(0, 15))) as cluster:
        await with_priority(cluster, "a", 10, 0)
        other = pod("cpu", container("c", None))
        cluster.put(other)
        await cluster.settled()
        asked = important("new", 10, 5)
        assert names_of(cluster, (await preempted(cluster, asked, n1=["cpu", "a"]))[1]) == {"n1": {"cpu", "a"}}
        whole = {"Pod": asked, "NodeNameToVictims": {"n1": {"Pods": [cluster.stored("a")], "NumPDBViolations": 1}}}
        _, answer = await cluster.post("preempt", whole)
        assert names_of(cluster, answer) == {"n1": {"a"}}
        assert answer["NodeNameToMetaVictims"]["n1"]["NumPDBViolations"] == 1
        for bad in (
            {"Pod": None},
            {"Pod": asked, "NodeNameToMetaVictims": {"n1": {"Pods": [{}]}}},
            {"Pod": asked, "NodeNameToMetaVictims": [1]},
        ):
            assert (await cluster.post("preempt", bad))[0] == 400
