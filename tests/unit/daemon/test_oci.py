# SPDX-License-Identifier: MIT
"""Edits of config.json: golden pair, refusals, junk."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgpu_common import cgroup
from cgpu_common.cgroup import Mount
from cgpu_common.errors import Refused
from cgpu_common.model import Container, Slot
from cgpud import bundle, hooks, host_paths, numbers, oci
from cgpud.config_json import Spec
from cgpud.places import Places
from cgpud.watch import Facts

DATA = Path(__file__).parent / "data"
CONTAINER = Container("a" * 64, 7, "a" * 12, 509, 4, 5, slots=(Slot(0, 6, 3, 1 << 30),))
MAJORS = frozenset({195, 511, 226, 236})
OPTIONS = oci.Options("/usr/bin/cgpu-runtime")
CLOSED = "195:0-31,195:254-255,511:0-1"


def docker() -> Spec:
    return json.loads((DATA / "docker.json").read_text())  # type: ignore[no-any-return]


def mounting(source: str, destination: str = "/host", **more: Any) -> Spec:
    """With one mount more than an engine writes."""
    spec = docker()
    spec["mounts"].append({"source": source, "destination": destination, "type": "bind", **more})
    return spec


def edit(spec: Spec, options: oci.Options = OPTIONS) -> Spec:
    # As the daemon does before it creates the container.
    oci.check_isolation(spec, options, resolve=partial(host_paths.find, "/srv/bundle", Facts().places()))
    return oci.edit(spec, CONTAINER, MAJORS, options, CLOSED)


def refusal(spec: Spec) -> str:
    with pytest.raises(Refused) as caught:
        edit(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_golden() -> None:
    spec = docker()
    before = copy.deepcopy(spec)
    assert edit(spec) == json.loads((DATA / "docker.edited.json").read_text())
    assert spec == before, "the input is not touched"


def test_twice_is_once() -> None:
    once = edit(docker())
    assert edit(once) == once


def test_another_life_replaces_the_first() -> None:
    later = Container("a" * 64, 8, "a" * 12, 509, 14, 15, slots=(Slot(0, 16, 3, 1 << 30),))
    again = oci.edit(edit(docker()), later, MAJORS, OPTIONS, CLOSED)
    assert again == oci.edit(docker(), later, MAJORS, OPTIONS, CLOSED)


def test_nodes_come_over_the_mount_of_dev() -> None:
    """Mounts are made in the order of the list."""
    places = [mount["destination"] for mount in edit(docker())["mounts"]]
    assert min(places.index(path) for path, _ in oci.nodes_of(CONTAINER)) > places.index("/dev")


@pytest.mark.parametrize("source", ["/dev/cgpu", "/dev/cgpu/bbbbbbbbbbbb/nvidia0", "//dev/./cgpu/"])
def test_another_containers_nodes_do_not_come(source: str) -> None:
    spec = mounting(source, "/srv", options=["rbind"])
    assert edit(spec) == edit(docker())


def test_no_deny_rule_is_added() -> None:
    before = [rule for rule in docker()["linux"]["resources"]["devices"] if not rule["allow"]]
    after = [rule for rule in edit(docker())["linux"]["resources"]["devices"] if not rule["allow"]]
    assert before == after


def test_a_bare_spec_gets_what_it_lacks() -> None:
    out = edit({"linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}}})
    assert out["linux"]["devices"] == []
    assert [mount["destination"] for mount in out["mounts"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3"]
    assert [hook["args"][3:] for hook in out["hooks"]["createContainer"]] == [["--root=rootfs", f"--closed={CLOSED}"]]
    assert out["linux"]["maskedPaths"] == ["/proc/cgpu_km"]
    assert out["linux"]["readonlyPaths"] == ["/proc/driver"]


def test_null_lists_are_empty_lists() -> None:
    spec = docker()
    spec["hooks"] = None
    spec["mounts"] = None
    spec["linux"]["devices"] = None
    spec["linux"]["maskedPaths"] = None
    spec["linux"]["readonlyPaths"] = None
    assert edit(spec)["linux"]["maskedPaths"] == ["/proc/cgpu_km"]
    assert edit(spec)["linux"]["readonlyPaths"] == ["/proc/driver"], "--security-opt systempaths=unconfined"


# ---- refusals ----


def test_user_namespace() -> None:
    spec = docker()
    spec["linux"]["namespaces"].append({"type": "user"})
    assert "user namespace" in refusal(spec)
    spec = docker()
    spec["linux"]["uidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    assert "user namespace" in refusal(spec)


@pytest.mark.parametrize(
    "rules",
    [
        [{"allow": True, "access": "rwm"}],
        [{"allow": False, "access": "rwm"}, {"allow": True, "access": "rwm"}],
        [{"allow": False, "access": "rwm"}, {"allow": True, "type": "c", "major": -1, "minor": -1, "access": "r"}],
        [{"allow": False, "access": "rwm"}, {"allow": True, "type": "a", "access": "w"}],
        [{"allow": False, "access": "rwm"}, {"allow": True, "type": "u", "access": "rwm"}],
        [{"allow": False, "access": "rwm"}, {"allow": True, "type": "all", "access": "rwm"}],
        [{"allow": False, "access": "rwm"}, {"allow": True, "type": "char", "major": -1, "access": "r"}],
        [{"allow": False, "access": "rwm"}, {"allow": True, "type": 7, "access": "rwm"}],
        [{"allow": False, "type": "u", "access": "rwm"}],
        [{"allow": False, "type": "b", "access": "rwm"}],
        [{"allow": False, "access": "m"}],
        [{"allow": False}],
        [{"allow": False, "access": "rwm"}, {"allow": True, "type": "c"}],
        [],
    ],
    ids=str,
)
def test_every_device(rules: list[dict[str, Any]]) -> None:
    spec = docker()
    spec["linux"]["resources"]["devices"] = rules
    assert "--privileged" in refusal(spec)
    edit(spec, oci.Options("/usr/bin/cgpu-runtime", allow_privileged=True))


@pytest.mark.parametrize("kind", ["b", "block"])
def test_every_block_device_is_no_gpu(kind: str) -> None:
    spec = docker()
    spec["linux"]["resources"]["devices"].append({"allow": True, "type": kind, "access": "rwm"})
    edit(spec)


@pytest.mark.parametrize("kind", ["c", "u", "char", "x", None])
def test_a_node_of_whatever_type_is_taken_out(kind: str | None) -> None:
    spec = docker()
    spec["linux"]["devices"].append({"path": "/dev/x", "type": kind, "major": 195, "minor": 0})
    assert "/dev/x" not in [node["path"] for node in edit(spec)["linux"]["devices"]]


@pytest.mark.parametrize("capability", oci.UNDOING_CAPABILITIES)
def test_capabilities(capability: str) -> None:
    spec = docker()
    spec["process"]["capabilities"]["bounding"].append(capability)
    assert capability in refusal(spec)


@pytest.mark.parametrize("name", ["CAP_DAC_READ_SEARCH", "cap_dac_read_search", "2", "0x2"])
def test_the_capability_that_opens_any_file_of_the_host(name: str) -> None:
    """open_by_handle_at(), beginning at a file that every engine bind-mounts."""
    spec = docker()
    spec["process"]["capabilities"]["bounding"].append(name)
    assert "CAP_DAC_READ_SEARCH" in refusal(spec)


#: What libcap 2.66, which crun asks, takes for CAP_SYS_ADMIN, but for the last two.
OTHER_NAMES = (
    *("cap_sys_admin", "Cap_Sys_Admin", "21", "0x15", "0X15", "025", "21abc", "0258", "cap_sys_admin=ep"),
    *("CAP_SYS_ADMIN x", "cap_sys_admin1", "21 ", "cap_sys_admin\0x", " 21", "\tCAP_SYS_ADMIN"),
)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_of_a_capability(name: str) -> None:
    spec = docker()
    spec["process"]["capabilities"]["ambient"] = [name]
    assert "CAP_SYS_ADMIN" in refusal(spec)


@pytest.mark.parametrize("name", ["", "8", "08", "0x", "210", "0x150", "2" * 99, "cap_", "cap_sys_adm", "-21", "é"])
def test_what_is_no_such_capability(name: str) -> None:
    assert oci.capability(name) not in oci.CAPABILITY_NUMBERS.values()


@pytest.mark.parametrize("left", [(), ("pid",), ("network",)])
def test_who_could_command_the_module(left: tuple[str, ...]) -> None:
    """That takes the capability and both namespaces of the host: either namespace of its own prevents it."""
    spec = docker()
    spec["process"]["capabilities"]["bounding"].append("CAP_NET_ADMIN")
    spaces = spec["linux"]["namespaces"]
    spec["linux"]["namespaces"] = [
        one for one in spaces if one["type"] not in ("pid", "network") or one["type"] in left
    ]
    if left:
        oci.check_isolation(spec, OPTIONS)
    else:
        assert "CAP_NET_ADMIN, the host's network and the host's processes" in refusal(spec)
    spec["process"]["capabilities"]["bounding"].remove("CAP_NET_ADMIN")
    oci.check_isolation(spec, OPTIONS)


POD = {"network": "/proc/7/ns/net", "pid": "/proc/7/ns/pid", "ipc": "/proc/7/ns/ipc", "mount": None}


@pytest.mark.parametrize(
    ("capability", "own", "refused"),
    [
        ("CAP_NET_ADMIN", (), "the host's network and the host's processes"),
        ("CAP_NET_ADMIN", ("ipc",), "the host's network and the host's processes"),
        ("CAP_NET_ADMIN", ("network",), ""),
        ("CAP_NET_ADMIN", ("pid",), ""),
        ("CAP_SYS_PTRACE", ("network",), "CAP_SYS_PTRACE and the host's processes"),
        ("CAP_SYS_PTRACE", ("pid",), ""),
        ("CAP_SYS_NICE", (), ""),
    ],
)
def test_namespaces_by_identity(capability: str, own: tuple[str, ...], refused: str) -> None:
    """A pod with hostNetwork and hostPID: containerd names the host's namespaces by the path of the sandbox."""
    spec = docker()
    spec["process"]["capabilities"]["bounding"].append(capability)
    spec["linux"]["namespaces"] = [{"type": kind} | ({"path": path} if path else {}) for kind, path in POD.items()]

    def check(options: oci.Options) -> None:
        oci.check_isolation(spec, options, (), lambda kind, path: kind in own and path == POD[kind])

    if refused:
        with pytest.raises(Refused, match=refused):
            check(OPTIONS)
    else:
        check(OPTIONS)
    check(oci.Options("/usr/bin/cgpu-runtime", allow_privileged=True))


@pytest.mark.parametrize(
    ("entries", "own"),
    [
        ([{"type": "pid"}, {"type": "network", "path": ""}], {"pid", "network"}),
        ([{"type": "pid"}, {"type": "pid", "path": "/host"}], set()),
        ([{"type": "pid", "path": 7}, {"type": "network", "path": "/own"}], {"network"}),
        ([{"type": "pid", "path": None}], {"pid"}),
        ([], set()),
    ],
    ids=str,
)
def test_own_namespaces(entries: list[dict[str, Any]], own: set[str]) -> None:
    assert oci.own_namespaces({"linux": {"namespaces": entries}}, lambda _, path: path == "/own") == own


@pytest.mark.parametrize("destination", ["/dev", "/dev/", "//dev", "///dev//", "dev", "/./dev", "/x/../dev", "../dev"])
def test_a_mount_over_dev(destination: str) -> None:
    spec = mounting("/dev", destination, type="none", options=["rbind"])
    assert "over /dev" in refusal(spec)


def test_the_legacy_hook() -> None:
    hook = {
        "path": "/usr/bin/nvidia-container-runtime-hook",
        "args": ["nvidia-container-runtime-hook", "-config=/old", "prestart"],
        "env": ["A=1"],
    }
    spec = docker()
    spec["hooks"]["prestart"].append(hook)
    assert "legacy" in refusal(spec)
    out = edit(spec, oci.Options("/usr/bin/cgpu-runtime", legacy_hook_config="/etc/cgpu/hook.toml"))
    assert out["hooks"]["prestart"][1] == {
        **hook,
        "args": ["nvidia-container-runtime-hook", "-config=/etc/cgpu/hook.toml", "prestart"],
    }


STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
CLI = "/usr/bin/nvidia-container-cli"
SPELLINGS: list[dict[str, Any]] = [
    {"path": CLI, "args": ["nvidia-container-cli", "configure"]},
    {"path": CLI},
    # containerd's own --gpus: ctr, nerdctl
    {
        "path": "/usr/bin/containerd",
        "args": ["containerd", "oci-hook", "--", CLI, "configure", "--device=0", "{{rootfs}}"],
    },
    {"path": "/bin/sh", "args": ["sh", "-c", f"PATH=/bin;{CLI} configure|cat"]},
    {"path": "/bin/sh", "args": ["sh", "-c", "x=$(nvidia-container-cli list) y"]},
    {"path": "/usr/bin/env", "args": ["env", "A=1", "nvidia-container-runtime-hook", "prestart"]},
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("hook", SPELLINGS, ids=str)
def test_a_hook_that_would_give_the_whole_gpu(stage: str, hook: dict[str, Any]) -> None:
    spec = docker()
    spec["hooks"][stage] = [*spec["hooks"].get(stage, []), hook]
    assert "more than its part of a GPU" in refusal(spec)


@pytest.mark.parametrize(
    "word", ["nvidia-container-cli-cgpu", "nvidia-ctk", "/opt/nvidia-container-clifford", "oci-hook"]
)
def test_other_hooks_stay(word: str) -> None:
    spec = docker()
    spec["hooks"]["createRuntime"] = [{"path": "/usr/bin/x", "args": ["x", word]}]
    assert edit(spec)["hooks"]["createRuntime"][0] == spec["hooks"]["createRuntime"][0]


def ours(spec: Spec) -> list[tuple[str, str]]:
    return [
        (stage, hook["args"][2])
        for stage, hooks in spec["hooks"].items()
        for hook in hooks
        if f"--closed={CLOSED}" in hook.get("args", ())
    ]


def test_what_other_hooks_did_is_checked_at_the_end() -> None:
    """No list of programs is complete: the check is last, and again after hooks that run later."""
    assert ours(edit(docker())) == [("createContainer", "params")]
    assert edit(docker())["hooks"]["createContainer"][-1]["args"][2] == "params"
    for stage in ("startContainer", "poststart"):
        spec = docker()
        spec["hooks"][stage] = [{"path": "/x"}]
        out = edit(spec)
        assert sorted(ours(out)) == [("createContainer", "params"), ("poststart", "confirm")]
        assert out["hooks"]["poststart"][-1]["args"][2] == "confirm"
        assert edit(out) == out
    restored = oci.edit(docker(), CONTAINER, MAJORS, OPTIONS, CLOSED, restored=True)
    assert ("createRuntime", "bind") in ours(restored)


def test_who_may_have_every_device_is_not_checked() -> None:
    spec = docker()
    privileged = oci.Options("/usr/bin/cgpu-runtime", allow_privileged=True)
    assert ours(edit(spec, privileged)), "allowed, and not used"
    spec["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    assert not ours(edit(spec, privileged))


def test_a_container_without_a_slice_is_checked_alike() -> None:
    spec = docker()
    out = hooks.with_check(spec, OPTIONS.hook_path, CLOSED)
    assert ours(out) == [("createContainer", "check")]
    assert {**out, "hooks": None} == {**spec, "hooks": None}
    assert hooks.with_check(out, OPTIONS.hook_path, CLOSED) == out
    spec["hooks"]["poststart"] = [{"path": "/x"}]
    assert ours(hooks.with_check(spec, OPTIONS.hook_path, CLOSED)) == [
        ("createContainer", "check"),
        ("poststart", "confirm"),
    ]


def test_the_numbers_that_are_closed() -> None:
    devices = "\n195 nvidia\n509 cgpu\n511 nvidia-uvm\n226 drm\n236 nvidia-caps\n\nBlock devices:\n"
    assert (
        numbers.closed_numbers(f"Character devices:\n  1 mem{devices}")
        == "195:0-31,195:254-255,226:0-63,226:128-191,236:0-15,511:0-1"
    )
    with pytest.raises(Refused, match="more GPU drivers"):
        numbers.closed_numbers("Character devices:\n" + "".join(f"{n} nvidia-x{n}\n" for n in range(200, 300)))


OURS = "-config=/ours"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["hook", "prestart"], ["hook", OURS, "prestart"]),
        (["hook", "-config", "/x", "prestart"], ["hook", OURS, "prestart"]),
        (["hook", "--config", "/x", "prestart"], ["hook", OURS, "prestart"]),
        (["hook", "-config=/x", "--config=/y", "prestart"], ["hook", OURS, "prestart"]),
        (["hook", "-config", "-config", "-config=/y", "prestart"], ["hook", OURS, "prestart"]),
        (["hook", "-debug", "-config", "-debug", "prestart"], ["hook", OURS, "-debug", "prestart"]),
        (["hook", "-config"], ["hook", OURS]),
        (["-config", "prestart"], ["-config", OURS, "prestart"]),  # the first is the program's name
        (["hook", "-configs=/x", "prestart"], ["hook", OURS, "-configs=/x", "prestart"]),
        ([], ["nvidia-container-toolkit", OURS, "prestart"]),
        (None, ["nvidia-container-toolkit", OURS, "prestart"]),
    ],
    ids=str,
)
def test_the_legacy_hook_has_our_configuration_only(args: list[str] | None, expected: list[str]) -> None:
    spec = docker()
    spec["hooks"]["prestart"] = [{"path": "/usr/bin/nvidia-container-toolkit", "args": args}]
    out = edit(spec, oci.Options("/usr/bin/cgpu-runtime", legacy_hook_config="/ours"))
    assert out["hooks"]["prestart"][0]["args"] == expected


# ---- small parts ----


@pytest.mark.parametrize(
    "mount",
    [
        {"source": "/tmp/nvidia-mps", "destination": "/tmp/nvidia-mps", "type": "bind"},
        {"source": "/tmp/../tmp/nvidia-mps/", "destination": "/pipes", "options": ["rbind"]},
        {"source": "/run/elsewhere", "destination": "/tmp/nvidia-mps", "type": "bind"},
        {"source": "/tmp/nvidia-mps/control", "destination": "/c", "type": "bind"},
        {"source": "//tmp/nvidia-mps", "destination": "/pipes", "type": "bind"},
        {"source": "/run/elsewhere", "destination": "//tmp/nvidia-mps", "type": "bind"},
        {"source": "/run/elsewhere", "destination": "tmp/nvidia-mps", "type": "bind"},
        {"source": "/run/nvidia/mps/nvidia.com/gpu/pipe", "destination": "/p", "type": "bind"},
    ],
    ids=str,
)
def test_mps_mounts(mount: dict[str, Any]) -> None:
    spec = docker()
    spec["mounts"].append(mount)
    assert "MPS" in refusal(spec)
    assert refusal(spec).startswith("the container mounts ")


BINDS = [
    # (source, does it bring /tmp/nvidia-mps?)
    ("/tmp", True),
    ("//tmp/", True),
    ("/var/../tmp", True),
    ("../../../tmp", True),  # relative to the bundle, which may lie anywhere
    ("/tmp/other", False),
    ("/tm", False),
    ("/var/tmp", False),
]


def test_a_bind_that_brings_the_pipes_of_the_device_plugin() -> None:
    """Under time slicing containers bind /run/nvidia, for the driver's own files."""
    spec = mounting("/run/nvidia", "/run/nvidia")
    oci.check_isolation(spec, OPTIONS, oci.MPS_DIRECTORIES[:1])
    with pytest.raises(Refused, match="which brings /run/nvidia/mps, the pipes of"):
        oci.check_isolation(spec, OPTIONS, oci.MPS_DIRECTORIES)


@pytest.mark.parametrize(("source", "brings"), BINDS)
@pytest.mark.parametrize("there", [(), oci.MPS_DIRECTORIES], ids=["no MPS", "MPS"])
def test_a_bind_that_brings_the_pipes(source: str, brings: bool, there: tuple[str, ...]) -> None:
    spec = mounting(source, type="none", options=["rbind"])
    if not (brings and there):
        oci.check_isolation(spec, OPTIONS, there)
        return
    with pytest.raises(Refused) as caught:
        oci.check_isolation(spec, OPTIONS, there)
    assert str(caught.value).startswith(f"the container mounts {source}, which brings /tmp/nvidia-mps, the pipes of")


def test_a_file_system_of_its_own_brings_nothing() -> None:
    spec = mounting("/", "/tmp", type="tmpfs")
    spec["mounts"].append({"source": "tmpfs", "destination": "/run/cgpu", "type": "tmpfs"})
    oci.check_isolation(spec, OPTIONS, oci.MPS_DIRECTORIES)


SOCKET_BINDS = [
    # (source, does it bring /run/cgpu?)
    *((source, True) for source in ("/run/cgpu", "/run/cgpu/", "/run/cgpu/cgpud.sock", "//run/./cgpu", "/", "/run")),
    *((source, True) for source in ("/var/run", "/var/run/cgpu/state", "/run/x/..", "../../run")),
    *((source, False) for source in ("/run/cgpu-metrics", "/run/cgpu2", "/var", "/run/containers/x", "/srv/run/cgpu")),
]


@pytest.mark.parametrize(("source", "brings"), SOCKET_BINDS)
def test_a_bind_that_brings_the_daemons_socket(source: str, brings: bool) -> None:
    """Read-only too: a socket on such a mount takes connections."""
    spec = mounting(source, type="none", options=["rbind", "ro"])
    if not brings:
        edit(spec)
        return
    assert refusal(spec).startswith(f"the container mounts {source}, which brings /run/cgpu, where cgpud takes")
    with pytest.raises(Refused):  # as with MPS: all devices do not include requests to the daemon
        edit(spec, oci.Options("/usr/bin/cgpu-runtime", allow_privileged=True))


@pytest.mark.parametrize(
    ("root", "what"),
    [
        ("/", "which brings /run/cgpu, where"),
        ("/run", "which brings /run/cgpu, where"),
        ("/srv/link", "which brings /run/cgpu, where"),
        ("/sys/fs", "the host's cgroups"),
        ("/srv/mount", "the host's GPU driver"),
        ("/srv/rootfs", ""),
        ("rootfs", ""),
    ],
)
def test_a_root_that_is_the_hosts(root: str, what: str) -> None:
    """podman run --rootfs, ctr run --rootfs: a runtime binds it with what is mounted below."""
    lines = "33 25 0:50 / /srv/mount/proc rw - proc proc rw"
    places = Places([*MOUNTS, *cgroup.mounts(lines)], oci.GUARDED)
    behind = {"/srv/link": "/run"}
    spec = docker()
    spec["root"] = {"path": root}
    assert root in oci.bind_sources(spec)

    def check() -> None:
        resolve = partial(host_paths.find, "/srv/bundle", places)
        oci.check_isolation(spec, OPTIONS, resolve=lambda path: resolve(behind.get(path, path)), cgroups="v2")

    if not what:
        check()
        return
    with pytest.raises(Refused, match=what):
        check()


@pytest.mark.parametrize("to", ["/run", "/run/cgpu/state", "/var/run/cgpu", "relative", "chain", "/var/log/../.."])
@pytest.mark.parametrize("below", ["", "/", "/./"])
def test_a_link_of_the_host_to_the_daemons_socket(tmp_path: Path, to: str, below: str) -> None:
    """The kernel follows it for a bind; the text of its path shows nothing."""
    link = tmp_path / "link"
    if to == "relative":
        to = "../" * 20 + "run"
    elif to == "chain":
        (tmp_path / "other").symlink_to("/var")
        to = "other/run"
    link.symlink_to(to)
    spec = mounting(f"{link}{below}", options=["rbind"])
    assert "which brings /run/cgpu, where cgpud takes" in refusal(spec)
    link.unlink()
    link.symlink_to(tmp_path)
    edit(spec)


MOUNTS = tuple(
    cgroup.mounts("""\
25 1 8:1 / / rw - ext4 /dev/sda1 rw
26 25 0:21 / /sys rw - sysfs sysfs rw
27 26 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
28 25 0:25 / /run rw - tmpfs tmpfs rw
29 25 0:25 /cgpu /var/lib/kubelet/pods/u/volume-subpaths/v/main/0 rw - tmpfs tmpfs rw
30 25 0:24 /system.slice /var/lib/kubelet/pods/u/volume-subpaths/v/main/1 rw - cgroup2 cgroup2 rw
31 25 8:1 /srv/a\\040b /mnt/x rw - ext4 /dev/sda1 rw
32 25 0:40 / /run/other rw - tmpfs tmpfs rw
""")
)
SUBPATHS = "/var/lib/kubelet/pods/u/volume-subpaths/v/main"
OTHER_PATHS = [
    (f"{SUBPATHS}/0", ["/run/cgpu"]),
    (f"{SUBPATHS}/0/state", ["/run/cgpu/state"]),
    (f"{SUBPATHS}/1", ["/sys/fs/cgroup/system.slice"]),
    (f"{SUBPATHS}/10", []),
    (SUBPATHS, ["/run/cgpu", "/sys/fs/cgroup/system.slice"]),
    ("/mnt/x/c", ["/srv/a b/c"]),
    ("/srv/a b", ["/srv/a b"]),
    ("/srv/other", []),
    ("/run/other/cgpu", []),
]


@pytest.mark.parametrize(("path", "wanted"), OTHER_PATHS)
def test_the_paths_of_a_bind_by_other_mounts(path: str, wanted: list[str]) -> None:
    guarded = (*oci.GUARDED, "/srv/a b")
    assert sorted({*Places(MOUNTS, guarded).of(path)} - {path}) == sorted({*wanted} - {path})
    assert Places((), guarded).of(path) == []


def test_so_many_mounts_and_binds_of_one_pod() -> None:
    """A start that takes longer than the watchdog's 30 s ends the daemon, and the kubelet repeats it."""
    count = 20_000
    subpaths = [Mount("8:1", f"/v/{number}", f"{SUBPATHS}/{number}", "ext4", "rw") for number in range(count)]
    places = Places([*MOUNTS, *subpaths], oci.GUARDED)
    before = time.process_time()
    assert not any(places.of(f"{SUBPATHS}/{number}") for number in range(2, count))
    assert time.process_time() - before < 3  # 0.1 s; 1,000 s with a look at each mount for each bind


@pytest.mark.parametrize(("number", "what"), [(0, "which brings /run/cgpu, where"), (1, "the host's cgroups")])
def test_a_subpath_of_a_volume(number: int, what: str) -> None:
    """A kubelet mounts it in a directory of its own, which is no link."""
    spec = mounting(f"{SUBPATHS}/{number}", "/x", options=["rbind", "rw"])
    oci.check_isolation(spec, OPTIONS, resolve=lambda path: host_paths.find("/", Places((), oci.GUARDED), path))
    with pytest.raises(Refused, match=what):
        oci.check_isolation(spec, OPTIONS, resolve=lambda path: host_paths.find("/", Places(MOUNTS, oci.GUARDED), path))


BELOW = (
    ("28 25 0:25 / /srv/v/data rw - tmpfs tmpfs rw", "which brings /run/cgpu, where"),
    ("33 25 0:50 / /srv/v/data rw - proc proc rw", "the host's GPU driver"),
    ("33 25 0:50 /driver /srv/v rw - proc proc rw", "the host's GPU driver"),
    ("33 25 0:51 / /srv/v/data rw - debugfs none rw", "the host's devices"),
)


@pytest.mark.parametrize(("line", "what"), BELOW, ids=[line for line, _ in BELOW])
def test_what_another_container_has_had_mounted(line: str, what: str) -> None:
    """An engine's volume is a mount of any type, in a directory of the host, and a bind of that one is recursive."""
    places = Places([*MOUNTS, *cgroup.mounts(line)], oci.GUARDED)
    spec = mounting("/srv/v", "/x", options=["rbind", "ro"])
    with pytest.raises(Refused, match=what):  # read-only itself, and what is mounted below it is writable
        oci.check_isolation(spec, OPTIONS, resolve=lambda path: host_paths.find("/", places, path))
    spec["mounts"][-1]["source"] = "/srv/w"
    oci.check_isolation(spec, OPTIONS, resolve=lambda path: host_paths.find("/", places, path))


@pytest.mark.parametrize(
    "mount",
    [
        {"type": "sysfs", "destination": "/s"},
        {"type": "debugfs", "destination": "/d"},
        {"type": "proc", "destination": "/p"},
    ],
    ids=str,
)
def test_a_writable_file_system_of_the_kernel(mount: dict[str, str]) -> None:
    spec = docker()
    spec["mounts"].append({**mount, "source": mount["type"], "options": ["nosuid", "ro"]})
    oci.check_isolation(spec, OPTIONS)
    spec["mounts"][-1]["options"] = ["nosuid"]
    with pytest.raises(Refused, match=r"\(" + mount["type"] + r"\) writable"):
        oci.check_isolation(spec, OPTIONS)


SERVICES = [
    *(f"{run}/nvidia-{name}/socket" for run in ("/run", "/var/run") for name in ("persistenced", "fabricmanager")),
    "/run//nvidia-persistenced",
]


@pytest.mark.parametrize("path", SERVICES)
def test_the_sockets_of_the_drivers_services(path: str) -> None:
    """NVIDIA's toolkit mounts them; nvidia-persistenced takes root of a container for root of the host."""
    spec = mounting(path, path, options=["rbind"])
    kept = {"source": "/run/nvidia-persistenced2", "destination": "/run/nvidia-persistenced2", "type": "bind"}
    spec["mounts"].append(kept)
    for edited in (edit(spec), oci.edit_whole(spec, MAJORS, (), None)):
        assert not [mount for mount in edited["mounts"] if mount["destination"] == path]
        assert kept in edited["mounts"]
    spec["mounts"][-2]["destination"] = "/x"
    with pytest.raises(Refused, match=r"brings /run/nvidia-\w+, where a service of NVIDIA's driver takes root"):
        oci.check_isolation(spec, OPTIONS, resolve=lambda path: (path.replace("/var/run", "/run"),))
    privileged = oci.Options(OPTIONS.hook_path, allow_privileged=True)
    oci.check_isolation(spec, privileged, resolve=lambda path: (path.replace("/var/run", "/run"),))


@pytest.mark.parametrize("name", ["DeviceAllow", "DevicePolicy"])
def test_a_property_of_the_unit(name: str) -> None:
    """runc and crun hand it on to systemd, whose device rules take the place of the runtime's under cgroup v1."""
    spec = docker()
    spec["annotations"] = {"org.systemd.property.TimeoutStopUSec": "uint64 1", "x": "y"}
    edit(spec)
    spec["annotations"][f"org.systemd.property.{name}"] = "'auto'"
    assert refusal(spec).startswith(f"the annotation org.systemd.property.{name} changes the device rules")


PIPES = oci.MPS_DIRECTORIES[0]


@pytest.mark.parametrize(("to", "there"), [(PIPES, ()), (f"{PIPES}/control", ()), ("/tmp", (PIPES,))], ids=str)
def test_a_link_of_the_host_to_the_pipes(tmp_path: Path, to: str, there: tuple[str, ...]) -> None:
    spec = mounting("/srv/link")
    oci.check_isolation(spec, OPTIONS, there)
    with pytest.raises(Refused, match="the pipes of an MPS daemon"):
        oci.check_isolation(spec, OPTIONS, there, resolve=lambda path: (to if path == "/srv/link" else path,))


@pytest.mark.parametrize("name", ["root/run/cgpu", "root", "cwd", "fd/0", "task/{pid}/root", "ns/net"])
@pytest.mark.parametrize("of", ["self", "thread-self", "1", "{pid}", "link"])
def test_what_a_link_of_a_process_brings_is_not_known(tmp_path: Path, name: str, of: str) -> None:
    """It reads as a path of another mount namespace, or not at all."""
    if of == "link":
        (tmp_path / "link").symlink_to("/proc/self")
    path = f"{tmp_path}/link" if of == "link" else f"/proc/{of}"
    spec = mounting(f"{path}/{name}".format(pid=os.getpid()))
    if of in ("1", "thread-self") and "task" in name:
        edit(spec)  # no such file
        return
    assert "it leads through the link /proc/" in refusal(spec) or ": Permission denied)" in refusal(spec)


@pytest.mark.parametrize("source", ["/proc/meminfo", "/proc/self/status", "a\0b", "\ud800", "/no/such/place"])
def test_other_sources_of_binds(source: str) -> None:
    spec = mounting(source)
    if source.isascii() and "\0" not in source:
        edit(spec)
    else:
        assert "which is no path" in refusal(spec)


TREES = [
    # (source, options, by which of v1, v2, nsdelegate it is refused without and with a cgroup namespace of its own)
    ("/sys/fs/cgroup", "rbind", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/sys/fs/cgroup", "rbind ro rw", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/sys/fs/cgroup", "rbind ro", "v1", "v1"),  # of v1 the controllers are mounts below it
    ("/sys/fs/cgroup", "rbind rro", "", ""),
    ("/sys/fs/cgroup/devices/docker", "bind", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/sys/fs/cgroup/devices", "rbind ro", "", ""),
    ("/sys/fs", "rbind ro", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),  # the cgroups below it stay writable
    ("/sys/fs", "bind ro", "", ""),
    ("/sys", "rbind", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/sys", "rbind ro", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/sys", "rbind ro rro", "", ""),
    ("/sys/bus/pci/devices", "rbind", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/sys/bus/pci/devices", "rbind ro", "", ""),
    ("/proc", "rbind", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/proc/driver/nvidia", "bind rw", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/proc/cgpu_km/inst_ctl", "bind", "v1 v2 nsdelegate", "v1 v2 nsdelegate"),
    ("/proc", "rbind ro", "", ""),
    ("/system", "rbind", "", ""),
]


@pytest.mark.parametrize(("source", "flags", "shared", "own"), TREES)
@pytest.mark.parametrize("kind", ["v1", "v2", "nsdelegate"])
def test_a_writable_tree_of_the_host(source: str, flags: str, shared: str, own: str, kind: str) -> None:
    """Root writes its pid to the cgroup.procs of another cgroup, and has that one's device rules."""
    spec = mounting(source, "/x", type="none", options=flags.split())
    for refused in (own, shared):
        if kind in refused.split():
            with pytest.raises(Refused, match=f"the container mounts {source} writable, or what is mounted below it"):
                oci.check_isolation(spec, OPTIONS, cgroups=kind)
        else:
            oci.check_isolation(spec, OPTIONS, cgroups=kind)
        oci.check_isolation(spec, oci.Options("/r", allow_privileged=True), cgroups=kind)
        spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] != "cgroup"]


@pytest.mark.parametrize("space", [None, {"type": "cgroup"}, {"type": "cgroup", "path": "/proc/1/ns/cgroup"}], ids=str)
@pytest.mark.parametrize("kind", ["v1", "v2", "nsdelegate"])
def test_a_writable_mount_of_cgroups(space: dict[str, str] | None, kind: str) -> None:
    spec = docker()
    spec["linux"]["namespaces"] = [{"type": "pid"}, *([space] if space else [])]
    mount = {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "ro"]}
    spec["mounts"].append(mount)
    oci.check_isolation(spec, OPTIONS, cgroups=kind)
    spec["mounts"][-1] = {**mount, "options": ["nosuid", "rw"]}
    if kind == "v1" or (kind == "nsdelegate" and space == {"type": "cgroup"}):
        oci.check_isolation(spec, OPTIONS, cgroups=kind)
        return
    with pytest.raises(Refused, match=r"the container mounts /sys/fs/cgroup writable.*--cgroupns=private"):
        oci.check_isolation(spec, OPTIONS, cgroups=kind)


def test_links_without_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    spec = mounting(f"{tmp_path}/a/x")
    assert "of which it is not known what it brings of the host: it leads through the link" in refusal(spec)


def test_mps_variable() -> None:
    spec = docker()
    spec["process"]["env"].append("CUDA_MPS_PIPE_DIRECTORY=/mps/pipe")
    assert "CUDA_MPS_PIPE_DIRECTORY=/mps/pipe leads to an MPS daemon" in refusal(spec)
    spec["process"]["env"][-1] += "x" * 5000
    assert len(refusal(spec)) < 300
    assert refusal(spec).endswith("; remove it")
    with pytest.raises(Refused):  # a container that may have all devices keeps to its slice
        edit(spec, oci.Options("/usr/bin/cgpu-runtime", allow_privileged=True))


def test_no_mps() -> None:
    spec = mounting("/tmp/nvidia-mps2")
    spec["process"]["env"].append("CUDA_MPS_PIPE_DIRECTORY=")
    edit(spec)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidiactl", True),
        ("/dev//nvidia-caps/nvidia-cap1", True),
        ("/dev/./dri/card0", True),
        ("/dev/../dev/nvidia0", True),
        ("dev/nvidia0", True),
        ("//dev/nvidia0", True),
        ("//dev/dri/card0", True),
        ("/dev/dri", True),
        ("/dev/drive", False),
        ("/dev/null", False),
        ("", False),
        (None, False),
        (7, False),
    ],
)
def test_is_gpu_path(path: Any, expected: bool) -> None:
    assert oci.is_gpu_path(path) is expected


def test_majors_of() -> None:
    text = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
226 drm
234 nvidia-uvm
235 nvidia-caps
509 cgpu
 10 misc

Block devices:
259 blkext
195 nvidia-not-a-block-device
"""
    assert numbers.majors_of(text) == {195, 226, 234, 235, 509}


@pytest.mark.parametrize("text", ["", "\n", "Block devices:\n259 blkext\n", "Character devices:\n", "195 nvidia\n"])
def test_without_the_numbers_of_the_drivers_no_spec_is_edited(text: str) -> None:
    """A node of the real driver under another name is known by its number only: it would stay in the container."""
    with pytest.raises(Refused, match="/proc/devices cannot be read"):
        numbers.majors_of(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    ("process",),
    ("process", "env"),
    ("process", "capabilities"),
    ("mounts",),
    ("hooks",),
    ("hooks", "createRuntime"),
    ("hooks", "prestart"),
    ("linux",),
    ("linux", "devices"),
    ("linux", "namespaces"),
    ("linux", "maskedPaths"),
    ("linux", "readonlyPaths"),
    ("linux", "resources"),
    ("linux", "resources", "devices"),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PLACES), JSON)
def test_junk_anywhere_is_edited_or_refused(place: tuple[str, ...], junk: Any) -> None:
    spec = docker()
    target = spec
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = junk
    try:
        oci.process_env(spec)
        out = edit(spec)
    except Refused:
        return
    rules = [rule for rule in out["linux"]["resources"]["devices"] if rule.get("allow") and rule.get("type") != "b"]
    devices = {(rule.get("major"), rule.get("minor")) for rule in rules}
    assert not {major for major, _ in devices} & {195, 511}
    assert {(509, 4), (509, 5), (509, 6)} <= devices


# ---- files ----


def test_write_is_atomic_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a":1}')
    path.chmod(0o640)
    bundle.write(str(tmp_path), {"a": "\u2028é"})
    assert bundle.read(str(tmp_path)) == {"a": "\u2028é"}
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a":1}')
    with pytest.raises(Refused, match="cannot be written"):
        bundle.write(str(tmp_path), {"a": "\ud800"})
    assert path.read_text() == '{"a":1}'
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100000, "7"])
def test_damaged_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(Refused):
        bundle.read(str(tmp_path))


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        bundle.read(str(tmp_path))


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    """The daemon reads in its event loop, so it must neither wait for such a file nor read it.

    The test reads in a child process, which can be killed.
    """
    bundles = [tmp_path / kind for kind in ("endless device", "link to a device", "fifo", "directory")]
    endless, device, fifo, directory = paths = [folder / "config.json" for folder in bundles]
    for folder in bundles:
        folder.mkdir()
    endless.symlink_to("/dev/zero")
    device.symlink_to("/dev/null")
    os.mkfifo(fifo)
    directory.mkdir()
    out = subprocess.run(
        [sys.executable, "-c", READ, *bundles],
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert out.stdout.splitlines() == [f"{path} is not a regular file" for path in paths]


READ = """
import resource, sys
from cgpud import bundle
from cgpu_common.errors import Refused
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for path in sys.argv[1:]:
    try:
        bundle.read(path)
    except Refused as error:
        print(error)
"""


def test_a_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text('{"a":1}')
    (tmp_path / "config.json").symlink_to("real")
    assert bundle.read(str(tmp_path)) == {"a": 1}


def test_the_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cgpud.bundle.SIZE_MAX", 100)
    path = tmp_path / "config.json"
    path.write_text('{"a":1}'.ljust(100))
    assert bundle.read(str(tmp_path)) == {"a": 1}
    path.write_text('{"a":1}'.ljust(101))
    with pytest.raises(Refused, match="is larger than"):
        bundle.read(str(tmp_path))
