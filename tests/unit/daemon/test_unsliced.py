# SPDX-License-Identifier: MIT
"""Which whole GPUs a container without a slice gets, and whether one of them is blocked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common.cards import Gpu
from cgpu_common.errors import Refused
from cgpud import unsliced
from cgpud.env import NVIDIA
from cgpud.unsliced import SpecDevices
from cgpud.values import Devices

MAJORS = frozenset({195, 511, 226, 236})
PLAIN = json.loads((Path(__file__).parent / "data/docker.json").read_text())
PLAIN["mounts"] = PLAIN["mounts"][:4]
PLAIN["linux"]["devices"] = [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}]
PLAIN["linux"]["resources"]["devices"] = [
    {"allow": False, "access": "rwm"},
    {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "rwm"},
    {"allow": True, "type": "c", "access": "m"},
]
HOOK = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}
CTL = {"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}


def spec(
    *,
    nodes: tuple[dict[str, Any], ...] = (),
    mounts: tuple[tuple[str, str], ...] = (),
    rules: tuple[dict[str, Any], ...] = (),
    hook: bool = False,
    stage: str = "prestart",
    hooks: tuple[dict[str, Any], ...] = (HOOK,),
) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(json.dumps(PLAIN))
    out["linux"]["devices"] += nodes
    out["mounts"] += [{"source": a, "destination": b, "type": "bind"} for a, b in mounts]
    out["linux"]["resources"]["devices"] += rules
    if hook:
        out["hooks"][stage] = list(hooks)
    return out


def node(path: str, major: int, minor: int) -> dict[str, Any]:
    return {"path": path, "type": "c", "major": major, "minor": minor}


def minors(*numbers: int) -> SpecDevices:
    return SpecDevices(minors=frozenset(numbers))


def drm(*numbers: int) -> SpecDevices:
    return SpecDevices(drm=frozenset(numbers))


def sh(script: str) -> dict[str, Any]:
    return {"path": "/bin/sh", "args": ["sh", "-c", script]}


def cli(*words: str) -> dict[str, Any]:
    tool = ["/usr/bin/nvidia-container-cli", "--load-kmods", "configure", *words, "--pid={{pid}}", "{{rootfs}}"]
    return {"path": "/usr/bin/containerd", "args": ["containerd", "oci-hook", "--", *tool]}


def of_cli(*numbers: int) -> SpecDevices:
    return SpecDevices(named=(Devices("nvidia-container-cli", items=numbers),))


EVERY = SpecDevices(every=True)
INSTANCE = tuple(node(f"/dev/nvidia-caps/nvidia-cap{n}", 236, n) for n in (21, 22))
CASES = [
    ("nothing", spec(), {}, SpecDevices()),
    ("an image's all where nothing brings a GPU", spec(), {NVIDIA: "all"}, SpecDevices()),
    ("its node", spec(nodes=(node("/dev/nvidia1", 195, 1), CTL)), {}, minors(1)),
    ("an instance of MIG", spec(nodes=(node("/dev/nvidia1", 195, 1), *INSTANCE, CTL)), {}, minors(1)),
    (
        "an instance of MIG, by mounts",
        spec(mounts=tuple((path, path) for path in ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap21"))),
        {},
        minors(1),
    ),
    ("rights to an instance alone", spec(nodes=(*INSTANCE, CTL)), {}, EVERY),
    (
        "what is no such node",
        spec(nodes=(node("/dev/nvidia1", 195, 1), node("/dev/nvidia-caps/x", 236, 1))),
        {},
        SpecDevices(every=True, minors=frozenset({1})),
    ),
    ("its number elsewhere", spec(nodes=(node("/dev/x", 195, 1),)), {}, minors(1)),
    ("its mount", spec(mounts=(("/dev/nvidia2", "/gpu"),)), {}, minors(2)),
    ("its rule", spec(rules=({"allow": True, "type": "c", "major": 195, "minor": 3, "access": "rw"},)), {}, minors(3)),
    ("the driver's rule", spec(rules=({"allow": True, "type": "c", "major": 195, "access": "rw"},)), {}, EVERY),
    ("drm", spec(nodes=(node("/dev/dri/renderD128", 226, 129),)), {}, drm(129)),
    ("drm without a number", spec(nodes=({"path": "/dev/dri/card1", "type": "c"},)), {}, drm(1)),
    ("drm elsewhere", spec(nodes=(node("/dev/x", 226, 1),)), {}, drm(1)),
    ("drm's mount", spec(mounts=(("/dev/dri/renderD129", "/dev/dri/renderD128"),)), {}, drm(128, 129)),
    ("drm's directory", spec(mounts=(("/dev/dri", "/dev/dri"),)), {}, EVERY),
    ("drm by PCI address", spec(nodes=(node("/dev/dri/by-path/pci-0000:01:00.0-card", 226, 1),)), {}, EVERY),
    ("drm's rule", spec(rules=({"allow": True, "type": "c", "major": 226, "minor": 1, "access": "rw"},)), {}, drm(1)),
    ("every drm's rule", spec(rules=({"allow": True, "type": "c", "major": 226, "access": "rw"},)), {}, EVERY),
    ("nvidiactl and drm", spec(nodes=(CTL, node("/dev/dri/card1", 226, 1))), {}, SpecDevices(True, drm=frozenset({1}))),
    (
        "a GPU with its drm, as CDI has them",
        spec(nodes=(node("/dev/nvidia1", 195, 1), CTL, node("/dev/dri/card1", 226, 1))),
        {},
        SpecDevices(minors=frozenset({1}), drm=frozenset({1})),
    ),
    ("nvidiactl alone", spec(nodes=(CTL,)), {}, EVERY),
    ("everything", spec(rules=({"allow": True, "access": "rwm"},)), {}, EVERY),
    ("a legacy hook that does nothing", spec(hook=True), {}, SpecDevices()),
    ("a legacy hook told to do nothing", spec(hook=True), {NVIDIA: "void"}, SpecDevices()),
    ("a legacy hook without a GPU", spec(hook=True), {NVIDIA: "none"}, SpecDevices()),
    ("a legacy hook and an old image", spec(hook=True), {"CUDA_VERSION": "8.0"}, EVERY),
    ("a legacy hook and all", spec(hook=True), {NVIDIA: "all"}, EVERY),
    ("a legacy hook and MIG", spec(hook=True), {NVIDIA: "0:1"}, EVERY),
    (
        "a legacy hook and a list",
        spec(hook=True),
        {NVIDIA: "1,GPU-aaaa"},
        SpecDevices(named=(Devices(NVIDIA, items=(1, "GPU-aaaa")),)),
    ),
    ("a legacy hook elsewhere", spec(hook=True, stage="createContainer"), {NVIDIA: "all"}, EVERY),
    ("a legacy hook by a shell", spec(hook=True, hooks=(sh(f"exec {HOOK['path']} prestart"),)), {NVIDIA: "all"}, EVERY),
    ("--gpus all of containerd", spec(hook=True, stage="createRuntime", hooks=(cli("--device=all"),)), {}, EVERY),
    ("--gpus 1 of containerd", spec(hook=True, stage="createRuntime", hooks=(cli("--device=1"),)), {}, of_cli(1)),
    ("--gpus 1 apart", spec(hook=True, stage="poststart", hooks=(cli("--device", "1"),)), {}, of_cli(1)),
    ("NVIDIA's command line tool twice", spec(hook=True, hooks=(cli("--device=1", "--device=2"),)), {}, EVERY),
    ("NVIDIA's command line tool, MIG", spec(hook=True, hooks=(cli("--device=0:1"),)), {}, EVERY),
    ("NVIDIA's command line tool, no list", spec(hook=True, hooks=(cli(),)), {}, EVERY),
    ("a list by mounts", spec(mounts=(("/dev/null", "/var/run/nvidia-container-devices/all"),)), {}, EVERY),
]


@pytest.mark.parametrize(("config", "env", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_what_a_spec_brings(config: dict[str, Any], env: dict[str, str], expected: SpecDevices) -> None:
    found = unsliced.devices_in_spec(config, MAJORS, env)
    assert found == expected
    assert bool(found) == (expected != SpecDevices())


_JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 300), st.sampled_from(["/dev/nvidia0", "c", "bind", "\0", ""])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["path", "type", "major", "minor", "allow", "access", "source"]), inner, max_size=4
        ),
    ),
)


@given(_JUNK, st.sampled_from(["devices", "rules", "mounts", "hooks", "entry"]))
def test_junk_is_an_answer_or_a_sentence(junk: object, where: str) -> None:
    damaged = spec()
    match where:
        case "devices":
            damaged["linux"]["devices"] = junk
        case "rules":
            damaged["linux"]["resources"]["devices"] = junk
        case "entry":
            damaged["linux"]["devices"].append({"path": junk, "type": "c", "major": junk, "minor": junk})
        case _:
            damaged[where] = junk
    try:
        assert isinstance(unsliced.devices_in_spec(damaged, MAJORS, {NVIDIA: "all"}), SpecDevices)
    except Refused as error:
        assert "\n" not in str(error)


#: In 32 bits, as crun has them: every number, and the driver's; in the 12 bits that mknod() has: the driver's.
OTHER_NUMBERS = ((1 << 32) - 1, (1 << 31) + 195, (1 << 32) + 195, 195 - (1 << 32), 195.0, "195", True)
OTHERS = [("major", 4096 + 195), *((field, number) for field in ("major", "minor") for number in OTHER_NUMBERS)]


@pytest.mark.parametrize(("field", "number"), OTHERS)
@pytest.mark.parametrize("where", ["devices", "rules"])
def test_a_number_that_a_runtime_reads_as_another(field: str, number: object, where: str) -> None:
    found = spec()
    entry = {"path": "/dev/x", "type": "c", "allow": True, "access": "rwm", "major": 10, "minor": 200}
    entries = found["linux"]["devices"] if where == "devices" else found["linux"]["resources"]["devices"]
    entries.append(entry)
    assert not unsliced.devices_in_spec(found, MAJORS, {})
    entry[field] = number
    with pytest.raises(Refused, match=f"config.json has a {field} of .* and no device has it"):
        unsliced.devices_in_spec(found, MAJORS, {})


GPUS = [Gpu(n, 5 - n, f"GPU-{n}{n}{n}{n}", f"0000:0{n}:00.0", n + 2, 1000, 20, 20) for n in range(3)]


DRM = {0: "", 1: "0000:00:00.0", 128: "", 129: "0000:00:00.0", 2: "0000:02:00.0", 3: "0000:09:00.0"}


def blocked(found: SpecDevices, *refusing: int) -> str | None:
    return unsliced.blocked_gpu(found, GPUS, lambda gpu: gpu.number in refusing, DRM)


def test_the_gpu_that_is_blocked_is_named() -> None:
    assert blocked(minors(2, 3), 1) == "GPU 1"
    assert blocked(minors(2), 1) is None
    assert blocked(EVERY, 2) == "GPU 2"
    assert blocked(EVERY) is None
    assert blocked(SpecDevices(named=(Devices(NVIDIA, items=(0, "GPU-2")),)), 2) == "GPU 2"
    assert blocked(SpecDevices(named=(Devices(NVIDIA, items=(0,)),)), 2) is None


def test_a_node_of_drm_is_its_gpus() -> None:
    assert blocked(drm(1, 129), 1, 2) is None
    assert blocked(drm(1), 0) == blocked(drm(129), 0) == "GPU 0"
    assert blocked(drm(0, 128), 0, 1, 2) is None, "of another vendor"
    assert blocked(drm(7), 2) == "GPU 2", "it may be of any"
    assert blocked(drm(3)) == "a GPU that cgpu_km does not know"
    assert unsliced.blocked_gpu(drm(0), [], lambda gpu: True, DRM) is None
    assert unsliced.blocked_gpu(drm(7), [], lambda gpu: False, DRM) == "a GPU that cgpu_km does not know"


def test_what_is_not_known_is_not_given() -> None:
    assert blocked(minors(9), 0) == "a GPU that cgpu_km does not know"
    assert unsliced.blocked_gpu(EVERY, [], lambda gpu: False, {}) == "a GPU that cgpu_km does not know"
    with pytest.raises(Refused, match="names GPU 7"):
        blocked(SpecDevices(named=(Devices(NVIDIA, items=(7,)),)), 0)


def test_the_numbers_that_hooks_may_not_open() -> None:
    assert unsliced.blocked_numbers(GPUS, lambda gpu: gpu.number in (0, 2)) == "195:2-2,195:4-4"
    assert unsliced.blocked_numbers(GPUS, lambda gpu: False) == ""
    assert unsliced.blocked_numbers([], lambda gpu: False) == "195:0-31", "none is known yet"
