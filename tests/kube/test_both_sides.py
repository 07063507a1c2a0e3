# SPDX-License-Identifier: MIT
"""The extender's choice, read by the node when the container starts: the same GPU and the same amount."""

from __future__ import annotations

import asyncio
import random

import pytest
from cluster import Cluster, our_node
from test_storm import drawn

from cgpu_kube import annotations as notes
from cgpu_kube.node.decide import Subject, by_memory, check_pod
from cgpu_kube.node.host import HostGpu, Offer
from cgpu_kube.node.podview import kept

HOST = (HostGpu(0, "GPU-a", 15109, 15109 * 31 // 32), HostGpu(1, "GPU-b", 81559, 80535))


@pytest.mark.parametrize("mode", ["cgpu", "core_mem"])
def test_every_container_gets_the_gpu_that_the_extender_chose(mode: str) -> None:
    offer = Offer(mode)
    gpus = [notes.NodeGpu(one.index, one.uuid, one.total_mib, offer.units(one), offer.dev(one)) for one in HOST]

    async def whole() -> int:
        checked = 0
        async with Cluster(our_node("n1", *gpus, mode=mode)) as cluster:
            for number in range(40):
                found = drawn(random.Random(number), f"p{number}")
                cluster.put(found)
                if await cluster.schedule(found):
                    continue
                stored = cluster.stored(f"p{number}")
                allocation = notes.parse(stored["metadata"]["annotations"])
                for name, units in allocation.containers.items():
                    subject = Subject("default", f"p{number}", stored["metadata"]["uid"], name)
                    check_pod(subject, kept(stored), "n1")
                    grant = by_memory(subject, kept(stored), offer, HOST, None)
                    wanted = {
                        HOST[gpu].uuid: HOST[gpu].total_mib * n // offer.dev(HOST[gpu]) for gpu, n in units.items()
                    }
                    assert {slot["gpu"]: slot["memory_mib"] for slot in grant["slots"]} == wanted
                    checked += 1
                if number % 5:
                    cluster.end(f"p{number}")
                    await cluster.settled()
        return checked

    checked = asyncio.run(whole())
    assert checked > 60
