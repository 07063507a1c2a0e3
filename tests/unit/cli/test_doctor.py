# SPDX-License-Identifier: MIT
"""cgpu doctor: each check by its facts, and the facts of a node made of files."""

from __future__ import annotations

import json
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import daemon_at, packed
from fake_tree import ID1, ID2, MIB, Cli, Tree, empty_tree, inst_line, with_containers, write

from cgpu_cli import branches, checks, daemon, doctor, node, ways
from cgpu_cli.edit import TOOLKIT
from cgpu_cli.facts import OK, PROBLEM, SKIPPED, WARNING, Card, Engine, Facts, OwnLimits, RefusedStart
from cgpu_common.cookie import COOKIE_BITS, COOKIE_MARK
from cgpu_common.exits import Exit
from cgpu_common.proc import Paths

ROOT = Path(__file__).parents[3]
KERNEL = "6.1.0-56-amd64"
NEXT = "6.12.9+deb12-amd64"
OURS = "0xc69d000000000001"

GOOD = Facts(
    kernel=KERNEL,
    machine="x86_64",
    kprobes=True,
    headers=True,
    dkms=True,
    dkms_kernels=(KERNEL,),
    module_file=True,
    module="0.1.0",
    core="0.1.0",
    package="0.1.0",
    driver_text="NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.178.04  Release Build",
    driver_nodes=("nvidiactl", "nvidia-uvm"),
    runtime="/usr/bin/cgpu-runtime",
    toolkit="/usr/bin/nvidia-container-runtime",
    toolkit_mode="cdi",
    toolkit_version=(1, 19, 1),
    engines=(Engine("docker", True, False), Engine(TOOLKIT, True, True)),
    daemon_version="0.1.0",
    drift=0,
    run_state={0: "chram"},
    cards=(Card(0),),
    without_libcuda=(),
    next_kernel=NEXT,
    past_us=(),
    refused_starts=(),
    own_limits=OwnLimits("dmem"),
)

NEWEST = branches.PARTLY[-1]
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("kernel", {"machine": "aarch64"}, PROBLEM, "only x86-64"),
    ("kernel", {"kernel": "5.4.0-190-generic"}, PROBLEM, "older than 5.10"),
    ("kernel", {"kprobes": False}, PROBLEM, "no kprobes"),
    ("headers", {"headers": False}, WARNING, "built already"),
    ("headers", {"headers": False, "module_file": False, "module": None}, PROBLEM, f"no headers for {KERNEL}"),
    (
        "dkms",
        {"dkms_kernels": ("6.1.0-47-amd64",), "module_file": False, "module": None},
        PROBLEM,
        f"not built the modules for {KERNEL}",
    ),
    ("dkms", {"dkms": False, "dkms_kernels": (), "module_file": False, "module": None}, PROBLEM, "not installed"),
    ("dkms", {"dkms_kernels": (), "module_file": False}, WARNING, "the next boot is without it"),
    ("next boot", {"next_lacks": ("cgpu_km",)}, WARNING, f"{NEXT} boots next, and has no cgpu_km"),
    ("next boot", {"next_lacks": ("cgpu_km", "nvidia", "headers")}, WARNING, "has no cgpu_km and no nvidia"),
    ("next boot", {"next_kernel": ""}, SKIPPED, "not known"),
    ("secure boot", {"signed_only": True, "module": None}, WARNING, "whose key it trusts"),
    ("module", {"module": None}, PROBLEM, "not loaded"),
    ("module", {"core": None}, PROBLEM, "has no core"),
    ("module", {"package": "0.2.0"}, WARNING, "differ"),
    ("driver", {"driver_text": ""}, PROBLEM, "not loaded"),
    ("driver", {"driver_text": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08"}, PROBLEM, "proprietary"),
    ("driver", {"driver_text": "NVIDIA UNIX Open Kernel Module  530.30.02"}, PROBLEM, "branch 530"),
    ("driver", {"driver_text": "NVIDIA UNIX Open Kernel Module  535.129.03"}, PROBLEM, "exports no RM calls"),
    ("driver", {"driver_text": "NVIDIA UNIX Open Kernel Module  550.40.07"}, PROBLEM, "nvidia-uvm"),
    ("driver", {"driver_text": "NVIDIA UNIX Open Kernel Module"}, PROBLEM, "no version"),
    ("driver", {"driver_text": "NVIDIA UNIX Open Kernel Module  main", "any_driver": True}, PROBLEM, "no version"),
    (
        "driver",
        {"driver_text": "NVIDIA UNIX Open Kernel Module  525.147.05", "any_driver": True},
        PROBLEM,
        "older than",
    ),
    ("driver", {"driver_text": "NVIDIA UNIX Open Kernel Module  615.71.09"}, PROBLEM, "in part"),
    ("driver", {"driver_text": f"NVIDIA UNIX Open Kernel Module  {NEWEST + 1}.6.0"}, PROBLEM, "not known"),
    ("driver", {"driver_text": "NVIDIA UNIX Open Kernel Module  580.177.99"}, WARNING, "bulletin 5861"),
    ("driver", {"driver_text": "NVIDIA UNIX Open Kernel Module  595.90.01"}, WARNING, "bulletin 5861"),
    (
        "NVIDIA's limits",
        {"own_limits": OwnLimits("dmem", ("/a.slice/b.scope",), (("/a.slice", 3 << 30),))},
        WARNING,
        "/a.slice keeps 3072 MiB for containers that have ended",
    ),
    ("driver's nodes", {"driver_nodes": ("nvidiactl",)}, WARNING, "no /dev/nvidia-uvm"),
    ("driver's nodes", {"driver_text": ""}, SKIPPED, "not loaded"),
    ("containers' nodes", {"nodes_missing": True}, PROBLEM, "not mounted"),
    ("containers' nodes", {"module": None}, SKIPPED, "not loaded"),
    ("sharing modes", {"cards": (Card(0), Card(1, mig=True))}, PROBLEM, "GPU 1 is in MIG mode"),
    ("sharing modes", {"cards": (Card(0, confidential=True),)}, PROBLEM, "GPU 0 has Confidential Computing on"),
    ("sharing modes", {"cards": (Card(0, compute_mode="exclusive process"),)}, PROBLEM, "exclusive process"),
    ("sharing modes", {"cards": (Card(0, lost="GPU is lost"),)}, PROBLEM, "does not answer NVML"),
    ("sharing modes", {"cards": None, "cards_error": "no library"}, WARNING, "no library"),
    ("sharing modes", {"mps": ("/tmp/nvidia-mps",)}, PROBLEM, "MPS"),
    (
        "sharing modes",
        {"cards": (Card(0, uuid="GPU-0", compute_mode="exclusive process"),), "mps_units": ("GPU-0",)},
        WARNING,
        "cooperative limit, watched; one fatal fault ends all clients of the GPU; it takes no slices",
    ),
    ("container toolkit", {"toolkit": None}, WARNING, "no libcuda.so.1"),
    ("container toolkit", {"toolkit_mode": "legacy"}, PROBLEM, "mode legacy"),
    ("container toolkit", {"toolkit_version": (1, 19, 0)}, WARNING, "1.19.0: an image can leave its container"),
    ("container toolkit", {"toolkit_version": (1, 9, 9)}, WARNING, "1.9.9"),
    ("cgpu-runtime", {"runtime": None}, PROBLEM, "not on the PATH"),
    ("engines", {"engines": (Engine("docker", True, False),)}, PROBLEM, "not set up: docker"),
    ("engines", {"engines": (Engine("docker", True, False), Engine("podman", True, True))}, WARNING, "set up: podman"),
    ("engines", {"engines": (Engine("docker", False, False),)}, WARNING, "no container engine"),
    ("engines", {"engines": (Engine("docker", True, False, error="x: not JSON"),)}, PROBLEM, "not JSON"),
    (
        "engines",
        {"engines": (Engine("docker", True, False), Engine(TOOLKIT, True, False))},
        PROBLEM,
        f"{TOOLKIT} does not call",
    ),
    ("engines", {"engines": (Engine(TOOLKIT, True, False, "misplaced"),)}, PROBLEM, "but not first"),
    ("cgpu.toml", {"config_error": "cgpu.toml: x is not a known key"}, PROBLEM, "not a known key"),
    ("cgpu.toml", {"drift": 2}, WARNING, "2 values of the GPUs differ"),
    ("cgpu.toml", {"unknown_gpus": ("7",)}, WARNING, "no GPU of this node: 7"),
    ("cgpud", {"daemon_silence": "is not running", "daemon_remedy": "x"}, PROBLEM, "is not running: no container with"),
    ("cgpud", {"daemon_version": "0.0.9"}, WARNING, "0.0.9 runs, and the package is 0.1.0"),
    ("cgpud", {"draining": True}, WARNING, "drained"),
    ("policy", {"snapshot": None}, SKIPPED, "not loaded"),
    ("controls", {"snapshot": None}, SKIPPED, "no GPU"),
    ("controls", {"controls_ineffective": {0: "freeze"}}, PROBLEM, "freeze had no effect"),
    ("run state", {"snapshot": None}, SKIPPED, "no GPU"),
    (
        "run state",
        {"run_state": {}, "run_state_errors": {0: "9"}},
        WARNING,
        "9 readings could not be used and no source is",
    ),
    ("stale containers", {"unfollowed": ("0123456789ab",)}, PROBLEM, "does not follow 0123456789ab"),
    ("stale containers", {"snapshot": None}, SKIPPED, "not loaded"),
    ("past cgpu-runtime", {"past_us": ("0123456789ab",)}, WARNING, "so without limits: 0123456789ab"),
    ("past cgpu-runtime", {"past_us": None}, SKIPPED, "names no containers"),
    ("refused starts", {"refused_starts": (RefusedStart("web", "no weight"),)}, WARNING, "refused: web (no weight)"),
    ("refused starts", {"refused_starts": None}, SKIPPED, "no containers of Docker"),
    ("libcuda", {"without_libcuda": ("0123456789ab",)}, PROBLEM, "in 0123456789ab"),
    ("libcuda", {"without_libcuda": None}, SKIPPED, "no running container"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    tree = with_containers(empty_tree(tmp_path_factory.mktemp("good")))
    return replace(GOOD, snapshot=node.read_tree(Paths.below(str(tree.root))))


def test_a_good_node_has_nothing_to_report(good: Facts) -> None:
    found = checks.run(good)
    assert [one for one in found if one.status != OK or one.remedy] == []
    assert len({one.check for one in found}) == len(checks.CHECKS)


@pytest.mark.parametrize(("check", "change", "status", "text"), BAD)
def test_a_check(good: Facts, check: str, change: dict[str, Any], status: str, text: str) -> None:
    (found,) = [one for one in checks.run(replace(good, **change)) if one.check == check]
    assert found.status == status
    assert text in found.text
    assert bool(found.remedy) == (status != SKIPPED), "a problem or warning has a remedy, a skipped check has none"


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (OwnLimits("off"), "off (RmMemacctMode=0)"),
        (OwnLimits("misc"), "of the driver itself (misc)"),
        (OwnLimits("dmem"), "no cgroup has one"),
        (OwnLimits("dmem", ("/a", "/b")), "by cgroup (dmem): /a, /b; beside a slice the smaller one counts"),
    ],
)
def test_nvidias_own_limits(good: Facts, limits: OwnLimits, text: str) -> None:
    (found,) = checks.own_limits(replace(good, own_limits=limits))
    assert (found.status, found.remedy) == (OK, "") and text in found.text


def test_a_driver_without_limits_of_its_own_has_no_line(good: Facts) -> None:
    assert checks.own_limits(replace(good, own_limits=None)) == []


def test_every_check_can_fail() -> None:
    named = {check for check, _, status, _ in BAD if status in (PROBLEM, WARNING)} | {"policy"}
    assert named == {one.check for one in checks.run(GOOD)}


@pytest.mark.parametrize(
    ("policy", "weight", "status", "text"),
    [
        (2, 2, OK, "GPU 0: 2 (weighted), 2 of 20, weight 17 free"),
        (2, 0, PROBLEM, "weight 0, so no compute, for aabbccddeeff"),
        (5, 0, OK, "5 (native)"),
        (5, 2, WARNING, "5 (native) ignores the weights of aabbccddeeff"),
        (0, 2, WARNING, "0 (fair) ignores the weights"),
        (5, 1, OK, "memory is divided, compute is not"),
    ],
)
def test_the_policy_and_the_weights(tree: Tree, policy: int, weight: int, status: str, text: str) -> None:
    tree.gpu(0, policy=policy)
    write(tree.proc / "0" / ID2[:12] / "weight", str(weight))
    facts = replace(GOOD, snapshot=node.read_tree(Paths.below(str(tree.root))))
    (found,) = checks.policies(facts)
    assert (found.status, text in found.text) == (status, True), found.text


@pytest.mark.parametrize(
    ("policy", "seen", "look", "status", "text"),
    [
        (2, "freeze", "watching", OK, "freeze was seen to act"),
        (2, "none", "watching", OK, "not verified yet"),
        (2, "none", "blind", WARNING, "no samples, or slices too short"),
        (4, "freeze", "blind", WARNING, "timeslice cannot be verified"),
        (5, "none", "blind", OK, "needs none"),
    ],
)
def test_the_controls(tree: Tree, policy: int, seen: str, look: str, status: str, text: str) -> None:
    tree.gpu(
        0,
        policy=policy,
        stat=f"control freeze,timeslice\ncontrol_seen {seen}\ncontrol_ineffective none\neffect_check {look}",
    )
    (found,) = checks.controls(node.read(Paths.below(str(tree.root))))
    assert (found.status, text in found.text) == (status, True), found.text


@pytest.mark.parametrize(
    ("policy", "source", "errors", "status", "text"),
    [
        (2, "chram", 0, OK, "GPU 0: chram shows which containers have work"),
        (2, "pccsr", 0, OK, "GPU 0: pccsr shows which containers have work"),
        (2, "chram", 3, OK, "chram shows which containers have work; 3 readings could not be used"),
        (2, "none", 8, WARNING, "idle containers keep their turns"),
        (1, "none", 0, WARNING, "none, so idle containers keep their turns"),
        (3, "none", 0, OK, "none; nothing is lent"),
        (5, "none", 0, OK, "nothing is lent"),
    ],
)
def test_the_run_state(tree: Tree, policy: int, source: str, errors: int, status: str, text: str) -> None:
    tree.gpu(0, policy=policy, stat=f"run_state_source {source}\nrun_state_known 1\nrun_state_errors {errors}")
    tree.slot(0, ID1)
    tree.slot(0, ID2)
    (found,) = checks.run_states(node.read(Paths.below(str(tree.root))))
    assert (found.status, text in found.text) == (status, True), found.text
    assert (found.remedy != "") == (status == WARNING)


def test_a_slice_of_a_claim_is_followed(tree: Tree) -> None:
    """Its name in the kernel is the claim's: the containers that share it have records of their own."""
    claim, lost = "claim-1", "d" * 64
    marks = [inst_line(claim, COOKIE_MARK << COOKIE_BITS), inst_line(lost, COOKIE_MARK << COOKIE_BITS | 1)]
    tree.listed(inst_line(ID1, 1), *marks)
    rows = [{"id": "f" * 64, "slice": claim, "phase": "bound"}, {"id": "e" * 64, "slice": claim, "phase": "bound"}]
    with daemon_at(tree.root, {"status": packed({"ok": True, "containers": rows})}):
        found = node.read(Paths.below(str(tree.root)))
    assert found.unfollowed == (lost[:12],)


def test_a_dying_container_is_stale(tree: Tree) -> None:
    tree.listed(inst_line(ID1, 1, "dying"), inst_line(ID2, 7))
    found = checks.stale(replace(GOOD, snapshot=node.read_tree(Paths.below(str(tree.root)))))
    assert (found.status, ID1[:12] in found.text) == (WARNING, True)


def test_memory_of_destroyed_containers_is_stale(tree: Tree) -> None:
    tree.gpu(0, stat=f"ended_bytes {3 * MIB + 1}")
    found = checks.stale(replace(GOOD, snapshot=node.read_tree(Paths.below(str(tree.root)))))
    assert (found.status, found.text.startswith("4 MiB of destroyed containers")) == (WARNING, True)


# ---- the facts ----


@pytest.fixture
def host(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A node that is in order, as files."""
    root = tree.root
    write(root / "proc/sys/kernel/osrelease", KERNEL)
    write(root / f"boot/config-{KERNEL}", "CONFIG_A=y\nCONFIG_KPROBES=y\nCONFIG_B=m")
    for name in (
        f"lib/modules/{KERNEL}/build/Makefile",
        f"var/lib/dkms/cgpu/0.1.0/{KERNEL}/x86_64/module/cgpu_km.ko",
        "usr/sbin/dkms",
        "usr/bin/cgpu-runtime",
        "usr/bin/dockerd",
        "usr/bin/containerd",
        "usr/bin/nvidia-container-runtime",
        "dev/nvidiactl",
        "dev/nvidia-uvm",
    ):
        write(root / name, "")
    write(root / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.178.04  x")
    write(root / f"lib/modules/{KERNEL}/modules.dep", "updates/dkms/cgpu_km.ko:\n")
    write(root / f"boot/vmlinuz-{KERNEL}", "")
    write(root / "sys/module/cgpu_km/version", "0.1.0")
    write(
        root / f"etc/{TOOLKIT}/config.toml", f'[{TOOLKIT}]\nmode = "cdi"\nruntimes = ["/usr/bin/cgpu-runtime", "runc"]'
    )
    status = {
        "version": "0.1.0",
        "drift": [],
        "no_such_gpu": [],
        "containers": [{"id": ID1, "pid": 321}, {"id": ID2, "pid": None}],
    }
    write(root / "proc/321/root/usr/lib64/libcuda.so.1", "")
    monkeypatch.setattr(daemon, "ask", lambda _paths, _operation: status)
    monkeypatch.setattr("cgpu_common.versions.package_version", lambda: "0.1.0")
    monkeypatch.setattr(node, "LIVE", tree.proc)
    monkeypatch.setattr(node, "cards", lambda: ((Card(0),), ""))
    return tree


def states(tree: Tree) -> dict[str, str]:
    return {one.check: one.status for one in checks.run(node.read(Paths.below(str(tree.root))))}


def test_a_host_in_order(host: Tree) -> None:
    assert set(states(host).values()) == {OK}
    result = Cli(host).cgpu("doctor")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "0 problems, 0 warnings")


def test_a_node_without_a_file_has_the_defaults(host: Tree) -> None:
    assert "no file: the defaults hold" in Cli(host).cgpu("doctor").stdout
    write(host.root / "etc/cgpu/cgpu.toml.d/own.toml", "")
    assert " valid, and in force" in Cli(host).cgpu("doctor").stdout


GPU0, GPU1 = "nvidia/00000000:02:00.0/vidmem", "nvidia/00000000:03:00.0/vidmem"
OF_615 = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  615.71.09  x"


def own_limits(host: Tree) -> OwnLimits | None:
    return node.read(Paths.below(str(host.root))).own_limits


def test_nvidias_limits_are_read_from_the_cgroups(host: Tree) -> None:
    top = host.root / "sys/fs/cgroup"
    write(top / "dmem.capacity", f"{GPU0} 102641958912\n{GPU1} 102641958912")
    write(top / "pod.slice/dmem.max", f"{GPU0} max\n{GPU1} max")
    write(top / "pod.slice/dmem.min", f"{GPU0} 4294967296\n{GPU1} 0")
    write(top / "pod.slice/cgroup.events", "populated 1\nfrozen 0")
    write(top / "pod.slice/c.scope/dmem.max", f"{GPU0} 8589934592\n{GPU1} max")
    write(top / "pod.slice/c.scope/dmem.min", f"{GPU0} 4294967296\n{GPU1} 0")
    write(top / "pod.slice/c.scope/cgroup.events", "populated 1\nfrozen 0")
    assert own_limits(host) is None, "580 has none"
    write(host.root / "proc/driver/nvidia/version", OF_615)
    assert own_limits(host) == OwnLimits("dmem", ("/pod.slice/c.scope",))
    shutil.rmtree(top / "pod.slice/c.scope")
    write(top / "pod.slice/cgroup.events", "populated 0\nfrozen 0")
    assert own_limits(host) == OwnLimits("dmem", (), (("/pod.slice", 4 << 30),))
    write(top / "pod.slice/d.scope/dmem.min", f"{GPU0} 1073741824\n{GPU1} 0")
    write(top / "pod.slice/d.scope/cgroup.events", "populated 1\nfrozen 0")
    assert own_limits(host) == OwnLimits("dmem", (), (("/pod.slice", 3 << 30),))


def test_nvidias_limits_without_the_kernels_controller(host: Tree) -> None:
    write(host.root / "proc/driver/nvidia/version", OF_615)
    assert own_limits(host) == OwnLimits("misc")
    write(host.root / "sys/fs/cgroup/dmem.capacity", "drm/0000:03:00.0/vram0 8514437120")
    assert own_limits(host) == OwnLimits("misc"), "another vendor's"
    write(host.root / "sys/fs/cgroup/dmem.capacity", f"{GPU0} 102641958912")
    for mode, backend in (("1", "misc"), ("3", "dmem"), ("0", "off")):
        write(host.root / "proc/driver/nvidia/params", f'RegistryDwords: "RmMemacctMode={mode};X=1"')
        assert own_limits(host) == OwnLimits(backend)


def only(root: Path, name: str, text: str | None) -> None:
    if text is None:
        (root / name).unlink()
    else:
        write(root / name, text)


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        ("kernel", f"boot/config-{KERNEL}", "# CONFIG_KPROBES is not set"),
        ("headers", f"lib/modules/{KERNEL}/build/Makefile", None),
        ("driver", "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08"),
        ("driver's nodes", "dev/nvidia-uvm", None),
        ("sharing modes", "tmp/nvidia-mps/control", ""),
        (
            "container toolkit",
            f"etc/{TOOLKIT}/config.toml",
            f'[{TOOLKIT}]\nmode = "legacy"\nruntimes = ["cgpu-runtime"]',
        ),
        ("cgpu-runtime", "usr/bin/cgpu-runtime", None),
        ("engines", f"etc/{TOOLKIT}/config.toml", f'[{TOOLKIT}]\nruntimes = ["runc", "/usr/bin/cgpu-runtime"]'),
        ("engines", f"etc/{TOOLKIT}/config.toml", "[[["),
        ("engines", "etc/docker/daemon.json", "{"),
        ("cgpu.toml", "etc/cgpu/cgpu.toml", "polciy = 2"),
        ("cgpud", "run/cgpu/drain", ""),
        ("policy", f"proc/cgpu_km/0/{ID2[:12]}/weight", "0"),
        ("stale containers", "proc/cgpu_km/inst_ctl", f"{inst_line('f' * 64, 9)}".replace("0x9", OURS)),
        ("libcuda", "proc/321/root/usr/lib64/libcuda.so.1", None),
        ("next boot", "boot/vmlinuz-6.12.9+deb12-amd64", ""),
    ],
)
def test_one_thing_is_wrong(host: Tree, check: str, name: str, text: str | None) -> None:
    """That check reports it, and no other does."""
    only(host.root, name, text)
    assert {one for one, status in states(host).items() if status != OK} == {check}


def dpkg(version: str, status: str = "install ok installed") -> str:
    rows = (("sed", "4.9", "install ok installed"), ("nvidia-container-toolkit-base", version, status))
    return "\n".join(f"Package: {name}\nStatus: {one}\nVersion: {number}\n" for name, number, one in rows)


@pytest.mark.parametrize(
    ("mode", "status", "found"),
    [
        ('mode = "auto"', dpkg("1.17.8-1"), PROBLEM),
        ("", dpkg("1.9.0-1"), PROBLEM),
        ('mode = "auto"', dpkg("1:1.17.0~rc.1-1"), PROBLEM),
        ('mode = "auto"', dpkg("1.18.0-1"), WARNING),
        ('mode = "auto"', dpkg("1.19.0-1"), WARNING),
        ('mode = "auto"', dpkg("1.19.1-1"), OK),
        ('mode = "auto"', dpkg("2.0-1"), OK),
        ('mode = "cdi"', dpkg("1.17.8-1"), WARNING),
        ('mode = "auto"', dpkg("1.17.8-1", "deinstall ok config-files"), OK),
        ('mode = "auto"', "", OK),
    ],
)
def test_finding_7_auto_is_legacy_before_1_18(host: Tree, mode: str, status: str, found: str) -> None:
    write(host.root / "var/lib/dpkg/status", status)
    write(
        host.root / f"etc/{TOOLKIT}/config.toml", f'[{TOOLKIT}]\n{mode}\nruntimes = ["/usr/bin/cgpu-runtime", "runc"]'
    )
    assert states(host)["container toolkit"] == found


@pytest.mark.parametrize(
    ("runtimes", "found"), [('["/usr/bin/cgpu-runtime", "runc"]', OK), ('["runc", "/usr/bin/cgpu-runtime"]', PROBLEM)]
)
def test_finding_7_the_gpu_operators_paths(host: Tree, runtimes: str, found: str) -> None:
    (host.root / "usr/bin/nvidia-container-runtime").unlink()
    shutil.rmtree(host.root / f"etc/{TOOLKIT}")
    theirs = host.root / "usr/local/nvidia/toolkit"
    write(theirs / TOOLKIT, "")
    write(theirs / f".config/{TOOLKIT}/config.toml", f'[{TOOLKIT}]\nmode = "cdi"\nruntimes = {runtimes}')
    assert (states(host)["engines"], states(host)["container toolkit"]) == (found, OK)


def test_docker_without_the_toolkit(host: Tree) -> None:
    """Docker's own containerd needs no set-up."""
    shutil.rmtree(host.root / f"etc/{TOOLKIT}")
    (host.root / "usr/bin/nvidia-container-runtime").unlink()
    assert states(host)["engines"] == PROBLEM
    write(host.root / "etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "/usr/bin/cgpu-runtime"}}}')
    assert states(host)["engines"] == OK
    write(host.root / "usr/bin/kubelet", "")
    assert states(host)["engines"] == WARNING
    write(host.root / "etc/containerd/config.toml", 'version = 2\n[a.b]\nBinaryName = "/usr/bin/cgpu-runtime"')
    assert states(host)["engines"] == OK


def test_without_the_module(host: Tree) -> None:
    shutil.rmtree(host.proc)
    found = states(host)
    assert (found["module"], found["policy"], found["stale containers"]) == (PROBLEM, SKIPPED, SKIPPED)


def test_json_and_the_exit_code(host: Tree) -> None:
    (host.root / "usr/bin/cgpu-runtime").unlink()
    result = Cli(host).cgpu("doctor", "--json")
    assert (result.exit_code, result.stderr) == (Exit.PROBLEMS, "")
    data = json.loads(result.stdout)
    assert (data["schema_version"], data["problems"]) == (1, 1)
    (bad,) = [one for one in data["findings"] if one["status"] != OK]
    assert bad == {
        "check": "cgpu-runtime",
        "status": "problem",
        "text": "not on the PATH",
        "remedy": "install the package cgpu",
    }
    assert "PROBLEM  cgpu-runtime" in Cli(host).cgpu("doctor").stdout
    assert "1 problem, 0 warnings" in Cli(host).cgpu("doctor").stdout


def test_a_node_with_nothing(tmp_path: Path) -> None:
    """Everything is absent: findings, not errors."""
    found = Cli(Tree(tmp_path)).cgpu("doctor")
    assert found.exit_code == Exit.PROBLEMS
    assert "internal" not in found.stderr


def test_nvml_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def query() -> tuple[()]:
        release.wait(30)
        return ()

    monkeypatch.setattr("cgpu_common.gpus.query", query)
    monkeypatch.setattr(node, "NVML_S", 0.05)
    assert node.cards() == (None, "no answer within 0.05 s")
    release.set()


#: An error is a fact for these: without one they pass.
NO_ERROR_IS_OK = ("secure boot", "cgpu.toml", "cgpud")


def test_a_check_without_a_fact_passes_nothing() -> None:
    """Each check accepts facts that are all unknown, and says what is missing. One of some drivers has no line then."""
    found = checks.run(Facts())
    assert len(found) == len(checks.CHECKS) - 1
    assert checks.own_limits(Facts()) == []
    assert tuple(one.check for one in found if one.status == OK) == NO_ERROR_IS_OK
    assert [one.check for one in found if not one.text or (one.status in (PROBLEM, WARNING)) != bool(one.remedy)] == []


# ---- a remedy that is for the cause ----


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("NVML Shared Library Not Found", "install libnvidia-ml1"),
        ("Driver/library version mismatch", "updated under the loaded one"),
        ("Driver Not Loaded", "modprobe nvidia"),
        ("GPU is lost", "dmesg | grep NVRM"),
        ("Insufficient Permissions", "be root"),
        ("no answer within 5 s", "nvidia-smi hangs too"),
        ("something new", "nvidia-smi; dmesg"),
    ],
)
def test_nvmls_error_has_its_own_remedy(error: str, remedy: str) -> None:
    """`install libnvidia-ml1` was the remedy for a library that is there and does not fit the driver."""
    found = checks.sharing(replace(GOOD, cards=None, cards_error=error))
    assert (found.status, remedy in found.remedy) == (WARNING, True), found


def test_before_the_first_container_the_run_state_is_not_known(empty: Tree) -> None:
    facts = replace(node.read(Paths.below(str(empty.root))), run_state={})
    (found,) = checks.run_states(facts)
    assert (found.status, found.text) == (OK, "GPU 0: not known before a container opens the GPU")


@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_a_line_fits_and_no_word_is_cut(width: int) -> None:
    bad = {"headers": False, "module_file": False, "module": None, "toolkit_mode": "legacy", "mps": ("/x",)}
    facts = replace(GOOD, driver_text="", **bad)  # type: ignore[arg-type]
    found = checks.run(facts)
    lines = doctor.text(found, width).splitlines()
    assert max(len(line) for line in lines) <= max(width, 60), "a path or a command is whole"
    words = {word for one in found for word in f"{one.text} {one.remedy}".split()}
    assert words <= set(" ".join(lines).split())
    assert len(doctor.text(found, None).splitlines()) <= len(lines)


# ---- one way in ----


def test_the_page_has_doctors_data() -> None:
    """docs/user/start.md is made of the branches, remedies and engines that cgpu doctor and cgpu setup use."""
    page = (Path(__file__).parents[3] / "docs/user/start.md").read_text()
    assert ways.BEGIN + ways.markdown() + ways.END in page, "the page must have what cgpu_cli.ways.markdown() returns"


def test_the_pages_have_the_branches_of_the_call_table() -> None:
    """Those that were compared in part with their numbers of rows: of each branch, a line of support.md."""
    support = (ROOT / "docs/user/support.md").read_text()
    for branch, (compared, rows) in branches.COMPARED.items():
        (line,) = re.findall(rf"^\| {branch} \(.*", support, re.M)
        assert f"{compared} of {rows} rows" in line, line
    whole = f"{branches.BRANCHES[0]} to {branches.BRANCHES[-1]}"
    assert (ROOT / "README.md").read_text().count(f"open modules, {whole} ") == 1
    assert f"NVIDIA's branches {whole}," in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_has_whole_nodes_of_the_same_data() -> None:
    page = (ROOT / "README.md").read_text()
    assert ways.BEGIN + ways.sites_markdown("docs/user/start.md") + ways.END in page
    start = (ROOT / "docs/user/start.md").read_text()
    heads = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ +(.+)$", start, re.M)}
    assert {one.section for one in ways.SITES} <= heads


@pytest.mark.parametrize("site", ways.SITES, ids=lambda one: one.section)
def test_doctor_says_of_a_node_what_the_readme_does(site: ways.Site) -> None:
    """A branch that the call table loses, or a kernel that becomes too old, changes the README's table too."""
    engine = Engine(site.engine, True, False)
    facts = replace(GOOD, kernel=site.kernel, driver_text=site.driver, engines=(engine,), toolkit=None)
    found = {one.check: one for one in checks.run(facts)}
    what, change = ways.holds(site)
    assert (found["kernel"].status, found["driver"].status in (OK, WARNING)) == (OK, True)
    row = next(line for line in ways.sites_markdown("x.md").splitlines() if f"#{site.section})" in line)
    if site.by_installer:
        assert change == "" and what.startswith(ways.ALL) and "the node installer" in row and "cgpu setup" not in row
    elif site.loads_modules:
        assert change == "" and what.startswith(ways.ALL)
        assert f"`{found['engines'].remedy}`" in row, "the engine's step is doctor's remedy"
        assert ("claims" in what) == (site.minor >= 34)
    else:
        assert what == ways.NONE and "cgpu setup" not in row


def test_a_node_with_another_driver_has_doctors_remedy() -> None:
    site = replace(ways.SITES[1], driver="NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03")
    assert ways.holds(site) == (ways.NONE, checks.DRIVER_REMEDIES["proprietary"])
    assert ways.holds(replace(ways.SITES[1], kernel="4.19.0-27-amd64"))[1] == "boot a kernel of 5.10 or later"


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ("610.57.04", "with the rows of 610, {} of {} of them compared with NVIDIA's sources of that branch"),
        ("615.71.09", "with the rows of 615, {} of {} of them compared with NVIDIA's sources of that branch"),
        (
            f"{NEWEST + 1}.6.0",
            f"with the rows of {NEWEST}, {{}} of {{}} of them compared with NVIDIA's sources of branch {NEWEST},",
        ),
        ("600.1", "with the rows of 595, all of them compared with NVIDIA's sources of branch 595, not of 600"),
        ("610.43.02", "without the fixes of NVIDIA's bulletin 5861"),
    ],
)
def test_a_driver_that_the_module_was_set_to_accept(release: str, says: str) -> None:
    """As the module does: refused by default, accepted by its parameter with the rows that its log names."""
    facts = replace(GOOD, driver_text=f"NVIDIA UNIX Open Kernel Module  {release}")
    says = says.format(*branches.COMPARED.get(branches.rows_for(int(release.split(".")[0])), ()))
    refused = checks.driver(facts)
    assert refused.status == PROBLEM and "any_driver=1" in refused.remedy
    accepted = checks.driver(replace(facts, any_driver=True))
    assert (accepted.status, says in accepted.text) == (WARNING, True), accepted
    assert "accepted by any_driver=1" in accepted.text


def test_the_modules_parameter_is_read(host: Tree) -> None:
    write(host.root / "proc/driver/nvidia/version", OF_615)
    for value, status in (("N\n", PROBLEM), ("Y\n", WARNING)):
        write(host.root / "sys/module/cgpu_km/parameters/any_driver", value)
        assert states(host)["driver"] == status


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("none", ""),
        ("proprietary", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08"),
        ("branch", "NVIDIA UNIX Open Kernel Module  530.30.02"),
        ("early", "NVIDIA UNIX Open Kernel Module  535.129.03"),
    ],
)
def test_doctor_and_page_have_one_remedy(key: str, text: str) -> None:
    remedy = checks.driver(replace(GOOD, driver_text=text)).remedy
    assert [one.do for one in ways.ways() if one.do == remedy], remedy
    assert remedy == checks.DRIVER_REMEDIES[key]


@pytest.mark.parametrize("name", ["docker", "podman", "containerd", TOOLKIT])
def test_doctors_remedy_of_an_engine_is_on_the_page(name: str) -> None:
    engines = (
        (Engine(name, True, False),) if name != TOOLKIT else (Engine("docker", True, False), Engine(name, True, False))
    )
    remedy = checks.engines(replace(GOOD, engines=engines)).remedy
    assert [one for one in ways.ways() if f"`{remedy}`" in one.do], remedy


@pytest.mark.parametrize(
    ("dep", "headers", "status", "text"),
    [
        ("updates/dkms/cgpu_km.ko.zst:\nupdates/dkms/nvidia.ko.xz: x\n", False, OK, f"{NEXT}, with the modules"),
        ("updates/dkms/cgpu_km.ko:\nupdates/dkms/nvidia-current.ko:\n", True, OK, "with the modules"),
        ("updates/dkms/cgpu_km.ko:\nkernel/drivers/video/nvidiafb.ko:\n", True, WARNING, "has no nvidia"),
        ("updates/dkms/nvidia.ko:\n", True, WARNING, "has no cgpu_km"),
    ],
)
def test_the_kernel_of_the_next_boot(host: Tree, dep: str, headers: bool, status: str, text: str) -> None:
    """An update has installed it: by number it is the latest, though "6.1" is the greater text."""
    for release in (NEXT, "6.1.0-9-amd64"):
        write(host.root / f"boot/vmlinuz-{release}", "")
    write(host.root / f"lib/modules/{NEXT}/modules.dep", dep)
    if headers:
        write(host.root / f"lib/modules/{NEXT}/build/Makefile", "")
    found = checks.next_boot(node.read(Paths.below(str(host.root))))
    assert (found.status, text in found.text) == (status, True), found
    assert (f"linux-headers-{NEXT}" in found.remedy) == (status == WARNING and not headers)


def test_the_boot_loader_names_the_next_kernel(host: Tree) -> None:
    """EL: an older kernel than the latest may be chosen."""
    el = "5.14.0-503.el9.x86_64"
    write(host.root / "boot/grub2/grubenv", f"# GRUB Environment Block\nsaved_entry=0123-{el}\nboot_success=1\n")
    entry = host.root / f"boot/loader/entries/0123-{el}.conf"
    write(entry, f"title EL\nversion {el}\nlinux /vmlinuz-{el}\n")
    assert node.read(Paths.below(str(host.root))).next_kernel == el
    entry.unlink()
    assert node.read(Paths.below(str(host.root))).next_kernel == KERNEL


PLACES = ["docker/{}", "system.slice/docker-{}.scope", "kubepods/pod1/cri-containerd-{}.scope"]


@pytest.mark.parametrize(
    ("environ", "asks"),
    [
        ("PATH=/bin\0ALIYUN_COM_GPU_MEM_CONTAINER=6\0", True),
        ("ALIYUN_COM_GPU_MEM_CONTAINER=6\0CGPU_DISABLE=true\0", False),
        ("ALIYUN_COM_GPU_MEM_CONTAINER=0\0", False),
        ("PATH=/bin\0", False),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_a_container_with_the_variables_and_no_slice(host: Tree, environ: str, asks: bool, place: str) -> None:
    """`docker run` without --runtime: nothing of ours saw it start."""
    other = "c" * 64
    for pid, one in ((400, other), (401, other), (402, ID1), (403, "")):
        write(host.root / f"proc/{pid}/cgroup", f"0::/{place.format(one)}\n" if one else "0::/init.scope\n")
        write(host.root / f"proc/{pid}/environ", environ)
    found = checks.bypass(node.read(Paths.below(str(host.root))))
    assert (found.status, other[:12] in found.text) == ((WARNING, True) if asks else (OK, False))


@pytest.mark.parametrize("value", ["ignore", "slice"])
def test_nvidias_limit_and_no_slice(host: Tree, value: str) -> None:
    """Where cgpu.toml makes a slice of it, a container without one was not seen."""
    write(host.root / "etc/cgpu/cgpu.toml", f'[container]\nnvidia_memory_limit = "{value}"')
    for pid, one, environ in ((400, "c" * 64, "NVIDIA_GPU_MEMORY_LIMIT=4096\0"), (401, "d" * 64, "A=1\0")):
        write(host.root / f"proc/{pid}/cgroup", f"0::/docker/{one}\n")
        write(host.root / f"proc/{pid}/environ", environ)
    assert node.read(Paths.below(str(host.root))).past_us == (("cccccccccccc",) if value == "slice" else ())


ERROR = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: cgpu: cgpud does not "
    "answer (/run/cgpu/cgpud.sock: No such file or directory)\nsystemctl status cgpud: unknown"
)


@pytest.mark.parametrize(
    ("state", "policy", "more", "is_named"),
    [
        ({"Running": False, "Error": ERROR}, "always", {}, True),
        ({"Running": False, "Error": ERROR}, "unless-stopped", {}, True),
        ({"Running": False, "Error": ERROR}, "no", {}, False),
        ({"Running": True, "Error": ERROR}, "always", {}, False),
        ({"Running": False, "Error": "exec: no such file"}, "always", {}, False),
        ({"Running": False, "Error": ERROR}, "always", {"HasBeenManuallyStopped": True}, False),
        ({"Running": False}, "always", {}, False),
        (None, "always", {}, False),
    ],
)
def test_a_container_that_docker_does_not_start_again_is_named(
    host: Tree, state: dict[str, Any] | None, policy: str, more: dict[str, Any], is_named: bool
) -> None:
    """After a boot with a mistake in cgpu.toml --restart=always containers stayed exited, and only a page said so."""
    for number in (10, 2):
        folder = host.root / f"var/lib/docker/containers/{number:064x}"
        record = {"Name": f"/job{number}", "State": state} | more
        write(folder / "config.v2.json", json.dumps(record))
        write(folder / "hostconfig.json", json.dumps({"RestartPolicy": {"Name": policy}}))
    write(host.root / "var/lib/docker/containers" / ("c" * 64) / "config.v2.json", "[]")
    facts = node.read(Paths.below(str(host.root)))
    found = checks.refused_starts(facts)
    assert found.status == (WARNING if is_named else OK)
    if is_named:
        assert "job2, job10 (cgpud does not answer" in found.text and "unknown" not in found.text
        assert found.remedy == "docker start job2 job10"
        silent = checks.refused_starts(replace(facts, daemon_silence="does not run"))
        assert silent.remedy == "mend cgpud first, then docker start job2 job10"
