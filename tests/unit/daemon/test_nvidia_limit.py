# SPDX-License-Identifier: MIT
"""NVIDIA's own limit of a container, NVIDIA_GPU_MEMORY_LIMIT: a slice by it, and beside a slice of ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakelink import FakeLink, example_gpus
from fakes import VARIABLES, Node

from cgpu_common.cards import Gpu
from cgpu_common.config import Config
from cgpu_common.errors import BadVariable, Refused
from cgpu_common.model import MIB
from cgpu_common.settings import Caps, GpuSettings
from cgpud import env
from cgpud.admit import admit, check_disable
from cgpud.env import NVIDIA, NVIDIA_LIMIT, NVIDIA_REQUEST, SPEC_NODES
from cgpud.values import Devices, NamedLimit, NotSliced, Request

C, D = env.CONTAINER, env.DEV
ID = "0123456789abcdef" * 4
OURS = {C: "6", D: "15"}
GPUS = [Gpu(n, n, f"GPU-{n}{n}aa-0000", f"0000:0{n}:00.0", n + 2, 15109, 20, 20) for n in range(2)]


def limit(mib: int, variable: str = NVIDIA_LIMIT) -> NamedLimit:
    return NamedLimit(variable, mib)


BY_SPEC = Devices(SPEC_NODES)
SLICED = [
    # (description, variables, devices, limit)
    ("the limit alone", {NVIDIA_LIMIT: "4096"}, BY_SPEC, limit(4096)),
    ("void, as CDI leaves it", {NVIDIA_LIMIT: "4096", NVIDIA: "void"}, BY_SPEC, limit(4096)),
    ("none", {NVIDIA_LIMIT: "4096", NVIDIA: "none"}, BY_SPEC, limit(4096)),
    ("all", {NVIDIA_LIMIT: "4096", NVIDIA: "all"}, replace(BY_SPEC, all=True), limit(4096)),
    ("a list", {NVIDIA_LIMIT: "4096", NVIDIA: "1"}, Devices(NVIDIA, items=(1,)), limit(4096)),
    ("our list", {NVIDIA_LIMIT: "4096", env.VISIBLE: "1"}, Devices(env.VISIBLE, items=(1,)), limit(4096)),
    ("both", {NVIDIA_LIMIT: "4096", NVIDIA_REQUEST: "1024"}, BY_SPEC, limit(4096)),
    ("the request alone", {NVIDIA_REQUEST: "1024"}, BY_SPEC, limit(1024, NVIDIA_REQUEST)),
    ("an empty one of the two", {NVIDIA_LIMIT: " ", NVIDIA_REQUEST: "1024"}, BY_SPEC, limit(1024, NVIDIA_REQUEST)),
    ("our empty size", {NVIDIA_LIMIT: "4096", C: ""}, BY_SPEC, limit(4096)),
]


@pytest.mark.parametrize(("values", "devices", "given"), [row[1:] for row in SLICED], ids=[row[0] for row in SLICED])
def test_a_slice_by_nvidias_names(values: dict[str, str], devices: Devices, given: NamedLimit) -> None:
    found = env.parse(values, nvidia_slices=True)
    assert found == Request(devices, (), 0, nvidia=given, by_nvidia=True)


@pytest.mark.parametrize("values", [{NVIDIA_LIMIT: "4096"}, {NVIDIA_LIMIT: "junk"}, {NVIDIA_REQUEST: ""}], ids=str)
def test_where_the_administrator_says_nothing_they_are_nvidias(values: dict[str, str]) -> None:
    assert env.parse(values) == NotSliced("no cGPU variable")


def test_set_to_nothing_is_not_unset() -> None:
    found = env.parse({NVIDIA_LIMIT: ""}, nvidia_slices=True)
    assert isinstance(found, NotSliced) and found.switched_off
    with pytest.raises(Refused, match=f"{NVIDIA_LIMIT} is set to nothing, and a container may not"):
        check_disable(found, Caps(disable="deny"))


@pytest.mark.parametrize("off", [{C: "0"}, {env.DISABLE: "true"}], ids=str)
def test_cgpu_switched_off_is_no_slice_by_nvidias_names(off: dict[str, str]) -> None:
    found = env.parse({NVIDIA_LIMIT: "4096", **off}, nvidia_slices=True)
    assert isinstance(found, NotSliced) and found.switched_off


@pytest.mark.parametrize("value", ["0", "-1", "4GiB", "4096.0", "max", "٣", "9" * 10, "9" * (1 << 20)], ids=ascii)
@pytest.mark.parametrize("more", [{}, OURS], ids=["alone", "beside ours"])
def test_a_bad_value_is_one_sentence(value: str, more: dict[str, str]) -> None:
    for name in (NVIDIA_LIMIT, NVIDIA_REQUEST):
        with pytest.raises(BadVariable, match=f"^{name}=") as caught:
            env.parse({name: value, **more}, nvidia_slices=True)
        assert "a whole number of MiB from 1 to" in str(caught.value) and len(str(caught.value)) < 200


def test_a_request_above_the_limit_is_refused_as_by_nvidia() -> None:
    with pytest.raises(Refused, match=f"{NVIDIA_REQUEST}=4097 is more than {NVIDIA_LIMIT}=4096"):
        env.parse({NVIDIA_LIMIT: "4096", NVIDIA_REQUEST: "4097"}, nvidia_slices=True)


# ---- which one counts ----


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize(
    ("theirs", "mib"), [(4096, 4096), (6042, 6042), (6043, 6043), (6044, 6043), (100_000, 6043)], ids=str
)
def test_beside_ours_the_smaller_one_counts(slices: bool, theirs: int, mib: int) -> None:
    request = env.parse({**OURS, NVIDIA_LIMIT: str(theirs)}, nvidia_slices=slices)
    assert isinstance(request, Request) and not request.by_nvidia
    plan = admit(request, GPUS[:1], [])
    assert [slot.limit for slot in plan.slots] == [mib * MIB]
    said = f"{NVIDIA_LIMIT}={theirs}, and {C}=6 is 6043 MiB of GPU 0: the smaller one counts, {mib} MiB"
    assert plan.warnings == (() if theirs == 6043 else (said,))


def test_a_request_of_nvidias_bounds_no_slice_of_ours() -> None:
    plan = admit(env.parse({**OURS, NVIDIA_REQUEST: "100"}, nvidia_slices=True), GPUS[:1], [])  # type: ignore[arg-type]
    assert plan.slots[0].limit == 6043 * MIB


def test_a_default_size_is_bounded_too() -> None:
    request = env.parse({env.VISIBLE: "0", NVIDIA_LIMIT: "4096"}, default_memsize=True)
    assert isinstance(request, Request)
    plan = admit(request, [replace(GPUS[0], default_mib=8192)], [])
    assert plan.slots[0].limit == 4096 * MIB


@pytest.mark.parametrize(
    ("values", "limits", "sentence"),
    [
        ({NVIDIA_LIMIT: "9000"}, Caps(max_memory_mib=8192), f"{NVIDIA_LIMIT}=9000 asks for 9000 MiB of GPU 0"),
        ({NVIDIA_LIMIT: "9000", **OURS}, Caps(max_memory_mib=1000), f"{C}=6 asks for 6043 MiB of GPU 0"),
        ({NVIDIA_LIMIT: "16"}, Caps(), f"{NVIDIA_LIMIT}=16 gives 16 MiB of GPU 0, and one context takes 32, so that"),
        ({NVIDIA_LIMIT: "16", **OURS}, Caps(), f"{NVIDIA_LIMIT}=16 gives 16 MiB"),
        ({NVIDIA_LIMIT: "15110"}, Caps(), "GPU 0 has 15109 of its 15109 MiB left and 15110 MiB were requested"),
    ],
    ids=str,
)
def test_a_refusal_names_the_variable_that_counts(values: dict[str, str], limits: Caps, sentence: str) -> None:
    request = env.parse({**values, env.VISIBLE: "0"}, nvidia_slices=True)
    with pytest.raises(Refused) as caught:
        admit(request, GPUS, [], limits)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert "in one unit" not in str(caught.value), "MiB are MiB"


# ---- the daemon ----


@pytest.fixture
def two(node: Node) -> Node:
    """A node with two GPUs and slices by NVIDIA's names."""
    node.link = FakeLink(example_gpus(2))
    node.config = Config(kube_wait_s=0, container=Caps(nvidia_memory_limit="slice"))
    return node


def write_spec(node: Node, variables: tuple[str, ...], *minors: int, drm: bool = False) -> str:
    """A config.json as NVIDIA's runtime leaves it: nodes of these GPUs."""
    names = [(f"/dev/nvidia{minor}", 195, minor) for minor in minors]
    shared = [("/dev/nvidiactl", 195, 255), ("/dev/nvidia-uvm", 511, 0), ("/dev/dri/renderD128", 226, 128)]
    devices = [*names, *shared] if minors else [*shared[2:]] * drm
    with node.edited(ID, variables) as spec:
        spec["linux"]["devices"] = [{"path": path, "type": "c", "major": one, "minor": n} for path, one, n in devices]
        spec["mounts"] = [mount for mount in spec["mounts"] if "/dev/" not in str(mount["source"])]
        rules = spec["linux"]["resources"]["devices"]
        spec["linux"]["resources"]["devices"] = [rule for rule in rules if rule.get("major") not in (195, 226, 511)]
        spec["hooks"] = {}
    return str(node.directory / "bundles" / ID)


async def ask(node: Node, directory: str) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The reply, and (GPU, MiB) of the slots."""
    reply = await node.ask(op="prepare", id=ID, bundle=directory)
    return reply, [(slot.gpu, slot.limit // MIB) for one in node.link.containers.values() for slot in one.slots]


VOID = f"{NVIDIA}=void"
GIVEN = [
    # (description, variables, minors of the nodes, slots)
    ("the GPUs of CDI", (f"{NVIDIA_LIMIT}=4096", VOID), (1,), [(1, 4096)]),
    ("both", (f"{NVIDIA_LIMIT}=4096", VOID), (1, 0), [(0, 4096), (1, 4096)]),
    ("the image's all, and CDI's nodes", (f"{NVIDIA_LIMIT}=4096", f"{NVIDIA}=all"), (1,), [(1, 4096)]),
    ("all without a runtime of NVIDIA's", (f"{NVIDIA_LIMIT}=4096", f"{NVIDIA}=all"), (), [(0, 4096), (1, 4096)]),
    ("no GPU", (f"{NVIDIA_LIMIT}=4096", VOID), (), []),
    ("the request alone", (f"{NVIDIA_REQUEST}=2048", VOID), (0,), [(0, 2048)]),
]


@pytest.mark.parametrize(("variables", "minors", "slots"), [row[1:] for row in GIVEN], ids=[row[0] for row in GIVEN])
async def test_the_gpus_are_those_of_the_container(
    two: Node, variables: tuple[str, ...], minors: tuple[int, ...], slots: list[tuple[int, int]]
) -> None:
    directory = write_spec(two, variables, *minors)
    async with two.running():
        reply, made = await ask(two, directory)
        assert (reply["ok"], reply["action"], made) == (True, "edited" if slots else "pass", slots), reply


async def test_a_spec_that_starts_again_has_the_same_gpus(two: Node) -> None:
    """config.json has our mounts in place of NVIDIA's nodes by then."""

    directory = write_spec(two, (f"{NVIDIA_LIMIT}=4096", VOID), 1)
    async with two.running():
        assert (await ask(two, directory))[1] == [(1, 4096)]
        reply, made = await ask(two, directory)
        assert (reply["ok"], made) == (True, [(1, 4096)]), reply


async def test_a_gpu_that_is_not_here_is_named(two: Node) -> None:
    directory = write_spec(two, (f"{NVIDIA_LIMIT}=4096", VOID), 7)
    async with two.running():
        reply, made = await ask(two, directory)
        assert "config.json has /dev/nvidia7, which is no GPU" in reply["error"] and not made


async def test_a_node_of_drm_alone_does_not_say_which_gpu(two: Node) -> None:
    directory = write_spec(two, (f"{NVIDIA_LIMIT}=4096", VOID), drm=True)
    async with two.running():
        reply, made = await ask(two, directory)
        assert f"{NVIDIA_LIMIT} asks for a slice, and config.json does not say of which GPU" in reply["error"]
        assert not made


async def test_the_default_leaves_nvidias_limit_to_nvidia(node: Node) -> None:
    directory = write_spec(node, (f"{NVIDIA_LIMIT}=4096", VOID), 0)
    before = (node.directory / "bundles" / ID / "config.json").read_bytes()
    async with node.running():
        assert await ask(node, directory) == ({"ok": True, "action": "pass"}, [])
    assert (node.directory / "bundles" / ID / "config.json").read_bytes() == before


async def test_where_whole_gpus_are_refused_it_is_a_slice_or_nothing(node: Node) -> None:
    node.config = Config(kube_wait_s=0, gpu=GpuSettings(unsliced="refuse"))
    directory = write_spec(node, (f"{NVIDIA_LIMIT}=4096", VOID), 0)
    async with node.running() as daemon:
        reply, made = await ask(node, directory)
        assert "GPU 0 is shared in slices only" in reply["error"] and not made
        await daemon.reload(replace(node.config, container=Caps(nvidia_memory_limit="slice")))
        assert (await ask(node, directory))[1] == [(0, 4096)]


async def test_beside_our_variables_the_user_reads_which_counts(node: Node) -> None:
    async with node.running():
        reply = await node.prepare(ID, (*VARIABLES, f"{NVIDIA_LIMIT}=4096"))
        assert reply["ok"] and "the smaller one counts, 4096 MiB" in reply["warning"]
        (container,) = node.link.containers.values()
        assert container.slots[0].limit == 4096 * MIB


async def test_where_grants_are_required_a_limit_of_nvidias_is_no_grant(two: Node) -> None:
    two.config = replace(two.config, container=Caps(nvidia_memory_limit="slice", grants="required"))
    directory = write_spec(two, (f"{NVIDIA_LIMIT}=4096", VOID), 0)
    async with two.running():
        reply, made = await ask(two, directory)
        assert "no grant gives the container one" in reply["error"] and not made
