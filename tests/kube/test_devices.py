# SPDX-License-Identifier: MIT
"""The number of devices that a node offers, and what a kubelet 1.36 does with each: bars of 8 GPUs and 16 pods."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fakelink import FakeLink, example_gpus
from fakes import eventually
from hypothesis import given
from hypothesis import strategies as st
from node_world import SIZES, World, bound, container

from cgpu_common.model import MIB
from cgpu_kube.annotations import GPU_MEM
from cgpu_kube.node import host
from cgpu_kube.node.host import HostGpu, Offer

PODS = 16
STATUS_MAX = 5_000_000  # looks at a device; 617 million jammed a kubelet for minutes
PREFERRED_MAX_S = 0.05  # of CPU


def eight_gpus() -> FakeLink:
    free = (SIZES[1] - 1500) * MIB
    return FakeLink(tuple(replace(one, total=SIZES[1] * MIB, driver_free=free) for one in example_gpus(8)))


@given(st.sampled_from(list(host.UNITS)), st.lists(st.integers(1024, 600_000), min_size=1), st.integers(100, 1000))
def test_no_card_has_more_devices_than_a_kubelet_bears(wish: str, sizes: list[int], percent: int) -> None:
    gpus = [HostGpu(index, f"GPU-{index}", size, size) for index, size in enumerate(sizes)]
    for mode, part in ((host.CGPU, 100), (host.SHARE, percent)):
        unit = host.unit_for(wish, gpus, part)
        offer = Offer(mode, unit, percent)
        assert all(offer.units(gpu) <= host.DEVICES_MAX for gpu in gpus)
        assert host.unit_mib(unit) >= host.UNITS[wish] and host.unit_name(host.unit_mib(unit)) == unit
        finer = Offer(mode, host.unit_name(host.unit_mib(unit) // 2), percent)
        if host.unit_mib(unit) > host.UNITS[wish]:
            assert max(map(finer.units, gpus)) >= host.DEVICES_MAX, "it is no coarser than it must be"


def test_the_names_of_units() -> None:
    assert [host.unit_name(mib) for mib in (256, 512, 1024, 2048)] == ["256MiB", "512MiB", "GiB", "2GiB"]
    for name in ("", "0GiB", "1.5GiB", "KiB", "256 MiB", "-1GiB", "1234567MiB"):
        try:
            host.unit_mib(name)
        except ValueError:
            continue
        raise AssertionError(name)


def test_the_choice_of_devices_takes_linear_time() -> None:
    """Of all devices of 8 GPUs, as many as a GPU has; it took 2 s for 8,000 of 80,000."""
    ids = [f"GPU-{gpu}{host.SEPARATOR}{number}" for gpu in range(8) for number in range(host.DEVICES_MAX)]
    for required in ([], ids[:300]):
        began = time.process_time()
        chosen = host.preferred(ids, required, 2 * host.DEVICES_MAX - 10)
        took = time.process_time() - began
        assert len(set(chosen)) == 2 * host.DEVICES_MAX - 10
        assert took <= PREFERRED_MAX_S
    few = host.preferred(list(reversed(ids)), [], 3)
    assert few == [f"GPU-0{host.SEPARATOR}{number}" for number in range(3)], "low numbers: they are there for longest"


async def test_a_kubelet_that_restarts_has_its_devices_at_once(tmp_path: Path) -> None:
    """Sixteen pods hold four fifths of eight GPUs in the finest unit."""
    world = World(tmp_path, link=eight_gpus(), settings={"unit": "MiB"})
    async with world.running():
        total = 8 * 317
        await eventually(lambda: world.offered() == total, "ready")
        for number in range(PODS):
            pod = world.pod(f"p{number}", container(mem=125), annotations=bound(number // 2, 125))
            await world.start(pod)
        await world.kubelet.restart()
        await eventually(lambda: world.offered() == total, "again")
        looks = world.kubelet.health_status(GPU_MEM)
        assert looks <= STATUS_MAX, f"{looks} looks at a device"
        assert len(world.kubelet.resources[GPU_MEM].used) == PODS * 125
