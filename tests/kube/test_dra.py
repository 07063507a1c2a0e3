# SPDX-License-Identifier: MIT
"""cgpu-kube node as DRA driver, with claims and slices as Kubernetes 1.36.2 returned them."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fake_api import Refusal, recorded
from fakes import Warned, eventually
from node_world import CLAIMS, NODE, NODES, PODS, SLICES, World, container

from cgpu_common.cards import NvmlGpu
from cgpu_common.model import MIB
from cgpu_kube.errors import Refused
from cgpu_kube.node import claims, dra, unasked
from cgpu_kube.node.host import HostGpu

DRIVER = "cgpu.io"
EVENTS = "api/v1/events"
SLICE = f"{NODE}-{DRIVER}"


def published(world: World) -> dict[str, Any] | None:
    found = world.api.get(SLICES, "", SLICE)
    return found["spec"] if found else None


async def ready(world: World) -> None:
    await eventually(lambda: published(world), "a ResourceSlice")
    await eventually(lambda: world.agent.cluster.pods.synced.is_set(), "pods")
    await world.kubelet.find_drivers()


@asynccontextmanager
async def registered(world: World) -> AsyncIterator[World]:
    """Running, with its slice published and its driver known to the kubelet."""
    async with world.running():
        await ready(world)
        yield world


@pytest.fixture
def world(tmp_path: Path) -> AbstractAsyncContextManager[World]:
    return registered(World(tmp_path, mode="dra"))


class Named(NamedTuple):
    namespace: str
    name: str
    uid: str


def claim(
    world: World,
    name: str = "c",
    *results: dict[str, Any],
    config: list[dict[str, Any]] | None = None,
    asked: dict[str, str] | None = None,
    **meta: Any,
) -> Named:
    """An allocated claim, as recorded, with these results instead, and with what they ask for (`asked`: another
    capacity)."""
    found = copy.deepcopy(recorded("claim-allocated"))
    found["metadata"] = {"name": name, "namespace": "team", **meta}
    requests = []
    for result in results or ({},):
        top, _, sub = str(result.get("request", "gpu")).partition("/")
        capacity = {"requests": {"memory": "6Gi"} if asked is None else asked}
        exactly = {"deviceClassName": "gold", "capacity": capacity}
        form = {"firstAvailable": [{"name": sub, **exactly}]} if sub else {"exactly": exactly}
        requests.append({"name": top, **form})
    found["spec"]["devices"]["requests"] = requests
    devices = found["status"]["allocation"]["devices"]
    (first,) = devices["results"]
    devices["results"] = [{**first, **result} for result in results or ({},)]
    devices["config"] = config or []
    made = world.api.put(CLAIMS, found)
    return Named("team", name, str(made["metadata"]["uid"]))


async def prepare(world: World, *of_claim: Any, **more: Any) -> tuple[Named, Any]:
    """A claim, and the answer to the kubelet that wants it prepared."""
    named = claim(world, *of_claim, **more)
    return named, (await world.kubelet.prepare(DRIVER, named))[named.uid]


def pod_with(world: World, name: str, *claims_: str, containers: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    given = containers or (container(resources={"claims": [{"name": one} for one in claims_]}),)
    for one in given:
        one["resources"].pop("limits", None)
    return world.pod(
        name, *given, spec={"resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims_]}
    )


async def started(world: World, pod: dict[str, Any], prepared: Any, name: str = "main") -> dict[str, Any]:
    """What containerd does with the CDI ids of a claim: the environment of the spec; then cgpud's answer."""
    env: dict[str, str] = {}
    for device in prepared.devices:
        for cdi in device.cdi_device_ids:
            kind, _, wanted = cdi.partition("=")
            for path in (world.directory / "cdi").iterdir():
                spec = json.loads(path.read_text())
                for one in spec["devices"] if spec["kind"] == kind else ():
                    if one["name"] == wanted:
                        assert set(one["containerEdits"]) == {"env"}, "no node: without our runtime there is no GPU"
                        env |= dict(entry.split("=", 1) for entry in one["containerEdits"]["env"])
    assert env, "the CDI spec was found"
    container_id = world.bundle(pod, name, env, "CGPU_DISABLE=1")
    return {**await world.prepare(container_id), "id": container_id}


# ---- the slice ----


async def test_the_slice_has_each_gpu_with_its_own_capacity(world: World) -> None:
    spec = published(world)
    assert spec["pool"]["name"] == spec["nodeName"] == NODE
    first, second = spec["devices"]
    like = recorded("resourceslice")["spec"]["devices"][0]
    assert set(first) == set(like) and set(first["capacity"]) == set(like["capacity"])
    assert first["capacity"]["memory"] == {
        "value": "15109Mi",
        "requestPolicy": {
            "default": "15109Mi",
            "validRange": {"min": "256Mi", "max": "15109Mi", "step": "1Mi"},
        },
    }
    # The driver needs 1500 MiB of the second, and 1024 of them are its own part.
    assert second["capacity"]["memory"]["value"] == f"{81559 - 1500 + 1024}Mi"
    assert second["capacity"]["slots"] == like["capacity"]["slots"]
    assert first["allowMultipleAllocations"] is True
    found = world.api.get(SLICES, "", SLICE)
    assert found["metadata"]["ownerReferences"][0]["uid"] == world.own_node()["metadata"]["uid"]
    await asyncio.sleep(0.5)
    again = world.api.get(SLICES, "", SLICE)
    assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"], "no write without a change"


async def test_a_slice_that_the_kubelet_deleted_is_published_again(world: World) -> None:
    for _ in range(3):
        world.api.remove(SLICES, "", SLICE)
        await eventually(lambda: published(world), "published again")
    await world.kubelet.restart()
    await world.kubelet.find_drivers()
    assert world.kubelet.drivers == {DRIVER: str(world.kubelet.directory / "plugins/cgpu.io/dra.sock")}


async def test_a_changed_slice_has_the_next_generation(world: World) -> None:
    found = copy.deepcopy(world.api.get(SLICES, "", SLICE))
    found["spec"]["devices"].pop()
    world.api.put(SLICES, found)
    await eventually(lambda: len(published(world)["devices"]) == 2, "both")
    assert published(world)["pool"]["generation"] == 2


UNUSABLE = [
    ({"lost": "GPU is lost"}, "NoExecute", "GPU 1 does not answer NVML (GPU is lost), so it cannot be sliced"),
    ({"mig": True}, "NoSchedule", "GPU 1 is in MIG mode, which cannot be sliced"),
]


@pytest.mark.parametrize(("state", "effect", "why"), UNUSABLE, ids=["lost", "mig"])
async def test_a_gpu_that_takes_no_slice_is_tainted_and_unhealthy(
    tmp_path: Path, state: dict[str, Any], effect: str, why: str
) -> None:
    world = World(tmp_path, mode="dra")
    now: dict[str, Any] = {}

    def nvml() -> tuple[NvmlGpu, ...]:
        return tuple(
            NvmlGpu(n, gpu.uuid, gpu.pci, n, gpu.total // MIB, name="Tesla T4", used_mib=0, **(now if n == 1 else {}))
            for n, gpu in enumerate(world.link.inventory)
        )

    world.node.nvml = nvml
    async with registered(world):
        now.update(state)
        world.node.daemon.inventory.expire()
        await world.node.prepare("0" * 64)  # an admission asks NVML
        await eventually(lambda: any("taints" in one for one in published(world)["devices"]), "taint")
        (device,) = (one for one in published(world)["devices"] if one["name"] == "gpu-1")
        assert device["taints"] == [{"key": "cgpu.io/unhealthy", "value": "true", "effect": effect}]
        await eventually(lambda: {"gpu-0": 1, "gpu-1": 2} in world.kubelet.health, "the health stream")
        answer = await world.kubelet.prepare(DRIVER, claim(world, "c", {"device": "gpu-1"}))
        (one,) = answer.values()
        assert one.error == why


async def test_an_agent_that_serves_again_reports_health_once(world: World) -> None:
    """Its turn was lost for a moment, and nothing has changed meanwhile."""
    await world.agent.driver.stop()
    await world.agent.driver.ensure()
    world.kubelet.health.clear()
    await world.kubelet.find_drivers()
    await eventually(lambda: world.kubelet.health, "a report")
    await asyncio.sleep(0.5)
    assert len(world.kubelet.health) <= 2, "one of the earlier stream may be late"


async def test_health_is_reported_again_while_nothing_changes(world: World) -> None:
    """A kubelet takes the health of a device as unknown 30 s after the last report."""
    assert dra.HEALTH_S * 2 <= 30
    await eventually(lambda: world.kubelet.health, "a report")
    world.agent.driver.health_s = 0.1
    world.agent.driver._wake()
    world.kubelet.health.clear()
    await eventually(lambda: len(world.kubelet.health) >= 3, "reports")
    assert all(one == {"gpu-0": 1, "gpu-1": 1} for one in world.kubelet.health)


# ---- claims ----


async def test_a_claim_becomes_the_slice_of_its_pod(world: World) -> None:
    named, prepared = await prepare(world)
    (device,) = prepared.devices
    assert (device.pool_name, device.device_name, list(device.request_names)) == (NODE, "gpu-0", ["gpu"])
    assert device.share_id == "b1252e54-bb3a-409d-8277-969b471c0adf" and not prepared.error
    reply = await started(world, pod_with(world, "p", "c"), prepared)
    assert reply["ok"], reply
    (slot,) = world.link.containers[f"claim-{named.uid}"].slots
    assert (slot.gpu, slot.limit, slot.weight) == (0, 6144 * MIB, 5)
    assert "CGPU_DISABLE" not in world.env(reply["id"])


async def test_pods_and_containers_of_one_claim_share_one_slice(world: World) -> None:
    named, prepared = await prepare(world)
    both = (
        container("a", resources={"claims": [{"name": "c"}]}),
        container("b", resources={"claims": [{"name": "c", "request": "gpu"}]}),
    )
    first, second = pod_with(world, "p1", "c", containers=both), pod_with(world, "p2", "c")
    ids = [
        (await started(world, first, prepared, "a"))["id"],
        (await started(world, first, prepared, "b"))["id"],
        (await started(world, second, prepared))["id"],
    ]
    assert list(world.link.containers) == [f"claim-{named.uid}"]
    for container_id in ids[:2]:
        await world.end(container_id)
    assert world.link.containers
    await world.end(ids[2])
    assert not world.link.containers
    await world.kubelet.unprepare(DRIVER, named)
    assert not list((world.directory / "cdi").iterdir())


async def test_containers_of_a_pod_with_a_claim_are_bounded(world: World) -> None:
    """cgpud keeps a grant of each while the pod is there: 9 pods with 500 init containers each had all of them."""

    def named_ones(count: int) -> tuple[dict[str, Any], ...]:
        return tuple(container(f"c{number}", resources={"claims": [{"name": "c"}]}) for number in range(count))

    _, prepared = await prepare(world)
    assert (await started(world, pod_with(world, "p", "c", containers=named_ones(64)), prepared, "c63"))["ok"]
    reply = await started(world, pod_with(world, "q", "c", containers=named_ones(65)), prepared, "c0")
    assert reply["error"] == ("65 containers of pod team/q name a claim of cgpu.io; a pod may have 64 such containers")
    watching = (*named_ones(1), *(container(f"w{number}", resources={}) for number in range(64)))
    reply = await started(world, pod_with(world, "r", "c", containers=watching), prepared, "c0")
    assert reply["ok"], "of those that name it"


async def test_a_claim_of_two_gpus(world: World) -> None:
    named, prepared = await prepare(
        world,
        "c",
        {"request": "small", "consumedCapacity": {"memory": "1536Mi", "weight": "1", "slots": "1"}},
        {"request": "big/large", "device": "gpu-1", "consumedCapacity": {"memory": "40Gi", "weight": "7"}},
    )
    assert (await started(world, pod_with(world, "p", "c"), prepared))["ok"]
    slots = world.link.containers[f"claim-{named.uid}"].slots
    assert [(slot.gpu, slot.limit // MIB, slot.weight) for slot in slots] == [(0, 1536, 1), (1, 40960, 7)]
    part = container(resources={"claims": [{"name": "c", "request": "big"}]})
    reply = await started(world, pod_with(world, "q", "c", containers=(part,)), prepared)
    assert "names big of claim c, which is one slice of 2 GPUs" in reply["error"]


async def test_a_claim_of_a_template_and_of_an_extended_resource(world: World) -> None:
    """The names of generated claims are in the pod's status."""
    _, prepared = await prepare(world, "six1-g-22xzg")
    given = recorded("pod-with-claim")
    given["metadata"] = {"name": "six1", "namespace": "team"}
    given["spec"] |= {"nodeName": NODE, "initContainers": []}
    given["spec"]["containers"][0]["name"] = "main"
    assert (await started(world, world.api.put(PODS, given), prepared))["ok"]
    extended = {claims.EXTENDED: "example.com/gpu"}
    request = {"request": "container-0-request-0"}
    other = claim(world, "ext-extended-resources-mpsm2", request, asked={}, annotations=extended)
    prepared = (await world.kubelet.prepare(DRIVER, other))[other[2]]
    given = recorded("pod-extended-resource")
    given["metadata"] = {"name": "ext", "namespace": "team"}
    given["spec"] |= {"nodeName": NODE, "initContainers": []}
    assert (await started(world, world.api.put(PODS, given), prepared, "c0"))["ok"]
    assert len(world.link.containers) == 2


async def test_a_container_without_the_claim_gets_nothing(world: World) -> None:
    _, prepared = await prepare(world)
    thief = world.pod("thief", container())
    reply = await started(world, thief, prepared)  # the author copied the variables of the claim
    assert "asks for no aliyun.com/gpu-mem" in reply["error"]
    pod = pod_with(world, "early", "other")
    reply = await started(world, pod, prepared)
    assert "names a claim that is not prepared on this node" in reply["error"]
    two = (claim(world, "c1"), claim(world, "c2", {"device": "gpu-1"}))
    await world.kubelet.prepare(DRIVER, *two)
    reply = await started(world, pod_with(world, "two", "c1", "c2"), prepared)
    assert "names 2 claims of cgpu.io (c1, c2), and a container has one" in reply["error"]


async def test_prepare_is_repeated_after_a_reboot_without_the_api_server(world: World) -> None:
    named = claim(world)
    first = (await world.kubelet.prepare(DRIVER, named))[named.uid]
    await world.stop_agent()
    for path in (world.directory / "cdi").iterdir():
        path.unlink()
    await world.api.down()
    await world.start_agent()
    await eventually(lambda: world.agent._driver_runs, "the driver")
    again = (await world.kubelet.prepare(DRIVER, named))[named.uid]
    assert again == first and len(list((world.directory / "cdi").iterdir())) == 1
    other = (await world.kubelet.prepare(DRIVER, ("team", "unknown", "u")))["u"]
    assert "does not answer" in other.error
    await world.api.up()


@pytest.mark.parametrize(("restart", "is_older"), [(False, False), (True, False), (True, True)])
async def test_a_claim_made_again_is_not_the_earlier_one(world: World, restart: bool, is_older: bool) -> None:
    """Deleted by force: the kubelet has not ended it yet when the next one of the name comes, larger. @is_older: the
    files are of a version that retired none."""
    large = {"consumedCapacity": {"memory": "12Gi", "weight": "1", "slots": "1"}}
    first = claim(world, uid="uid-z")
    await world.kubelet.prepare(DRIVER, first)
    world.api.remove(CLAIMS, "team", "c")
    second = claim(world, "c", large, uid="uid-a")
    prepared = (await world.kubelet.prepare(DRIVER, second))["uid-a"]
    if restart:
        await world.stop_agent()
        for number, uid in enumerate(("uid-z", "uid-a") if is_older else ()):
            path = world.directory / f"state/claims/{uid}.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "retired": False}))
            os.utime(path, (number, number))
        await world.start_agent()
        await eventually(lambda: world.agent._driver_runs, "the driver")
        await world.kubelet.find_drivers()
    assert (await started(world, pod_with(world, "p", "c"), prepared))["ok"]
    assert {name: one.slots[0].limit // MIB for name, one in world.link.containers.items()} == {"claim-uid-a": 12288}
    assert not (await world.kubelet.unprepare(DRIVER, first))["uid-z"].error
    assert [(one.uid, one.retired) for one in world.agent.claims] == [("uid-a", False)]


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_claim_that_the_kubelet_never_ends(world: World, is_made_again: bool) -> None:
    """As after `kubeadm reset`. @is_made_again: under its name, with another uid."""
    named, prepared = await prepare(world)
    reply = await started(world, pod_with(world, "p", "c"), prepared)
    assert reply["ok"], reply
    world.api.remove(PODS, "team", "p")
    world.api.remove(CLAIMS, "team", "c")
    if is_made_again:
        claim(world, uid="uid-2")
    await eventually(lambda: [one.retired for one in world.agent.claims] == [True], "retired")
    world.label("cgpu")
    sentence = f"team/c (claim {named.uid}); drain it"
    await eventually(lambda: sentence in world.mode_refused(), "the sentence")
    await asyncio.sleep(1.0)
    assert sentence in world.mode_refused(), "its slice is there"
    await world.stop_agent()
    await world.start_agent()
    await eventually(lambda: sentence in world.mode_refused(), "and after a restart")
    await world.end(reply["id"])
    await eventually(lambda: world.offered() == 94, "the other mode")
    assert not list((world.directory / "cdi").iterdir())
    assert not list((world.directory / "state/claims").iterdir())


async def test_a_claim_stays_while_the_api_server_does_not_say_that_it_is_gone(world: World, warned: Warned) -> None:
    def fails(_method: str, path: str) -> None:
        if "resourceclaims" in path:
            raise Refusal(*answer)

    await world.kubelet.prepare(DRIVER, claim(world))
    # The last one is of a server without this version of claims.
    for answer in (
        (500, "InternalError", "etcdserver: request timed out"),
        (403, "Forbidden", 'resourceclaims "c" is forbidden'),
        (404, "NotFound", "the server could not find the requested resource"),
    ):
        world.api.before = fails
        said = "claims are not compared with the API server's"
        await eventually(lambda: warned(said, answer[2]), answer[2])  # noqa: B023
        assert [one.retired for one in world.agent.claims] == [False]
    world.api.before = None
    world.api.remove(CLAIMS, "team", "c")
    await eventually(lambda: not [one for one in world.agent.claims if not one.retired], "it is compared again")


async def test_a_pod_with_another_driver_s_claim_of_the_name_gets_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, mode="dra", settings={"clean_s": 60.0})  # it is not retired before
    async with registered(world):
        named, prepared = await prepare(world)
        world.api.remove(CLAIMS, "team", "c")
        claim(world, "c", {"driver": "gpu.nvidia.com"}, uid="uid-2")
        thief = pod_with(world, "thief", "c")
        world.api.before = lambda _method, path: (_ for _ in ()).throw(no_answer) if "resourceclaims" in path else None
        no_answer = Refusal(500, "InternalError", "etcdserver: request timed out")
        reply = await started(world, thief, prepared)
        assert "etcdserver: request timed out" in reply["error"], "what is not known gives nothing"
        world.api.before = None
        reply = await started(world, thief, prepared)
        assert (
            f"the one with uid {named.uid}, of the same name, was, and the API server has it no more" in reply["error"]
        )
        reply = await started(world, thief, prepared)
        assert "names a claim that is not prepared on this node" in reply["error"]
        assert not world.link.containers


async def test_a_container_of_a_known_claim_needs_no_api_server(world: World) -> None:
    _, prepared = await prepare(world)
    pod = pod_with(world, "p", "c")
    reply = await started(world, pod, prepared)
    assert reply["ok"], reply
    await world.end(reply["id"])
    await world.api.down()
    reply = await started(world, pod, prepared)
    assert reply["ok"], reply
    await world.api.up()


async def test_unprepare_of_what_is_not_there(world: World) -> None:
    answer = await world.kubelet.unprepare(DRIVER, ("team", "x", "u-1"), ("team", "y", "u-2"))
    assert set(answer) == {"u-1", "u-2"} and not any(one.error for one in answer.values())


WHOLE = {"consumedCapacity": {"memory": "15109Mi", "weight": "1", "slots": "1"}}
LEAST = {"consumedCapacity": {"memory": "256Mi", "weight": "1", "slots": "1"}}


@pytest.mark.parametrize(
    ("asked", "result", "sentence"),
    [
        ({}, WHOLE, "asks for no memory in request gpu, which would take the whole card"),
        ({"weight": "5"}, WHOLE, "asks for no memory"),
        ({"memory": "0"}, LEAST, "is not an amount of memory above 0"),
        ({"memory": "1Mi"}, LEAST, "asks for 1 MiB and weight 1 in request gpu; the least are 256 MiB and 1"),
        ({"memory": "6Gi", "weight": "0"}, {}, "asks for 6144 MiB and weight 0"),
        ({"memory": "6Gi", "weight": "0.5"}, {}, "is not a whole number"),
        ({"memory": "6Gi", "cores": "5"}, {}, "asks for cores; there are memory, weight, slots"),
        ({}, {**WHOLE, "request": "gpu/any"}, "asks for no memory in request gpu/any"),
    ],
)
async def test_another_class_of_our_devices(
    world: World, asked: dict[str, str], result: dict[str, Any], sentence: str
) -> None:
    """The admission policy knows the class cgpu.io by its name only; the driver knows its devices."""
    _, prepared = await prepare(world, "c", result, asked=asked)
    assert sentence in prepared.error
    assert not list((world.directory / "cdi").glob("*"))


async def test_admin_access_observes(world: World) -> None:
    """The scheduler counts nothing for it: with a slice, the next ordinary claim would find its memory taken."""
    watch = {"request": "watch", "adminAccess": True, "consumedCapacity": None}
    named, prepared = await prepare(world, "admin", watch, asked={})
    assert not prepared.error and not prepared.devices
    found = pod_with(world, "p", "admin")
    container_id = world.bundle(found, "main", {})
    assert (await world.prepare(container_id))["action"] == "pass"
    assert not world.link.containers
    both = claim(world, "both", watch, {})
    prepared = (await world.kubelet.prepare(DRIVER, both))[both[2]]
    assert [list(one.request_names) for one in prepared.devices] == [["gpu"]]
    part = container(resources={"claims": [{"name": "both", "request": "watch"}]})
    looks = world.bundle(pod_with(world, "q", "both", containers=(part,)), "main", {})
    assert (await world.prepare(looks))["action"] == "pass"
    assert (await started(world, pod_with(world, "r", "both"), prepared))["ok"]
    (slot,) = world.link.containers[f"claim-{both[2]}"].slots
    assert slot.limit == 6144 * MIB
    await world.kubelet.unprepare(DRIVER, named)


REFUSED = [
    ({"consumedCapacity": {"memory": "255Mi", "weight": "1"}}, "has 255 MiB of GPU 0; a slice has 256 to 15109 MiB"),
    ({"consumedCapacity": {"memory": "16Gi", "weight": "1"}}, "has 16384 MiB of GPU 0"),
    ({"consumedCapacity": {"memory": "0", "weight": "1"}}, "is not an amount of memory above 0"),
    ({"consumedCapacity": {"memory": "-1Gi"}}, "is not an amount of memory above 0"),
    ({"consumedCapacity": {"memory": "x"}}, "is not a quantity"),
    ({"consumedCapacity": {"memory": "6Gi", "weight": "21"}}, "has weight 21 of GPU 0; it must be 1 to 20"),
    ({"consumedCapacity": {"memory": "6Gi", "weight": "0"}}, "has weight 0"),
    ({"consumedCapacity": {}}, "DRAConsumableCapacity off"),
    ({"consumedCapacity": None}, "DRAConsumableCapacity off"),
    ({"device": "gpu-7"}, "has device gpu-7, which this node does not have"),
    ({"pool": "n2"}, "has a device of node n2, and this is n1"),
    ({"driver": "gpu.nvidia.com"}, "has no device of cgpu.io: it is not allocated"),
]


@pytest.mark.parametrize(("result", "why"), REFUSED, ids=[why[:40] for _, why in REFUSED])
async def test_bad_claims(world: World, result: dict[str, Any], why: str) -> None:
    _, answer = await prepare(world, "c", result)
    assert why in answer.error and not answer.devices
    assert not (world.directory / "cdi").exists()


async def test_a_claim_that_is_not_there_is_refused(world: World) -> None:
    """Another one of its name, or none."""
    namespace, name, _ = claim(world)
    answer = await world.kubelet.prepare(DRIVER, (namespace, name, "old"), (namespace, "none", "u-2"))
    assert "is another one now" in answer["old"].error
    assert answer["u-2"].error == 'resourceclaims "none" not found'


def opaque(parameters: Any, source: str = "FromClaim", requests: list[str] | None = None) -> dict[str, Any]:
    return {"source": source, "requests": requests or [], "opaque": {"driver": DRIVER, "parameters": parameters}}


HEAD = {"apiVersion": "cgpu.io/v1", "kind": "SliceConfig"}
CONFIGS = [
    ([], False, ""),
    ([opaque({**HEAD, "priority": "high"})], True, ""),
    ([opaque({**HEAD, "priority": "high"}, requests=["gpu"])], True, ""),
    ([opaque({**HEAD, "priority": "high"}, requests=["other"])], False, ""),
    ([opaque({**HEAD, "priority": "normal"}), opaque({**HEAD, "priority": "high"}, "FromClass")], False, ""),
    ([opaque({**HEAD, "priority": "high"}), opaque({**HEAD, "priority": "normal"}, "FromClass")], True, ""),
    ([opaque({**HEAD, "policy": "native"})], False, ""),
    ([opaque({**HEAD, "policy": "weighted"})], False, "needs policy weighted, and GPU 0 has native"),
    ([opaque({**HEAD, "policy": "x"})], False, "policy must be one of"),
    ([opaque({**HEAD, "priority": ["high"]})], False, "priority must be one of"),
    ([opaque({**HEAD, "memory": "6Gi"})], False, "have no memory; there are priority, policy and ceiling"),
    ([opaque({"kind": "SliceConfig"})], False, "must have apiVersion cgpu.io/v1"),
    ([opaque("high")], False, "must have apiVersion"),
    ([{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}], False, ""),
]


@pytest.mark.parametrize(("config", "high", "why"), CONFIGS, ids=str)
def test_opaque_parameters(config: list[dict[str, Any]], high: bool, why: str) -> None:
    found = recorded("claim-allocated")
    found["status"]["allocation"]["devices"]["config"] = config
    gpu = HostGpu(0, "GPU-a", 15109, 15109, policy=5)

    def prepared() -> claims.Claim:
        return claims.prepare(found, found["metadata"]["uid"], "n1", "dra", [gpu], high_allowed=True)

    if why:
        with pytest.raises(Refused, match=why):
            prepared()
    else:
        (slot,) = prepared().slots
        assert slot.highprio is high


OF_CLAIM, OF_CLASS = opaque({**HEAD, "priority": "high"}), opaque({**HEAD, "priority": "high"}, "FromClass")
NORMAL_CLASS = opaque({**HEAD, "priority": "normal"}, "FromClass")


@pytest.mark.parametrize(
    ("config", "label", "high"),
    [
        ([OF_CLAIM], "", None),
        ([OF_CLAIM], "normal", None),
        ([OF_CLAIM], "high", True),
        ([NORMAL_CLASS, OF_CLAIM], "", None),
        ([OF_CLASS], "", True),
        ([OF_CLASS, OF_CLAIM], "", True),
        ([opaque({**HEAD, "priority": "normal"})], "", False),
        ([opaque({**HEAD, "priority": "high"}, requests=["other"])], "", False),
    ],
    ids=str,
)
async def test_high_priority_is_an_administrators(
    tmp_path: Path, config: list[Any], label: str, high: bool | None
) -> None:
    """Of the class, or of the namespace's label: the author of a claim writes its parameters."""
    world = World(tmp_path, mode="dra")
    labels = {"cgpu.io/priority": label} if label else {}
    world.api.label_namespace("team", labels)
    async with registered(world):
        _, answer = await prepare(world, config=config)
        if high is None:
            assert "asks for high priority, and neither its class nor its namespace allows it" in answer.error
        else:
            assert not answer.error
            (prepared,) = world.agent.claims
            assert prepared.slots[0].highprio is high


def test_two_parts_of_one_gpu_are_refused() -> None:
    found = recorded("claim-allocated")
    found["status"]["allocation"]["devices"]["results"] *= 2
    with pytest.raises(Refused, match="two parts of one GPU"):
        claims.prepare(found, found["metadata"]["uid"], "n1", "dra", [HostGpu(0, "GPU-a", 15109, 15109)])


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("containerd://1.6.20", False),
        ("containerd://1.7.0", "enabled"),
        ("containerd://1.7.28-0ubuntu1", "enabled"),
        ("containerd://2.1.9", True),
        ("containerd://1.6.20~ds1", False),
        ("containerd://dev", False),
        ("cri-o://1.28.1", True),
        ("docker://28.1.0", False),
        ("other://1.0.0", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("cdi_enabled", [False, True])
def test_runtimes(version: str, good: bool | str, cdi_enabled: bool) -> None:
    """1.7 has enable_cdi = false as a default, and then skips the devices of a claim without an error."""
    if good is True or (good == "enabled" and cdi_enabled):
        claims.check_runtime(version, cdi_enabled=cdi_enabled)
    else:
        with pytest.raises(Refused, match=r"or aliyun\.com/gpu-mem in place of a claim"):
            claims.check_runtime(version, cdi_enabled=cdi_enabled)


async def test_a_containerd_without_cdi_prepares_no_claim(world: World) -> None:
    node = copy.deepcopy(world.own_node())
    node["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.7.28"
    world.api.put(NODES, node)
    await eventually(lambda: "1.7.28" in world.agent.cluster.own_node()["runtime"], "seen")
    named, answer = await prepare(world)
    assert "enable_cdi = true" in answer.error and not answer.devices
    world.agent.settings = replace(world.agent.settings, cdi_enabled=True)
    answer = (await world.kubelet.prepare(DRIVER, named))[named.uid]
    assert answer.devices and not answer.error


async def test_a_container_without_a_grant_is_named(world: World, monkeypatch: Any) -> None:
    """As containerd without enable_cdi starts it: prepared, running, and cgpud has no grant."""
    monkeypatch.setattr(unasked, "SETTLED_S", 0.3)
    monkeypatch.setattr("cgpu_kube.node.agent.LOOK_S", 0.05)

    def run(pod: dict[str, Any]) -> None:
        pod["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {"startedAt": "x"}}}]
        world.api.put(PODS, pod)

    good, bad = pod_with(world, "good", "c"), pod_with(world, "bad", "c")
    _, answer = await prepare(world)
    assert (await started(world, good, answer))["action"] == "edited"
    run(good)
    run(bad)
    await eventually(lambda: world.agent.unasked.found, "found")
    assert world.agent.unasked.found == {(bad["metadata"]["uid"], "main")}
    await eventually(lambda: world.api.objects.get(EVENTS), "an event")
    await asyncio.sleep(0.5)
    (event,) = world.api.objects[EVENTS].values()
    assert (event["involvedObject"]["name"], event["reason"]) == ("bad", "GPUClaimNotApplied")
    assert "runs without its slice" in event["message"] and "containerd://2.1.9" in event["message"]
    assert world.agent.figures.unasked == 1
    world.api.remove(PODS, "team", "bad")
    await eventually(lambda: not world.agent.unasked.found, "forgotten")


CEILING = {**HEAD, "ceiling": 30}
CEILINGS = [
    ([], None, ""),
    ([opaque(CEILING)], 30, ""),
    ([opaque(CEILING, requests=["other"])], None, ""),
    ([opaque(CEILING, "FromClass")], 30, ""),
    ([opaque({**HEAD, "ceiling": 20}), opaque(CEILING, "FromClass")], 20, ""),
    ([opaque({**HEAD, "priority": "high"}), opaque(CEILING, "FromClass")], 30, ""),
    ([opaque({**HEAD, "ceiling": 31}), opaque(CEILING, "FromClass")], 0, "has ceiling 31, and its class allows 30"),
    ([opaque({**HEAD, "ceiling": 5})], 5, ""),
    ([opaque({**HEAD, "ceiling": 4})], 0, "claim .* has ceiling 4 of GPU 0; it must be from its weight, 5, to 50"),
    ([opaque({**HEAD, "ceiling": 51})], 0, "claim .* has ceiling 51 of GPU 0; it must be from its weight, 5, to 50"),
    ([opaque({**HEAD, "ceiling": 0})], 0, "ceiling must be a number from 1 to 100, not 0"),
    ([opaque({**HEAD, "ceiling": 101})], 0, "ceiling must be a number from 1 to 100, not 101"),
    ([opaque({**HEAD, "ceiling": "30"})], 0, "ceiling must be a number from 1 to 100, not '30'"),
    ([opaque({**HEAD, "ceiling": True})], 0, "ceiling must be a number from 1 to 100, not True"),
    ([opaque({**HEAD, "ceiling": None})], 0, "ceiling must be a number from 1 to 100, not None"),
]


@pytest.mark.parametrize(("config", "ceiling", "why"), CEILINGS, ids=str)
def test_the_ceiling_of_a_claim(config: list[dict[str, Any]], ceiling: int | None, why: str) -> None:
    """The recorded claim has weight 5."""
    found = recorded("claim-allocated")
    found["status"]["allocation"]["devices"]["config"] = config

    def prepared(policy: int | None) -> claims.ClaimSlot:
        gpu = HostGpu(0, "GPU-a", 15109, 15109, max_inst=50, policy=policy)
        (slot,) = claims.prepare(found, found["metadata"]["uid"], "n1", "dra", [gpu], high_allowed=True).slots
        return slot

    if why:
        with pytest.raises(Refused, match=why):
            prepared(6)
        return
    assert prepared(6).ceiling == ceiling == prepared(None).ceiling
    if ceiling is not None:
        with pytest.raises(Refused, match=rf"ceiling {ceiling} of GPU 0, and policy 5 \(native\) ignores ceilings"):
            prepared(5)


async def test_a_claim_has_its_ceiling_whatever_the_container_sets(tmp_path: Path) -> None:
    world = World(tmp_path, mode="dra")
    world.link.inventory = tuple(replace(gpu, policy=6, max_inst=100, free_weight=100) for gpu in world.link.inventory)

    async with registered(world):
        named, prepared = await prepare(world, config=[opaque(CEILING)])
        pod = pod_with(world, "p", "c")
        for _ in range(2):  # the second time from the files, as after a reboot
            reply = await started(world, pod, prepared)
            assert reply["ok"], reply
            (slot,) = world.link.containers[f"claim-{named.uid}"].slots
            assert (slot.weight, slot.ceiling) == (5, 30)
            await world.end(reply["id"])
            await world.stop_agent()
            await world.start_agent()
            await ready(world)
        bad = claim(world, "bad", config=[opaque({**HEAD, "ceiling": 4})])
        answer = (await world.kubelet.prepare(DRIVER, bad))[bad[2]]
        assert "has ceiling 4 of GPU 0; it must be from its weight, 5, to 100" in answer.error


# ---- modes ----


async def test_the_mode_waits_for_the_claims(world: World) -> None:
    named = claim(world)
    await world.kubelet.prepare(DRIVER, named)
    world.label("cgpu")
    await eventually(lambda: f"team/c (claim {named.uid})" in world.mode_refused(), "the sentence")
    assert published(world)
    await world.kubelet.unprepare(DRIVER, named)
    await eventually(lambda: world.offered() == 94, "the other mode")
    await eventually(lambda: published(world) is None, "no slice")
    answer = await world.kubelet.prepare(DRIVER, named)
    assert "which is in mode cgpu now, not dra" in answer[named.uid].error
    pod = world.pod("p", container(mem=6))
    assert world.slots(await world.start(pod)) == [(0, 6043)]


async def test_a_damaged_claim_file_is_kept_and_named(tmp_path: Path) -> None:
    world = World(tmp_path, mode="dra")
    (world.directory / "state/claims").mkdir(parents=True)
    (world.directory / "state/claims/x.json").write_text("{")
    async with registered(world):
        assert (world.directory / "state/claims/x.json").exists()
