# SPDX-License-Identifier: MIT
"""A real kubelet, scheduler and containerd with cgpud and cgpu-kube; only the kernel is simulated, in memory.

Here are the tests that need no other kernel, and would take the virtual machine's time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from cluster import stand as s
from cluster.one_node import ApiFailure, Object, Timeout, until
from cluster.scenarios import *  # noqa: F403
from cluster.stand import Stand, container, fresh, pod

#: Limits of a container, labels -> a sentence, and where it is.
BAD_INPUT = [
    ({s.RESOURCE: "0"}, {}, "aliyun.com/gpu-mem is 0; leave it out, or ask for 1 or more"),
    ({s.RESOURCE: "-1"}, {}, "must be greater than or equal to 0"),
    ({s.RESOURCE: "1500m"}, {}, "must be an integer"),
    ({"aliyun.com/gpu-memory": "4"}, {}, "Insufficient aliyun.com/gpu-memory"),
    ({s.RESOURCE: "5"}, {"aliyun.com/gpu-count": "2"}, "cannot be divided among 2 GPUs"),
    ({s.RESOURCE: "6"}, {"aliyun.com/gpu-count": "3"}, "3 GPUs"),
    ({s.RESOURCE: "3", "aliyun.com/gpu-core.percentage": "7"}, {}, "gpu-core.percentage"),
    ({s.RESOURCE: "90"}, {}, "90 GiB asked for"),
]


def test_bad_input(stand: Stand) -> None:
    """A sentence from the API server, else in the pod's events or in `kubectl inspect cgpu`; and no slice."""
    left = {}
    for limits, labels, sentence in BAD_INPUT:
        body = pod(fresh("bad"), container("main", resources={"limits": limits}))
        body["metadata"]["labels"] = labels
        try:
            stand.api.create(body)
        except ApiFailure as error:
            assert sentence in str(error)
        else:
            left[body["metadata"]["name"]] = sentence

    def all_said() -> bool:
        for name in [name for name, sentence in left.items() if sentence in stand.events(name)]:
            del left[name]
        shown = stand.pending() if left else {}
        for name in [name for name, sentence in left.items() if sentence in shown.get(name, "")]:
            del left[name]
        return not left

    try:
        until(all_said, "every sentence", stand.seconds)
    except Timeout as error:
        raise AssertionError(f"{error}: {[(left[name], stand.events(name)) for name in left]}") from None
    assert not stand.slices()


def test_the_api_server_is_away(stand: Stand) -> None:
    """A container that ends meanwhile starts again with its slice; nothing is lost when the server is back."""
    name = fresh("kept")
    found = stand.run(pod(name, container("main", gib=3), restartPolicy="Always"))
    (old,) = s.container_ids(found).values()
    before = stand.slices()[old]
    stand.cluster.kill("apiserver")
    try:
        stand.ctr("task", "kill", "--signal", "SIGKILL", old)
        until(lambda: old not in stand.slices() and stand.slices(), "it starts again", stand.seconds)
        assert list(stand.slices().values()) == [before]
    finally:
        stand.cluster.start_again("apiserver")
        until(stand.api.is_ready, "the API server is back", stand.seconds)
    until(lambda: s.container_ids(stand.api.pod(name)) not in ({}, {"main": old}), "its new id", stand.seconds)
    stand.check(stand.api.pod(name))
    until(stand.api.node_is_ready, "the node is ready", stand.seconds)
    stand.check(stand.run(pod(fresh("after"), container("main", gib=3))))


@contextmanager
def static_pod(stand: Stand, body: Object) -> Iterator[str]:
    """A manifest of the kubelet's own; its name in the API server."""
    path = stand.cluster.state / "manifests/static.json"
    path.write_text(json.dumps({**body, "metadata": {**body["metadata"], "namespace": "default"}}))
    try:
        yield f"{body['metadata']['name']}-{s.NODE}"
    finally:
        path.unlink()
        until(lambda: not stand.slices(), "it has ended", stand.seconds)


def test_a_static_pod(stand: Stand) -> None:
    """It has a slice of the GPU that the kubelet counted, and counts on each GPU for the scheduler."""
    body = pod(fresh("static"), container("main", gib=3), restartPolicy="Always")
    with static_pod(stand, body) as name:
        until(lambda: name in stand.pod_names(), "the kubelet shows it to the API server", stand.seconds)
        found = stand.running(name)
        (ones,) = until(lambda: [stand.slices()[id_] for id_ in s.container_ids(found).values()], "it", 5)
        assert [one.bytes for one in ones] == [s.expected_bytes(one.gpu, 3) for one in ones] and len(ones) == 1
        until(lambda: "PENDING(Allocated)" in stand.inspect(), "it is shown as unplaced", stand.seconds)
        big = stand.run(pod(fresh("big"), container("main", gib=13)))
        assert stand.check(big) == 1, "13 of 15 GiB would fit on GPU 0 without it"
        stand.api.delete_pod(big["metadata"]["name"])


#: A plugin of the same resource, as the vendor's that was left there, which registers every two seconds.
VENDOR = """
import asyncio
from pathlib import Path
from cgpu_kube.node.plugin import Plugin

async def main():
    plugin = Plugin(Path("/var/lib/kubelet/device-plugins"), "aliyun.com/gpu-mem", "vendor")
    plugin.offer([(f"GPU-x-_-{n}", True) for n in range(47)])
    while True:
        await plugin.register((0, 0))
        await asyncio.sleep(2)

asyncio.run(main())
"""


def test_two_plugins_for_the_resource(stand: Stand) -> None:
    """The log names the other one; running pods keep their slices, and without it all is as before. A kubelet keeps the
    streams of both open: the node's status is what shows that it follows the other one."""
    kept = stand.run(pod(fresh("kept"), container("main", gib=3)))
    before = stand.advertised()
    other = subprocess.Popen([s.PYTHON, "-c", VENDOR])
    try:
        said = "another device plugin takes the resource away again and again"
        until(lambda: said in stand.log("node"), "the sentence", stand.seconds * 3)
        stand.check(stand.api.pod(kept["metadata"]["name"]))
    finally:
        other.kill()
        other.wait()
    until(lambda: stand.advertised() == before, "its own offer", stand.seconds * 2)
    stand.check(stand.run(pod(fresh("after"), container("main", gib=3))))
