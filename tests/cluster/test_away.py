# SPDX-License-Identifier: MIT
"""On a real kubelet: an agent that is away while the host's keeper has its devices."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import stand as s
from cluster.one_node import Object, until
from cluster.stand import CGPU_KUBE, Stand, container, fresh, pod

REGISTERED = "registered with the kubelet"
KEEPER = "keeper"
READ = "devices of before"  # of its journal; then the unit has started, and the kubelet comes after it


@contextmanager
def kept(stand: Stand) -> Iterator[None]:
    """The host has the unit cgpu-kube-keep, and the agent's plugins are its. As before afterwards."""
    said = "the host's keeper serves from now on"
    before, heard = stand.advertised(), stand.log("node").count(said)
    stand.cluster.start(KEEPER, CGPU_KUBE, "keep")
    until(lambda: stand.log("node").count(said) > heard, "the agent finds it", stand.seconds)
    until(lambda: is_away(stand), "it hands over", stand.seconds, 0.05)
    until(lambda: not is_away(stand) and stand.advertised() == before, "its devices", stand.seconds)
    try:
        yield
    finally:
        stand.cluster.revive()
        stand.clear()
        stand.cluster.kill(KEEPER, signal.SIGTERM)
        stand.cluster.forget(KEEPER)
        registered = stand.registrations()
        until(lambda: stand.registrations() > registered, "the agent serves by itself", stand.seconds)
        until(lambda: stand.advertised() == before, "its devices", stand.seconds)


def is_away(stand: Stand) -> bool:
    """As the node publishes it."""
    return "away" in json.loads(s.annotations(stand.api.node())["cgpu.io/gpus"])


def failed(stand: Stand) -> dict[str, str]:
    found = [one for one in stand.api.pods() if one["status"].get("phase") == "Failed"]
    return {one["metadata"]["name"]: str(one["status"]) for one in found}


def deployment(count: int) -> Object:
    name = fresh("wanted")
    body = pod(name, container("main", gib=2), restartPolicy="Always")
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": body["spec"]}
    spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def running(stand: Stand, name: str) -> int:
    found = stand.api.pods(selector=f"app={name}")
    return sum(len(s.container_ids(one)) == 1 for one in found)


@pytest.mark.parametrize("seconds", [15, 60])
def test_the_agent_is_away(stand: Stand, seconds: int) -> None:
    """SIGTERM, as at the end of its pod. Two pods run, two more are wanted meanwhile, and one comes that is bound
    already: none fails, and all run when it is back."""
    with kept(stand):
        wanted = deployment(2)
        name = wanted["metadata"]["name"]
        stand.api.create(wanted)
        until(lambda: running(stand, name) == 2, "two pods", stand.seconds)
        stand.cluster.kill("node", signal.SIGTERM)
        scale = {"spec": {"replicas": 4}}
        path = f"/apis/apps/v1/namespaces/default/deployments/{name}"
        stand.api("PATCH", path, scale, "application/merge-patch+json")
        bound = pod(fresh("bound"), container("main", gib=2), restartPolicy="Always", nodeName=s.NODE)
        stand.api.create(bound)
        time.sleep(seconds)
        assert (failed(stand), running(stand, name)) == ({}, 2)
        stand.cluster.start_again("node")
        until(lambda: running(stand, name) == 4, "four pods", stand.seconds * 2)
        stand.running(bound["metadata"]["name"])
        assert failed(stand) == {} and len(stand.api.pods(selector=f"app={name}")) == 4


def test_a_reboot(stand: Stand) -> None:
    """Every process and container of the node ends. The unit is there before the kubelet, and the agent is later than
    the pods of before, and later than one that is bound to the node meanwhile."""
    with kept(stand):
        names = [fresh("always") for _ in range(3)]
        for name in names:
            stand.run(pod(name, container("main", gib=3), restartPolicy="Always"))
        for one in ("node", "kubelet", KEEPER):
            stand.cluster.kill(one)
        for id_ in stand.tasks():
            stand.ctr("task", "kill", "--signal", "SIGKILL", id_)
        until(lambda: not stand.tasks(), "no container runs", stand.seconds)
        started = stand.log(KEEPER).count(READ)
        stand.cluster.start_again(KEEPER)
        until(lambda: stand.log(KEEPER).count(READ) > started, "the unit has started", stand.seconds, 0.05)
        registered = stand.log(KEEPER).count(REGISTERED)
        stand.cluster.start_again("kubelet")
        until(lambda: stand.log(KEEPER).count(REGISTERED) > registered, "it has registered", stand.seconds, 0.05)
        time.sleep(1.0)
        late = pod(fresh("late"), container("main", gib=1), restartPolicy="Always", nodeName=s.NODE)
        names.append(late["metadata"]["name"])
        stand.api.create(late)
        time.sleep(8.0)
        assert failed(stand) == {}, "they are admitted"
        stand.cluster.start_again("node")
        found = [stand.running(name) for name in names]
        assert failed(stand) == {} and len(stand.slices()) == 4
        for one in found[:3]:
            stand.check(one)
