# SPDX-License-Identifier: MIT
"""Any order of events, allocations, ends and losses: a container has its pod's GPU and amount, or does not start."""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import eventually
from hypothesis import given, settings
from hypothesis import strategies as st
from node_world import PODS, SIZES, World, bound, container

from cgpu_common.model import MIB
from cgpu_kube.node import host
from cgpu_kube.node.host import HostGpu, Offer
from cgpud.limits import limit_mib

# ---- arithmetic ----

GPUS = st.builds(
    HostGpu,
    index=st.integers(0, 7),
    uuid=st.sampled_from(["GPU-a", "GPU-b"]),
    total_mib=st.integers(256, 300_000),
    slice_mib=st.integers(0, 600_000),
)


@given(GPUS, st.data())
def test_any_division_of_the_offer_is_admitted(gpu: HostGpu, data: st.DataObject) -> None:
    """And one unit more, in one piece, would not be."""
    offer = Offer("cgpu")
    left = units = offer.units(gpu)
    parts = []
    while left and len(parts) < 40:
        parts.append(data.draw(st.integers(1, left)))
        left -= parts[-1]
    assert sum(limit_mib(gpu.total_mib, part, offer.dev(gpu)) for part in parts) <= gpu.slice_mib
    assert limit_mib(gpu.total_mib, units + 1, offer.dev(gpu)) > gpu.slice_mib


@given(GPUS, st.lists(st.integers(0, 300_000), max_size=20))
def test_the_offer_never_exceeds_admission_and_changes_seldom(gpu: HostGpu, later: list[int]) -> None:
    shown = (gpu,)
    for now in later:
        before, shown = shown, host.settled(shown, [replace(gpu, slice_mib=now)])
        assert shown[0].slice_mib <= now
        if abs(now - before[0].slice_mib) < 60 and now >= before[0].slice_mib and now < gpu.total_mib:
            assert shown == before
        if now >= gpu.total_mib:
            assert shown[0].slice_mib == now


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), unique=True, max_size=60),
    st.integers(0, 20),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_preferred_devices_are_of_one_gpu_if_one_has_room(
    found: list[tuple[str, int]], size: int, spread: bool, chance: random.Random
) -> None:
    available = [f"GPU-{gpu}{host.SEPARATOR}{number}" for gpu, number in found]
    required = chance.sample(available, min(len(available), chance.randint(0, 3), size))
    chosen = host.preferred(available, required, size, spread)
    assert len(chosen) == len(set(chosen)) == min(size, len(set(available)))
    assert set(required) <= set(chosen) <= set(available)
    counts = [sum(host.uuid_of(one) == f"GPU-{gpu}" for one in available) for gpu in "abc"]
    if not required and max(counts) >= size:
        assert len({host.uuid_of(one) for one in chosen}) <= 1


@given(st.sampled_from((*host.MODES, "")), st.sampled_from((*host.MODES, *host.FOREIGN, "x", None)), st.booleans())
def test_the_mode_never_changes_under_a_pod(now: str, label: str | None, used: bool) -> None:
    try:
        after = host.switch(now, host.mode_of({host.MODE_LABEL: label} if label is not None else {}), ["p"] * used)
    except host.KubeError:
        return
    assert after == now if used or label is None else after in (label, "")


# ---- the whole node ----

STEPS = st.lists(
    st.sampled_from(["pod", "pod", "pod", "start", "start", "end", "delete", "kubelet", "agent", "cgpud", "api"]),
    min_size=5,
    max_size=25,
)
FAULTS = st.lists(st.sampled_from(["", "", "late", "twice", "lost"]), min_size=1, max_size=8)


class Story:
    """One history; `expected` is (GPU, MiB) of each running container."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world = world
        self.chance = chance
        self.pods: dict[str, tuple[dict[str, Any], int, int]] = {}
        self.running: dict[str, tuple[str, int, int]] = {}
        self.count = 0

    def used(self, gpu: int) -> int:
        return sum(units for _, where, units in self.pods.values() if where == gpu)

    async def pod(self) -> None:
        """A scheduler's choice: a GPU that has room."""
        gpu, units = self.chance.randint(0, 1), self.chance.randint(1, 6)
        if self.used(gpu) + units > (15, 79)[gpu]:
            return
        self.count += 1
        name = f"p{self.count}"
        self.pods[name] = (self.world.pod(name, container(mem=units), annotations=bound(gpu, units)), gpu, units)

    async def start(self) -> None:
        name = self.chance.choice(sorted(self.pods)) if self.pods else ""
        if not name or any(pod == name for pod, _, _ in self.running.values()):
            return
        pod, gpu, units = self.pods[name]
        container_id = self.world.bundle(pod, "main", {"ALIYUN_COM_GPU_GRANT": "kube"}, "CGPU_DISABLE=1")
        reply = await self.world.prepare(container_id)
        if reply["ok"]:
            self.running[container_id] = (name, gpu, SIZES[gpu] * units // (15, 80)[gpu])
        else:
            assert "API server" in reply["error"] or "cgpu-kube" in reply["error"], reply

    async def end(self) -> None:
        if self.running:
            container_id = self.chance.choice(sorted(self.running))
            await self.world.end(container_id)
            del self.running[container_id]

    async def delete(self) -> None:
        idle = sorted(set(self.pods) - {name for name, _, _ in self.running.values()})
        if idle:
            name = self.chance.choice(idle)
            del self.pods[name]
            self.world.api.remove(PODS, "team", name)

    async def kubelet(self) -> None:
        await self.world.kubelet.restart()

    async def agent(self) -> None:
        await self.world.stop_agent()
        await self.world.start_agent()

    async def cgpud(self) -> None:
        await self.world.stop_cgpud()
        await self.world.start_cgpud()

    async def api(self) -> None:
        """Away for a moment, and back with its history compacted: 410."""
        await self.world.api.down()
        self.world.api.compact()
        await self.world.api.up()

    def check(self) -> None:
        found = {
            container_id: [(slot.gpu, slot.limit // MIB) for slot in one.slots]
            for container_id, one in self.world.link.containers.items()
        }
        assert found == {key: [(gpu, mib)] for key, (_, gpu, mib) in self.running.items()}


def faults(kinds: list[str]) -> Any:
    count = iter(range(10**9))

    def fault(kind: str, found: dict[str, Any]) -> list[tuple[float, str, dict[str, Any]]]:
        match kinds[next(count) % len(kinds)]:
            case "late":
                return [(0.3, kind, found)]
            case "twice":
                return [(0.0, kind, found), (0.1, kind, found)]
            case "lost":
                return []
            case _:
                return [(0.0, kind, found)]

    return fault


@pytest.mark.slow
@settings(max_examples=25)
@given(STEPS, FAULTS, st.integers(0, 1 << 30))
def test_any_history(steps: list[str], kinds: list[str], seed: int) -> None:
    async def main(directory: Path) -> None:
        world = World(directory)
        world.node.config = replace(world.node.config, kube_wait_s=5)
        async with world.offering():
            world.api.fault = faults(kinds)
            story = Story(world, random.Random(seed))
            for step in steps:
                await getattr(story, step)()
                story.check()
            for container_id in list(story.running):
                await world.end(container_id)
            assert not world.link.containers and not world.node.daemon.records
            await eventually(lambda: world.offered() == 94, "offered again")

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(asyncio.wait_for(main(Path(directory)), 60))


@pytest.mark.within(240)
async def test_many_pods_twenty_at_a_time(world: World) -> None:
    """1 to 3 GPU containers each, with init and sidecar; annotation, environment and kernel agree; nothing is left."""

    async def life(
        world: World, number: int, gate: asyncio.Semaphore, free: list[int], changed: asyncio.Condition
    ) -> int:
        chance = random.Random(number)
        gpu = 0 if chance.random() < 0.15 else 1
        mains = [container(f"c{n}", mem=1) for n in range(chance.randint(1, 3))]
        inits = (container("init", mem=1), container("side", mem=1, restartPolicy="Always"))[: chance.randint(0, 2)]
        need = len(mains) + len(inits)
        async with gate:
            async with changed:  # the scheduler
                await changed.wait_for(lambda: free[gpu] >= need)
                free[gpu] -= need
            name = f"p{number}"
            pod = world.pod(name, *mains, init=inits, annotations=bound(gpu, len(mains)))
            ids = []
            for one in [*inits, *mains]:
                container_id = world.bundle(pod, one["name"], {"ALIYUN_COM_GPU_GRANT": "kube"})
                reply = await world.prepare(container_id)
                assert reply["ok"], reply
                assert world.slots(container_id) == [(gpu, SIZES[gpu] // (15, 80)[gpu])]
                assert world.env(container_id)["ALIYUN_COM_GPU_MEM_IDX"] == str(gpu)
                ids.append(container_id)
            for gpu_now in await world.link.gpus():
                assert (gpu_now.limits or 0) <= SIZES[gpu_now.index] * MIB
            for container_id in ids:
                await world.end(container_id)
            world.api.remove(PODS, "team", name)
            async with changed:
                free[gpu] += need
                changed.notify_all()
        return len(ids)

    gate, changed, free = asyncio.Semaphore(20), asyncio.Condition(), [15, 20]
    counts = await asyncio.gather(*(life(world, n, gate, free, changed) for n in range(80)))
    assert sum(counts) > 120
    assert not world.link.containers and not world.node.daemon.records

    async def grants() -> int:
        return len((await world.node.ask(op="grants"))["grants"])

    for _ in range(200):
        if not await grants():
            break
        await asyncio.sleep(0.05)
    assert await grants() == 0, "no grant is left"
