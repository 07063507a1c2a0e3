# SPDX-License-Identifier: MIT
"""The files and the kernel: at start, on reload, after the module was loaded again; how a difference is reported."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from fakelink import FakeLink, example_gpus
from fakes import DATA, FAKE_CGPUD, VARIABLES, Node
from hypothesis import given
from hypothesis import strategies as st

from cgpu_common import config, policies, settings
from cgpu_common.cards import Gpu
from cgpu_common.config import Config
from cgpu_common.kernel_abi import G
from cgpu_common.model import MIB, KernelGpu
from cgpu_common.settings import GpuSettings
from cgpud import __main__ as cgpud_main

ID = "0123456789abcdef" * 4
GPU = Gpu(3, 0, "GPU-AAAA", "0000:0A:00.0", 0, 1000, 20, 20, kernel=KernelGpu(0, "GPU-AAAA", "", 0, 0, born=1))


def parse(text: str) -> Config:
    return config.merge([("cgpu.toml", tomllib.loads(text))])


def logged(logs: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    """The lines of one event, without the keys that the log adds."""
    return [
        {key: value for key, value in line.items() if key not in ("event", "log_level")}
        for line in logs
        if line["event"] == event
    ]


# ---- the desired values ----


def test_the_most_particular_table_wins() -> None:
    base = GpuSettings(policy=1, max_inst=5, uvm=0)
    tables = {
        "3": GpuSettings(policy=2, max_inst=6, prio_ratio=30),
        "0000:0a:00.0": GpuSettings(policy=3, max_inst=7),
        "gpu-aaaa": GpuSettings(policy=4),
        "0": GpuSettings(policy=0),
    }
    assert settings.resolve(base, tables, GPU) == GpuSettings(policy=4, max_inst=7, prio_ratio=30, uvm=0)
    assert settings.unmatched(tables, [GPU]) == ("0",)


def test_what_left_the_files_gets_the_kernels_default() -> None:
    old, new = GpuSettings(policy=2, max_inst=5, slice_us=3000), GpuSettings(max_inst=6)
    assert settings.desired(new, old) == {"policy": 5, "max_inst": 6, "slice_us": 0}
    assert settings.desired(new, new) == {"max_inst": 6}


_SETTINGS = st.builds(
    GpuSettings,
    policy=st.one_of(st.none(), st.integers(0, 5)),
    max_inst=st.one_of(st.none(), st.integers(1, 25)),
    slice_us=st.one_of(st.none(), st.just(0), st.integers(1000, 100000)),
    overcommit=st.one_of(st.none(), st.integers(100, 1000)),
    default_memsize_mib=st.one_of(st.none(), st.integers(0, 1 << 20)),
)


@given(_SETTINGS)
def test_what_was_set_as_wanted_is_no_drift(wish: GpuSettings) -> None:
    want = settings.configured(wish)
    kernel = replace(
        GPU.kernel,  # type: ignore[type-var]
        policy=want.get("policy", 5),
        max_inst=want.get("max_inst", 20),
        slice_us=want.get("slice_us", 7000),
        slice_is_set=want.get("slice_us", 0) != 0,
        overcommit=want.get("overcommit", 100),
        default_memsize=want.get("default_memsize_mib", 8 << 30),
    )
    assert settings.drift(wish, {}, [replace(GPU, kernel=kernel)]) == []


def test_a_gpu_that_is_not_attached_has_no_drift() -> None:
    """Its values are the module's defaults, and those of the files are set when it is."""
    wish = GpuSettings(policy=GPU.kernel.policy + 1)
    assert [row["key"] for row in settings.drift(wish, {}, [GPU])] == ["policy"]
    assert settings.drift(wish, {}, [replace(GPU, kernel=replace(GPU.kernel, born=0)), replace(GPU, kernel=None)]) == []


# ---- into the kernel ----


async def test_applied_at_start_and_only_what_is_another(node: Node) -> None:
    node.link = FakeLink(example_gpus(2))
    node.config = parse('[gpu]\npolicy = "fixed"\nmax_inst = 20\n[gpu."1"]\npolicy = 5\novercommit = 150')
    with structlog.testing.capture_logs() as logs:
        async with node.running():
            assert node.link.set_calls == [(0, {G.POLICY: 3}), (1, {G.OVERCOMMIT: 150})]
            assert (await node.ask(op="status"))["drift"] == []
    assert logged(logs, "setting changed") == [
        {"gpu": 0, "key": "policy", "old": "native", "new": "fixed"},
        {"gpu": 1, "key": "overcommit", "old": "100", "new": "150"},
    ]


async def test_a_live_write_counts_until_the_reload_and_is_shown(node: Node) -> None:
    node.config = parse("[gpu]\npolicy = 3\nslice_us = 2000")
    async with node.running() as daemon:
        node.link.inventory = tuple(replace(gpu, policy=1) for gpu in node.link.inventory)
        await daemon.reconcile()
        assert (await node.prepare(ID))["ok"]
        assert node.link.inventory[0].policy == 1
        assert (await node.ask(op="status"))["drift"] == [
            {"gpu": 0, "index": 0, "key": "policy", "configured": "fixed", "live": "preemptive"}
        ]
        with structlog.testing.capture_logs() as logs:
            await daemon.reload(parse("[gpu]\npolicy = 3\nslice_us = 3000"))
        assert logged(logs, "setting changed") == [
            {"gpu": 0, "key": "policy", "old": "preemptive", "new": "fixed"},
            {"gpu": 0, "key": "slice_us", "old": "2000", "new": "3000"},
        ]
        assert (await node.ask(op="status"))["drift"] == []
        await daemon.reload(Config())
        gpu = node.link.inventory[0]
        assert (gpu.policy, gpu.slice_is_set) == (5, False)
        before = len(node.link.set_calls)
        await daemon.reload(Config())
        assert len(node.link.set_calls) == before


async def test_a_refused_value_is_said_and_stops_no_other(node: Node) -> None:
    node.link = FakeLink(example_gpus(2))
    async with node.running() as daemon:
        small = ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=1")
        for number in range(3):
            assert (await node.prepare(f"{number:064x}", small))["ok"]
        node.link.unsupported = {3}
        with structlog.testing.capture_logs() as logs:
            await daemon.reload(parse("[gpu]\npolicy = 3\nmax_inst = 2\nprio_ratio = 50\n[gpu.'1']\nmax_inst = 3"))
        assert [gpu.prio_ratio for gpu in node.link.inventory] == [50, 50]
        assert [gpu.max_inst for gpu in node.link.inventory] == [20, 3]
        refused = logged(logs, "setting refused")
        assert [(line["gpu"], line["key"], line["old"], line["wanted"]) for line in refused] == [
            (0, "policy", "native", "fixed"),
            (0, "max_inst", "20", "2"),
            (1, "policy", "native", "fixed"),
        ]
        assert "control" in refused[0]["reason"]
        assert "more containers" in refused[1]["reason"]
        drift = (await node.ask(op="status"))["drift"]
        assert [(row["gpu"], row["key"]) for row in drift] == [(0, "policy"), (0, "max_inst"), (1, "policy")]


async def test_applied_again_when_the_module_was_loaded_again(node: Node) -> None:
    node.config = parse("[gpu]\npolicy = 2")
    node.link.missing = True
    async with node.running() as daemon:
        assert node.link.set_calls == []
        with structlog.testing.capture_logs() as logs:
            await daemon.reload(node.config)
        assert logged(logs, "settings wait for the kernel module") == [{}]
        node.link.missing = False
        await daemon.reconcile()
        assert node.link.inventory[0].policy == 2
        node.link.inventory = tuple(replace(gpu, policy=5, born=2) for gpu in node.link.inventory)
        assert (await node.prepare(ID))["ok"]
        assert node.link.inventory[0].policy == 2
        assert len(node.link.set_calls) == 2


async def test_the_first_container_finds_the_settings_of_a_gpu_that_came_with_it(node: Node) -> None:
    """The driver is loaded last: the module lists no GPU until it attaches."""

    class Late(FakeLink):
        attached = False

        async def create(self, *args: Any) -> Any:
            self.attached = True
            return await super().create(*args)

        async def gpus(self) -> Any:
            return await super().gpus() if self.attached else ()

    from cgpu_common.cards import NvmlGpu

    node.link = Late()
    node.config = parse("[gpu]\nmax_inst = 1\npolicy = 3")
    uuid = node.link.inventory[0].uuid
    node.nvml = lambda: (NvmlGpu(0, uuid, "0000:01:00.0", 0, 15109, used_mib=0),)
    async with node.running():
        assert (await node.prepare(ID))["ok"]
        assert (node.link.inventory[0].policy, node.link.inventory[0].max_inst) == (3, 1)
        assert [what for what, _, _ in node.link.calls] == ["create", "destroy", "create"]


async def test_a_table_for_no_gpu_is_said_once(node: Node) -> None:
    with structlog.testing.capture_logs() as logs:
        async with node.running() as daemon:
            new = parse('[gpu."7"]\npolicy = 2')
            await daemon.reload(new)
            await daemon.reload(new)
            assert (await node.ask(op="status"))["no_such_gpu"] == ["7"]
    assert logged(logs, "a table of cgpu.toml matches no GPU of this machine") == [{"gpu": "7"}]


async def test_default_memsize_is_the_files_word_and_then_the_kernels(node: Node) -> None:
    env = ("ALIYUN_COM_GPU_VISIBLE_DEVICES=0",)
    async with node.running() as daemon:
        assert (await node.prepare(ID, env))["action"] == "pass"
        await daemon.reload(parse("[gpu]\ndefault_memsize_mib = 100"))
        assert (await node.prepare(ID, env))["ok"]
        assert node.link.containers[ID].slots[0].limit == 100 * MIB
        node.link.inventory = tuple(replace(gpu, default_memsize=50 * MIB) for gpu in node.link.inventory)
        assert (await node.prepare(ID, env))["ok"]
        assert node.link.containers[ID].slots[0].limit == 50 * MIB


# ---- whole GPUs ----


UNSLICED = [
    ("no variables", ()),
    ("memory 0", ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=0")),
    ("a list with zeros", ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=1,0,0")),
    ("mixed", ("ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_CONTAINER=0,3")),
    ("CGPU_DISABLE", ("CGPU_DISABLE=true", *VARIABLES)),
    ("NVIDIA_VISIBLE_DEVICES=all", ("NVIDIA_VISIBLE_DEVICES=all",)),
]


@contextmanager
def plain(node: Node, env: tuple[str, ...] = (), *, hooks: bool = False) -> Iterator[dict[str, Any]]:
    """A bundle without any GPU; `hooks`: with those of Docker."""
    with node.edited(ID, env) as spec:
        spec["mounts"] = spec["mounts"][:4]
        spec["linux"]["devices"] = []
        spec["linux"]["resources"]["devices"] = [{"allow": False, "access": "rwm"}]
        if not hooks:
            del spec["hooks"]
        yield spec


@pytest.mark.parametrize("env", [row[1] for row in UNSLICED], ids=[row[0] for row in UNSLICED])
@pytest.mark.parametrize("where", ["[gpu]", "[gpu.'0']", "[gpu.'0000:01:00.0']"])
async def test_refused_whole(node: Node, env: tuple[str, ...], where: str) -> None:
    node.config = parse(f'{where}\nunsliced = "refuse"')
    async with node.running():
        text = (await node.prepare(ID, env))["error"]
        assert text.startswith("GPU 0 is shared in slices only (unsliced")
        with plain(node, env) as before:
            pass
        assert await node.again(ID) == {"ok": True, "action": "pass", "closed": "195:0-0"}
        after = node.spec(ID)
        # Without a hook of others too: a runtime may make no device rules (podman's --cgroups=disabled).
        (check,) = after.pop("hooks")["createContainer"]
        assert check["args"] == ["cgpu-runtime", "hook", "check", "--closed=195:0-0"]
        assert after["linux"]["readonlyPaths"].pop() == "/proc/driver"
        assert {**after, "linux": {**after["linux"], "readonlyPaths": before["linux"]["readonlyPaths"]}} == before
        assert (await node.prepare(ID))["action"] == "edited"
        node.link.missing = True
        assert "shared in slices only" in (await node.prepare("f" * 64, env))["error"]


async def test_what_runc_restores_without_createcontainer(node: Node) -> None:
    """Its device rules are those of the config.json that it is restored from."""
    node.config = parse('[gpu]\nunsliced = "refuse"')
    with plain(node):
        pass
    async with node.running():
        assert (await node.again(ID, verb="restore"))["closed"] == "195:0-0"
    (early,) = node.spec(ID)["hooks"]["createRuntime"]
    assert early["args"] == ["cgpu-runtime", "hook", "confirm", "--closed=195:0-0"]


@pytest.mark.parametrize("stage", ["", "createContainer", "poststart"])
async def test_a_user_namespace_beside_no_slice(node: Node, stage: str) -> None:
    """There root of the container is not root of the host, and a hook of createContainer may not look at its nodes."""
    node.config = parse('[gpu]\nunsliced = "refuse"')
    other = {"path": "/usr/bin/other"}
    with plain(node) as spec:
        spec["linux"]["namespaces"].append({"type": "user"})
        spec |= {"hooks": {stage: [other]}} if stage else {}
    async with node.running():
        assert (await node.again(ID))["closed"] == "195:0-0"
    found = node.spec(ID)["hooks"]
    checks = {name: [hook["args"][2:] for hook in hooks if hook != other] for name, hooks in found.items()}
    confirm = [["confirm", "--closed=195:0-0"]]
    late = {"poststart": confirm} if stage else {}
    assert {name: words for name, words in checks.items() if words} == {"createRuntime": confirm, **late}


@pytest.mark.parametrize(("host", "is_closed"), [(100000, False), (0, True), ("100000", True), (None, True)])
async def test_rootless_engines_within_a_container(node: Node, host: object, is_closed: bool) -> None:
    """With unmasked paths they mount proc, beside which no part of it may be covered. Root of the host writes there."""
    node.config = parse('[gpu]\nunsliced = "refuse"')
    with plain(node) as spec:
        spec["linux"] |= {"maskedPaths": [], "readonlyPaths": []}
        if host is not None:
            spec["linux"]["uidMappings"] = [{"containerID": 0, "hostID": host, "size": 65536}]
    async with node.running():
        assert (await node.again(ID))["closed"] == "195:0-0"
    assert node.spec(ID)["linux"]["readonlyPaths"] == (["/proc/driver"] if is_closed else [])


async def test_a_property_of_the_unit_beside_no_slice(node: Node) -> None:
    with plain(node) as spec:
        spec["annotations"] = {"org.systemd.property.DevicePolicy": "'auto'"}
    async with node.running() as daemon:
        assert (await node.again(ID))["action"] == "pass"
        await daemon.reload(parse('[gpu]\nunsliced = "refuse"'))
        assert "org.systemd.property.DevicePolicy changes the device rules" in (await node.again(ID))["error"]


async def test_sliced_whole_and_mig_side_by_side(node: Node, tmp_path: Path) -> None:
    """GPU 0 in slices only, GPU 1 whole, GPU 2 in instances of MIG; CDI gives DRM's nodes beside them."""
    node.facts.drm_class = tmp_path / "drm"
    for minor, (name, vendor) in enumerate((("igpu", "0x8086"), *((gpu.pci, "0x10de") for gpu in example_gpus(3)))):
        device = tmp_path / name
        device.mkdir()
        (device / "vendor").write_text(vendor)
        (tmp_path / f"drm/card{minor}").mkdir(parents=True)
        (tmp_path / f"drm/card{minor}/dev").write_text(f"226:{minor}")
        (tmp_path / f"drm/card{minor}/device").symlink_to(device)
    cards = [(f"/dev/dri/card{minor}", 226, minor) for minor in range(4)]  # of another vendor, and of GPUs 0 to 2
    caps = [("/dev/nvidia-caps/nvidia-cap21", 236, 21), ("/dev/nvidia-caps/nvidia-cap22", 236, 22)]

    async def start(gpus: tuple[int, ...], more: list[tuple[str, int, int]]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The reply, and the spec before."""
        nodes = [(f"/dev/nvidia{gpu}", 195, gpu) for gpu in gpus] + [("/dev/nvidiactl", 195, 255), *more]
        with plain(node) as spec:
            spec["linux"]["devices"] = [{"path": path, "type": "c", "major": a, "minor": b} for path, a, b in nodes]
        return await node.again(ID), spec

    node.link = FakeLink(example_gpus(3))
    node.config = parse('[gpu."0"]\nunsliced = "refuse"')
    async with node.running():
        passed = (((1,), []), ((2,), caps), ((1, 2), caps), ((1,), [cards[2]]), ((1, 2), [*caps, *cards[2:]]))
        for gpus, more in (*passed, ((1,), [cards[0]])):
            reply, before = await start(gpus, more)
            assert reply == {"ok": True, "action": "pass", "closed": "195:0-0"}
            after = node.spec(ID)
            assert after["linux"]["devices"] == before["linux"]["devices"] and after["mounts"] == before["mounts"]
        for gpus, more in (((0,), []), ((0, 2), caps), ((), caps), ((1,), [cards[1]]), ((), cards[1:2])):
            reply, _ = await start(gpus, more)
            assert "GPU 0 is shared in slices only" in reply["error"], (gpus, reply)
        assert (await node.prepare(ID, (*VARIABLES, "ALIYUN_COM_GPU_VISIBLE_DEVICES=0")))["action"] == "edited"


@pytest.mark.parametrize("env", [row[1] for row in UNSLICED], ids=[row[0] for row in UNSLICED])
async def test_where_nothing_is_refused_the_kernel_is_not_asked(node: Node, env: tuple[str, ...]) -> None:
    node.config = parse('[gpu]\nunsliced = "allow"')
    async with node.running():
        node.link.missing = True
        assert await node.prepare(ID, env) == {"ok": True, "action": "pass"}


async def test_what_hooks_may_open_is_checked(node: Node) -> None:
    """A container without a slice: its hooks cannot all be known, so what they opened is checked after them."""

    node.config = parse('[gpu]\nunsliced = "refuse"')
    with plain(node, hooks=True):
        pass
    async with node.running() as daemon:
        assert await node.again(ID) == {"ok": True, "action": "pass", "closed": "195:0-0"}
        spec = node.spec(ID)
        assert spec["hooks"]["createContainer"][-1]["args"] == ["cgpu-runtime", "hook", "check", "--closed=195:0-0"]
        assert spec["linux"]["readonlyPaths"][-1] == "/proc/driver"
        assert daemon.admissions["sliced"] == 0
        assert (await node.prepare("f" * 64))["closed"].startswith("195:0-31,195:254-255,")


async def test_another_gpu_may_be_whole(node: Node) -> None:
    node.link = FakeLink(example_gpus(3))
    node.config = parse('[gpu]\nunsliced = "refuse"\n[gpu."0"]\nunsliced = "allow"')
    with plain(node, hooks=True) as spec:
        spec["linux"]["devices"] = [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]
    async with node.running() as daemon:
        assert (await node.again(ID))["action"] == "pass"
        for number, good in ((2, True), (0, False), (1, True)):
            await daemon.reload(parse(f'[gpu."{number}"]\nunsliced = "refuse"'))
            assert (await node.again(ID))["ok"] is good, number


async def test_privileged_is_every_gpu_unless_allowed(node: Node) -> None:
    with plain(node, hooks=True) as spec:
        spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    node.config = parse('[gpu]\nunsliced = "refuse"')
    async with node.running() as daemon:
        assert "GPU 0" in (await node.again(ID))["error"]
        await daemon.reload(parse('allow_privileged = true\n[gpu]\nunsliced = "refuse"'))
        assert (await node.again(ID))["action"] == "pass"


# ---- caps and room, end to end ----


async def test_caps_and_room_refuse_and_change_nothing(node: Node) -> None:
    node.config = parse("[container]\nmax_memory_mib = 6042")
    async with node.running() as daemon:
        assert "max_memory_mib = 6042 in [container] of cgpu.toml" in (await node.prepare(ID))["error"]
        await daemon.reload(Config())
        node.link.inventory = tuple(replace(gpu, driver_free=5570 * MIB) for gpu in node.link.inventory)
        error = (await node.prepare(ID))["error"]
        assert "GPU 0 has 6042 of its 15109 MiB left and 6043 MiB were requested" in error
        assert "the driver and what runs outside of containers 9067 MiB" in error
        assert not node.link.calls
        await daemon.reload(parse("[gpu]\novercommit = 110"))
        assert (await node.prepare(ID))["ok"]


# ---- the process ----


def start(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(FAKE_CGPUD), "--config", str(tmp_path / "cgpu.toml"), *options]
    command += ["--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state")]
    root = str(DATA.parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path)


def test_a_bad_file_at_start_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cgpu.toml").write_text("[gpu]\npolicy = 9")
    process = start(tmp_path)
    _, text = process.communicate(timeout=30)
    assert process.returncode == 1
    assert text.startswith(
        f"cgpud: {tmp_path / 'cgpu.toml'}: gpu.policy = 9 is not allowed: it must be {policies.ALLOWED}"
    )
    assert text.count("\n") == 1


def test_in_the_journal_it_is_an_error(tmp_path: Path) -> None:
    """journalctl -p err has shown a unit that failed, and not why."""
    path = tmp_path / "cgpu.toml"
    path.write_text("[gpu]\npolicy = 9")
    reader, writer = os.pipe()
    found = os.fstat(writer)
    command = [sys.executable, "-m", "cgpud", "--check", "--config", str(path)]
    environ = os.environ | {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    done = subprocess.run(command, cwd=Path(__file__).parents[3], env=environ, stderr=writer, check=False)
    os.close(writer)
    with os.fdopen(reader) as stream:
        (line,) = stream.read().splitlines()
    assert done.returncode == 1 and line.startswith(f"<3>cgpud: {path}: gpu.policy = 9")


def test_check_does_no_more_than_that(tmp_path: Path) -> None:
    (tmp_path / "cgpu.toml").write_text("[gpu]\npolicy = 3")
    process = start(tmp_path, "--check")
    _, text = process.communicate(timeout=30)
    assert (process.returncode, text) == (0, "")
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / "state").exists()


def test_check_names_the_files_on_a_terminal(tmp_path: Path) -> None:
    """A check that says nothing looks the same where there is no file at all."""
    path = tmp_path / "cgpu.toml"
    assert cgpud_main.checked(path) == f"{path}: no file, the defaults hold"
    (tmp_path / "cgpu.toml.d").mkdir()
    for one in (path, tmp_path / "cgpu.toml.d/a.toml"):
        one.write_text("")
    assert cgpud_main.checked(path) == f"{path}: valid\n{path}.d/a.toml: valid"
    reader, writer = os.openpty()
    command = [sys.executable, "-m", "cgpud", "--check", "--config", str(path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], stdout=writer, check=False)
    assert (done.returncode, os.read(reader, 4096).decode().splitlines()[0]) == (0, f"{path}: valid")
    os.close(reader)
    os.close(writer)


async def test_two_reloads_at_once_end_with_the_later_one(node: Node) -> None:
    async with node.running() as daemon:
        await asyncio.gather(*(daemon.reload(parse(f"[gpu]\npolicy = {number}")) for number in (1, 2, 3)))
        assert node.link.inventory[0].policy == 3
