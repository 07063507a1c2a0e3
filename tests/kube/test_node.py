# SPDX-License-Identifier: MIT
"""cgpu-kube node as device plugin: what it offers, which GPU a container gets, and what it refuses."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_api import Refusal
from fakes import Warned, eventually, no_nvml
from node_world import NODE, NODES, PODS, SIZES, World, bound, container, placed
from structlog.testing import capture_logs

from cgpu_common.cards import NvmlGpu
from cgpu_common.model import MIB
from cgpu_kube import annotations as keys
from cgpu_kube.annotations import GPU_CORE, GPU_COUNT, GPU_MEM, MODE_LABEL
from cgpu_kube.node import host, marks, podview
from cgpu_kube.node.host import HostGpu
from cgpu_kube.node.plugin import Plugin

# ---- what is offered ----


async def test_each_gpu_has_its_own_size_and_admission_takes_all_of_it(world: World) -> None:
    await eventually(lambda: GPU_COUNT in world.own_node()["status"].get("allocatable", {}), "gpu-count")
    assert world.own_node()["status"]["capacity"][GPU_COUNT] == "2"
    assert [(gpu.index, gpu.units, gpu.dev) for gpu in world.published().gpus] == [(0, 15, 15), (1, 79, 80)]
    # Everything that is offered can be had, to the last unit.
    sizes = [(0, 9), (0, 6), (1, 40), (1, 39)]
    for number, (gpu, units) in enumerate(sizes):
        await world.start(world.pod(f"p{number}", container(mem=units), annotations=bound(gpu, units)))
    assert world.offered() == 94 and len(world.link.containers) == 4


async def test_the_whole_of_a_gpu_is_not_offered_where_the_driver_needs_a_part(tmp_path: Path) -> None:
    world = World(tmp_path)
    first, second = world.link.inventory
    world.link.inventory = (replace(first, driver_free=(SIZES[0] - 900) * MIB), second)
    async with world.offering(14 + 79):
        pass


async def test_the_offer_follows_the_gpu(world: World) -> None:
    first, second = world.link.inventory
    world.link.inventory = (replace(first, driver_free=(SIZES[0] - 5000) * MIB), second)
    await eventually(lambda: world.offered() < 94, "fewer")
    assert world.kubelet.resources[GPU_MEM].lists >= 2


MODES = [
    ("cgpu", 94, 0),
    ("core_mem", 94, 200),
    ("share", 95, 0),
    ("default", 0, 0),
    ("disabled", 0, 0),
    ("topology", 0, 0),
    (None, 0, 0),
]


@pytest.mark.parametrize(("mode", "memory", "core"), MODES, ids=str)
async def test_the_label_decides_what_is_offered(tmp_path: Path, mode: str | None, memory: int, core: int) -> None:
    world = World(tmp_path, mode=mode)
    async with world.running():
        await eventually(lambda: (world.offered(), world.offered(GPU_CORE)) == (memory, core), "the offer")
        await asyncio.sleep(0.3)
        assert (world.offered(), world.offered(GPU_CORE)) == (memory, core)
        if not memory:
            assert not world.kubelet.resources, "nothing is registered that was never offered"


async def test_share_offers_more_by_choice(tmp_path: Path) -> None:
    async with World(tmp_path, mode="share", settings={"overcommit": 150}).offering(22 + 120):
        pass


async def test_a_fine_unit_is_as_fine_as_the_kubelet_bears(tmp_path: Path) -> None:
    """79 GiB in units of 1 MiB were 81,559 devices. An annotation has the exact amount, at most that of the units."""
    async with World(tmp_path, settings={"unit": "MiB"}).offering(59 + 317) as world:
        assert world.agent.offer.unit == "256MiB"
        six = world.pod("p", container(mem=6), annotations=bound(0, 6))
        assert world.slots(await world.start(six)) == [(0, 1536)]
        exact = world.pod("q", container(mem=6), annotations=bound(0, 6) | {keys.MEMORY: "1500Mi"})
        assert world.slots(await world.start(exact)) == [(0, 1500)]
        two = world.pod(
            "r",
            container("a", mem=4),
            container("b", mem=2),
            annotations=placed({"a": {1: 4}, "b": {1: 2}}, 319) | {keys.MEMORY: "a=777Mi"},
        )
        a, b = await world.start(two, "a"), await world.start(two, "b")
        assert (world.slots(a), world.slots(b)) == ([(1, 777)], [(1, 511)])
        assert world.env(b)["ALIYUN_COM_GPU_MEM_UNIT"] == "256MiB"
        for text, sentence in (
            ("2000Mi", "6 x 256MiB of aliyun.com/gpu-mem are 256 to 1536 MiB"),
            ("100Mi", "are 256 to 1536 MiB"),
            ("much", "annotation cgpu.io/memory=much"),
            ("mian=1500Mi", "names container mian, which the pod does not have; it has main"),
            ("main=1Gi,main=2Gi", "is none of 5500Mi, 50% and main=5500Mi,side=300Mi"),
        ):
            bad = world.pod("s", container(mem=6), annotations=bound(0, 6) | {keys.MEMORY: text})
            assert sentence in await world.refused(bad)
            world.kubelet.free("s")


async def test_a_limit_in_percent_of_the_gpus_memory(world: World) -> None:
    """Of whichever GPU it is on; as with an amount, its gpu-mem is the most."""
    half = world.pod("p", container(mem=8), annotations=bound(0, 8) | {keys.MEMORY: "50%"})
    assert world.slots(await world.start(half)) == [(0, 15109 // 2)]
    two = world.pod(
        "r",
        container("a", mem=9),
        container("b", mem=4),
        annotations=placed({"a": {1: 9}, "b": {1: 4}}, 79) | {keys.MEMORY: "a=10%,b=3%"},
    )
    found = [world.slots(await world.start(two, name)) for name in "ab"]
    assert found == [[(1, 8155)], [(1, 2446)]]
    for text, sentence in (
        ("50%", "has 7554 MiB by the annotation cgpu.io/memory, and its 6 GiB of aliyun.com/gpu-mem are 256 to"),
        ("1%", "has 151 MiB by the annotation"),
        ("0%", "has 0%, and a percentage is 1% to 100%"),
        ("101%", "a percentage is 1% to 100%"),
        ("5.5%", "a percentage is 1% to 100%"),
        ("+5%", "a percentage is 1% to 100%"),
        ("%", "a percentage is 1% to 100%"),
    ):
        bad = world.pod("s", container(mem=6), annotations=bound(0, 6) | {keys.MEMORY: text})
        assert sentence in await world.refused(bad)
        world.kubelet.free("s")


async def test_the_unit_does_not_change_under_a_pod(tmp_path: Path, warned: Warned) -> None:
    """A larger card would make it coarser, and the pod's 6 units twice as much."""
    world = World(tmp_path, settings={"unit": "MiB"})
    world.link.inventory = world.link.inventory[:1]
    async with world.offering(59):
        pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
        running = await world.start(pod)
        await world.stop_agent()
        world.agent.settings = replace(world.agent.settings, unit="GiB")
        world.settings = {"unit": "GiB"}
        await world.start_agent()
        sentence = "counts in 256MiB until no pod uses a GPU of it: team/p"
        await eventually(lambda: warned("unit", sentence), "the sentence")
        await world.offers(59)
        await world.end(running)
        world.api.remove(PODS, "team", "p")
        await world.offers(15)


def published_as(world: World, mode: str, unit: str) -> None:
    """What an earlier life has left in the node's annotation, of the first GPU."""
    node = world.own_node()
    dev = SIZES[0] // host.unit_mib(unit)
    text = keys.write_node(keys.NodeGpus(mode, unit, (keys.NodeGpu(0, "GPU-0", SIZES[0], dev, dev),)))
    world.api.put(NODES, {**node, "metadata": {**node["metadata"], "annotations": text}})


@pytest.mark.parametrize("is_published", [True, False])
async def test_a_pod_of_before_units_were_kept_has_its_amount(
    tmp_path: Path, is_published: bool, warned: Warned
) -> None:
    """Bound when MiB was 1 MiB, started after the update: 300 were 300 x 256 MiB."""
    world = World(tmp_path, settings={"unit": "MiB"})
    world.link.inventory = world.link.inventory[:1]
    kept = tmp_path / "state/mode.json"
    async with world.offering(59):
        await world.stop_agent()
        kept.write_text('{"mode": "cgpu"}')
        published_as(world, "cgpu", "MiB")
        if not is_published:
            node = world.own_node()
            world.api.put(NODES, {**node, "metadata": {**node["metadata"], "annotations": {}}})
        pod = world.pod("p", container(mem=300), annotations=bound(0, 300))
        await world.api.down()
        await world.start_agent()
        await eventually(lambda: world.offered() > 10_000, "the unit of before")
        assert "the API server does not answer" in await world.refused(pod)
        world.kubelet.free("p")
        await world.api.up()
        await eventually(lambda: warned("unit", "counts in MiB until no pod uses"), "why")
        running = await world.start(pod)
        assert world.slots(running) == [(0, 300)]
        assert json.loads(kept.read_text()) == {"mode": "cgpu", "unit": "MiB"}
        await world.end(running)
        world.api.remove(PODS, "team", "p")
        await world.offers(59)
        assert json.loads(kept.read_text()) == {"mode": "cgpu", "unit": "256MiB"}


async def test_nothing_is_offered_while_file_and_annotation_disagree(tmp_path: Path) -> None:
    """The unit's agent and the DaemonSet's with directories of their own: a limit was four times as much."""
    world = World(tmp_path, settings={"unit": "GiB"})
    world.link.inventory = world.link.inventory[:1]
    async with world.offering(15):
        pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
        env = await world.allocate(pod, "main")
        await eventually(lambda: (here := world.agent.cluster.published()) and not here.away, "all is published")
        await world.stop_agent()
        published_as(world, "cgpu", "256MiB")
        await world.start_agent()
        await eventually(lambda: "team/p; drain it" in world.mode_refused(), "it sees")
        await eventually(lambda: world.offered() == 0, "nothing is offered")
        reply = await world.prepare(world.bundle(pod, "main", env))
        assert not reply["ok"] and "were counted in mode cgpu and unit 256MiB" in reply["error"]
        found = world.published()
        assert (found.unit, found.away) == ("256MiB", "its mode and unit are in doubt")
        world.api.remove(PODS, "team", "p")
        await world.offers(15)
        await eventually(lambda: world.condition("GPUModeRefused") == ("False", ""), "no more")


async def test_the_mode_changes_on_a_drained_node_only(world: World) -> None:
    pod = world.pod("p", container(mem=3), annotations=bound(0, 3))
    running = await world.start(pod)
    world.label("core_mem")
    sentence = "the node stays in mode cgpu until no pod uses a GPU of it: team/p; drain it"
    await eventually(lambda: sentence in world.mode_refused(), "the condition")
    assert (world.offered(), world.offered(GPU_CORE)) == (94, 0)
    await world.end(running)
    world.api.remove(PODS, "team", "p")
    await eventually(lambda: world.offered(GPU_CORE) == 200, "core_mem")
    await eventually(lambda: world.condition("GPUModeRefused") == ("False", ""), "the label is in effect")
    world.label("default")
    await eventually(lambda: world.offered() == world.offered(GPU_CORE) == 0, "0 of the other mode")
    world.label("nonsense")
    await eventually(lambda: "is no mode" in world.mode_refused(), "the condition")
    world.label("cgpu")
    await world.offers()
    world.label("mps2")
    await eventually(lambda: "=mps2 is no mode" in world.mode_refused(), "the condition")
    assert world.offered() == 94, "the mode before"
    world.label(None)
    await asyncio.sleep(0.3)
    assert world.offered() == 94, "a label that is removed changes nothing"
    await world.stop_agent()
    await world.api.down()
    await world.start_agent()
    await eventually(lambda: world.offered() == 94, "the mode without the API server")
    await world.api.up()


async def test_gpus_without_a_server_offer_nothing_in_the_mode_mps(tmp_path: Path) -> None:
    world = World(tmp_path, mode="mps")
    async with world.running():
        await eventually(lambda: world.agent.offer.mode == "mps" and world.agent.memory.devices, "the mode")
        await eventually(lambda: not any(good for _, good in world.agent.memory.devices), "unhealthy")
        assert all("has no MPS server: systemctl enable --now cgpu-mps@" in gpu.why for gpu in world.agent.gpus)


# ---- the kubelet ----


async def test_it_registers_again_after_the_kubelet(tmp_path: Path) -> None:
    """By events, without polls."""
    async with World(tmp_path, settings={"poll_s": 600.0}).offering() as world:
        for _ in range(3):
            await world.kubelet.restart()
            await world.offers()
        before = world.agent.memory.registrations
        (world.kubelet.directory / "device-plugins/cgpu-gpu-mem.sock").unlink()
        await eventually(lambda: world.agent.memory.registrations == before + 1, "a lost socket is made again")
        await world.offers()


@pytest.mark.parametrize("poll_s", [0.1, 2.0])
async def test_a_directory_that_was_deleted_and_made_again(tmp_path: Path, poll_s: float) -> None:
    """A kubelet that is reinstalled. The watch of the old directory ends with it."""
    async with World(tmp_path, settings={"poll_s": poll_s}).offering() as world:
        directory = world.kubelet.directory / "device-plugins"
        await world.kubelet.stop()
        shutil.rmtree(directory)
        await asyncio.sleep(0.5)
        world.kubelet.resources.clear()
        directory.mkdir()
        await world.kubelet.start()
        await world.offers()
        await world.kubelet.restart()
        await world.offers()


async def test_another_plugin_for_the_resource_is_named(world: World) -> None:
    """The vendor's plugin is still there: the kubelet follows the one that has registered last, keeps both streams
    open and writes its node's status; after a plugin's end its resource has no device."""

    async def report() -> None:
        while True:
            node = copy.deepcopy(world.own_node())
            status = node.setdefault("status", {}).setdefault("allocatable", {})
            if status.get(GPU_MEM) != str(world.offered()):
                status[GPU_MEM] = str(world.offered())
                world.api.put(NODES, node)
            await asyncio.sleep(0.05)

    reports = asyncio.create_task(report())
    other = Plugin(world.kubelet.directory / "device-plugins", GPU_MEM, "vendor")
    other.offer([(f"GPU-x-_-{n}", True) for n in range(47)])
    with capture_logs() as lines:
        for _ in range(2):
            before = world.agent.memory.registrations
            await other.register((0, 0))
            await eventually(lambda was=before: world.agent.memory.registrations > was, "taken back", 30)
            await world.offers()
    found = [line["resource"] for line in lines if line["event"].startswith("another device plugin takes")]
    assert found == [GPU_MEM]
    await other.register((0, 0))
    await eventually(lambda: world.offered() == 47, "the other one's")
    await other.stop()
    await world.offers()
    reports.cancel()


async def test_an_unhealthy_gpu_takes_its_devices_along(tmp_path: Path) -> None:
    world = World(tmp_path)
    lost = ""

    def nvml() -> tuple[NvmlGpu, ...]:
        return tuple(
            NvmlGpu(n, gpu.uuid, gpu.pci, n, SIZES[n], used_mib=0, mig=n == 1 and bool(lost))
            for n, gpu in enumerate(world.link.inventory)
        )

    world.node.nvml = nvml
    async with world.offering():
        lost = "GPU is lost"
        world.node.daemon.inventory.expire()
        world.agent._health_due = 0.0
        await eventually(lambda: world.offered() == 15, "the healthy one")
        resource = world.kubelet.resources[GPU_MEM]
        assert len(resource.devices) == 94, "unhealthy devices stay listed"
        pod = world.pod("p", container(mem=3), annotations=bound(1, 3))
        assert await world.refused(pod) == "GPU 1 is in MIG mode, which cannot be sliced"


async def test_a_drained_node_takes_no_pods(tmp_path: Path) -> None:
    """The extender binds none. The kubelet's devices stay: it fails a bound pod for good without them."""
    world = World(tmp_path)
    mark = world.node.directory / "drain"
    async with world.offering():
        all_units = world.offered()
        mark.touch()
        await eventually(lambda: "the node is drained" in str(world.own_node()), "the reason")
        await asyncio.sleep(0.3)
        assert world.offered() == all_units, "a bound pod is admitted"
        mark.unlink()
        await eventually(lambda: "the node is drained" not in str(world.own_node()), "again")


# ---- which GPU ----


@pytest.mark.parametrize("generation", ["old", "newer", "both"])
async def test_the_annotation_names_the_gpu(world: World, generation: str) -> None:
    written = placed({"main": {1: 8}})
    old = {key: text for key, text in written.items() if key.startswith("ALIYUN")}
    annotations = {"old": old, "newer": {k: t for k, t in written.items() if k not in old}, "both": written}
    pod = world.pod("p", container(mem=8), annotations=annotations[generation])
    container_id = await world.start(pod)
    assert world.slots(container_id) == [(1, 81559 * 8 // 80)]
    env = world.env(container_id)
    assert (env[keys.INDEX], env[keys.DEV], env[keys.POD]) == ("1", "80", "8")
    assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8"
    assert env["NVIDIA_VISIBLE_DEVICES"] == "none"

    def assigned() -> bool:
        found = world.stored("p")
        return bool(keys.parse(found["metadata"]["annotations"]).assigned)

    await eventually(assigned, "ASSIGNED")


AUTHORS = [
    ("CGPU_DISABLE=true",),
    ("ALIYUN_COM_GPU_MEM_CONTAINER=15", "ALIYUN_COM_GPU_MEM_DEV=15", "NVIDIA_VISIBLE_DEVICES=all"),
    ("ALIYUN_COM_GPU_MEM_CONTAINER=0", "ALIYUN_COM_GPU_VISIBLE_DEVICES=1"),
    ("ALIYUN_COM_GPU_SCHD_WEIGHT=20", "ALIYUN_COM_GPU_HIGH_PRIO=1", "ALIYUN_COM_GPU_GRANT="),
]


@pytest.mark.parametrize("author", AUTHORS, ids=str)
async def test_the_environment_of_the_author_changes_nothing(world: World, author: tuple[str, ...]) -> None:
    pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
    container_id = await world.start(pod, "main", *author)
    assert world.slots(container_id) == [(0, 6043)]
    (slot,) = world.link.containers[container_id].slots
    assert (slot.weight, slot.highprio) == (1, False)
    assert "CGPU_DISABLE" not in world.env(container_id)


async def test_a_pod_without_the_resource_gets_nothing_by_its_environment(world: World) -> None:
    pod = world.pod("p", container())
    error = await world.refused(pod, "main", "ALIYUN_COM_GPU_GRANT=x", "ALIYUN_COM_GPU_MEM_CONTAINER=15")
    assert error == (
        "container main of pod team/p asks for no aliyun.com/gpu-mem, and its variables give it nothing; "
        "write aliyun.com/gpu-mem into its limits"
    )


async def test_several_containers_init_and_sidecar(world: World) -> None:
    pod = world.pod(
        "p",
        container("a", mem=4),
        container("b", mem=5),
        container("plain"),
        init=(container("init", mem=6), container("side", mem=2, restartPolicy="Always")),
        annotations=bound(1, 9),
    )
    init = await world.start(pod, "init")
    assert world.slots(init) == [(1, 6116)]
    await world.end(init)
    for name, mib in (("side", 2038), ("a", 4077), ("b", 5097)):
        assert world.slots(await world.start(pod, name)) == [(1, mib)], name
    assert sum(gpu.limits or 0 for gpu in await world.link.gpus()) == (2038 + 4077 + 5097) * MIB


async def test_containers_on_different_gpus(world: World) -> None:
    written = placed({"0": {1: 60}, "1": {0: 9}})
    pod = world.pod("p", container("big", mem=60), container("small", mem=9), annotations=written)
    assert world.slots(await world.start(pod, "big")) == [(1, 61169)]
    assert world.slots(await world.start(pod, "small")) == [(0, 9065)]


async def test_one_container_on_two_gpus(world: World) -> None:
    written = placed({"main": {0: 8, 1: 8}}, 15)
    pod = world.pod("p", container(mem=16), annotations=written, labels={GPU_COUNT: "2"})
    container_id = await world.start(pod)
    assert world.slots(container_id) == [(0, 8058), (1, 8155)], "each of its own size"
    assert world.env(container_id)["ALIYUN_COM_GPU_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(("policy", "kept"), [(2, True), (3, True), (6, True), (0, False), (1, False), (5, False)])
async def test_percentage_is_a_weight(tmp_path: Path, policy: int, kept: bool) -> None:
    world = World(tmp_path, mode="core_mem")
    world.link.inventory = tuple(replace(gpu, policy=policy) for gpu in world.link.inventory)
    async with world.offering():
        pod = world.pod("p", container(mem=6, core=25), annotations=bound(0, 6))
        if not kept:
            error = await world.refused(pod)
            assert f"GPU 0 has policy {policy} (" in error and 'set policy = "weighted" in [gpu]' in error
            assert not world.link.containers
            return
        container_id = await world.start(pod)
        (slot,) = world.link.containers[container_id].slots
        assert slot.weight == 5
        assert world.env(container_id)["ALIYUN_COM_GPU_SCHD_WEIGHT"] == "5"


NAMESPACES = "api/v1/namespaces"


async def test_high_priority_is_the_namespaces_to_allow(tmp_path: Path) -> None:
    """Before a pod gets it by its annotation, the label of its namespace is read; claims need neither."""
    world = World(tmp_path)
    world.link.inventory = tuple(replace(gpu, policy=1) for gpu in world.link.inventory)
    async with world.offering():
        high = bound(0, 4) | {keys.PRIORITY: "high"}
        for labels in (None, {}, {keys.PRIORITY: "normal"}):
            if labels is not None:
                world.api.label_namespace("team", labels)
            error = await world.refused(world.pod("p", container(mem=4), annotations=high))
            assert not world.link.containers
        assert error == (
            "pod team/p asks for high priority (cgpu.io/priority), and its namespace does not allow it; "
            "kubectl label namespace team cgpu.io/priority=high does"
        )
        world.api.label_namespace("team", {keys.PRIORITY: "high"})
        found = await world.start(world.pod("q", container(mem=4), annotations=high))
        assert [slot.highprio for slot in world.link.containers[found].slots] == [True]
        for more in ({}, {keys.PRIORITY: "normal"}):
            plain = await world.start(world.pod("r", container(mem=4), annotations=bound(0, 4) | more))
            assert [slot.highprio for slot in world.link.containers[plain].slots] == [False]
        odd = bound(0, 1) | {keys.PRIORITY: "highest"}
        error = await world.refused(world.pod("s", container(mem=1), annotations=odd))
        assert error == "annotation cgpu.io/priority=highest of pod team/s is neither normal nor high"


@pytest.mark.parametrize(
    ("mode", "policy", "why"),
    [("cgpu", 5, "GPU 0, and policy 5 (native) ignores high priority"), ("share", 1, "this node is in mode share")],
)
async def test_high_priority_without_effect_is_refused(tmp_path: Path, mode: str, policy: int, why: str) -> None:
    world = World(tmp_path, mode=mode)
    world.link.inventory = tuple(replace(gpu, policy=policy) for gpu in world.link.inventory)
    async with world.offering(15 + (80 if mode == "share" else 79)):
        world.api.label_namespace("team", {keys.PRIORITY: "high"})
        pod = world.pod("p", container(mem=4), annotations=bound(0, 4) | {keys.PRIORITY: "high"})
        assert why in await world.refused(pod)


async def test_without_the_api_server_no_priority_is_given(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.link.inventory = tuple(replace(gpu, policy=1) for gpu in world.link.inventory)
    async with world.offering():
        world.api.label_namespace("team", {keys.PRIORITY: "high"})
        pod = world.pod("p", container(mem=4), annotations=bound(0, 4) | {keys.PRIORITY: "high"})
        await eventually(lambda: world.agent.cluster.pods_here(), "the pod is known")
        await world.api.down()
        assert "does not answer" in await world.refused(pod)
        await world.api.up()


async def test_without_a_scheduler_the_kubelets_devices_name_the_gpu(world: World) -> None:
    seen = []
    for number, units in enumerate((10, 5, 60, 15)):
        container_id = await world.start(world.pod(f"p{number}", container(mem=units)))
        ((gpu, _),) = world.slots(container_id)
        seen.append(gpu)
    assert seen == [0, 0, 1, 1], "binpack, each within one GPU"


async def test_devices_of_two_gpus_are_no_gpu(world: World) -> None:
    await world.start(world.pod("a", container(mem=8)))
    await world.start(world.pod("b", container(mem=72)))
    error = await world.refused(world.pod("c", container(mem=10)))
    assert error == (
        "no single GPU had room for container main of pod team/c: the kubelet has counted 7 of GPU 0, 3 of GPU 1; "
        "install the scheduler extender, which looks at each GPU, or delete the pod"
    )


# ---- a restart ----


@pytest.mark.parametrize("late_s", [1.5, 60.0], ids=["late", "never"])
async def test_a_restarted_agent_decides_when_it_knows_the_gpus(tmp_path: Path, late_s: float) -> None:
    """cgpud's answer may wait for NVML. A pod that is started meanwhile is not refused for GPUs that are there."""
    world = World(tmp_path)

    world.settings = {"first_wait_s": 4.0}
    async with world.offering():
        one = world.pod("p", container(mem=6), annotations=bound(1, 6))
        container_id = world.bundle(one, "main", await world.allocate(one, "main"))
        published = world.own_node()
        await world.stop_agent()
        queries = world.node.daemon.queries
        capacity, began = queries.capacity, asyncio.get_running_loop().time()

        async def slow(*words: Any) -> dict[str, Any]:
            await asyncio.sleep(max(0.0, began + late_s - asyncio.get_running_loop().time()))
            return await capacity(*words)

        queries.capacity = slow  # type: ignore[method-assign]
        await world.start_agent()
        reply = await world.prepare(container_id)
        if late_s < 60:
            assert reply["ok"], reply
            assert world.slots(container_id) == [(1, 6116)]
        else:
            assert "the GPUs of this node are not known: cgpud has not answered yet" in reply["error"]
            assert world.own_node() == published, "and nothing is published that is not known"


# ---- refusals ----

DISAGREE = (
    "give ALIYUN_COM_GPU_MEM_ASSIGNED=false, ALIYUN_COM_GPU_MEM_DEV=47, ALIYUN_COM_GPU_MEM_IDX=0, "
    "ALIYUN_COM_GPU_MEM_POD=8, and its containers ask for 6 (main) GiB; delete the pod"
)
REFUSED = [
    (bound(0, 8), DISAGREE),
    (bound(7, 6), "name GPU 7, which this node does not have (GPUs: 0, 1)"),
    ({**bound(0, 6), keys.INDEX: "x"}, "annotation ALIYUN_COM_GPU_MEM_IDX=x is not a number"),
    ({**placed({"main": {0: 3}}, 15)}, "and its containers ask for 6 (main) GiB"),
    ({**placed({"other": {0: 6}}, 15)}, "and its containers ask for 6 (main) GiB"),
]


@pytest.mark.parametrize(("annotations", "why"), REFUSED, ids=[why[:30] for _, why in REFUSED])
async def test_annotations_that_disagree(world: World, annotations: dict[str, str], why: str) -> None:
    assert why in await world.refused(world.pod("p", container(mem=6), annotations=annotations))
    assert not world.link.containers


OWN = [
    {**bound(1, 6), keys.ASSUME_TIME: "5"},  # copied from an older pod
    {key: text for key, text in bound(1, 6).items() if key != keys.ASSUME_TIME},
    {keys.INDEX: "1"},
    {keys.ALLOCATION: '{"main":{"1":6}}', keys.NEW_ASSIGNED: "true"},
]


@pytest.mark.parametrize("annotations", OWN, ids=str)
async def test_annotations_that_no_scheduler_wrote_count_for_nothing(world: World, annotations: dict[str, str]) -> None:
    container_id = await world.start(world.pod("p", container(mem=6), annotations=annotations))
    assert world.slots(container_id) == [(0, 6043)], "the GPU that the kubelet counted"


async def test_the_author_names_a_full_gpu(world: World) -> None:
    """With an invented time the annotation chooses a GPU; it takes nothing from the pods that are there."""
    first = await world.start(world.pod("a", container(mem=12), annotations=bound(0, 12)))
    error = await world.refused(world.pod("b", container(mem=9), annotations=bound(0, 9)))
    assert error.startswith("GPU 0 has 3") and f"held by: {first[:12]} (team/a) 12087 MiB" in error


POD_REFUSED = [
    ("core_mem", container(mem=6, core=26), "it must be 5 to 100 in steps of 5"),
    ("cgpu", container(mem=0), "aliyun.com/gpu-mem is 0; leave it out, or ask for 1 or more"),
    ("cgpu", container(mem="-1"), "'-1' is not a whole number of at least 0"),
    ("cgpu", container(mem="1500m"), "'1500m' is not a whole number"),
    ("cgpu", container(mem="x"), "'x' is not a quantity"),
    ("cgpu", container(mem=16), "asks for 16 GiB of GPU 0, which has 15"),
    ("cgpu", container(mem=6, core=25), "this node is in mode cgpu; label it ack.node.gpu.schedule=core_mem"),
]


@pytest.mark.parametrize(("mode", "one", "why"), POD_REFUSED, ids=str)
async def test_bad_amounts(tmp_path: Path, mode: str, one: dict[str, Any], why: str) -> None:
    async with World(tmp_path, mode=mode).offering() as world:
        text = one["resources"]["limits"][GPU_MEM]
        pod = world.pod("p", one, annotations=bound(0, int(text) if text.isdigit() else 6))
        env = {"ALIYUN_COM_GPU_GRANT": "kube"}
        reply = await world.prepare(world.bundle(pod, "main", env))
        assert why in reply["error"]


async def test_a_count_that_does_not_divide(world: World) -> None:
    pod = world.pod("p", container(mem=7), labels={GPU_COUNT: "2"})
    assert "aliyun.com/gpu-mem 7 cannot be divided among 2 GPUs" in await world.refused(pod)


async def test_another_pod_of_the_name(world: World) -> None:
    pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
    reply = await world.prepare(world.bundle(pod, "main", await world.allocate(pod, "main"), uid="u-old"))
    assert reply["error"] == "pod team/p is another one now; its earlier one gets no slice any more"
    reply = await world.prepare(world.bundle(pod, "ghost", {"ALIYUN_COM_GPU_GRANT": "kube"}))
    assert reply["error"] == "pod team/p has no container ghost"
    world.pod("q", container(mem=6), spec={"nodeName": "n2"})
    other = world.stored("q")
    reply = await world.prepare(world.bundle(other, "main", {"ALIYUN_COM_GPU_GRANT": "kube"}))
    assert reply["error"] == "pod team/q is not on node n1, or has ended"


async def test_a_pod_in_another_mode(tmp_path: Path) -> None:
    world = World(tmp_path, mode="default")
    async with world.running():
        await eventually(lambda: world.agent.cluster.pods.synced.is_set(), "pods")
        pod = world.pod("p", container(mem=6), annotations=bound(0, 6))
        reply = await world.prepare(world.bundle(pod, "main", {"ALIYUN_COM_GPU_GRANT": "kube"}))
        assert "this node is in mode default; label it ack.node.gpu.schedule=cgpu" in reply["error"]


# ---- static pods, and parts that are away ----


STATIC = {"kubernetes.io/config.mirror": "hash-1", "kubernetes.io/config.source": "file"}
OF_NODE = [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "uid-of-node", "controller": True}]


async def test_a_static_pod(world: World) -> None:
    """The engine knows it by the kubelet's uid; its annotations are the author's."""
    pod = world.pod("s", container(mem=6), annotations={**bound(1, 6), **STATIC})
    pod = world.api.put(PODS, {**pod, "metadata": {**pod["metadata"], "ownerReferences": OF_NODE}})
    reply = await world.prepare(world.bundle(pod, "main", await world.allocate(pod, "main"), uid="hash-1"))
    assert reply["ok"], reply
    assert [one.slots[0].gpu for one in world.link.containers.values()] == [0]


@pytest.mark.parametrize("written", [STATIC, {"kubernetes.io/config.source": "file"}])
async def test_a_pod_whose_author_calls_it_static(world: World, written: dict[str, str]) -> None:
    """It goes where the extender has counted it; the kubelet has counted devices of GPU 0. It is no other pod."""
    pod = world.pod("p", container(mem=6), annotations={**bound(1, 6), **written})
    assert [gpu for gpu, _ in world.slots(await world.start(pod))] == [1]
    await eventually(lambda: world.agent.cluster.pods.objects.get("team", "p"), "seen")
    assert podview.uids(world.agent.cluster.pods.objects.get("team", "p")) == {pod["metadata"]["uid"]}
    other = world.bundle(pod, "main", {"ALIYUN_COM_GPU_GRANT": "kube"}, uid="hash-1")
    assert "is another one now" in (await world.prepare(other))["error"]


def test_the_owner_of_a_static_pod_is_its_own_node() -> None:
    meta = {"name": "s", "annotations": STATIC, "ownerReferences": OF_NODE}
    for node, is_static in ((NODE, True), ("n2", False)):
        made = {"metadata": meta, "spec": {"nodeName": node}}
        assert podview.is_static(made) == podview.is_static(podview.kept(made)) == is_static


async def test_without_the_api_server_known_pods_start(world: World) -> None:
    known = world.pod("known", container(mem=6), annotations=bound(1, 6))
    await eventually(lambda: world.agent.cluster.pods.objects.get("team", "known"), "seen")
    await world.api.down()
    assert world.slots(await world.start(known)) == [(1, 6116)]
    unknown = {**known, "metadata": {**known["metadata"], "name": "new", "uid": "u-new"}}
    assert "the API server does not answer, so its GPU is not known either" in await world.refused(unknown)
    await world.stop_agent()
    again = world.bundle(known, "main", {"ALIYUN_COM_GPU_GRANT": "kube"})
    assert (await world.prepare(again))["ok"], "the grant is kept: no cgpu-kube either"
    await world.api.up()
    await world.start_agent()
    await world.offers()


async def test_on_one_gpu_no_api_server_is_needed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.link.inventory = world.link.inventory[:1]
    async with world.offering(15):
        await world.api.down()
        pod = {
            "metadata": {"name": "s", "uid": "u-s"},
            "spec": {"initContainers": [], "containers": [container(mem=6)]},
        }
        assert world.slots(await world.start(pod)) == [(0, 6043)], "as many as the kubelet has counted"
        nothing = await world.prepare(world.bundle(pod, "other", {"ALIYUN_COM_GPU_GRANT": "kube"}))
        assert "the kubelet has counted no aliyun.com/gpu-mem for container other" in nothing["error"]
        await world.api.up()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_pod_is_asked_for_again(tmp_path: Path, status: int) -> None:
    """The watch has not shown it, and its container keeps the grant that it gets now."""
    world = World(tmp_path, mode="core_mem", settings={"pod_wait_s": 3.0})
    world.link.inventory = (replace(world.link.inventory[0], policy=2),)
    failures = [5]

    def fail(_method: str, path: str) -> None:
        if path.endswith("/pods/p") and failures[0]:
            failures[0] -= 1
            raise Refusal(status, "ServiceUnavailable", "etcdserver: leader changed")

    async with world.offering(15):
        await eventually(lambda: world.offered(GPU_CORE) == 100, "core")
        world.api.fault = lambda kind, found: []
        world.api.before = fail
        pod = world.pod("p", container(mem=6, core=25), annotations={**bound(0, 6), keys.MEMORY: "5000Mi"})
        slot = world.link.containers[await world.start(pod)].slots[0]
        assert (slot.limit // MIB, slot.weight, failures) == (5000, 5, [0])


async def test_a_long_retry_after_is_not_the_end() -> None:
    """It may be more than a start has: the API server is asked once more before the pod counts as unknown."""
    from cgpu_kube.api import ApiError
    from cgpu_kube.node.cluster import Cluster

    class Api:
        answers = 0

        async def get(self, _path: str, _parts: object) -> dict[str, Any]:
            self.answers += 1
            if self.answers == 1:
                raise ApiError(429, "TooManyRequests", "", 30.0)
            return {"metadata": {"namespace": "team", "name": "p", "uid": "u", "resourceVersion": "1"}, "spec": {}}

    cluster = Cluster(cast(Any, Api()), NODE, lambda: None, lambda: None, None, again_s=0.3)
    found = await cluster.pod("team", "p", "u", fresh=False)
    assert found["metadata"]["uid"] == "u"


async def test_without_the_pod_both_resources_are_the_kubelets(tmp_path: Path) -> None:
    """The API server is away for longer: its annotations are not known, its shares are."""
    world = World(tmp_path, mode="core_mem")
    world.link.inventory = (replace(world.link.inventory[0], policy=2),)

    def forbid(_method: str, path: str) -> None:
        if path.endswith("/pods/q"):
            raise Refusal(403, "Forbidden", "pods may not be read by this one")

    async with world.offering(15):
        await eventually(lambda: world.offered(GPU_CORE) == 100, "core")
        world.api.fault = lambda kind, found: []
        world.api.before = forbid
        why = await world.refused(world.pod("q", container(mem=2), annotations=bound(0, 2)))
        assert "may not be read" in why, "an answer is none of an API server that is away"
        await world.api.down()
        pod = {
            "metadata": {"name": "s", "uid": "u-s"},
            "spec": {"initContainers": [], "containers": [container(mem=6, core=25)]},
        }
        slot = world.link.containers[await world.start(pod)].slots[0]
        assert (slot.limit // MIB, slot.weight) == (6043, 5)
        await world.api.up()


async def test_without_cgpu_kube_nothing_starts_and_nothing_is_lost(world: World) -> None:
    pod = world.pod("p", container(mem=6), annotations=bound(1, 6))
    env = await world.allocate(pod, "main")
    await world.stop_agent()
    world.node.daemon.config = replace(world.node.daemon.config, kube_wait_s=0)
    container_id = world.bundle(pod, "main", env, "CGPU_DISABLE=true")
    reply = await world.prepare(container_id)
    assert reply["error"].startswith("cgpu-kube, which decides the GPU of a pod's container, does not answer on")
    await world.start_agent()
    await world.offers()
    assert (await world.prepare(container_id))["ok"]
    assert world.slots(container_id) == [(1, 6116)]


async def test_grants_of_pods_that_are_gone_are_revoked(world: World) -> None:
    pods = [world.pod(f"p{n}", container(mem=1), annotations=bound(0, 1)) for n in range(3)]
    for pod in pods:
        await world.end(await world.start(pod))
    assert len((await world.node.ask(op="grants"))["grants"]) == 3
    world.api.remove(PODS, "team", "p0")
    world.pod("p1", container(mem=1), status={"phase": "Succeeded"})

    async def left() -> list[str]:
        return [one["pod"] for one in (await world.node.ask(op="grants"))["grants"]]

    for _ in range(100):
        if await left() == ["p2"]:
            break
        await asyncio.sleep(0.05)
    assert await left() == ["p2"]


async def test_a_plugin_that_serves_again_lists_once(world: World) -> None:
    """The turn was lost for a moment, and nothing has changed meanwhile."""
    await world.agent.memory.stop()
    await eventually(lambda: not world.agent.memory.is_taken, "the end of the stream")
    await eventually(lambda: world.agent.memory.is_taken, "registered again")
    resource = world.kubelet.resources["aliyun.com/gpu-mem"]
    lists = resource.lists
    await asyncio.sleep(0.5)
    assert resource.lists <= lists + 1


async def test_a_late_annotation_is_read(world: World) -> None:
    """The watch lags: the pod was seen before the scheduler wrote its choice."""
    world.api.fault = lambda kind, found: [(30.0, kind, found)]  # events come much later
    pod = world.pod("p", container(mem=6))
    world.agent.cluster.pods.put(json.loads(json.dumps(pod)))
    world.pod("p", container(mem=6), annotations=bound(1, 6))
    assert world.slots(await world.start(pod)) == [(1, 6116)]


async def test_a_pod_made_again_between_two_reads_gives_no_amount(world: World) -> None:
    """Deleted by force, and made again under its name with more units, while its container starts."""
    world.api.fault = lambda kind, found: [(30.0, kind, found)]
    pod = world.pod("p", container(mem=6))
    world.agent.cluster.pods.put(json.loads(json.dumps(pod)))
    world.api.remove(PODS, "team", "p")
    world.pod("p", container(mem=60), annotations=bound(1, 60))
    assert "pod team/p is another one now" in await world.refused(pod)


async def test_what_the_kubelet_has_counted_for_another_pod_of_the_name_is_refused(world: World) -> None:
    pod = world.pod("p", container(mem=6))
    env = await world.allocate(pod, "main")
    world.api.put(PODS, {**pod, "spec": {**pod["spec"], "containers": [container(mem=60)]}})
    await asyncio.sleep(0.3)
    reply = await world.prepare(world.bundle(pod, "main", env))
    assert "asks for 60 of aliyun.com/gpu-mem, and the kubelet has counted 6 for a container" in reply["error"]


# ---- pods that are deleted before their containers have ended ----

RUNNING = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}


@pytest.mark.parametrize("restart", [False, True])
async def test_what_a_deleted_pod_still_holds_is_published(world: World, restart: bool) -> None:
    pod = world.pod("p", container(mem=6), annotations=bound(1, 6))
    held = await world.start(pod)
    world.api.put(PODS, {**world.stored("p"), "status": RUNNING})
    other = await world.start(world.pod("q", container(mem=9), annotations=bound(0, 9)))
    await asyncio.sleep(0.3)
    assert world.remains() == {} and world.condition() is None
    if restart:
        await world.stop_agent()
    world.api.remove(PODS, "team", "p")
    if restart:
        await world.start_agent()
    await eventually(lambda: world.remains() == {"team/p": {1: 6}}, "the annotation")
    message = "pods were deleted before their containers ended; team/p: 6 GiB of GPU 1"
    await eventually(lambda: world.condition() == ("True", message), "the condition")
    if restart:  # of the agent alone, while it holds
        await world.stop_agent()
        await world.start_agent()
        await asyncio.sleep(0.5)
        assert world.remains() == {"team/p": {1: 6}}
    await world.end(held)
    await eventually(lambda: world.remains() == {"team/p": {}}, "the end")
    await eventually(lambda: world.condition() == ("False", ""), "the condition's end")
    assert other in world.link.containers


async def test_a_pod_that_was_deleted_by_force_and_holds_nothing_wakes_the_scheduler(world: World) -> None:
    """Its slices had ended when the node looked: an extender that refused a pod meanwhile gets the change."""
    world.pod("p", container(mem=6), annotations=bound(1, 6), status=RUNNING)
    await asyncio.sleep(0.3)
    world.api.remove(PODS, "team", "p")
    await eventually(lambda: world.condition() == ("True", ""), "True")
    await eventually(lambda: world.condition() == ("False", ""), "False")
    assert world.remains() == {"team/p": {}}


async def test_without_pods_from_the_api_server_no_pod_counts_as_deleted(world: World) -> None:
    await world.start(world.pod("p", container(mem=6), annotations=bound(1, 6)))
    world.agent.cluster.pods._failed = True
    world.agent.cluster.pods.objects.replace([])
    await world.agent._look_at_deleted()
    assert not world.agent._deleted


async def test_nvml_is_asked_when_a_pod_comes(tmp_path: Path) -> None:
    """Not when its first container starts, which would wait for the answer."""
    world = World(tmp_path)
    queries: list[None] = []

    def nvml() -> tuple[NvmlGpu, ...]:
        queries.append(None)
        return no_nvml()

    world.node.nvml = nvml
    async with world.offering():
        await world.start(world.pod("p", container(mem=6), annotations=bound(1, 6)))
        world.node.daemon.inventory.expire()
        world.agent._renew_due = 0.0
        queries.clear()
        world.pod("plain", container())
        await asyncio.sleep(0.3)
        assert not queries, "another pod is none of its business"
        world.pod("q", container(mem=6), annotations=bound(1, 6))
        await eventually(lambda: bool(queries), "a query")


# ---- what the agent writes into pods ----


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_pod_that_no_extender_has_bound_counts_where_it_is(world: World, restarts: bool) -> None:
    """By the kubelet's count it is on one GPU; the ledger counted it on both. @restarts: the agent, between two of its
    containers."""
    pod = world.pod("p", container("a", mem=6), container("b", mem=3), container("plain"))
    ((gpu, _),) = world.slots(await world.start(pod, "a"))
    if restarts:
        await world.stop_agent()
        await world.start_agent()
        await world.offers()
        await asyncio.sleep(0.5)
    assert not world.stored("p")["metadata"]["annotations"], "one of two containers"
    ((other, _),) = world.slots(await world.start(pod, "b"))
    found = await marked(world)
    assert found.containers == {"a": {gpu: 6}, "b": {other: 3}} and found.assigned
    assert world.counted("p") == ({gpu: 9} if other == gpu else {gpu: 6, other: 3})
    again = world.bundle(world.stored("p"), "a", {"ALIYUN_COM_GPU_GRANT": "kube"})
    assert (await world.prepare(again))["ok"], "a container that is started again has the same GPU"
    assert world.slots(again)[0][0] == gpu


async def marked(world: World, name: str = "p") -> keys.Allocation:
    def texts() -> dict[str, str]:
        return world.stored(name)["metadata"]["annotations"]

    await eventually(lambda: keys.ALLOCATION in texts(), "the pod's annotations")
    found = keys.parse(texts())
    assert found is not None
    return found


def ended_init(pod: dict[str, Any]) -> dict[str, Any]:
    """Its status as a kubelet of 1.36 writes it: an init container has ended, the others run."""
    ended = {"exitCode": 0, "reason": "Completed", "containerID": f"containerd://{'0' * 64}"}
    return {
        **pod,
        "status": {
            "phase": "Running",
            "initContainerStatuses": [
                {"name": one["name"], "containerID": ended["containerID"], "state": {"terminated": ended}}
                for one in pod["spec"]["initContainers"]
            ],
            "containerStatuses": [
                {"name": one["name"], "containerID": f"containerd://{'1' * 64}", "state": {"running": {}}}
                for one in pod["spec"]["containers"]
            ],
        },
    }


async def restarted_after_init(world: World, units: int, init: int, main: int) -> None:
    """The agent restarts when the init container has ended, and again when the main one runs and the API server has
    refused its mark: the pod counts once, on the GPU that it has."""
    await world.offers(units)
    pod = world.pod("p", container(mem=main), init=(container("init", mem=init),))
    first = await world.start(pod, "init")
    used = tuple(world.kubelet.resources[GPU_MEM].used)
    if world.mode != host.SHARE:  # where cgpud keeps no record, and no hook reports an end
        await world.end(first)
    await world.stop_agent()
    await world.start_agent()
    await world.offers(units)

    def refuse(method: str, path: str) -> None:
        if method == "PATCH" and "/pods/" in path:
            raise Refusal(500, "InternalError", "etcd has no leader")

    world.api.before = refuse
    reuse = await world.allocate(pod, "main", used)
    reply = await world.prepare(world.bundle(pod, "main", reuse))
    assert reply["ok"], reply
    world.api.put(PODS, ended_init(pod))
    await asyncio.sleep(0.3)
    assert world.counted("p") == dict.fromkeys((0, 1), max(init, main)), "on each, as long as its GPU is not known"
    await world.stop_agent()
    world.api.before = None
    await world.start_agent()
    found = await marked(world)
    (gpu,) = found.index
    assert found.containers == {"init": {gpu: init}, "main": {gpu: main}} and found.assigned
    assert world.counted("p") == {gpu: max(init, main)}, "not the sum"


async def test_an_ended_init_container_keeps_its_mark_and_no_memory(world: World) -> None:
    await restarted_after_init(world, 15 + 79, 60, 50)
    second = world.pod("q", container(mem=29), annotations=bound(1, 29))
    assert world.slots(await world.start(second))[0][0] == 1, "the init container's part is free"
    third = world.pod("r", container(mem=1), annotations=bound(1, 1))
    assert "GPU 1 has" in await world.refused(third)


async def test_an_edited_annotation_ends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pod that runs, by its author: the agent looks at it at each clean-up of grants."""
    for name in ("p", "q"):
        await world.start(world.pod(name, container(mem=6), annotations=bound(1, 6)))
    await eventually(lambda: len(world.agent._cleaner._granted) == 2, "a clean-up has seen both")
    looks = [0]
    cleaned = world.agent._cleaner._clean

    async def counted() -> None:
        looks[0] += 1
        await cleaned()

    monkeypatch.setattr(world.agent._cleaner, "_clean", counted)
    for name, index in (("p", "x"), ("q", "1")):
        stored = world.stored(name)
        texts = {**stored["metadata"]["annotations"], keys.INDEX: index, keys.ASSIGNED: "false"}
        world.api.put(PODS, {**stored, "metadata": {**stored["metadata"], "annotations": texts}})

    def of(name: str) -> str:
        stored = world.api.get(PODS, "team", name)
        return str(stored["metadata"]["annotations"][keys.ASSIGNED]) if stored else ""

    await eventually(lambda: of("q") == "true", "the other pod has its mark again")
    before = looks[0]
    await eventually(lambda: looks[0] > before + 2, "grants are cleaned up as before")
    assert of("p") == "false" and world._task is not None and not world._task.done()


async def test_a_refused_mark_is_not_tried_again(world: World) -> None:
    """The kubelet's identity may not write annotations: one refusal a pod and minute was in the API server's log."""
    refused: list[str] = []

    async def forbid(method: str, path: str) -> None:
        if method == "PATCH" and "/pods/" in path:
            refused.append(path)
            await asyncio.sleep(0.5)  # clean-ups come meanwhile
            name = path.rpartition("/")[2]
            raise Refusal(
                403,
                "Forbidden",
                f'pods "{name}" is forbidden: User "system:node:n1" cannot patch resource "pods" in API group "" '
                f'in the namespace "team"',
            )

    world.api.before = forbid
    for number in range(3):
        await world.start(world.pod(f"p{number}", container(mem=2), annotations=bound(0, 2)))
    await asyncio.sleep(1.0)  # five clean-ups
    assert len(refused) == 1


async def test_a_refusal_about_one_pod_is_of_that_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an admission webhook. It is tried again after minutes."""

    def marked(name: str) -> bool:
        return world.stored(name)["metadata"]["annotations"][keys.ASSIGNED] == "true"

    refused: list[str] = []

    def forbid(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/pods/a"):
            refused.append(path)
            raise Refusal(403, "Forbidden", 'admission webhook "w" denied the request: team/a is frozen')

    world.api.before = forbid
    for name in ("a", "b"):
        await world.start(world.pod(name, container(mem=2), annotations=bound(0, 2)))
    await eventually(lambda: marked("b"), "the other pod has its mark")
    await asyncio.sleep(1.0)  # five clean-ups
    assert len(refused) == 1 and not marked("a")
    world.api.before = None
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + marks.AGAIN_S, time_ns=time.time_ns)
    monkeypatch.setattr(marks, "time", later)
    await eventually(lambda: marked("a"), "it is tried again")


async def test_the_agents_own_label_follows_its_mode(world: World) -> None:
    def label() -> str | None:
        return (world.own_node()["metadata"].get("labels") or {}).get(keys.AGENT_LABEL)

    await eventually(lambda: label() == "cgpu", "the label")
    node = copy.deepcopy(world.own_node())
    del node["metadata"]["labels"][MODE_LABEL]
    world.api.put(NODES, node)
    await asyncio.sleep(0.3)
    assert label() == "cgpu" and world.offered() == 94, "without a label the node keeps its mode, and the agent"
    world.label("default", **{keys.AGENT_LABEL: "cgpu"})
    await eventually(lambda: label() is None, "no label in another mode")


async def test_the_labels_of_the_cards(world: World) -> None:
    def labels() -> dict[str, str]:
        found = world.own_node()["metadata"].get("labels") or {}
        return {key: text for key, text in found.items() if key.startswith("aliyun.accelerator/")}

    await eventually(lambda: labels() == host.card_labels(world.agent.gpus) != {}, "of two sizes")
    assert labels()[keys.CARD_COUNT] == "2" and keys.CARD_MEM not in labels()
    world.link.inventory = world.link.inventory[:1]
    await eventually(lambda: labels().get(keys.CARD_COUNT) == "1", "of one")
    assert labels()[keys.CARD_MEM] == f"{SIZES[0]}MiB"
    gpu = HostGpu(0, "GPU-0", 81559, 81559, name="NVIDIA H100 80GB HBM3 (rev. a)")
    assert host.card_labels([gpu])[keys.CARD_NAME] == "NVIDIA-H100-80GB-HBM3-rev.-a"
    assert host.card_labels([replace(gpu, name="x" * 62 + " y")])[keys.CARD_NAME] == "x" * 62
    assert host.card_labels([gpu, replace(gpu, name="other")]) == {keys.CARD_COUNT: "2", keys.CARD_MEM: "81559MiB"}
    assert host.card_labels([]) == {}
