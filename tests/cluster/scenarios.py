# SPDX-License-Identifier: MIT
"""The tests of a cluster, for both kinds of kernel: fixture `stand` is the node.

PODS and SIDE_BY_SIDE say how many pods test_many_pods… make, and how many of them there are at a time.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import stand as s
from cluster.one_node import ApiFailure, Object, until
from cluster.stand import Stand, container, fresh, pod

KUBELET_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
PLAYER = "registry.example.com/gpu-player:v2"
#: As the vendor's user guide has it (gpushare-scheduler-extender c0b6141): a Deployment with a limit, and nothing else
#: that is special, no word of cgpu among it.
README: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "binpack-1", "labels": {"app": "binpack-1"}},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "binpack-1"}},
        "template": {
            "metadata": {"labels": {"app": "binpack-1"}},
            "spec": {
                "containers": [
                    {"name": "binpack-1", "image": PLAYER, "resources": {"limits": {"aliyun.com/gpu-mem": 3}}}
                ]
            },
        },
    },
}


@pytest.fixture(autouse=True)
def clean(stand: Stand) -> Iterator[None]:
    """Every test begins with an empty node, and programs that a failed one has killed run again."""
    yield
    stand.cluster.revive()
    stand.clear()


def run_readme(stand: Stand) -> Object:
    """The pod of the user guide's Deployment, when it runs."""
    stand.import_image(PLAYER)
    stand.api.create(README)
    (first,) = until(lambda: stand.api.pods(selector="app=binpack-1"), "the Deployment has its pod", stand.seconds)
    return stand.running(first["metadata"]["name"])


def test_the_vendors_readme_with_compute(stand: Stand) -> None:
    """Mode core_mem: the user guide's manifest has the least part of the compute, a percentage is a weight."""
    with stand.in_mode("core_mem"):
        gpu = stand.check(run_readme(stand))
        half = stand.run(pod(fresh("half"), container("main", gib=4, core=50), container("rest", gib=4, core=25)))
        assert stand.check(half) == gpu, "the GPU that fits best"
        assert sorted(one.weight for ones in stand.slices().values() for one in ones) == [1, 5, 10]


@pytest.mark.more
def test_each_gpu_has_its_own_size(stand: Stand) -> None:
    """40 GiB fit on the second GPU only; the vendor's plugin takes both for the size of one."""
    large = stand.run(pod(fresh("large"), container("main", gib=40)))
    assert stand.check(large) == 1
    small = stand.run(pod(fresh("small"), container("main", gib=14)))
    assert stand.check(small) == 0


def test_beyond_the_card(stand: Stand) -> None:
    """A pod that no GPU has room for is Pending, with the reason; it starts when there is room."""
    filler = stand.run(pod(fresh("filler"), container("main", gib=60)))
    name = fresh("beyond")
    stand.api.create(pod(name, container("main", gib=30)))
    until(lambda: "FailedScheduling" in stand.events(name), "the scheduler says why", stand.seconds)
    found = stand.api.pod(name)
    assert found["status"]["phase"] == "Pending"
    assert "nodeName" not in found["spec"]
    said = stand.inspect()
    assert f"Pending: default/{name}" in said, said
    assert "30 GiB asked for: GPU 0 has 15 of 15 GiB free, GPU 1 has 20 of 80 GiB free" in said, said
    stand.api.delete_pod(filler["metadata"]["name"])
    stand.check(stand.running(name))


def test_the_author_cannot_choose_more(stand: Stand) -> None:
    """Variables and annotations that the pod's author wrote give nothing: each container's limit counts. Two share the
    pod's GPU, one asks for nothing, an init container has a slice before them.
    """
    greedy = [
        {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "80"},
        {"name": "ALIYUN_COM_GPU_MEM_DEV", "value": "80"},
        {"name": "ALIYUN_COM_GPU_VISIBLE_DEVICES", "value": "1"},
        {"name": "CGPU_DISABLE", "value": "true"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    ]
    body = pod(
        fresh("greedy"),
        container("one", gib=2, env=greedy),
        container("two", gib=5, env=greedy),
        container("plain"),
        init=[container("before", "/bin/sh", "-c", "test -e /dev/nvidiactl && exec sleep 0.2", gib=6)],
    )
    body["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "80"}
    found = stand.run(body)
    stand.check(found)
    (init,) = found["status"]["initContainerStatuses"]
    assert init["state"]["terminated"]["exitCode"] == 0, "it had the nodes of a slice"
    assert len(stand.slices()) == 2


STUBBORN = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done")


@pytest.mark.more
def test_a_pod_deleted_by_force(stand: Stand) -> None:
    """The API server forgets it at once, its container ends later; the next pod that needs the memory never fails."""
    old = stand.run(pod(fresh("old"), container("main", *STUBBORN, gib=60), terminationGracePeriodSeconds=8))
    name = fresh("next")
    stand.api("DELETE", f"/api/v1/namespaces/default/pods/{old['metadata']['name']}", {"gracePeriodSeconds": 0})
    with s.Watch(stand) as watch:
        stand.check(stand.run(pod(name, container("main", gib=60))))
    watch.check()
    # The kubelet's reason for a start that failed; FailedMount is a token that it had not read yet.
    assert not [line for line in stand.events(name).splitlines() if line.startswith("Failed: ")], stand.events(name)
    until(lambda: stand.condition("GPUMemoryHeld") in ("", "False"), "nothing is held any more", stand.seconds)


@pytest.mark.more
def test_a_container_on_two_gpus(stand: Stand) -> None:
    """Label aliyun.com/gpu-count: the units are divided."""
    body = pod(fresh("two"), container("main", gib=12))
    body["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    found = stand.run(body)
    (ones,) = stand.slices().values()
    assert sorted(ones, key=lambda one: one.gpu) == [s.Slice(gpu, s.expected_bytes(gpu, 6)) for gpu in (0, 1)]
    (id_,) = s.container_ids(found).values()
    env = stand.environment(id_)
    assert (env["ALIYUN_COM_GPU_MEM_IDX"], env["ALIYUN_COM_GPU_MEM_CONTAINER"]) == ("0,1", "6")


@pytest.mark.more
def test_the_mode_changes_under_a_pod(stand: Stand) -> None:
    """The node keeps its mode until its pods have ended, then it takes the new one; and back."""
    kept = stand.run(pod(fresh("kept"), container("main", gib=3)))
    before = stand.advertised()
    try:
        stand.label("share")
        until(lambda: "stays in mode cgpu" in stand.log("node"), "the reason", stand.seconds)
        stand.check(stand.api.pod(kept["metadata"]["name"]))
        stand.clear()
        until(lambda: stand.offered_mode() == "share", "the mode", stand.seconds)
        until(lambda: stand.advertised() >= before, "the resource", stand.seconds)
    finally:
        stand.clear()
        stand.label("cgpu")
        until(lambda: stand.offered_mode() == "cgpu", "the mode before", stand.seconds)
    until(lambda: stand.advertised() == before, "the resource", stand.seconds)
    stand.check(stand.run(pod(fresh("after"), container("main", gib=3))))


@pytest.mark.more
def test_the_kubelet_restarts(stand: Stand) -> None:
    """The resource is there again within five seconds of the kubelet's own start; running pods keep their slices."""
    kept = stand.run(pod(fresh("kept"), container("main", gib=3)))
    before, registered = stand.advertised(), stand.registrations()
    socket = KUBELET_SOCKET.stat()
    stand.cluster.kill("kubelet")
    stand.cluster.start_again("kubelet")
    until(lambda: is_new(socket), "the kubelet takes registrations", stand.seconds, 0.05)
    began = time.monotonic()
    until(lambda: stand.registrations() > registered, "the plugin has registered again", 5 * slowness(stand), 0.05)
    print(f"registered again after {time.monotonic() - began:.1f} s")
    # The API server shows the old figure until the kubelet has read the devices, and a pod that comes then is refused.
    time.sleep(READ_S * slowness(stand))
    until(lambda: stand.advertised() == before, "the resource is there again", stand.seconds)
    stand.check(stand.api.pod(kept["metadata"]["name"]))
    stand.check(stand.run(pod(fresh("after"), container("main", gib=3))))


def is_new(old: os.stat_result) -> bool:
    """Has a later kubelet made its socket?"""
    try:
        now = KUBELET_SOCKET.stat()
    except FileNotFoundError:
        return False
    return (now.st_ino, now.st_mtime_ns) != (old.st_ino, old.st_mtime_ns)


def slowness(stand: Stand) -> float:
    """Emulated processors are not measured in seconds."""
    return 1 if stand.fake else 6


def _body(random_: random.Random) -> Object:
    """One of one to three containers, of which some ask for a slice, with or without an init container."""
    containers = [container(f"c{n}", gib=random_.choice([0, 1, 2, 4])) for n in range(random_.randint(1, 3))]
    if not any("resources" in one for one in containers):
        containers[0] = container("c0", gib=1)
    init = [container("init", "/bin/true", gib=random_.choice([0, 1, 3]))] if random_.random() < 0.3 else []
    return pod(fresh("storm"), *containers, init=init)


def pods_wanted(stand: Stand) -> tuple[int, int]:
    """In all and at a time. An emulated machine is twenty times slower."""
    total, side_by_side = (40, 10) if stand.fake else (8, 4)
    return int(os.environ.get("PODS") or total), int(os.environ.get("SIDE_BY_SIDE") or side_by_side)


def _holds(stand: Stand, found: Object, kill: tuple[str, ...]) -> bool:
    """Checks the pod. False: a kill has ended one of its containers, and the pod's status does not say so yet."""
    try:
        stand.check(found)
    except (AssertionError, OSError):
        if not kill or stand.tasks().keys() >= set(s.container_ids(found).values()):
            raise
        return False
    return True


READ_S = 2.0  # from a plugin's registration until the kubelet has read its devices
#: After the death of one of these the device plugin registers again. Until then the kubelet refuses a pod.
REGISTERS = ("kubelet", "node")
#: The death of one of these may fail a pod that starts (restartPolicy: Never): a new kubelet cancels the start, a new
#: containerd fails it.
FATAL = (*REGISTERS, "containerd")


def _storm(stand: Stand, kill: tuple[str, ...] = ()) -> int:
    """Pods that come and go; each is checked and removed when it runs. Returns how many ended in failure.

    Of `kill` one after the other dies meanwhile. Only a pod that was there at a death of FATAL, or came before the
    plugin had registered again, may fail, and leaves nothing. One of which a single container has failed stays Running:
    a kubelet that is killed in the middle of a start cancels it, and its next life starts the other containers.
    """
    random_ = random.Random(17)
    total, side_by_side = pods_wanted(stand)
    left, there, failed, done = total, {}, 0, 0
    at_risk: set[str] = set()
    registered: int | None = None  # registrations at a death after which there has to be another one
    read_by = 0.0
    end = time.monotonic() + stand.seconds * 3 + total * stand.seconds / 12
    next_kill = time.monotonic() + 1
    victims = list(kill)
    random_.shuffle(victims)
    while left or there:
        assert time.monotonic() < end, f"{left} pods not made, not running: {sorted(there)} {stand.events(min(there))}"
        if registered is not None and stand.registrations() > registered:
            registered, read_by = None, time.monotonic() + READ_S * slowness(stand)
        if victims and time.monotonic() > next_kill and there:
            victim = victims.pop(0)
            if victim in FATAL:
                at_risk |= set(there)
            if victim in REGISTERS:
                registered = stand.registrations()
            s.kill_and_revive(stand, victim)
            next_kill = time.monotonic() + stand.seconds / 20 * (1 if stand.fake else 4)
        while left and len(there) < side_by_side:
            body = _body(random_)
            try:
                stand.api.create(body)
            except (OSError, ApiFailure):
                break
            there[body["metadata"]["name"]] = body
            left -= 1
        if registered is not None or time.monotonic() < read_by:
            at_risk |= set(there)
        for found in s.pods_of(stand.api):
            name = found["metadata"]["name"]
            if name not in there or found["metadata"].get("deletionTimestamp"):
                continue
            phase = found["status"].get("phase")
            if phase == "Failed" or (kill and s.has_ended_container(found)):
                assert name in at_risk, f"{found['status']} {stand.events(name)}"
                failed += 1
            elif phase == "Running" and len(s.container_ids(found)) == len(found["spec"]["containers"]):
                if not _holds(stand, found, kill):
                    continue
                done += 1
            else:
                continue
            stand.api.delete_pod(name)
            del there[name]
        time.sleep(0.1)
    assert done + failed == total
    return failed


@pytest.mark.more
def test_many_pods(stand: Stand) -> None:
    with s.Watch(stand) as watch:
        assert _storm(stand) == 0
    watch.check()
    until(lambda: not stand.api.pods(), "the kubelet has removed all of them", stand.seconds)


@pytest.mark.more
def test_many_pods_while_cgpud_the_agent_and_the_extender_die(stand: Stand) -> None:
    """No pod fails: those that start, and those that come, wait for them."""
    total, _ = pods_wanted(stand)
    with s.Watch(stand) as watch:
        assert _storm(stand, ("cgpud", s.AGENT, "extender") * max(2, total // 20)) == 0
    watch.check()


@pytest.mark.more
def test_many_pods_while_everything_dies(stand: Stand) -> None:
    """cgpud, cgpu-kube's node and extender, the kubelet and containerd, in any order: each once for every twenty pods.

    Of the few pods in an emulated machine, all may be at risk: four start at a time.
    """
    total, _ = pods_wanted(stand)
    victims = ("cgpud", "node", "kubelet", "containerd", "extender") * max(1, total // 20)
    with s.Watch(stand) as watch:
        failed = _storm(stand, victims)
    watch.check()
    print(f"{failed} of {total} pods failed")
    if stand.fake:
        assert failed <= total // 4, "most pods start all the same"
    stand.clear()
    stand.check(stand.run(pod(fresh("after"), container("main", gib=14))))
