# SPDX-License-Identifier: MIT
"""What the extender and the agents may write of a pod: their requests pass the policy, and no others of theirs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import PODS, gpu, our_node, simple
from deployed import Object, Policy, kustomized, named
from fake_api import Refusal
from fakes import eventually
from node_world import World, container, placed
from test_lease import Replica

from cgpu_kube import annotations as notes
from cgpu_kube.extender.service import SERVES_LABEL

EXTENDER, AGENT = (f"system:serviceaccount:cgpu-system:cgpu-{name}" for name in ("extender", "node"))


@pytest.fixture(scope="module")
def policy(kubectl: Path) -> Policy:
    return Policy(named(kustomized(kubectl))["ValidatingAdmissionPolicy", "cgpu-pod-writes"])


def said(policy: Policy, user: str, old: Object, new: Object) -> list[str]:
    return policy.sentences(new, old, userInfo={"username": user, "groups": []})


def pod(**meta: Any) -> Object:
    found = simple("p", 6, labels={"app": "a"}, annotations={"mine": "x"}, finalizers=["f"], **meta)
    found["spec"]["activeDeadlineSeconds"] = 9
    return found


def spec(found: Object) -> None:
    found["spec"]["containers"][0]["image"] = "other"


def deadline(found: Object) -> None:
    found["spec"]["activeDeadlineSeconds"] = 1


def toleration(found: Object) -> None:
    found["spec"]["tolerations"] = [{"operator": "Exists"}]


def debugger(found: Object) -> None:
    found["spec"]["ephemeralContainers"] = [{"name": "d", "image": "box"}]


def label(found: Object) -> None:
    found["metadata"]["labels"]["app"] = "b"


def new_label(found: Object) -> None:
    found["metadata"]["labels"][SERVES_LABEL] = "true"


def no_labels(found: Object) -> None:
    del found["metadata"]["labels"]


def finalizer(found: Object) -> None:
    found["metadata"]["finalizers"] = []


def owner(found: Object) -> None:
    found["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "r", "uid": "u", "apiVersion": "apps/v1"}]


def annotation(found: Object) -> None:
    found["metadata"]["annotations"]["mine"] = "y"


def new_annotation(found: Object) -> None:
    found["metadata"]["annotations"]["container.apparmor.security.beta.kubernetes.io/c0"] = "unconfined"


def no_annotations(found: Object) -> None:
    del found["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        *((one, "no pod's spec") for one in (spec, deadline, toleration, debugger)),
        *((one, "label cgpu.io/serves of its own pods only") for one in (label, new_label, no_labels)),
        *((one, "no pod's finalizers or owners") for one in (finalizer, owner)),
        *((one, "annotations of a pod's GPU only") for one in (annotation, new_annotation, no_annotations)),
    ],
)
def test_nothing_else_of_a_pod_changes(policy: Policy, change: Callable[[Object], None], word: str) -> None:
    old = pod()
    new = copy.deepcopy(old)
    change(new)
    for user in (EXTENDER, AGENT):
        (why,) = said(policy, user, old, new)
        assert word in why
    assert said(policy, "alice", old, new) == [], "an author changes what is theirs"


def test_the_annotations_of_the_gpu_change(policy: Policy) -> None:
    keys = next(one for one in policy.spec["variables"] if one["name"] == "keys")["expression"]
    assert set(re.findall(r"'([^']+)'", keys)) == set(notes.CHOICE)
    old = pod()
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] |= dict.fromkeys(notes.CHOICE, "1")
    bare = pod()
    del bare["metadata"]["annotations"]
    alone = copy.deepcopy(bare)
    alone["metadata"]["annotations"] = dict.fromkeys(notes.CHOICE, "1")
    for user in (EXTENDER, AGENT):
        for before, after in ((old, new), (new, old), (bare, alone), (alone, bare), (old, old)):
            assert said(policy, user, before, after) == []


@pytest.mark.parametrize(
    ("user", "namespace", "name", "passes"),
    [
        (EXTENDER, "cgpu-system", "cgpu-extender", True),
        (EXTENDER, "cgpu-system", "cgpu-node", False),
        (EXTENDER, "team", "cgpu-extender", False),
        (AGENT, "cgpu-system", "cgpu-extender", False),
    ],
)
def test_the_label_of_the_extenders_own_pods(
    policy: Policy, user: str, namespace: str, name: str, passes: bool
) -> None:
    """The Service sends the scheduler's requests to the pod that has it."""
    old = simple("e", 1, labels={"app.kubernetes.io/name": name})
    old["metadata"]["namespace"] = namespace
    new = copy.deepcopy(old)
    new["metadata"]["labels"][SERVES_LABEL] = "true"
    other = copy.deepcopy(new)
    other["metadata"]["labels"][SERVES_LABEL] = "false"
    for before, after in ((old, new), (new, other), (new, old)):
        assert (said(policy, user, before, after) == []) == passes


def updates(server: Any) -> list[tuple[Object, Object]]:
    """What became of pods, by whoever it was; a Binding is another request."""
    found = [(old, new) for _, where, kind, old, new in server.events if where == PODS and kind == "MODIFIED"]
    return [(old, new) for old, new in found if old["spec"].get("nodeName") == new["spec"].get("nodeName")]


async def test_every_write_of_an_extender_passes(policy: Policy) -> None:
    """A choice, one that is withdrawn, the labels at two changes of the one that serves."""
    first = Replica(None, 1, our_node("n1", gpu(0, 15)), pod="e1", doubt_s=0.1)
    for name in ("e1", "e2"):
        labels = {"app.kubernetes.io/name": "cgpu-extender"}
        made = {"metadata": {"namespace": "cgpu-system", "name": name, "labels": labels}, "spec": {"containers": []}}
        first.server.put(PODS, made)
    async with first:
        await first.serves()
        first.put(simple("a", 6, annotations={"mine": "x"}, labels={"app": "a"}))
        first.put(simple("b", 6))
        assert await first.bind(first.stored("a"), "n1") == ""

        def refuse(_method: str, path: str) -> None:
            if path.endswith("/binding"):
                raise Refusal(503, "Unavailable", "not now")

        first.server.before = refuse
        assert await first.bind(first.stored("b"), "n1") != ""
        await eventually(lambda: not first.extender.binder.doubts, "the choice is withdrawn")
        first.server.before = None
        async with Replica(first, 2, pod="e2") as second:
            assert isinstance(second, Replica)
            assert first.extender.lease is not None
            await first.extender.lease.release()
            first.extender.tasks[-1].cancel()
            await second.serves()
    found = updates(first.server)
    assert {new["metadata"]["name"] for _, new in found} == {"a", "b", "e1", "e2"} and len(found) >= 6
    for old, new in found:
        assert said(policy, EXTENDER, old, new) == [], (old["metadata"], new["metadata"])


async def test_every_write_of_an_agent_passes(policy: Policy, world: World) -> None:
    written = placed({"main": {1: 6}})
    found = world.pod("p", container(mem=6), annotations=written)
    await world.start(found)
    await eventually(lambda: updates(world.api), "assigned")
    for old, new in updates(world.api):
        assert said(policy, AGENT, old, new) == []
