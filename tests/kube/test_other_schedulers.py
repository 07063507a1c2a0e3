# SPDX-License-Identifier: MIT
"""Pods as users of other schedulers and queues write them: what our policies, the extender and the agent do with them.

The objects have the names, labels, annotations and gates of the projects' documents: Volcano, KAI, Koordinator, Kueue.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from cluster import Cluster, gpu, our_node, simple
from deployed import REPO, Mutation, Object, Policy, kustomized, named, rendered
from fakes import eventually
from node_world import World, placed
from node_world import container as node_container

from cgpu_kube import annotations as notes
from cgpu_kube import pods

OWN = REPO / "deploy/own-scheduler"
OTHERS = ["volcano", "kai-scheduler", "koord-scheduler"]


def written(scheduler: str, units: int | None = 6, **meta: Object) -> Object:
    found = simple("p", units if units is not None else 1, **meta)
    found["spec"]["schedulerName"] = scheduler
    if units is None:
        found["spec"]["containers"] = [{"name": "c0", "image": "box"}]
    return found


VOLCANO = written(
    "volcano", annotations={"scheduling.k8s.io/group-name": "podgroup-1"}, labels={"volcano.sh/job-name": "train"}
)
KAI = written("kai-scheduler", labels={"kai.scheduler/queue": "team-a"})
KOORDINATOR = written("koord-scheduler", labels={"koordinator.sh/qosClass": "LS"})
KUEUE = written("default-scheduler", labels={"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/managed": "true"})
KUEUE["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
#: KAI's own fraction of a GPU, and Volcano's vGPU: other resources, so no concern of ours.
KAI_FRACTION = written("kai-scheduler", None, annotations={"gpu-fraction": "0.5"}, labels={"kai.scheduler/queue": "a"})
VOLCANO_VGPU = written("volcano", None)
VOLCANO_VGPU["spec"]["containers"][0]["resources"] = {
    "limits": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}
}


@pytest.fixture(scope="module")
def own(kubectl: Path) -> dict[tuple[str, str], Object]:
    return named(kustomized(kubectl, OWN))


@pytest.mark.parametrize(
    ("found", "name", "is_refused"),
    [
        (VOLCANO, "volcano", True),
        (KAI, "kai-scheduler", True),
        (KOORDINATOR, "koord-scheduler", True),
        (KUEUE, "cgpu-scheduler", False),
        (KAI_FRACTION, "kai-scheduler", False),
        (VOLCANO_VGPU, "volcano", False),
    ],
)
def test_which_pods_the_policies_let_in(own: dict, helm: Path, found: Object, name: str, is_refused: bool) -> None:
    after = Mutation(own["MutatingAdmissionPolicy", "cgpu-scheduler"]).apply(copy.deepcopy(found))
    assert after["spec"]["schedulerName"] == name and after["metadata"] == found["metadata"]
    policy = Policy(own["ValidatingAdmissionPolicy", "cgpu-scheduler-name"])
    assert bool(policy.sentences(after)) == is_refused
    assert Policy(own["ValidatingAdmissionPolicy", "cgpu-pods"]).sentences(after) == []
    values = {"scheduler": {"enabled": True, "image": {"repository": "k"}, "others": OTHERS}}
    allowed = named(rendered(helm, values))["ValidatingAdmissionPolicy", "cgpu-scheduler-name"]
    assert Policy(allowed).sentences(after) == [], "an administrator has named the scheduler"


async def test_kueue_keeps_the_gate_and_the_extender_waits_for_its_end(own: dict) -> None:
    """A gated pod holds nothing, and once Kueue has chosen a flavour (a node selector) it is scheduled as any other."""
    async with Cluster(our_node("n1", gpu(0, 15))) as cluster:
        found = Mutation(own["MutatingAdmissionPolicy", "cgpu-scheduler"]).apply(copy.deepcopy(KUEUE))
        assert found["spec"]["schedulingGates"] == KUEUE["spec"]["schedulingGates"] and pods.is_gated(found)
        cluster.put(found)
        await cluster.settled()
        assert cluster.used() == {}
        del found["spec"]["schedulingGates"]
        found["spec"]["nodeSelector"] = {notes.CARD_NAME: "Tesla-T4"}
        await cluster.place(found)
        assert cluster.used()[0] == 6


@pytest.mark.parametrize("found", [VOLCANO, KAI, KOORDINATOR])
async def test_a_pod_that_another_scheduler_has_bound_counts_on_each_gpu(found: Object) -> None:
    """Until its node has written which GPU it is on: no memory is promised twice meanwhile."""
    async with Cluster(our_node("n1", gpu(0, 15), gpu(1, 15))) as cluster:
        bound = copy.deepcopy(found)
        bound["spec"]["nodeName"] = "n1"
        cluster.put(bound)
        await cluster.settled()
        assert cluster.used() == {0: 6, 1: 6}
        second = simple("q", 10)
        cluster.put(second)
        assert "GPU 0 has 9 of 15 GiB free, GPU 1 has 9 of 15 GiB free" in await cluster.schedule(second)
        bound["metadata"].setdefault("annotations", {}).update(placed({"c0": {1: 6}}, 15))
        cluster.put(bound)
        await cluster.settled()
        assert await cluster.schedule(second) == ""
        assert cluster.stored("q")["metadata"]["annotations"][notes.INDEX] == "0"


@pytest.mark.parametrize("found", [VOLCANO, KAI, KOORDINATOR])
@pytest.mark.parametrize("count", [1, 2])
async def test_its_node_gives_it_the_gpu_that_the_kubelet_has_counted(
    tmp_path: Path, found: Object, count: int
) -> None:
    """One GPU: as with the extender. Two: the one whose devices the kubelet took; a pod for which it had to take
    devices of both is refused, and gets no GPU that it would not fit."""
    world = World(tmp_path)
    world.link.inventory = world.link.inventory[:count]
    async with world.running():
        await eventually(lambda: world.offered() == (15, 94)[count - 1], "the offer")
        meta = found["metadata"]
        more = {"annotations": meta.get("annotations"), "labels": meta.get("labels")}
        pod = world.pod("p", node_container(mem=6), spec={"schedulerName": found["spec"]["schedulerName"]}, **more)
        slots = world.slots(await world.start(pod))
        assert slots == [(0, 6043)]
        if count == 2:
            split = world.pod("q", node_container(mem=85), spec={"schedulerName": "volcano"})
            assert "no single GPU had room" in await world.refused(split)
